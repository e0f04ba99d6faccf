//! Kernel interface of the shim's rules and sets: iptables with ipset, or nftables.

use iptables::Iptables;

/// Kernel interface to which the proxy writes the shim (the rules beside IPVS) and its sets.
#[derive(Debug, Clone)]
pub enum Carrier {
    /// iptables, with ipsets.
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
