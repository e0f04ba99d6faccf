//! Kernel interface for the shim's rules and sets: iptables with ipset, or nftables.

use iptables::Iptables;

/// Kernel interface for the rules and sets of the shim. The shim is the set of rules beside IPVS.
#[derive(Debug, Clone)]
pub enum Carrier {
    /// iptables, with sets in ipset.
    Iptables(Iptables),
    /// An nftables table, which needs no external program.
    Nftables,
}

impl Carrier {
    pub(super) fn is_nftables(&self) -> bool {
        matches!(self, Self::Nftables)
    }
}

impl From<Iptables> for Carrier {
    fn from(iptables: Iptables) -> Self {
        Self::Iptables(iptables)
    }
}
