//! What a mode is made of on this node, for who looks: the forms that it has, and the parts of the
//! kernel that it needs.

use iptables::Iptables;
use proxy::IpFamily;

/// What a mode is made of here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    /// What of it has several forms, in words: `shim upstream`, `scheduler rr`.
    pub(crate) forms: Vec<String>,
    /// The backend of iptables, if it has rules there, and why it was chosen.
    pub(crate) backend: Option<String>,
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

/// A backend of iptables in words, and why it was chosen.
pub(super) fn backend(iptables: &Iptables) -> String {
    format!("iptables {} ({})", iptables.backend(), iptables.why())
}
