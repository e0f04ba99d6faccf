//! Outcomes of the paths that a packet may take.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::branch::{Branch, Doubt, End, Step};
use crate::packet::{Packet, SourceNat};

/// Maximum number of paths that are reported separately. If a packet has more, paths with the same
/// outcome are joined.
const MOST_TOLD: usize = 64;

/// One path of a packet, from the packet's sender to the end of the path.
#[derive(Debug, Clone, PartialEq)]
pub struct Walk {
    /// Probability of the path, from 0 to 1. For an IPVS scheduler that is not random, this is the
    /// destination's share of the connections. After a rule with unknown outcome, both paths (match
    /// and no match) keep the full probability.
    pub chance: f64,
    /// Fate of the packet at the end of the path.
    pub fate: Fate,
    /// Fate of the packet if the path's assumptions are right. Differs from `fate` only if the path
    /// has assumptions.
    pub presumed: Fate,
    /// Address and port that the packet reaches, or `None` if it is dropped, rejected or unknown.
    pub endpoint: Option<SocketAddr>,
    /// Message to the sender of a rejected packet, or reason for a missing route or an unknown
    /// fate. Empty for every other fate.
    pub why: String,
    /// Source address that the packet's receiver sees.
    pub source: Source,
    /// Steps of the path, in the order in which the packet passes them.
    pub steps: Vec<Arc<Step>>,
    /// Step of the rule that last changed the destination (DNAT), or `None` if no rule did.
    pub redirected_by: Option<Arc<Step>>,
    /// Number of rules on the path that had no effect.
    pub passed: usize,
    /// Assumptions about rules with unknown outcome.
    pub doubts: Vec<Doubt>,
    /// The packet at the end of the path.
    pub packet: Packet,
}

/// Fate of a packet at the end of its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// The packet reaches an endpoint that a rule or IPVS has chosen.
    Delivered,
    /// The packet is rejected, and its sender gets a message.
    Refused,
    /// The packet has no route, and its sender gets a message.
    Unrouted,
    /// The packet is dropped, and its sender gets no message.
    Dropped,
    /// The packet is for this node. A process receives it, if one listens on the port.
    Local,
    /// The packet leaves the node towards its original destination.
    Forwarded,
    /// The packet's fate is unknown. [`Walk::why`] has the reason.
    Unknown,
}

/// Source address that the packet's receiver sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// The receiver sees the sender's own address.
    Kept,
    /// The receiver sees the address to which the sender sent, because the node uses this address
    /// as the source of its own packets to it.
    ServiceAddress,
    /// The receiver sees this address of the output interface. `None` if the address is unknown.
    Masqueraded(Option<IpAddr>),
    /// The receiver sees the address that a rule sets. `None` if the rule sets only the port.
    Rewritten(Option<IpAddr>),
}

/// Fate, endpoint, reason and source of a path. Paths with equal values have the same outcome.
type Outcome = (Fate, Option<SocketAddr>, String, Source);

impl Walk {
    pub(crate) fn of(branch: Branch) -> Self {
        let packet = &branch.packet;
        let is_sent_on =
            packet.server.is_some() || (packet.destination_changed && !packet.is_redirected);
        let arrived = |otherwise| {
            if is_sent_on {
                Fate::Delivered
            } else {
                otherwise
            }
        };
        let (fate, why) = match branch.end.unwrap_or(End::Forwarded) {
            End::Dropped => (Fate::Dropped, String::new()),
            End::Refused(how) => (Fate::Refused, how),
            End::Unrouted(why) => (Fate::Unrouted, why),
            End::Local => (arrived(Fate::Local), String::new()),
            End::Forwarded => (arrived(Fate::Forwarded), String::new()),
            End::Unknown(why) => (Fate::Unknown, why),
        };
        let endpoint = match fate {
            Fate::Delivered => packet.real_server.or(Some(packet.to())),
            Fate::Local | Fate::Forwarded => Some(packet.to()),
            Fate::Dropped | Fate::Refused | Fate::Unrouted | Fate::Unknown => None,
        };
        Self {
            chance: branch.chance,
            fate,
            presumed: fate,
            endpoint,
            why,
            source: source(packet),
            steps: branch.steps,
            redirected_by: branch.redirected_by,
            passed: branch.passed,
            doubts: branch.doubts,
            packet: branch.packet,
        }
    }

    fn outcome(&self) -> Outcome {
        (self.presumed, self.endpoint, self.why.clone(), self.source)
    }
}

fn source(packet: &Packet) -> Source {
    match packet.source_nat {
        Some(SourceNat::Masquerade(address)) => Source::Masqueraded(address),
        Some(SourceNat::To(address, _)) => Source::Rewritten(address),
        None if packet.source == packet.original.ip() => Source::ServiceAddress,
        None => Source::Kept,
    }
}

/// Converts the ended paths of a packet to outcomes. Drops assumptions that do not affect the
/// outcome, and joins paths if there are many.
pub(crate) fn settle(branches: Vec<Branch>) -> Vec<Walk> {
    let mut walks: Vec<Walk> = branches.into_iter().map(Walk::of).collect();
    let mut doubted: Vec<Arc<str>> = Vec::new();
    for doubt in walks.iter().flat_map(|walk| &walk.doubts) {
        if !doubted.contains(&doubt.what) {
            doubted.push(Arc::clone(&doubt.what));
        }
    }
    // Starts with the last doubt, because without it, the two paths of an earlier doubt may become
    // equal.
    for what in doubted.iter().rev() {
        if is_the_same(&walks, what) {
            walks.retain(|walk| !takes(walk, what, true));
            for walk in &mut walks {
                walk.doubts.retain(|doubt| doubt.what != *what);
            }
        }
    }
    for walk in &mut walks {
        if let Some(doubt) = walk.doubts.first() {
            walk.fate = Fate::Unknown;
            walk.why = format!("it depends on an unsupported rule: {}", doubt.what);
        }
    }
    let is_many = walks.len() > MOST_TOLD;
    walks = joined(walks, is_many);
    walks.sort_by(|one, other| {
        let by_chance = other.chance.total_cmp(&one.chance);
        by_chance.then_with(|| one.endpoint.cmp(&other.endpoint))
    });
    walks
}

fn takes(walk: &Walk, what: &str, matches: bool) -> bool {
    let is = |doubt: &Doubt| *doubt.what == *what && doubt.matches == matches;
    walk.doubts.iter().any(is)
}

/// Reports whether a rule with unknown outcome leads to the same outcomes with and without a match.
fn is_the_same(walks: &[Walk], what: &str) -> bool {
    const LITTLE: f64 = 1e-6;
    let side = |matches| {
        let mut chances: HashMap<Outcome, f64> = HashMap::new();
        for walk in walks.iter().filter(|walk| takes(walk, what, matches)) {
            *chances.entry(walk.outcome()).or_default() += walk.chance;
        }
        chances
    };
    let (yes, no) = (side(true), side(false));
    let is_near = |outcome: &Outcome, chance: f64| {
        no.get(outcome)
            .is_some_and(|other| (other - chance).abs() < LITTLE)
    };
    yes.len() == no.len()
        && yes
            .iter()
            .all(|(outcome, chance)| is_near(outcome, *chance))
}

/// Joins paths with the same outcome, and keeps the steps of the first of them. If `is_many` is
/// false, joins only paths without endpoint that end at the same object.
fn joined(walks: Vec<Walk>, is_many: bool) -> Vec<Walk> {
    let mut places: HashMap<(Outcome, Vec<Doubt>, String), usize> = HashMap::new();
    let mut kept: Vec<Walk> = Vec::new();
    for walk in walks {
        if walk.endpoint.is_some() && !is_many {
            kept.push(walk);
            continue;
        }
        let last = walk.steps.last().filter(|_| !is_many);
        let last = last.map_or_else(String::new, |step| step.entry.clone());
        let mut outcome = walk.outcome();
        if walk.endpoint.is_none() {
            outcome.3 = Source::Kept;
        }
        let key = (outcome, walk.doubts.clone(), last);
        if let Some(same) = places.get(&key).and_then(|place| kept.get_mut(*place)) {
            same.chance += walk.chance;
        } else {
            places.insert(key, kept.len());
            kept.push(walk);
        }
    }
    kept
}
