//! The variants of a mode on this node and the kernel features that it needs, for observers.

use inet::IpFamily;
use iptables::Iptables;

/// Variants and kernel features of a mode on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Uses {
    /// Chosen variants, such as `shim upstream` or `scheduler rr`.
    pub forms: Vec<String>,
    /// The iptables backend of the mode's rules, with the reason for its choice. `None` if the mode
    /// has no iptables rules.
    pub backend: Option<String>,
    /// Kernel features that the mode needs.
    pub parts: Vec<KernelFeature>,
    /// Families that cannot be served, with the reason.
    pub left_out: Vec<(IpFamily, String)>,
}

/// A kernel feature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelFeature {
    /// IPVS with a scheduler.
    Ipvs {
        /// Name of the scheduler.
        scheduler: String,
    },
    /// The kernel's ipset.
    Ipset,
    /// The kernel's nf_tables.
    NfTables,
    /// iptables rules of this backend, `nft` or `legacy`.
    Iptables(String),
}

/// Describes an iptables backend, with the reason for the choice.
pub fn backend(iptables: &Iptables) -> String {
    format!("iptables {} ({})", iptables.backend(), iptables.why())
}
