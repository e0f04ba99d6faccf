//! The netlink protocols that a connection supports.

use std::fmt;

/// A netlink protocol, that is, a group of kernel subsystems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses and routes (`NETLINK_ROUTE`). The kernel checks requests strictly
    /// (`NETLINK_GET_STRICT_CHK`, Linux 4.20). So a dump needs the full fixed header of its family.
    /// The kernel filters the dump by the fields that are set in this header.
    Route,
    /// ipset, conntrack and nf\_tables (`NETLINK_NETFILTER`).
    Netfilter,
    /// IPVS and other generic families, selected by family id (`NETLINK_GENERIC`).
    Generic,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Route => "NETLINK_ROUTE",
            Self::Netfilter => "NETLINK_NETFILTER",
            Self::Generic => "NETLINK_GENERIC",
        })
    }
}
