//! Verdicts on simulated packets: whether a client's packets reach an endpoint, and which client
//! address the endpoint sees.

use std::collections::{BTreeMap, BTreeSet};

use packet_path::{Fate, Source, Walk};
use proxy::Target;

use crate::stepped_threads::Front;

/// Verdicts by frontend: one for each path that packets to the frontend can take.
pub type Verdicts = BTreeMap<Front, BTreeSet<Verdict>>;

/// Result of simulated packets on one path to a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The packets reach this endpoint, which sees this client address.
    Accepted(Target, SeenClient),
    /// The kernel rejects the packets, so that the client gets an error.
    Rejected,
    /// The kernel silently drops the packets.
    Dropped,
    /// The packets match no rule and no virtual server that leads to an endpoint.
    Missed,
}

/// Client address that an endpoint sees in a client's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SeenClient {
    /// The client's own address.
    Client,
    /// The node's address, after masquerading or through a relay.
    Node,
}

impl Verdict {
    /// Returns the endpoint that the packets reach, or `None`.
    pub fn target(&self) -> Option<Target> {
        match self {
            Self::Accepted(target, _) => Some(*target),
            Self::Rejected | Self::Dropped | Self::Missed => None,
        }
    }

    /// Converts the simulated walk of a packet into a verdict.
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

/// Returns one verdict for each of these endpoints, all with the same client address. For subjects
/// that simulate no packets, or whose relay carries all connections.
pub(crate) fn accepted(
    targets: impl IntoIterator<Item = Target>,
    seen: SeenClient,
) -> BTreeSet<Verdict> {
    let targets = targets.into_iter();
    targets
        .map(|target| Verdict::Accepted(target, seen))
        .collect()
}

/// Returns true if packets on at least one path reach an endpoint.
pub fn is_served(verdicts: &BTreeSet<Verdict>) -> bool {
    verdicts.iter().any(|verdict| verdict.target().is_some())
}
