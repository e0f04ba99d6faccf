//! Places in the kernel where other modes leave entries.

use std::fmt;

use footprint::Footprints;
use iptables::Backend;

pub use footprint::Leftovers;
use footprint::{Finder, ReferencedChain};

use crate::footprint::FOOTPRINT;

/// Place of leftovers from another mode, or from a run with the other iptables backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeftoverPlace {
    /// The iptables backend into which this mode writes its shim.
    Beside(Backend),
    /// The iptables backend that this mode does not use.
    Other(Backend),
    /// Whole nftables tables of other modes. [`Leftovers`] is then empty.
    Nftables,
    /// Nftables tables of modes that serve packets only while their process runs.
    Ended,
    /// The nftables table of this mode's shim, after `--ipvs-shim` moved the shim to iptables.
    OwnTable,
    /// Ipsets of IPVS mode, after `--ipvs-shim` moved the shim to nftables. The proxy first removes
    /// the rules that match these sets.
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
/// until the shim is installed. Omits chains that the shim also uses.
pub fn beside_the_shim(modes: Footprints, saved: &str) -> Leftovers {
    Leftovers::find(
        Finder::beside(&FOOTPRINT, modes, ReferencedChain::Keep),
        saved,
    )
}
