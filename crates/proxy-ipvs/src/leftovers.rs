//! Places in the kernel where another mode, or an earlier run with other settings, may have left
//! entries.

use std::fmt;

use footprint::Footprints;
use iptables::Backend;

pub use footprint::Leftovers;
use footprint::{Finder, ReferencedChain};

use crate::footprint::FOOTPRINT;

/// Place in the kernel with leftovers of another mode, or of an earlier run with other settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeftoverPlace {
    /// Chains in the iptables backend to which this mode writes its shim.
    Beside(Backend),
    /// Chains in an iptables backend to which this mode does not write.
    Other(Backend),
    /// nftables tables of modes whose rules serve packets even after the mode's process has ended.
    /// The whole table is removed, so [`Leftovers`] is empty.
    Nftables,
    /// nftables tables of modes whose rules serve packets only while the mode's process runs.
    Ended,
    /// This mode's own nftables table, after a change of `--ipvs-shim` moved the shim to iptables.
    OwnTable,
    /// This mode's ipsets, after a change of `--ipvs-shim` moved the shim to nftables. The proxy
    /// removes the rules that match these sets first.
    Ipsets,
}

impl fmt::Display for LeftoverPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Beside(backend) | Self::Other(backend) => write!(f, "iptables ({backend})"),
            Self::Nftables | Self::Ended | Self::OwnTable => f.write_str("nftables"),
            Self::Ipsets => f.write_str("ipset"),
        }
    }
}

/// Returns other modes' leftovers in the output of `iptables-save`, which serve packets until the
/// shim is installed. Skips chains whose names the shim uses as well.
pub fn beside_the_shim(modes: Footprints, saved: &str) -> Leftovers {
    Leftovers::find(
        Finder::beside(&FOOTPRINT, modes, ReferencedChain::Keep),
        saved,
    )
}
