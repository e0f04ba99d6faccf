//! Describes to the operator in which variant a mode runs on this node, and which kernel features
//! it uses.

use inet::IpFamily;
use iptables::Iptables;

/// The variant in which a mode runs on this node, and the kernel features that it uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Uses {
    /// Names of the variant's settings, such as `shim upstream` or `scheduler rr`.
    pub forms: Vec<String>,
    /// The iptables backend that the mode writes to, with the reason for the choice. `None` if the
    /// mode has no iptables rules.
    pub backend: Option<String>,
    /// Kernel features that the mode needs.
    pub parts: Vec<KernelFeature>,
    /// IP families that the mode cannot serve on this node, each with the reason.
    pub left_out: Vec<(IpFamily, String)>,
}

/// A kernel feature that a mode needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelFeature {
    /// IPVS, with the scheduler of the mode's virtual servers.
    Ipvs {
        /// Name of the IPVS scheduler, such as `rr`.
        scheduler: String,
    },
    /// Support for ipsets (module `ip_set`).
    Ipset,
    /// Support for nf_tables.
    NfTables,
    /// iptables rules of the backend `nft` or `legacy`.
    Iptables(String),
}

/// Returns the name of the iptables backend in use, with the reason for its choice.
pub fn backend(iptables: &Iptables) -> String {
    format!("iptables {} ({})", iptables.backend(), iptables.why())
}
