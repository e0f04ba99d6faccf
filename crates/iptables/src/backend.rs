//! The two backends of iptables (packet filters of the kernel), and the reasons to choose one of
//! them.

use std::fmt;
use std::path::Path;

use inet::IpFamily;

use crate::error::IptablesError;

/// A packet filter of the kernel to which iptables programs can write rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Backend {
    /// The backend nft: rules in nftables, with the kernel module `nft_compat`.
    Nft,
    /// The backend legacy: rules in legacy iptables, with the kernel module `ip_tables`.
    Legacy,
}

impl Backend {
    /// Both backends, in order of preference. Upstream's iptables-wrappers also prefers nft if
    /// existing rules favour neither backend.
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

/// Checks that the kernel supports an IP family.
///
/// # Errors
///
/// Fails if the kernel lacks IPv6.
pub fn exists(family: IpFamily) -> Result<(), IptablesError> {
    if family == IpFamily::V6 && !Path::new("/proc/thread-self/net/if_inet6").exists() {
        return Err(IptablesError::NoIpv6);
    }
    Ok(())
}

/// Reason for the choice of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendReason {
    /// The user requested this backend.
    Asked,
    /// Only this backend is installed.
    Alone,
    /// Only this backend works on this node.
    Usable,
    /// This backend has the chains that the kubelet creates to show which backend it uses.
    Hint,
    /// This backend has chains of a kube-proxy (`KUBE-*`).
    Chains,
    /// This backend has more rules than the other backend.
    Rules,
    /// No existing rules favour the other backend, so the first backend of [`Backend::ALL`] is
    /// chosen.
    First,
}

impl fmt::Display for BackendReason {
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
