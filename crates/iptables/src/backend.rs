//! The two packet filters of the kernel that iptables writes to, and the families that it has.

use std::fmt;
use std::path::Path;

use inet::IpFamily;

use crate::error::IptablesError;

/// Which of the kernel's two packet filters iptables writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Backend {
    /// nftables, through `nft_compat`.
    Nft,
    /// `ip_tables`.
    Legacy,
}

impl Backend {
    /// Preferred first, as upstream's iptables-wrappers do where nothing speaks for either.
    pub const ALL: [Self; 2] = [Self::Nft, Self::Legacy];
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nft => "nft",
            Self::Legacy => "legacy",
        })
    }
}

/// Whether the kernel has a family.
///
/// # Errors
///
/// It has no IPv6.
pub fn exists(family: IpFamily) -> Result<(), IptablesError> {
    if family == IpFamily::V6 && !Path::new("/proc/thread-self/net/if_inet6").exists() {
        return Err(IptablesError::NoIpv6);
    }
    Ok(())
}

/// Why a backend was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It was asked for.
    Asked,
    /// No other is installed.
    Alone,
    /// No other can be used here.
    Usable,
    /// The kubelet's chains are in it.
    Hint,
    /// It has chains of a kube-proxy.
    Chains,
    /// It has more rules than the other.
    Rules,
    /// Nothing speaks for another.
    First,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Asked => "asked for",
            Self::Alone => "no other is installed",
            Self::Usable => "no other can be used here",
            Self::Hint => "the kubelet's chains are in it",
            Self::Chains => "chains of a kube-proxy are in it",
            Self::Rules => "it has more rules than the other",
            Self::First => "the other has no rules",
        })
    }
}
