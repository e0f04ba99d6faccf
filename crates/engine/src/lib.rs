//! The code that all proxy modes share, between the object model and the kernel.
//!
//! Three names:
//!
//! - [`Mode`] is the interface that the daemon uses. The daemon has one `Mode` for each IP family.
//!   In every mode, the type that implements `Mode` is named `Proxier`.
//! - [`Scheme`] is a mode's own part: its tables, its writing order and its kernel access. Apart
//!   from [`KernelAccess`], it is pure. The schemes are `Ipvs`, `Iptables`, `Nftables` and
//!   `Userspace`.
//! - [`Engine`] drives a scheme. All modes share its code.
//!
//! [`Engine`] is the only implementation of [`Mode`]. A `Proxier` is an `Engine` with the scheme of
//! its mode.
//!
//! ```text
//!            model ─ update ─▶ ┌────────┐ next ─ Step: a plan, a query ▶ ┌───────┐
//!                              │ Scheme │                                │ lanes │ worker threads
//!  notices ─ notice, check ──▶ └────────┘ ◀─ settle, observe, take ───── └───────┘
//!                                  ▲
//! State: the node, knowledge of each part, plans in flight, the next report
//! ```
//!
//! The engine decides:
//! - when to read a part of the kernel's state, and when to retry a failed read;
//! - when an idle lane (worker thread) gets its next [`Step`];
//! - when entries may be deleted;
//! - when a Service is settled: the kernel has exactly the entries that the Service wants;
//! - when to report drift, conflicts and unreadable parts;
//! - how long changes have been pending, and how long the mode has made no progress.
//!
//! [`Kinds`] name a mode's lanes, parts and plans. [`State`] uses only these types, so the
//! components of a scheme can use the state without knowing the scheme.
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
//!  Mode::book          Scheme::settle(plan, outcomes) ─▶ Table::set_actual, or fail: retried later
//!                      Scheme::is_settled(default/web)? ─▶ Report::settled ─▶ health, metrics, log
//! ```
//!
//! # What a mode provides
//!
//! - Tables of wanted and actual entries.
//! - [Parts](Part) of the kernel's state, each read as a whole.
//! - [Lanes](Lane), each a worker thread.
//! - A type of [plan](Kinds::Plan), and a type of [query](Scheme::Query).
//! - A way to find drift (changes by other programs).
//!
//! IPVS mode:
//!
//! - main tables: link, sets, members, servers, addresses, rules, leftovers
//! - parts: servers, sets, addresses, rules
//! - lanes: services, addresses, rules, reader
//! - plan: netlink messages; queries: open connections, number of servers, a dump
//! - drift: compares a dump piece by piece
//!
//! iptables mode:
//!
//! - tables: base, slots, chains, disordered chains, leftovers
//! - parts: rules, addresses
//! - lanes: rules, looks
//! - plan: one `iptables-restore`; query: the canary
//! - drift: reads all rules
//!
//! nftables mode:
//!
//! - tables: base, node addresses, slots, members, chains, clients, listeners
//! - parts: its nftables table, addresses
//! - lanes: table, looks
//! - plan: one transaction; no query
//! - drift: [`Scheme::notice`] requests a read of its nftables table
//!
//! Userspace mode:
//!
//! - tables: sockets, redirects, base, leftovers
//! - parts: rules, addresses
//! - lanes: sockets, rules
//! - plan: listening ports, or redirects; no query
//! - drift: reads its rules, and `notice`
//!
//! The functions of a scheme, in the order of calls:
//!
//! ```text
//!  removals_change   unwanted entries may be deleted from now on, or no longer
//!  node_changed      other addresses serve NodePorts: does any entry depend on them?
//!  update            these Services want other entries ──▶ Table::claim
//!  prepare           wants entries that follow from the kernel's state
//!  next              returns a free lane's step: a plan for its tables, a query
//!  KernelAccess      ▷ on the lane's thread: read, write, query
//!  observe           a part was read ──▶ Table::observe
//!  settle            a plan has finished ──▶ Table::{set_actual, fail, excuse, doubt}
//!  take              the response to a query
//! ```
//!
//! A scheme is pure, except for [`KernelAccess`]. Its only clock is [`State::now`], and it makes no
//! system calls.
//!
//! If the kernel notifies a mode about changes to its rules, the mode requests reads in
//! [`Scheme::notice`] and none in [`check`](Scheme::check). A mode that forwards packets itself has
//! a table of its sockets, which the engine never reads.
//!
//! # What stays with the modes
//!
//! Each mode does the following tasks itself. The engine does not, because the modes share little
//! more than the name of each task:
//!
//! - The order of writes. In IPVS mode, the three lanes that write wait for each other, entry by
//!   entry. iptables mode writes one text, and finds refused rules by halving the text. nftables
//!   mode commits one transaction, in which the kernel names refused objects. The redirects of
//!   userspace mode wait until the listening ports have numbers. A common planner would need a
//!   callback for each mode.
//! - The recording of outcomes. IPVS mode and userspace mode get an outcome for each write.
//!   iptables mode and nftables mode get one outcome for each Service port, whose entries are in
//!   two or four tables. The modes share only four functions of [`reconcile::Table`].
//! - The comparison with the kernel. IPVS mode compares 10,000 virtual servers while events arrive,
//!   so it must skip entries that another lane writes during the comparison. In other modes, the
//!   lane that writes rules also reads them, and writes nothing during a read.
//! - Claims. In IPVS mode, draining destinations change the claims of a Service. In iptables mode,
//!   claims stay as compiled.

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
pub use news::ReportDraft;
pub use scheme::{Concern, Extent, KernelAccess, Scheme, Step};
pub use served::{CONFLICTS_MAX, Served};
pub use state::State;

use lanes::LaneResult;
use monitor::Monitor;
use scheme::{ConfigOf, LaneOf, PartOf, PlanOf};

/// Pause between a notification about an address and the read of all addresses. Addresses often
/// change in bursts. One read after the pause covers the whole burst.
const SETTLE: Duration = Duration::from_millis(50);

/// Number of entries in [`Scheme::served`] from which a read of the kernel needs much memory. After
/// such a read, the process returns freed memory to the system.
const MANY: usize = 1_000;

/// A proxy mode for one IP family: its scheme, and its worker threads.
pub struct Engine<S: KernelAccess<K>, K: 'static> {
    scheme: S,
    state: State<S::Kinds>,
    monitor: Monitor,
    lanes: Lanes<S, K>,
}

impl<S: KernelAccess<K>, K: Send + 'static> Engine<S, K> {
    /// Creates a mode that wants no entries yet and has not read the kernel's state.
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

    /// Sets the current time in the state and in all tables.
    fn begin(&mut self, now: Instant) {
        self.state.now = now;
        self.scheme.begin(now);
    }

    /// Applies changes of the model that affect every Service: the initial lists are complete, or
    /// the Node object may differ. Returns true if the scheme must compile every Service again.
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
            // Stores the ServiceCIDRs without a comparison, because the scheme itself finds the
            // entries that depend on them.
            self.state.node.service_cidrs = model.service_cidrs(self.state.node.family);
            self.scheme.node_changed(&mut self.state) | is_other
        };
        (has_changed && may_delete) || is_node_other
    }

    /// Starts the next work of a lane (worker thread) if it is idle: the requested reads, or
    /// otherwise the next step.
    fn start(&mut self, lane: LaneOf<S>) {
        if !self.lanes.of(lane).is_free() {
            return;
        }
        let due = self.state.begin_reading(lane);
        if !due.is_empty() {
            return self.lanes.read(lane, &self.state.config, due);
        }
        // The engine writes only once it knows all wanted entries.
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

    /// Records work that a lane (worker thread) has finished.
    fn take(&mut self, model: &Model, lane: LaneOf<S>, done: LaneResult<S>) {
        match done {
            LaneResult::Read(parts) => {
                // A read of only the node's addresses needs little memory.
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
                // The read may show that the kernel already has the entries for which a Service
                // waits.
                self.state.news.review();
                self.state.report.has_used_much |= is_much && self.scheme.served().len() >= MANY;
            }
            LaneResult::Stepped { outcomes, answer } => {
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

    /// Reads all parts of the kernel's state. Does not write.
    ///
    /// # Errors
    ///
    /// Returns the error of the first unreadable part.
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

    /// Returns for each part of the kernel's state the number of entries that already have their
    /// wanted value, so that a start would keep them. Before this call, the caller must have read
    /// the kernel's state and applied all wanted entries.
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

    /// Returns all plans of a start in writing order, without writing them. Each plan assumes that
    /// the earlier plans succeeded. Calls `see` with each plan before it records the plan's
    /// changes.
    ///
    /// Before this call, the caller must have read the kernel's state and applied all wanted
    /// entries.
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
            // Starts again with the first lane after each plan. A later lane's plan then assumes
            // that the earlier lanes have finished, so each entry is planned once.
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

/// State of the Node object compared with the last update: unchanged, or possibly changed.
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
        // Waits for the node's addresses. The compiled Services depend on them, so the wait avoids
        // a second compilation.
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
        // A read in progress may have missed the change that this notification reports.
        let is_open = self.state.look(S::ADDRESSES).is_awaited();
        let is_news = match *notice {
            // Ignores an address that the node already has. The kernel sends the same notification
            // if only the address's lifetime changes.
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
        // A Service that needs no write is ready to be reported, although no lane has finished work
        // for it.
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
        // Before the first update, the mode has not selected them yet.
        let is_selected = self.state.node.has_addresses && self.state.has_claims;
        is_selected.then_some(&self.state.serving)
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

    fn form(&self) -> Option<&'static str> {
        self.scheme.form(&self.state)
    }

    fn drains(&self, named: usize) -> Drains {
        self.scheme.drains(named)
    }
}
