//! Verdicts. A verdict says which endpoint a client's packets reach (if any), and which client
//! address the endpoint sees.

use std::collections::{BTreeMap, BTreeSet};

use packet_path::{Fate, Source, Walk};
use proxy::Target;

use crate::stepped_threads::Front;

/// Verdicts of each frontend. Packets to a frontend may take several paths. Each path has one
/// verdict.
pub type Verdicts = BTreeMap<Front, BTreeSet<Verdict>>;

/// Verdict on the packets that take one path to a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The kernel delivers the packets to an endpoint.
    Accepted(Target, SeenClient),
    /// The kernel rejects the packets, so that the client gets an error.
    Rejected,
    /// The kernel silently drops the packets.
    Dropped,
    /// No rule and no virtual server sends the packets to an endpoint.
    Missed,
}

/// Client address that an endpoint sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SeenClient {
    /// The endpoint sees the client's own address.
    Client,
    /// The endpoint sees the node's address, because of masquerading or a relay process.
    Node,
}

impl Verdict {
    /// Returns the endpoint that receives the packets, if any.
    pub fn target(&self) -> Option<Target> {
        match self {
            Self::Accepted(target, _) => Some(*target),
            Self::Rejected | Self::Dropped | Self::Missed => None,
        }
    }

    /// Converts the simulated path of a packet into a verdict.
    pub(crate) fn of(walk: &Walk) -> Self {
        match (walk.presumed, walk.endpoint) {
            (Fate::Delivered, Some(at)) => {
                let (ip, port) = (at.ip(), at.port());
                let seen = match walk.source {
                    Source::Kept | Source::ServiceAddress => SeenClient::Client,
                    Source::Masqueraded(_) | Source::Rewritten(_) => SeenClient::Node,
                };
                Self::Accepted(Target { ip, port }, seen)
            }
            (Fate::Refused, _) => Self::Rejected,
            (Fate::Dropped, _) => Self::Dropped,
            _ => Self::Missed,
        }
    }
}

/// Returns verdicts for these endpoints, each with the same client address. Callers use this
/// function if they do not evaluate rules, or if a relay carries all connections.
pub(crate) fn accepted(
    targets: impl IntoIterator<Item = Target>,
    seen: SeenClient,
) -> BTreeSet<Verdict> {
    let targets = targets.into_iter();
    targets
        .map(|target| Verdict::Accepted(target, seen))
        .collect()
}

/// Reports whether any endpoint receives packets.
pub fn is_served(verdicts: &BTreeSet<Verdict>) -> bool {
    verdicts.iter().any(|verdict| verdict.target().is_some())
}
