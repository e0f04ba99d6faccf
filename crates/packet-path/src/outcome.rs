//! What comes of a packet's ways.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::branch::{Branch, Doubt, End, Step};
use crate::packet::{Packet, SourceNat};

/// So many ways are told one by one. Of more, those that come to the same are one.
const MOST_TOLD: usize = 64;

/// One way of a packet, from its sender to its end.
#[derive(Debug, Clone, PartialEq)]
pub struct Walk {
    /// How likely it is, from 0 to 1; of a scheduler that is not by chance, its share. The two sides of
    /// a doubt count whole, each as if the other were not.
    pub chance: f64,
    /// How it ends.
    pub fate: Fate,
    /// How it would end if what it takes for granted were so; the same as `fate` where it takes
    /// nothing for granted.
    pub presumed: Fate,
    /// Where it ends, if anybody gets it.
    pub endpoint: Option<SocketAddr>,
    /// Refused how and by whom, why there is no route, or why nobody can tell; else empty.
    pub why: String,
    /// What becomes of its source.
    pub source: Source,
    /// In the order in which the packet meets them.
    pub steps: Vec<Arc<Step>>,
    /// How many rules it has passed that did nothing.
    pub passed: usize,
    /// What it takes for granted.
    pub doubts: Vec<Doubt>,
    /// The packet as it was at the end.
    pub packet: Packet,
}

/// How a way ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// To where a rule or IPVS has sent it.
    Delivered,
    /// The sender is told that nobody is there.
    Refused,
    /// No route leads there, and the sender is told.
    Unrouted,
    /// Nobody is told anything.
    Dropped,
    /// A process of this node gets it, or nobody if none listens there.
    Local,
    /// It leaves the node to where it was sent.
    Forwarded,
    /// It cannot be told.
    Unknown,
}

/// Whom the receiver sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// The sender.
    Kept,
    /// The address that it was sent to: what the node itself sends to an address of its own gets it.
    ServiceAddress,
    /// This address in the sender's stead, where it is known: one of the interface by which it leaves.
    Masqueraded(Option<IpAddr>),
    /// This address, as a rule says.
    Rewritten(Option<IpAddr>),
}

/// What two ways are compared by.
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

/// Settles what doubts do not matter, and joins ways that come to the same where they are very many.
pub(crate) fn settle(branches: Vec<Branch>) -> Vec<Walk> {
    let mut walks: Vec<Walk> = branches.into_iter().map(Walk::of).collect();
    let mut doubted: Vec<Arc<str>> = Vec::new();
    for doubt in walks.iter().flat_map(|walk| &walk.doubts) {
        if !doubted.contains(&doubt.what) {
            doubted.push(Arc::clone(&doubt.what));
        }
    }
    // The last ones first: of what comes of them alone earlier ones do not depend.
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
            walk.why = format!("it depends on what is not understood: {}", doubt.what);
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

/// Whether the same comes of both sides of a doubt.
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

/// Joins ways of one outcome; the steps are those of the first. Where ways are not many, only those
/// that nobody gets, and that end at the same thing.
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
