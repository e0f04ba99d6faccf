//! Places of leftovers from other modes.

use std::fmt;

use footprint::Footprints;
use iptables::Backend;

pub use footprint::Leftovers;
use footprint::{Finder, HeldChainAction};

use crate::footprint::FOOTPRINT;

/// Place of leftovers from another mode, or from a run with the other backend of iptables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeftoverPlace {
    /// In the shim's backend of iptables, next to the shim.
    Beside(Backend),
    /// In the iptables backend that is not in use.
    Other(Backend),
    /// In nftables: whole tables, with empty [`Leftovers`].
    Nftables,
    /// In nftables: tables of modes that serve packets only while their process runs.
    Ended,
    /// In nftables: the table of this mode's shim, if the shim is elsewhere now.
    OwnTable,
    /// Ipsets of this mode, if its shim is in nftables. They are removed after the rules that match
    /// them.
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

/// Returns leftovers of other modes in the output of `iptables-save`, without chains that the shim
/// uses. The leftovers serve until the shim is installed.
pub fn beside_the_shim(modes: Footprints, saved: &str) -> Leftovers {
    Leftovers::find(
        Finder::beside(&FOOTPRINT, modes, HeldChainAction::Stays),
        saved,
    )
}
