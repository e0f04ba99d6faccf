//! Variant of a mode and the kernel features that it uses on this node, for the operator.

use inet::IpFamily;
use iptables::Iptables;

/// Variant in which a mode runs on this node, and the kernel features that it uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Uses {
    /// Settings that make up the variant, such as `shim upstream` or `scheduler rr`.
    pub forms: Vec<String>,
    /// The iptables backend of the mode's rules, with the reason why it was chosen. `None` if the
    /// mode has no iptables rules.
    pub backend: Option<String>,
    /// Kernel features that the mode needs.
    pub parts: Vec<KernelFeature>,
    /// IP families that the mode cannot serve on this node, each with the reason.
    pub left_out: Vec<(IpFamily, String)>,
}

/// A kernel feature that a mode uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelFeature {
    /// IPVS, with the scheduler that the mode uses.
    Ipvs {
        /// Name of the scheduler.
        scheduler: String,
    },
    /// Support for ipsets in the kernel.
    Ipset,
    /// Support for nf_tables in the kernel.
    NfTables,
    /// iptables rules of this backend, `nft` or `legacy`.
    Iptables(String),
}

/// Returns the name of an iptables backend, with the reason for its choice.
pub fn backend(iptables: &Iptables) -> String {
    format!("iptables {} ({})", iptables.backend(), iptables.why())
}
