//! The two packet filters of the kernel that iptables writes to, and the families that it has.

use std::fmt;
use std::path::Path;

use inet::IpFamily;

use crate::error::IptablesError;
use crate::iptables::unlisted;
use crate::obstacles::DormantTable;
use crate::table::Table;
use crate::{legacy, nft};

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

    /// The chains that somebody has made in its tables, as the kernel says, in the network
    /// namespace of the calling thread. Starts no process; `None` if it cannot be told.
    pub fn chains(self, family: IpFamily) -> Option<Vec<(Table, String)>> {
        match self {
            Self::Nft => nft::chains(family),
            Self::Legacy => legacy::chains(family),
        }
    }

    /// Returns its tables that nft has switched off, in the network namespace of the calling thread.
    /// Starts no process.
    ///
    /// # Errors
    ///
    /// The kernel does not say.
    pub fn dormant_tables(self, family: IpFamily) -> Result<Vec<DormantTable>, IptablesError> {
        let names = match self {
            Self::Nft => nft::dormant_tables(family).map_err(|error| unlisted(&error))?,
            Self::Legacy => Vec::new(),
        };
        let names = names.into_iter();
        Ok(names.map(|name| DormantTable { family, name }).collect())
    }
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
