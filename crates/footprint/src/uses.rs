//! What a mode is made of on this node, for who looks: the forms that it has, and the parts of the
//! kernel that it needs.

use inet::IpFamily;
use iptables::Iptables;

/// What a mode is made of here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Uses {
    /// What of it has several forms, in words: `shim upstream`, `scheduler rr`.
    pub forms: Vec<String>,
    /// The backend of iptables, if it has rules there, and why it was chosen.
    pub backend: Option<String>,
    /// The parts of the kernel that it needs.
    pub parts: Vec<Part>,
    /// Families that cannot be served, and why.
    pub left_out: Vec<(IpFamily, String)>,
}

/// A part of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// IPVS, with this scheduler.
    Ipvs {
        /// The scheduler's name.
        scheduler: String,
    },
    /// Sets of ipset.
    Ipset,
    /// Tables of nf_tables.
    NfTables,
    /// Rules by the programs of this backend: `nft`, `legacy`.
    Iptables(String),
}

/// A backend of iptables in words, and why it was chosen.
pub fn backend(iptables: &Iptables) -> String {
    format!("iptables {} ({})", iptables.backend(), iptables.why())
}
