//! IPVS mode for one IP family, as a scheme for the [`engine`].
//!
//! ```text
//!   update ─▶ Claims ─▶ Tables ─planner─▶ three lanes for writes, one for reads
//!                         ▲                        │
//!                         └ booking, observe ◀─────┘
//! ```
//!
//! A lane is a worker thread that accesses the kernel. The first lane writes virtual servers and
//! sets, the second addresses, the third rules. An entry waits only if it needs an entry of another
//! lane ([`planner`]).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

use engine::{Concern, Engine, Extent, Served, Step};
use hashbrown::HashSet;
use proxy::{Fate, Model, NamespacedName, Notice, ServiceAddress, Target, UnavailableOption};
use reconcile::Rows;

use crate::booking::Booking;
use crate::claims::Claims;
use crate::compile::NodePortAddresses;
use crate::config::VipMode;
use crate::cover::{Cover, rules_in_flight};
use crate::drain::Drains;
use crate::drift::{Drifts, tell_address};
use crate::exchange::{PartContent, PlanResult, Query, QueryResponse};
use crate::kernel::CONNECTIONS;
use crate::kinds::{IpvsKinds, Lane, Part, State};
use crate::link::{Link, Loss};
use crate::marks::Marks;
use crate::pace::Pace;
use crate::plan::{Op, Outcome, Plan};
use crate::planner::{self, PlanRoom, Situation, Turns};
use crate::ranges::{RangeGround, Ranges, SkippedRange};
use crate::schedulers::Schedulers;
use crate::server::{RealServer, VirtualServerKey};
use crate::tables::{FormerRules, Tables};
use crate::takeover::OwnershipEvidence;

/// Number of changed Services from which the proxy reserves memory for them in advance.
const MANY: usize = 1_000;

/// Number of writes in a plan after which the process returns unused memory to the system.
const MANY_WRITES: usize = 1_000;

/// IPVS mode for one IP family.
pub type Proxier<K> = Engine<Ipvs, K>;

/// The lanes (worker threads) of IPVS mode: [services, addresses, rules, and reader](Lane).
pub type Lanes<K> = engine::Lanes<Ipvs, K>;

/// State of IPVS mode: the entries that Services want, the entries in the kernel, and the pending
/// work.
pub struct Ipvs {
    pub(crate) node_ports: NodePortAddresses,
    pub(crate) claims: Claims,
    pub(crate) tables: Tables,
    /// Evidence of who created the virtual servers that existed at the start. `None` once the proxy
    /// has adopted those of a kube-proxy.
    pub(crate) takeover: Option<OwnershipEvidence>,
    pub(crate) link: Link,
    /// Ranges of service addresses: networks that local routes make local.
    pub(crate) ranges: Ranges,
    /// Inputs of the ranges besides the tables, or `None` if the ranges must be recomputed because
    /// the tables have changed.
    pub(crate) range_ground: Option<RangeGround>,
    /// ServiceCIDRs without a range, as last logged.
    pub(crate) skipped_ranges: Vec<SkippedRange>,
    pub(crate) cover: Cover,
    turns: Turns,
    pub(crate) drifts: Drifts,
    /// Limit on how often notifications make the proxy compare its nftables table with the
    /// kernel's.
    pace: Pace,
    pub(crate) schedulers: Schedulers,
}

impl Ipvs {
    /// Requests a read of rules and sets, because they share one nftables table.
    fn compare_table(&mut self, state: &mut State) {
        state.ask(Part::Rules);
        self.drifts.ask();
    }

    /// Returns true if an earlier run's rules must stay, because some Kubernetes objects are
    /// unreadable. A restart would not help: only an operator can repair these objects.
    fn leaves_rules(&self) -> bool {
        !self.claims.may_delete && self.tables.former_rules() != FormerRules::None
    }

    fn situation<'a>(&'a self, state: &'a State) -> Situation<'a> {
        Situation {
            claims: &self.claims,
            cover: &self.cover,
            state,
            are_rules_pending: self.cover.is_awaited(&self.tables) || !state.knows(Part::Rules),
            has_taken_over: self.takeover.is_none(),
            has_all_addresses: self.link.is_sure(),
            now: state.now,
        }
    }

    fn next_of_services(&mut self, state: &State) -> Step<Self> {
        let mut turns = std::mem::take(&mut self.turns);
        let next = turns.services(&self.tables, &self.situation(state));
        self.turns = turns;
        let Some((plan, room)) = next else {
            let drains = self.drains_due(state.now).map(Query::Connections);
            let glance = || {
                self.drifts
                    .glance_due(&self.tables, state.now)
                    .map(Query::Glance)
            };
            return Step {
                plan: None,
                query: drains.or_else(glance),
            };
        };
        // Queries the connections of the destinations that begin to drain with this plan.
        for op in &plan.ops {
            if let Op::SetDestination(key, RealServer { weight: 0, .. }) = op {
                self.claims.drains.ask(key);
            }
        }
        let drains = match room {
            PlanRoom::Some => self.drains_due(state.now),
            PlanRoom::None => None,
        };
        Step {
            plan: Some(plan),
            query: drains.map(Query::Connections),
        }
    }

    /// Returns the next query for the read-only worker thread.
    fn next_question(&mut self, state: &State) -> Option<Query> {
        // Waits until the virtual servers are known, because a scheduler that one of them uses
        // needs no query.
        if state.knows(Part::Servers)
            && let Some(scheduler) = self.schedulers.next()
        {
            return Some(Query::Scheduler(scheduler));
        }
        self.drifts.begin().then_some(Query::All)
    }

    /// Returns the virtual servers whose draining destinations must be queried now.
    fn drains_due(&mut self, now: Instant) -> Option<Vec<VirtualServerKey>> {
        if !self.claims.may_delete {
            return None;
        }
        let mut keys = self.claims.drains.take_due(now);
        // Skips an unwanted virtual server, because the kernel removes its destinations with it.
        keys.retain(|key| {
            let is_wanted = self.tables.servers.wanted(key).is_some();
            if !is_wanted {
                self.claims.drains.forget(key);
            }
            is_wanted
        });
        (!keys.is_empty()).then_some(keys)
    }

    /// Ends drains according to the number of open connections: a destination is unwanted once it
    /// has none, or has reached its timeout.
    fn take_connections(
        &mut self,
        state: &mut State,
        keys: Vec<VirtualServerKey>,
        connections: &BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>,
    ) {
        for key in keys {
            let Some(of) = connections.get(&key) else {
                state.doubt(Part::Servers);
                continue;
            };
            let expired = self.claims.drains.expired(&key, state.now);
            let actual = self.tables.servers.actual(&key).cloned();
            // A destination drains only once the kernel has set its weight to 0. Until then, it can
            // get new connections.
            let drains = |target| {
                let server = actual.as_ref();
                let real = server.and_then(|server| server.destination(target));
                real.is_none_or(|real| real.weight == 0)
            };
            let is_over = |target| {
                let has_ended = of.get(&target).is_none_or(|open| *open == 0);
                (has_ended && drains(target)) || expired.contains(&target)
            };
            self.claims.end_drains(&key, is_over, &mut self.tables);
        }
    }

    /// Handles the kernel's notification that a service address was removed. Returns true if the
    /// caller must read all addresses.
    fn lose(&mut self, state: &mut State, address: IpAddr) -> bool {
        // If service addresses are routes, the address may still be local by its route.
        let is_address = state.config.vip_mode == VipMode::Address;
        match self.link.lose(address) {
            Loss::Own => return false,
            Loss::Others if is_address => {}
            Loss::Others | Loss::Unclear => {
                self.link.doubt();
                return true;
            }
        }
        if self.tables.addresses.actual(&address).is_some() {
            tell_address(state, &self.tables, address);
            self.tables.addresses.set_actual(&address, None);
            self.drifts.note_address(address);
        }
        // While addresses are being written or read, the tables may lack this address although the
        // kernel has it. So all addresses must be read again.
        state.is_writing(Lane::Addresses) || state.look(Part::Addresses).is_awaited()
    }
}

impl engine::Scheme for Ipvs {
    type Kinds = IpvsKinds;
    type Outcomes = PlanResult;
    type PartContent = PartContent;
    type Query = Query;
    type QueryResponse = QueryResponse;

    const ADDRESSES: Part = Part::Addresses;
    const EVIDENCE: &'static [Part] = &[Part::Servers, Part::Sets, Part::Addresses];
    const WRITING: &'static [Lane] = &[Lane::Services, Lane::Addresses, Lane::Rules];
    const SERVING: &'static [Lane] = &[Lane::Services];

    fn new(state: &State) -> Self {
        let (config, now) = (&state.config, state.now);
        let bits = config.semantics.mark_bits();
        let marks = Marks::new(bits, state.node.family, config.mark_addresses.clone());
        Self {
            node_ports: NodePortAddresses::default(),
            claims: Claims::new(Drains::new(config.drain_timeout), marks, now),
            tables: Tables::new(config.semantics, now),
            takeover: Some(OwnershipEvidence::default()),
            link: Link::default(),
            ranges: Ranges::default(),
            range_ground: None,
            skipped_ranges: Vec::new(),
            cover: Cover::new(state.node.family, now),
            turns: Turns::default(),
            drifts: Drifts::new(config.glance_period, now),
            pace: Pace::default(),
            schedulers: Schedulers::new(config, now),
        }
    }

    fn begin(&mut self, now: Instant) {
        self.tables.begin(now);
        self.claims.growths.begin(now);
    }

    fn tables(&self, part: Part) -> impl Iterator<Item = &dyn Rows> {
        self.tables.of(part)
    }

    fn served(&self) -> &dyn Served {
        &self.tables.servers
    }

    fn held_by_others(&self) -> Vec<ServiceAddress> {
        let foreign = self.tables.foreign.iter().map(|(key, _)| key);
        let held = foreign.filter(|key| {
            let servers = &self.tables.servers;
            self.tables.foreign.is_known_at(key)
                && servers.wanted(key).is_some()
                && servers.actual(key).is_none()
        });
        held.filter_map(VirtualServerKey::address).collect()
    }

    fn is_settled(&self, service: &NamespacedName) -> bool {
        self.claims.is_settled(service, &self.tables)
    }

    fn concern(&self, state: &State, part: Part) -> Concern {
        if part == Part::Rules && self.leaves_rules() && state.knows(part) {
            Concern::Operator
        } else {
            Concern::Clients
        }
    }

    fn unavailable_options(&self) -> Vec<UnavailableOption> {
        self.schedulers.unavailable()
    }

    fn drains(&self, named: usize) -> proxy::Drains {
        if self.claims.may_delete {
            self.claims.drains.told(named)
        } else {
            // Until the proxy may remove entries, no drain can end, so none is reported.
            proxy::Drains::default()
        }
    }

    fn removals_change(&mut self, state: &State) {
        self.claims.may_delete = state.may_delete();
        self.tables.count_removals(state.removals());
    }

    fn node_changed(&mut self, state: &mut State) -> bool {
        self.refresh_node_ports(state)
    }

    fn update(&mut self, state: &mut State, model: &Model, extent: Extent<'_>) {
        if matches!(extent, Extent::First) {
            self.cover.first_update(state.now);
        }
        if let Extent::These(names) = extent
            && names.len() >= MANY
        {
            self.reserve(model, state.node.family, names);
        }
        let extent = match extent {
            Extent::These(_) if self.follow_ranges(state, model) => Extent::All,
            Extent::First | Extent::All => {
                self.follow_ranges(state, model);
                extent
            }
            Extent::These(_) => extent,
        };
        let services = extent.services(model, self.claims.services());
        let had = self.compute(state, model, &services);
        // Recompiles the Services that get the released virtual servers and addresses. They may
        // release others in turn.
        self.hand_on(state, model, &services, had);
        self.recognize(state);
        self.follow_foreign(state, model);
        self.follow_schedulers(state, model);
        self.follow_marks(state, model);
        let unmarked = self.claims.marks.take_unreported();
        state.report.unmarked.extend(unmarked);
    }

    fn wants_update(&self) -> bool {
        self.tables.foreign.has_changed()
            || self.schedulers.has_news()
            || self.claims.marks.has_news()
    }

    fn notice(&mut self, state: &mut State, notice: &Notice) -> bool {
        match notice {
            Notice::ServiceAddressRemoved(address) => self.lose(state, *address),
            Notice::Ruleset => {
                // The same program may have changed sets and rules, because they share one nftables
                // table.
                if state.config.shim.is_native() && self.pace.hears(state.now) {
                    self.compare_table(state);
                }
                false
            }
            _ => true,
        }
    }

    fn check(&mut self, state: &mut State) {
        // Skips the rules if they were read during this period anyway, for example after a refused
        // write.
        let period = state.config.sync_period;
        let period = period.saturating_sub(period / 8);
        let last_read = state.look(Part::Rules).last_known();
        if last_read.is_none_or(|read| state.now.saturating_duration_since(read) >= period) {
            state.ask(Part::Rules);
        }
        self.drifts.ask();
        self.schedulers.check(state.now);
    }

    fn prepare(&mut self, state: &mut State) {
        if !state.look(Part::Addresses).is_owed() {
            self.link.is_read();
        }
        if self.pace.is_due(state.now) {
            self.compare_table(state);
        }
        for key in self.drifts.compare(&mut self.tables, state) {
            self.claims.settle_leftovers(key, &mut self.tables);
        }
        self.claims.grow(&mut self.tables);
        if state.knows(Part::Rules) && state.knows(Part::Sets) {
            self.claims.drain_former_marks(&mut self.tables);
        }
        if state.look(Part::Sets).is_tried() {
            let ranges = self.guarded_ranges();
            let (tables, claims) = (&mut self.tables, &self.claims);
            let writing = rules_in_flight(state);
            let cover = &mut self.cover;
            cover.want_rules(tables, writing, claims, ranges, &state.config);
        }
        if state.knows(Part::Rules) && self.tables.rules.pending_len() == 0 {
            self.cover.is_complete();
        }
        self.tables.want_room();
    }

    fn next(&mut self, lane: Lane, state: &mut State) -> Step<Self> {
        let step = match lane {
            Lane::Services => self.next_of_services(state),
            Lane::Addresses => planner::addresses(&self.tables, &self.situation(state)).into(),
            Lane::Rules => planner::rules(&self.tables, &self.situation(state)).into(),
            Lane::Reader => Step {
                plan: None,
                query: self.next_question(state),
            },
        };
        if let Some(plan) = &step.plan
            && lane == Lane::Addresses
        {
            self.link.note(plan, state.config.vip_mode, state.now);
        }
        step
    }

    fn next_due(&self, now: Instant) -> Option<Instant> {
        let waits = self.cover.next_due().into_iter().flatten();
        let waits = waits.chain(self.claims.drains.next_due(now));
        let waits = waits.chain(self.claims.growths.next_due());
        waits
            .filter(|due| *due > now)
            .chain(self.drifts.next_due(&self.tables, now))
            .chain(self.pace.next_due())
            .min()
    }

    fn forgo_waiting(&mut self) {
        self.cover.forgo_waiting();
        self.tables.foreign.foresee();
    }

    fn observe(&mut self, state: &mut State, model: &Model, found: PartContent) {
        match found {
            PartContent::Servers(found) => self.observe_servers(state, found),
            PartContent::Sets(found) => self.observe_sets(state, found),
            PartContent::Addresses(found) => self.observe_addresses(state, model, found),
            PartContent::Rules(found) => self.observe_rules(state, found),
        }
    }

    fn after_reading(&mut self, state: &mut State) {
        self.judge(state);
    }

    fn settle(&mut self, state: &mut State, plan: &Plan, written: PlanResult) {
        let PlanResult { outcomes, took } = written;
        if let Some(took) = took {
            self.turns.took(plan.ops.len(), took, &self.tables);
        }
        self.drifts.note(plan, &outcomes);
        self.drifts.follow_count(plan, &outcomes);
        if self.link.settle(plan, &outcomes, state.config.vip_mode) {
            state.ask(Part::Addresses);
        }
        let Booking {
            writes,
            failures,
            failed_restores,
            doubted,
            touched,
            lacking,
            kept,
            ..
        } = self
            .tables
            .settle(state.node.family, plan, outcomes, state.now);
        let written = usize::try_from(writes.sum(Fate::Done)).unwrap_or(usize::MAX);
        for part in plan.parts().filter(|_| written > 0) {
            state.wrote(part);
        }
        if plan.lane() == Some(Lane::Rules) {
            self.cover.refresh(&self.tables, None);
        }
        for part in doubted {
            state.doubt(part);
        }
        // While the worker thread wrote these entries, some of them may have become unwanted.
        let servers: HashSet<&VirtualServerKey> = plan.ops.iter().filter_map(Op::server).collect();
        for key in servers {
            if self.tables.servers.is_pending(key) {
                self.claims.settle_leftovers(*key, &mut self.tables);
            } else if self.tables.servers.wanted(key).is_none() {
                self.claims.drains.forget(key);
            }
            if let VirtualServerKey::Mark { mark, .. } = key
                && !self.tables.is_ours(key)
            {
                self.claims.marks.removed(*mark);
            }
        }
        for key in kept {
            self.claims.drains.delay(&key, state.now);
        }
        let serves_node_ports = |op: &Op| match op {
            Op::BindAddress(address) | Op::UnbindAddress(address) => {
                state.node.is_in_node_port_networks(*address)
            }
            _ => false,
        };
        if plan.ops.contains(&Op::CreateLink) || plan.ops.iter().any(serves_node_ports) {
            // Reads the addresses again, because a link that is set down loses its IPv6 addresses,
            // and because a new address within --nodeport-addresses serves NodePorts.
            state.ask(Part::Addresses);
        }
        for (scheduler, reason) in lacking {
            self.schedulers.lacks(&scheduler, reason, state.now);
        }
        state.news.wrote(touched);
        let report = &mut state.report;
        for op in &plan.ops {
            if let Op::RemoveServer(key) = op
                && let Some(at) = key.address()
            {
                let servers = &self.tables.servers;
                if servers.actual(key).is_none() || servers.is_doubted(key) {
                    report.withdraw(Some(at.address), at.protocol, at.port);
                }
            }
        }
        report.written += written;
        report.writes.extend(&writes);
        report.failures.extend(failures);
        report.failed_restores += failed_restores;
        report.has_used_much |= plan.ops.len() >= MANY_WRITES;
    }

    fn as_done(plan: &Plan) -> PlanResult {
        PlanResult {
            outcomes: vec![Outcome::Done; plan.ops.len()],
            took: None,
        }
    }

    fn take(&mut self, state: &mut State, answer: QueryResponse) {
        match answer {
            QueryResponse::Connections(keys, Ok(connections)) => {
                state.tell_readable(CONNECTIONS);
                self.take_connections(state, keys, &connections);
            }
            QueryResponse::Connections(_, Err(error)) => state.tell_unreadable(error),
            QueryResponse::Glance(glance) => self.drifts.take_glance(&glance),
            QueryResponse::Scheduler(scheduler, answer) => {
                self.schedulers.take(scheduler, answer, state.now);
            }
            QueryResponse::Dump(dump) => {
                self.drifts.take_dump(*dump, &self.tables, state);
                state.report.has_used_much |= self.tables.servers.len() >= MANY;
            }
        }
    }
}

impl From<Plan> for Step<Ipvs> {
    fn from(plan: Plan) -> Self {
        let plan = Some(plan).filter(|plan| !plan.ops.is_empty());
        Self { plan, query: None }
    }
}
