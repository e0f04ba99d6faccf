//! State that the engine keeps for a mode.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy::{IpFamily, Node, NodeFacts, NodePorts, Report, Unreadable};
use reconcile::{ReadSchedule, Removals};

use crate::kinds::{Config as _, Kinds, Part as _, number};
use crate::news::ReportDraft;

/// Shortest pause between two reads of a part of the kernel's state that has unexpected content.
const REREAD_PAUSE: Duration = Duration::from_millis(100);

/// The engine's knowledge of one part of the kernel's state.
struct Knowledge {
    look: ReadSchedule,
    /// Time of the last successful write to the part, or `None` before the first one.
    written: Option<Instant>,
}

/// State that the engine keeps for a mode.
pub struct State<K: Kinds> {
    /// The mode's settings, from flags and the node.
    pub config: Arc<K::Config>,
    /// Time at which the engine was last called.
    pub now: Instant,
    /// Facts about this node on which the compilation of Services depends.
    pub node: NodeFacts,
    /// Addresses of the node that the kernel has reported as new since the last read of all
    /// addresses.
    pub(crate) arriving: HashSet<IpAddr>,
    /// Addresses that serve NodePorts, for code outside the engine.
    pub serving: NodePorts,
    /// The next report, which the engine is still completing.
    pub report: Report,
    /// Changed Services and drift for later reports.
    pub news: ReportDraft,
    /// Knowledge of each part of the kernel's state, in the order of
    /// [`Part::ALL`](crate::Part::ALL).
    parts: Vec<Knowledge>,
    /// Plans that lanes (worker threads) are writing now.
    pub(crate) in_flight: Vec<(K::Lane, Arc<K::Plan>)>,
    /// True once the wanted entries are known. Before that, the engine does not write or delete
    /// entries.
    pub(crate) has_claims: bool,
    pub(crate) may_delete: bool,
}

impl<K: Kinds> State<K> {
    pub(crate) fn new(config: K::Config, mut node: NodeFacts, now: Instant) -> Self {
        node.ip = node.flag_ip.or(node.ip);
        let longest_pause = config.longest_pause();
        let unknown = |_| Knowledge {
            look: ReadSchedule::new(now, longest_pause),
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
            news: ReportDraft::default(),
            parts: K::Part::ALL.iter().map(unknown).collect(),
            in_flight: Vec::new(),
            has_claims: false,
            may_delete: false,
            config: Arc::new(config),
        }
    }

    /// Reports whether the engine may delete unwanted entries. For this, it must know all objects,
    /// and which entries belong to this program.
    pub fn may_delete(&self) -> bool {
        self.may_delete
    }

    /// Returns whether unwanted entries count as overdue: only while their deletion is allowed.
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

    /// Reports whether the engine knows the content of a part of the kernel's state.
    pub fn knows(&self, part: K::Part) -> bool {
        self.look(part).is_known()
    }

    /// Returns the read schedule of a part of the kernel's state.
    pub fn look(&self, part: K::Part) -> &ReadSchedule {
        &self.part(part).look
    }

    pub(crate) fn look_mut(&mut self, part: K::Part) -> &mut ReadSchedule {
        &mut self.part_mut(part).look
    }

    /// Requests a read of a part of the kernel's state as soon as possible.
    pub fn ask(&mut self, part: K::Part) {
        let now = self.now;
        self.look_mut(part).ask(now);
    }

    /// Requests a read of a part of the kernel's state that has unexpected content. The read starts
    /// only after a short pause since the last read.
    pub fn doubt(&mut self, part: K::Part) {
        let now = self.now;
        self.look_mut(part).ask_apart(now, REREAD_PAUSE);
    }

    /// Records a successful write to a part of the kernel's state.
    pub fn wrote(&mut self, part: K::Part) {
        self.part_mut(part).written = Some(self.now);
    }

    /// Returns the time of the last successful write to a part of the kernel's state.
    pub(crate) fn last_written(&self, part: K::Part) -> Option<Instant> {
        self.part(part).written
    }

    /// Reports that the part `name` of the kernel's state is readable again.
    pub fn tell_readable(&mut self, name: &'static str) {
        self.report.readable.push(name);
    }

    /// Reports that a part of the kernel's state is unreadable.
    pub fn tell_unreadable(&mut self, unreadable: Unreadable) {
        self.report.unreadable.push(unreadable);
    }

    pub(crate) fn has_tried_all(&self) -> bool {
        self.parts.iter().all(|part| part.look.is_tried())
    }

    /// Marks the requested reads of a lane (worker thread) as started, and returns their parts.
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

    /// Returns the plans that lanes (worker threads) are writing now.
    pub fn in_flight(&self) -> impl Iterator<Item = &K::Plan> {
        self.in_flight.iter().map(|(_, plan)| &**plan)
    }

    /// Reports whether a lane (worker thread) is writing a plan.
    pub fn is_writing(&self, lane: K::Lane) -> bool {
        self.in_flight.iter().any(|(of, _)| *of == lane)
    }

    /// Removes and returns the plan that a lane (worker thread) has finished writing.
    pub(crate) fn landed(&mut self, lane: K::Lane) -> Option<Arc<K::Plan>> {
        let at = self.in_flight.iter().position(|(of, _)| *of == lane)?;
        Some(self.in_flight.swap_remove(at).1)
    }

    // ---- the node ----

    /// Applies the Node object. Returns true if the facts about the node have changed.
    ///
    /// A Node object without addresses does not remove known addresses. The Node may be new, so its
    /// cloud provider may not have set the addresses yet.
    pub(crate) fn learn_node(&mut self, object: Option<&Node>) -> bool {
        let family = self.node.family;
        let addresses = object.map(|node| node.addresses.as_slice());
        let mut addresses = addresses.into_iter().flatten().copied();
        let flag_ip = self.node.flag_ip;
        let ip = flag_ip.or_else(|| addresses.find(|ip| IpFamily::of(*ip) == family));
        let ip = ip.or(self.node.ip);
        let zone = object.and_then(|node| node.zone.clone());
        let has_changed = (self.node.ip, &self.node.zone) != (ip, &zone);
        self.node.ip = ip;
        self.node.zone = zone;
        has_changed
    }

    /// Reports whether the kernel has reported `address` as new since the last read of the node's
    /// addresses.
    pub fn is_arriving(&self, address: &IpAddr) -> bool {
        self.arriving.contains(address)
    }

    // ---- reports ----

    /// Reports whether the next report has content, even if no lane has finished work.
    pub(crate) fn has_news(&self) -> bool {
        let report = &self.report;
        !report.settled.is_empty()
            || report.conflicts.is_some()
            || !report.drift.is_empty()
            || report.iptables.is_some()
    }
}
