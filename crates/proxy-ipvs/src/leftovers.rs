//! Places in the kernel where other modes or earlier runs left entries.

use std::fmt;

use footprint::Footprints;
use iptables::Backend;

pub use footprint::Leftovers;
use footprint::{Finder, ReferencedChain};

use crate::footprint::FOOTPRINT;

/// Place of leftovers from another mode, or from an earlier run with other settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeftoverPlace {
    /// Chains in the iptables backend into which this mode writes its shim.
    Beside(Backend),
    /// Chains in an iptables backend into which this mode does not write.
    Other(Backend),
    /// Nftables tables of modes whose rules serve packets even if their process has ended. Such
    /// tables are removed as a whole, so [`Leftovers`] is empty.
    Nftables,
    /// Nftables tables of modes that serve packets only while their process runs.
    Ended,
    /// The nftables table of this mode's shim, after a change of `--ipvs-shim` moved the shim to
    /// iptables.
    OwnTable,
    /// Ipsets of IPVS mode, after a change of `--ipvs-shim` moved the shim to nftables. The proxy
    /// first removes the rules that match these sets.
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

/// Returns leftovers of other modes in the output of `iptables-save`. These leftovers serve packets
/// until the shim is installed. Skips chains whose names the shim also uses.
pub fn beside_the_shim(modes: Footprints, saved: &str) -> Leftovers {
    Leftovers::find(
        Finder::beside(&FOOTPRINT, modes, ReferencedChain::Keep),
        saved,
    )
}
