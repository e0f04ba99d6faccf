//! What a mode is made of on this node, for who looks: the forms that it has, and the parts of the
//! kernel that it needs.

use proxy::IpFamily;

/// What a mode is made of here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    /// What of it has several forms, in words: `shim upstream`, `scheduler rr`.
    pub(crate) forms: Vec<String>,
    pub(crate) parts: Vec<Part>,
    /// Families that cannot be served, and why.
    pub(crate) left_out: Vec<(IpFamily, String)>,
}

/// A part of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// IPVS, with this scheduler.
    Ipvs {
        scheduler: String,
    },
    Ipset,
    NfTables,
    /// Rules by the programs of this backend: `nft`, `legacy`.
    Iptables(String),
}
