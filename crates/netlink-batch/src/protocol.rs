//! The netlink protocols that a connection supports.

use std::fmt;

/// A netlink protocol of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// `NETLINK_ROUTE`: links, addresses, routes. The kernel checks requests strictly
    /// (`NETLINK_GET_STRICT_CHK`, Linux 4.20): a dump needs its family's full fixed header and is
    /// filtered by the fields set in it.
    Route,
    /// `NETLINK_NETFILTER`: ipset, conntrack.
    Netfilter,
    /// `NETLINK_GENERIC`: IPVS and others, by family id.
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
