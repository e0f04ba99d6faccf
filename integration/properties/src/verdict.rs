//! Verdicts: the end of a client's packets, and the address that an endpoint sees.

use std::collections::{BTreeMap, BTreeSet};

use packet_path::{Fate, Source, Walk};
use proxy::Target;

use crate::turnstile::Front;

/// Verdicts of a front, one for each way that its packets may take.
pub type Verdicts = BTreeMap<Front, BTreeSet<Verdict>>;

/// The end of one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// An endpoint gets the packets.
    Accepted(Target, SeenClient),
    /// The client receives a refusal.
    Rejected,
    /// The client receives nothing.
    Dropped,
    /// No rule and no virtual server sends the packets to an endpoint.
    Missed,
}

/// The address that an endpoint sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SeenClient {
    /// The client's own.
    Client,
    /// The node's, by masquerading or because a process of the node relays.
    Node,
}

impl Verdict {
    /// Returns the endpoint, if there is one.
    pub fn target(&self) -> Option<Target> {
        match self {
            Self::Accepted(target, _) => Some(*target),
            Self::Rejected | Self::Dropped | Self::Missed => None,
        }
    }

    /// Reads the verdict off one way of a packet.
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

/// Returns verdicts that say only who serves: where rules are not asked, or a relay carries all.
pub(crate) fn accepted(
    targets: impl IntoIterator<Item = Target>,
    seen: SeenClient,
) -> BTreeSet<Verdict> {
    let targets = targets.into_iter();
    targets
        .map(|target| Verdict::Accepted(target, seen))
        .collect()
}

/// Reports whether any endpoint gets packets.
pub fn is_served(verdicts: &BTreeSet<Verdict>) -> bool {
    verdicts.iter().any(|verdict| verdict.target().is_some())
}
