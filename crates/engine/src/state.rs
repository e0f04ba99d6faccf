//! What the engine keeps for a mode, and lets it see and ask for.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy::{IpFamily, Node, NodeFacts, NodePorts, Report, Unreadable};
use reconcile::{Look, Removals};

use crate::kinds::{Config as _, Kinds, Part as _, number};
use crate::news::News;

/// How soon what is not as believed is read again, at the earliest, after it was read.
const REREAD_PAUSE: Duration = Duration::from_millis(100);

/// What is known of a part of the kernel's state.
struct Knowledge {
    look: Look,
    /// When something of it was last written.
    written: Option<Instant>,
}

/// What a mode's engine keeps for it.
pub struct State<K: Kinds> {
    /// What the flags say to the mode.
    pub config: Arc<K::Config>,
    /// What time it is.
    pub now: Instant,
    /// This node.
    pub node: NodeFacts,
    /// Addresses of which was told that the node has them now, until they are read.
    pub(crate) arriving: HashSet<IpAddr>,
    /// Where NodePorts are served, for those who ask.
    pub serving: NodePorts,
    /// What is told next.
    pub report: Report,
    /// What may have to be told.
    pub news: News,
    /// In the order of [`Part::ALL`](crate::Part::ALL).
    parts: Vec<Knowledge>,
    /// What lanes are writing.
    pub(crate) in_flight: Vec<(K::Lane, Arc<K::Plan>)>,
    /// Whether the model has told what is wanted: before that, nothing is written, and nothing
    /// taken away.
    pub(crate) has_claims: bool,
    pub(crate) may_delete: bool,
}

impl<K: Kinds> State<K> {
    pub(crate) fn new(config: K::Config, mut node: NodeFacts, now: Instant) -> Self {
        node.ip = config.node_ip().or(node.ip);
        let longest_pause = config.longest_pause();
        let unknown = |_| Knowledge {
            look: Look::new(now, longest_pause),
            written: None,
        };
        Self {
            now,
            node,
            arriving: HashSet::new(),
            serving: NodePorts {
                addresses: Vec::new(),
                on_localhost: config.serves_localhost(),
            },
            report: Report::default(),
            news: News::default(),
            parts: K::Part::ALL.iter().map(unknown).collect(),
            in_flight: Vec::new(),
            has_claims: false,
            may_delete: false,
            config: Arc::new(config),
        }
    }

    /// Whether what nobody wants may be taken away: the sources have told everything, and it is
    /// known what is ours.
    pub fn may_delete(&self) -> bool {
        self.may_delete
    }

    /// The same as a table has it: what may not go is not late.
    pub fn removals(&self) -> Removals {
        if self.may_delete {
            Removals::Late
        } else {
            Removals::Excused
        }
    }

    // ---- parts ----

    fn part(&self, part: K::Part) -> &Knowledge {
        #[allow(clippy::indexing_slicing, reason = "there is one for each")]
        &self.parts[number(K::Part::ALL, &part)]
    }

    fn part_mut(&mut self, part: K::Part) -> &mut Knowledge {
        #[allow(clippy::indexing_slicing, reason = "there is one for each")]
        &mut self.parts[number(K::Part::ALL, &part)]
    }

    /// Whether it is known what is there of a part.
    pub fn knows(&self, part: K::Part) -> bool {
        self.look(part).is_known()
    }

    /// When a part is read.
    pub fn look(&self, part: K::Part) -> &Look {
        &self.part(part).look
    }

    pub(crate) fn look_mut(&mut self, part: K::Part) -> &mut Look {
        &mut self.part_mut(part).look
    }

    /// Has a part read, as soon as may be.
    pub fn ask(&mut self, part: K::Part) {
        let now = self.now;
        self.look_mut(part).ask(now);
    }

    /// The same for a part that is not as believed: some time after it was last read.
    pub fn doubt(&mut self, part: K::Part) {
        let now = self.now;
        self.look_mut(part).ask_apart(now, REREAD_PAUSE);
    }

    /// Something of a part was written.
    pub fn wrote(&mut self, part: K::Part) {
        self.part_mut(part).written = Some(self.now);
    }

    /// When something of a part was last written.
    pub(crate) fn last_written(&self, part: K::Part) -> Option<Instant> {
        self.part(part).written
    }

    /// Something could be read.
    pub fn tell_readable(&mut self, name: &'static str) {
        self.report.readable.push(name);
    }

    /// Something could not.
    pub fn tell_unreadable(&mut self, unreadable: Unreadable) {
        self.report.unreadable.push(unreadable);
    }

    pub(crate) fn has_tried_all(&self) -> bool {
        self.parts.iter().all(|part| part.look.is_tried())
    }

    /// The parts that a lane has to read now; that begins.
    pub(crate) fn begin_reading(&mut self, lane: K::Lane) -> Vec<K::Part> {
        let now = self.now;
        let all = K::Part::ALL.iter().copied();
        let of_lane = all.filter(|part| part.lane() == lane);
        let mut due = Vec::new();
        for part in of_lane {
            let look = self.look_mut(part);
            if look.is_due(now) {
                look.begin();
                due.push(part);
            }
        }
        due
    }

    pub(crate) fn has_read(&mut self, part: K::Part) {
        let now = self.now;
        self.look_mut(part).succeed(now);
        self.tell_readable(part.name());
    }

    pub(crate) fn has_not_read(&mut self, part: K::Part, unreadable: Unreadable) {
        let now = self.now;
        self.look_mut(part).fail(now);
        self.tell_unreadable(unreadable);
    }

    // ---- plans ----

    /// What is being written.
    pub fn in_flight(&self) -> impl Iterator<Item = &K::Plan> {
        self.in_flight.iter().map(|(_, plan)| &**plan)
    }

    /// Whether a lane is writing.
    pub fn is_writing(&self, lane: K::Lane) -> bool {
        self.in_flight.iter().any(|(of, _)| *of == lane)
    }

    /// The plan that a lane was writing until now.
    pub(crate) fn landed(&mut self, lane: K::Lane) -> Option<Arc<K::Plan>> {
        let at = self.in_flight.iter().position(|(of, _)| *of == lane)?;
        Some(self.in_flight.swap_remove(at).1)
    }

    // ---- the node ----

    /// Takes over what the Node object says; whether anything changed. One without an address, as where
    /// it was made anew and its cloud has not named them yet, takes none away.
    pub(crate) fn learn_node(&mut self, object: Option<&Node>) -> bool {
        let family = self.node.family;
        let addresses = object.map(|node| node.addresses.as_slice());
        let mut addresses = addresses.into_iter().flatten().copied();
        let ip = self.config.node_ip();
        let ip = ip.or_else(|| addresses.find(|ip| IpFamily::of(*ip) == family));
        let ip = ip.or(self.node.ip);
        let zone = object.and_then(|node| node.zone.clone());
        let has_changed = (self.node.ip, &self.node.zone) != (ip, &zone);
        self.node.ip = ip;
        self.node.zone = zone;
        has_changed
    }

    /// Whether the node may have an address by now that it had not when its addresses were read.
    pub fn is_arriving(&self, address: &IpAddr) -> bool {
        self.arriving.contains(address)
    }

    // ---- what is told ----

    /// Whether there is anything to tell though no lane has done anything.
    pub(crate) fn has_news(&self) -> bool {
        let report = &self.report;
        !report.settled.is_empty()
            || report.conflicts.is_some()
            || !report.drift.is_empty()
            || report.iptables.is_some()
    }
}
