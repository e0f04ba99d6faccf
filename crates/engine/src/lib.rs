//! What every proxy mode does between the model and the kernel, done once.
//!
//! Three things, each with a name of its own and, where there is one for each mode, one for that:
//!
//! | thing | name | in one mode |
//! |---|---|---|
//! | what the daemon drives, one for each IP family | [`Mode`] | `Proxier` |
//! | what a mode brings: its tables, its order and its kernel, pure but for [`KernelAccess`] | [`Scheme`] | `Ipvs`, `Iptables`, `Nftables`, `Userspace` |
//! | what drives a scheme, the same for all modes | [`Engine`] | |
//!
//! [`Engine`] is the one [`Mode`], and a `Proxier` is an `Engine` of that mode's scheme.
//!
//! ```text
//!            model ─ update ─▶ ┌────────┐ next ─ Step: a plan, a query ▶ ┌───────┐
//!                              │ Scheme │                                │ lanes │ kernel threads
//!  notices ─ notice, check ──▶ └────────┘ ◀─ settle, observe, take ───── └───────┘
//!                                  ▲
//!   State: the node, what is known of each part, what is being written, what is to be told
//! ```
//!
//! The engine owns the order in which things go on: when a part of the kernel is read, and read again
//! with back-off; when a lane is free for its next [`Step`]; whether anything may be taken away yet;
//! when a Service is settled; what is told of drift, conflicts and parts that cannot be read; since
//! when something is late, or stuck. [`Kinds`] name a mode's lanes, parts and plans: [`State`] is
//! made of these, so that what a scheme is built from knows only them.
//!
//! # The path of one EndpointSlice
//!
//! ```text
//!  source   Event::SliceApplied ─▶ Model::apply ─▶ Model::take_changes ─▶ Changes { default/web }
//!                                                                            │ the daemon's loop
//!  Mode::update        Scheme::update: compile(default/web) ─▶ Claims ─▶ Table::claim
//!                                                       wanted ≠ actual: these entries are pending
//!  Mode::proceed       Scheme::prepare; for each free lane: Scheme::next ─▶ Step { plan }
//!                      KernelAccess::write(plan)                         on the lane's thread
//!  Mode::book          Scheme::settle(plan, outcomes) ─▶ Table::set_actual, or fail: once more later
//!                      Scheme::is_settled(default/web)? ─▶ Report::settled ─▶ health, metrics, log
//! ```
//!
//! # What a mode brings
//!
//! | | IPVS | iptables | nftables | userspace |
//! |---|---|---|---|---|
//! | tables | link, sets, members, servers, addresses, rules, leftovers | base, slots, chains, leftovers | base, node addresses, slots, members, chains, clients | sockets, redirects, base, leftovers |
//! | [parts](Part), each read as one | servers, sets, addresses, rules | rules, addresses | its table, addresses | rules, addresses |
//! | [lanes](Lane), each a thread | services, addresses, rules, reader | rules, looks | table, looks | sockets, rules |
//! | [plan](Kinds::Plan) | netlink messages | one `iptables-restore` | one transaction | listening ports, or redirects |
//! | [query](Scheme::Query) | open connections, how many servers, a dump | the canary | none | none |
//! | drift is told by | comparing a dump piece by piece | reading all rules | [`Scheme::notice`], which asks for its table | reading its rules, and `notice` |
//!
//! The functions that it writes, in the order in which they are called:
//!
//! ```text
//!  removals_change   what nobody wants may go from now on, or no longer
//!  node_changed      other addresses serve NodePorts: does any entry depend on it?
//!  update            these Services want other entries now ──▶ Table::claim
//!  prepare           whatever else is wanted follows from what is there
//!  next              what a free lane does: a plan of what is due in its tables, a query
//!  KernelAccess      ▷ on the lane's thread: read, write, query
//!  observe           a part was read ──▶ Table::observe
//!  settle            what became of a plan ──▶ Table::{set_actual, fail, excuse, doubt}
//!  take              what the kernel has said to a query
//! ```
//!
//! All but [`KernelAccess`] is pure: it has no clock but [`State::now`], and no kernel. A mode
//! whose kernel tells it what changes asks for a part in [`Scheme::notice`], and need not in
//! [`check`](Scheme::check). One that carries packets by itself keeps in a table what it has
//! opened, and never has it read.
//!
//! # What stays with the modes
//!
//! Tried, and left with the modes, because what they share is no more than the name:
//!
//! - The order of writes. IPVS' three lanes wait for each other entry by entry; iptables has one
//!   text, and finds out by halves what is refused; nftables has one transaction, of which the
//!   kernel says what it refuses; userspace's redirects wait for the numbers of listening ports. A
//!   common planner would be a callback for each.
//! - Booking. An outcome for each write (IPVS, userspace) and a verdict for each Service port, over
//!   two tables (iptables) or four (nftables), share the four verbs of [`reconcile::Table`] alone.
//! - Comparing. 10,000 virtual servers are compared beside the events, so what is written meanwhile
//!   has to be left out; rules are read by the lane that writes them, when nothing is being
//!   written.
//! - Who claims: IPVS' claims are amended with what drains, iptables' are compiled as they are.

mod kinds;
mod lanes;
mod monitor;
mod news;
mod scheme;
mod served;
mod state;

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use proxy::{
    Changes, Drains, IpFamily, Mode, Model, NodeFacts, NodePorts, Notice, Report, ServiceAddress,
    Standing, UnavailableOption, Unreadable,
};
use reconcile::Rows;

pub use kinds::{Config, Kinds, Lane, Part};
pub use lanes::Lanes;
pub use news::News;
pub use scheme::{Concern, Extent, KernelAccess, Scheme, Step};
pub use served::{CONFLICTS_MAX, Served};
pub use state::State;

use lanes::Done;
use monitor::Monitor;
use scheme::{ConfigOf, LaneOf, PartOf, PlanOf};

/// How soon after the kernel has told of an address all of them are read: they change in bursts.
const SETTLE: Duration = Duration::from_millis(50);

/// From so many entries on, to read them takes memory that is worth giving back.
const MANY: usize = 1_000;

/// A proxy mode for one IP family: a scheme, and the kernel threads that carry it out.
pub struct Engine<S: KernelAccess<K>, K: 'static> {
    scheme: S,
    state: State<S::Kinds>,
    monitor: Monitor,
    lanes: Lanes<S, K>,
}

impl<S: KernelAccess<K>, K: Send + 'static> Engine<S, K> {
    /// A mode that wants nothing yet and has not read the kernel.
    pub fn new(config: ConfigOf<S>, node: NodeFacts, lanes: Lanes<S, K>, now: Instant) -> Self {
        let state = State::new(config, node, now);
        let mut scheme = S::new(&state);
        scheme.removals_change(&state);
        Self {
            scheme,
            state,
            monitor: Monitor::default(),
            lanes,
        }
    }

    /// Says what time it is.
    fn begin(&mut self, now: Instant) {
        self.state.now = now;
        self.scheme.begin(now);
    }

    /// Takes over what the model says beyond single Services; whether every Service has to be
    /// compiled again.
    fn learn(&mut self, model: &Model, node: NodeObject) -> bool {
        let is_evident = S::EVIDENCE.iter().all(|part| self.state.knows(*part));
        let may_delete = self.state.has_claims && model.is_complete() && model.is_whole();
        let may_delete = may_delete && is_evident;
        let has_changed = self.state.may_delete != may_delete;
        if has_changed {
            self.state.may_delete = may_delete;
            self.scheme.removals_change(&self.state);
        }
        let is_node_other = node == NodeObject::MayDiffer && {
            let is_other = self.state.learn_node(model.node());
            // No Service is compiled for them; what depends on them the scheme says by itself.
            self.state.node.service_cidrs = model.service_cidrs(self.state.node.family);
            self.scheme.node_changed(&mut self.state) | is_other
        };
        (has_changed && may_delete) || is_node_other
    }

    /// Starts what a lane has to do next, if it is free: to read what is due, or else its step.
    fn start(&mut self, lane: LaneOf<S>) {
        if !self.lanes.of(lane).is_free() {
            return;
        }
        let due = self.state.begin_reading(lane);
        if !due.is_empty() {
            return self.lanes.read(lane, &self.state.config, due);
        }
        // Before anybody has told what is wanted, nothing is written.
        if !self.state.has_claims {
            return;
        }
        let Step { plan, query } = self.scheme.next(lane, &mut self.state);
        let plan = plan.map(Arc::new);
        if let Some(plan) = &plan {
            self.state.in_flight.push((lane, Arc::clone(plan)));
        }
        if plan.is_some() || query.is_some() {
            self.lanes.step(lane, &self.state.config, plan, query);
        }
    }

    /// Books what a lane has done.
    fn take(&mut self, model: &Model, lane: LaneOf<S>, done: Done<S>) {
        match done {
            Done::Read(parts) => {
                // The node's addresses alone take little.
                let is_much = parts.iter().any(|(part, _)| *part != S::ADDRESSES);
                for (part, found) in parts {
                    match found {
                        Ok(found) => {
                            self.scheme.observe(&mut self.state, model, found);
                            self.state.has_read(part);
                        }
                        Err(unreadable) => self.state.has_not_read(part, unreadable),
                    }
                }
                self.scheme.after_reading(&mut self.state);
                // What Services wait for may be there without having been written.
                self.state.news.review();
                self.state.report.has_used_much |= is_much && self.scheme.served().len() >= MANY;
            }
            Done::Stepped { outcomes, answer } => {
                let plan = self.state.landed(lane);
                if let (Some(plan), Some(outcomes)) = (plan, outcomes) {
                    self.scheme.settle(&mut self.state, &plan, outcomes);
                }
                if let Some(answer) = answer {
                    self.scheme.take(&mut self.state, answer);
                }
            }
        }
    }

    /// Reads the kernel, and writes nothing.
    ///
    /// # Errors
    ///
    /// What could not be read.
    pub async fn read(&mut self, model: &Model, now: Instant) -> Result<(), Unreadable> {
        while !self.state.has_tried_all() {
            self.proceed(model, now);
            poll_fn(|context| self.poll_finished(context)).await;
            let report = self.book(model, now).unwrap_or_default();
            if let Some(unreadable) = report.unreadable.into_iter().next() {
                return Err(unreadable);
            }
        }
        Ok(())
    }

    /// How many entries of each part are there as they are wanted, before anything is written: what
    /// a start would keep. The kernel has been read, and all that is wanted is known.
    pub fn kept(&mut self, now: Instant) -> Vec<(PartOf<S>, usize)> {
        self.begin(now);
        self.scheme.forgo_waiting();
        self.scheme.prepare(&mut self.state);
        let parts = PartOf::<S>::ALL.iter();
        let kept = parts.map(|part| {
            let tables = self.scheme.tables(*part);
            (*part, tables.map(Rows::as_wanted_len).sum())
        });
        kept.collect()
    }

    /// What would be written, in order, each plan as if all before it had been done; nothing is
    /// written. The kernel has been read, and all that is wanted is known. `see` is given each plan
    /// while what it changes is still believed to be as it was found.
    pub async fn preview(
        mut self,
        now: Instant,
        mut see: impl FnMut(&S, &PlanOf<S>),
    ) -> Vec<PlanOf<S>> {
        let mut plans = Vec::new();
        self.begin(now);
        self.scheme.forgo_waiting();
        'again: loop {
            self.scheme.prepare(&mut self.state);
            // A later lane has its turn once those before it have nothing to do: so what it
            // writes, it writes once.
            for &lane in LaneOf::<S>::ALL {
                let Step { plan, query } = self.scheme.next(lane, &mut self.state);
                if plan.is_none() && query.is_none() {
                    continue;
                }
                if let Some(plan) = plan {
                    see(&self.scheme, &plan);
                    let outcomes = S::as_done(&plan);
                    self.scheme.settle(&mut self.state, &plan, outcomes);
                    plans.push(plan);
                }
                if let Some(query) = query
                    && let Some(answer) = self.lanes.query(lane, &self.state.config, query).await
                {
                    self.scheme.take(&mut self.state, answer);
                }
                continue 'again;
            }
            return plans;
        }
    }
}

/// Whether the Node object has to be read again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NodeObject {
    Same,
    MayDiffer,
}

impl<S: KernelAccess<K>, K: Send + 'static> Mode for Engine<S, K> {
    fn family(&self) -> IpFamily {
        self.state.node.family
    }

    fn is_ready(&self) -> bool {
        // Which entries are wanted depends on the node's addresses: to compile twice is to be
        // spared.
        self.state.look(S::ADDRESSES).is_tried() && self.lanes.is_first_free()
    }

    fn update(&mut self, model: &Model, changes: &Changes, now: Instant) {
        self.begin(now);
        let is_first = !std::mem::replace(&mut self.state.has_claims, true);
        let node = if changes.node || changes.service_cidrs || is_first {
            NodeObject::MayDiffer
        } else {
            NodeObject::Same
        };
        let extent = match self.learn(model, node) {
            _ if is_first => Extent::First,
            true => Extent::All,
            false => Extent::These(&changes.services),
        };
        self.scheme.update(&mut self.state, model, extent);
        self.monitor
            .note_unserved(self.state.now, self.scheme.served());
    }

    fn notice(&mut self, notice: &Notice, now: Instant) {
        self.begin(now);
        let node = &self.state.node;
        let is_own = |address| IpFamily::of(address) == node.family;
        let carries = |address| node.interface_addresses.contains(&address);
        // What is being read may be from before this, whatever was believed until then.
        let is_open = self.state.look(S::ADDRESSES).is_awaited();
        let is_news = match *notice {
            // Or its lifetime was prolonged.
            Notice::AddressAdded(address) => is_own(address) && (is_open || !carries(address)),
            Notice::AddressRemoved(address) => is_own(address) && (is_open || carries(address)),
            Notice::ServiceAddressRemoved(address) if !is_own(address) => false,
            Notice::ServiceAddressRemoved(_) | Notice::ServiceLink | Notice::Ruleset => {
                self.scheme.notice(&mut self.state, notice)
            }
            Notice::Anything => true,
        };
        match *notice {
            Notice::AddressAdded(address) if is_news => {
                self.state.arriving.insert(address);
            }
            Notice::AddressRemoved(address) => {
                self.state.arriving.remove(&address);
            }
            _ => {}
        }
        if is_news {
            self.state.look_mut(S::ADDRESSES).ask_after(now, SETTLE);
        }
    }

    fn check(&mut self, now: Instant) {
        self.begin(now);
        self.scheme.check(&mut self.state);
    }

    fn proceed(&mut self, model: &Model, now: Instant) {
        self.begin(now);
        if self.learn(model, NodeObject::Same) {
            self.scheme.update(&mut self.state, model, Extent::All);
        }
        if !self.state.look(S::ADDRESSES).is_owed() {
            self.state.arriving.clear();
        }
        self.scheme.prepare(&mut self.state);
        if self.state.has_claims && self.scheme.wants_update() {
            let none = hashbrown::HashSet::new();
            self.scheme
                .update(&mut self.state, model, Extent::These(&none));
            self.scheme.prepare(&mut self.state);
        }
        for &lane in LaneOf::<S>::ALL {
            self.start(lane);
        }
    }

    fn go_on_serving(&mut self, now: Instant) {
        self.begin(now);
        for &lane in S::SERVING {
            self.start(lane);
        }
    }

    fn poll_finished(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let polled = self.lanes.poll(context);
        // Of a Service that needs no write, no lane has anything to tell.
        if self.state.news.has_fresh() {
            return Poll::Ready(());
        }
        polled
    }

    fn book(&mut self, model: &Model, now: Instant) -> Option<Report> {
        self.begin(now);
        let mut has_taken = false;
        for &lane in LaneOf::<S>::ALL {
            match self.lanes.of(lane).take() {
                None => continue,
                Some(Ok(done)) => self.take(model, lane, done),
                Some(Err(gone)) => self.state.report.gone = Some(gone.to_string()),
            }
            has_taken = true;
        }
        self.monitor.conclude(&mut self.state, &self.scheme);
        has_taken |= self.state.has_news();
        has_taken.then(|| std::mem::take(&mut self.state.report))
    }

    fn is_idle(&self) -> bool {
        LaneOf::<S>::ALL
            .iter()
            .all(|lane| self.lanes.is_free(*lane))
    }

    fn next_due(&self, now: Instant) -> Option<Instant> {
        let parts = PartOf::<S>::ALL.iter();
        let of_parts = parts.flat_map(|part| {
            let tables = self.scheme.tables(*part);
            let retries = tables.filter_map(move |table| table.next_retry(now));
            retries.chain(self.state.look(*part).next_due(now))
        });
        of_parts.chain(self.scheme.next_due(now)).min()
    }

    fn standing(&self) -> Standing {
        let mut standing = Standing {
            is_settled: S::WRITING.iter().all(|lane| self.lanes.is_free(*lane)),
            ..Standing::default()
        };
        let all = PartOf::<S>::ALL.iter();
        for table in all.flat_map(|part| self.scheme.tables(*part)) {
            standing.pending += table.pending_len();
            standing.failing += table.failing_len();
        }
        self.monitor
            .note_lateness(&self.state, &self.scheme, &mut standing);
        standing
    }

    fn node_ports(&self) -> Option<&NodePorts> {
        let has_addresses = self.state.node.has_addresses;
        has_addresses.then_some(&self.state.serving)
    }

    fn node_addresses(&self) -> Option<&BTreeSet<IpAddr>> {
        let has_addresses = self.state.node.has_addresses;
        has_addresses.then_some(&self.state.node.interface_addresses)
    }

    fn held_by_others(&self) -> Vec<ServiceAddress> {
        self.scheme.held_by_others()
    }

    fn unavailable_options(&self) -> Vec<UnavailableOption> {
        self.scheme.unavailable_options()
    }

    fn drains(&self, named: usize) -> Drains {
        self.scheme.drains(named)
    }
}
