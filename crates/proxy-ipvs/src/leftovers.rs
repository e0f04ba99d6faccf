//! Where other modes have left something.

use std::fmt;

use footprint::Footprints;
use iptables::Backend;

pub use footprint::Leftovers;
use footprint::{Finder, Held};

use crate::footprint::FOOTPRINT;

/// Where another mode, or a run with the other backend of iptables, has left something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// Beside the shim, in the same backend.
    Beside(Backend),
    /// In the backend that is not used.
    Other(Backend),
    /// In nftables: tables that go as a whole. Its [`Leftovers`] are empty.
    Nftables,
    /// The same of modes that serve only as long as their process runs.
    Ended,
    /// In nftables: the table that this mode's own shim has there, if it is not used. It goes as a
    /// whole.
    OwnTable,
    /// This mode's own ipsets, where its shim is in nftables. They go after the rules that name
    /// them.
    Ipsets,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Beside(backend) | Self::Other(backend) => write!(f, "iptables ({backend})"),
            Self::Nftables | Self::Ended | Self::OwnTable => f.write_str("nftables"),
            Self::Ipsets => f.write_str("ipset"),
        }
    }
}

/// What other modes have left in what `iptables-save` printed that the shim has no use for. They
/// serve until the shim is there.
pub fn beside_the_shim(modes: Footprints, saved: &str) -> Leftovers {
    Leftovers::find(Finder::beside(&FOOTPRINT, modes, Held::Stays), saved)
}
