//! Carrier of the shim: iptables with ipset, or nftables.

use iptables::Iptables;

/// Carrier of sets and rules.
#[derive(Debug, Clone)]
pub enum Carrier {
    /// ipset and iptables.
    Iptables(Iptables),
    /// A table of nftables. No program is ever started.
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
