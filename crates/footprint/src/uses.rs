//! The forms that a mode has on this node and the kernel features that it needs, for observers.

use inet::IpFamily;
use iptables::Iptables;

/// Forms and kernel features of a mode on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Uses {
    /// Chosen forms, in words: `shim upstream`, `scheduler rr`.
    pub forms: Vec<String>,
    /// The iptables backend of the mode's rules and the reason for the choice, if it has rules
    /// there.
    pub backend: Option<String>,
    /// Kernel features that the mode needs.
    pub parts: Vec<Part>,
    /// Families that cannot be served, with the reason.
    pub left_out: Vec<(IpFamily, String)>,
}

/// A kernel feature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// IPVS, with this scheduler.
    Ipvs {
        /// The scheduler's name.
        scheduler: String,
    },
    /// ipset.
    Ipset,
    /// nf_tables.
    NfTables,
    /// iptables rules, written by the programs of this backend: `nft`, `legacy`.
    Iptables(String),
}

/// Describes an iptables backend, with the reason for the choice.
pub fn backend(iptables: &Iptables) -> String {
    format!("iptables {} ({})", iptables.backend(), iptables.why())
}
