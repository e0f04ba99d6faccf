//! The iptables mode for one IP family, as a scheme of the [`engine`].
//!
//! ```text
//!   update ─▶ Claims ─▶ Tables ─planner─▶ two worker threads: one reads and writes rules,
//!                         ▲                   │               one only queries
//!                         └ settle, observe ◀─┘
//! ```

use std::mem;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{Engine, Extent, Served, Step};
use proxy::{
    EntryKind, Failure, Fate, IptablesReport, Model, NamespacedName, Notice, Selection, Unreadable,
    is_outside,
};
use reconcile::Rows;

use crate::base::Base;
use crate::chain::Table;
use crate::claims::{Claims, RuleCounts};
use crate::exchange::{CanaryQuery, PartState};
use crate::kinds::{IptablesKinds, Lane, Part, State};
use crate::plan::{Plan, RestoreStrategy, WriteOutcome, WriteOutcomes};
use crate::planner::Planner;
use crate::port::compile;
use crate::saved::Saved;
use crate::tables::Tables;

/// Shortest pause between two periodic reads of all rules, as a multiple of the duration of the
/// last read.
const READING_SHARE: u32 = 50;

/// Number of Service ports in a plan from which the process returns free memory to the system.
const MANY: usize = 1_000;

/// The iptables mode for one IP family.
pub type Proxier<K> = Engine<Iptables, K>;

/// Worker threads of this mode: one for [rules, one for addresses and the canary](Lane).
pub type Lanes<K> = engine::Lanes<Iptables, K>;

/// Wanted and actual state of the iptables mode, and its next writes.
pub struct Iptables {
    tables: Tables,
    claims: Claims,
    /// Strategy of the next plan. After a refusal, the strategy stays `Apart` until the kernel
    /// accepts every part of a plan.
    manner: RestoreStrategy,
    /// Time and duration of the last read of all rules. `None` if the mode must read them again:
    /// before the first read, and after a refused restore.
    read: Option<(Instant, Duration)>,
    freshness: Freshness,
    /// True if a refused restore may have changed the kernel's rules.
    is_uncertain: bool,
    /// True if the kernel's rules may differ from the rules that the tables record. The mode then
    /// reads the rules before its next write.
    has_to_read: bool,
    /// Schedule of the queries for the canary chain, which is missing if another program has
    /// flushed the tables.
    canary: reconcile::ReadSchedule,
    /// True if a periodic check has not started yet: a query for the canary chain, or a read of all
    /// rules.
    wants_look: bool,
}

/// Kind of the next sync report: full after a read of all rules (`Read`), or partial after writes
/// alone (`Written`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Freshness {
    Read,
    Written,
}

impl Iptables {
    /// Sets the wanted base (the rules that do not depend on Services), for the addresses that
    /// serve NodePorts.
    fn want_base(&mut self, state: &mut State) {
        let (family, config) = (state.node.family, &state.config);
        let selection = state.node.node_port_addresses.of(family);
        let (base, addresses) = if selection == Selection::All {
            let all = state.node.interface_addresses.iter().copied();
            (
                Base::new(family, config, None),
                all.filter(is_outside).collect(),
            )
        } else if let Some(selected) = state.node.serving_node_ports([]) {
            let base = Base::new(family, config, Some(&selected));
            (base, selected.into_iter().filter(is_outside).collect())
        } else {
            // While the node's addresses are unknown, keeps NodePorts at the addresses that the
            // kernel's rules contain.
            let mut base = Base::new(family, config, Some(&[]));
            if let Some(installed) = self.tables.base.actual(&()) {
                base.keep_node_ports(installed);
            }
            (base, mem::take(&mut state.serving.addresses))
        };
        self.tables.base.claim(&(), [((), Arc::new(base))]);
        state.serving.addresses = addresses;
    }

    fn update_service(&mut self, state: &mut State, model: &Model, name: &NamespacedName) {
        let view = model.view(name);
        let ports = view.map_or_else(Vec::new, |view| compile(&view, &state.node));
        self.claims
            .put(name, ports, &mut self.tables, &state.config);
        state.news.changed(name);
    }

    fn observe_rules(&mut self, state: &mut State, saved: Saved) {
        let Saved {
            chains,
            slots,
            base,
            disordered,
            leftovers,
        } = saved;
        self.has_to_read = false;
        let is_drift = state.knows(Part::Rules) && !mem::take(&mut self.is_uncertain);
        let tables = &mut self.tables;
        let before = tables.base.actual(&()).cloned();
        let base = Arc::new(base);
        tables.base.observe([((), Arc::clone(&base))]);
        let chains = tables.chains.observe(chains);
        let slots = slots.into_iter();
        let slots = slots.map(|(slot, text)| (slot, Arc::from(text)));
        let slots = tables.slots.observe(slots);
        let disordered = disordered.into_iter();
        tables.disordered.observe(disordered.map(|of| (of, ())));
        let leftovers = (!leftovers.is_empty()).then_some(leftovers);
        tables.leftovers.observe(leftovers.map(|found| ((), found)));
        if !state.may_delete() {
            self.claims.go_on(&mut self.tables, &state.config);
        }
        self.want_base(state);
        if !is_drift {
            return;
        }
        let (now, news) = (state.now, &mut state.news);
        news.drifted_of(now, "chain", &self.tables.chains, chains);
        news.drifted_of(now, "rule", &self.tables.slots, slots);
        if let Some(before) = before.filter(|before| *before != base) {
            for (table, name, _) in before.differing(&base) {
                let name = || format!("{name} of table {}", table.name());
                news.drifted(now, "chain", name);
            }
            for (_, rule) in before.missing_guests(&base) {
                news.drifted(now, "rule", || rule.to_string());
            }
        }
    }

    /// Reports whether the next periodic check reads all rules, instead of only looking for the
    /// canary chain.
    fn is_reading_due(&self, state: &State) -> bool {
        let period = state.config.sync_period;
        let period = period.saturating_sub(period / 8);
        self.read.is_none_or(|(at, took)| {
            let pause = period.max(took.saturating_mul(READING_SHARE));
            state.now.saturating_duration_since(at) >= pause
        })
    }

    /// Returns the rule counts for the metrics. `written` is `None` if the sync wrote nothing.
    fn counts(&self, written: Option<RuleCounts>) -> IptablesReport {
        let base = self.tables.base.wanted(&());
        let base = |table| base.map_or(0, |base| base.rules(table));
        let [filter, nat] = self.claims.rules;
        IptablesReport {
            wanted: [filter + base(Table::Filter), nat + base(Table::Nat)],
            written,
            is_full: self.freshness == Freshness::Read,
        }
    }

    fn next_of_rules(&mut self, state: &mut State) -> Step<Self> {
        // Waits for a read of the rules and of the node's addresses. Without the addresses, the
        // base could remove NodePorts that still serve.
        if !(state.knows(Part::Rules) && state.look(Part::Addresses).is_tried()) {
            return Step::NONE;
        }
        // After a refusal, the kernel may have other rules than the tables record. Another write
        // could duplicate jumps, or remove new rules from chains.
        if self.has_to_read {
            return Step::NONE;
        }
        let planner = Planner {
            tables: &self.tables,
            claims: &self.claims,
            manner: self.manner,
            may_delete: state.may_delete(),
            is_uncertain: self.is_uncertain,
            now: state.now,
        };
        let plan = planner.plan(&state.config);
        let is_empty = plan.is_empty();
        let plan = if is_empty {
            planner.plan_leftovers()
        } else {
            Some(plan)
        };
        if is_empty && self.freshness == Freshness::Read {
            // The read found no difference, so no write follows. Reports the counts without a
            // write.
            state.report.iptables = Some(self.counts(None));
            self.freshness = Freshness::Written;
        }
        Step { plan, query: None }
    }
}

impl engine::Scheme for Iptables {
    type Kinds = IptablesKinds;
    type Outcomes = WriteOutcomes;
    type PartContent = PartState;
    type Query = CanaryQuery;
    type QueryResponse = Result<bool, Unreadable>;

    const ADDRESSES: Part = Part::Addresses;
    const EVIDENCE: &'static [Part] = &[];
    const WRITING: &'static [Lane] = &[Lane::Rules];
    // Empty: during a change of mode, no worker thread (lane) starts another write. Once all
    // worker threads are idle, the new mode takes over.
    const SERVING: &'static [Lane] = &[];

    fn new(state: &State) -> Self {
        // A read of all rules comes first, so the canary need not be checked immediately.
        let mut canary = reconcile::ReadSchedule::new(state.now, state.config.sync_period);
        canary.begin();
        canary.succeed(state.now);
        Self {
            tables: Tables::new(state.now),
            claims: Claims::default(),
            manner: RestoreStrategy::Together,
            read: None,
            freshness: Freshness::Written,
            is_uncertain: false,
            has_to_read: false,
            canary,
            wants_look: false,
        }
    }

    fn begin(&mut self, now: Instant) {
        self.tables.begin(now);
    }

    fn tables(&self, part: Part) -> impl Iterator<Item = &dyn Rows> {
        let of_rules = (part == Part::Rules).then(|| self.tables.all());
        of_rules.into_iter().flatten()
    }

    fn served(&self) -> &dyn Served {
        &self.tables.slots
    }

    fn disputed(&self) -> &dyn Served {
        &self.claims.places
    }

    fn is_settled(&self, service: &NamespacedName) -> bool {
        self.claims.is_settled(service, &self.tables)
    }

    fn removals_change(&mut self, state: &State) {
        self.claims.may_delete = state.may_delete();
        self.tables.count_removals(state.removals());
    }

    fn node_changed(&mut self, state: &mut State) -> bool {
        // Only the base contains the addresses that serve NodePorts. So the rules of Services stay
        // the same.
        self.want_base(state);
        false
    }

    fn update(&mut self, state: &mut State, model: &Model, extent: Extent<'_>) {
        for name in extent.services(model, self.claims.services()) {
            self.update_service(state, model, &name);
        }
        self.claims.settle_style(&mut self.tables, &state.config);
    }

    fn notice(&mut self, _: &mut State, _: &Notice) -> bool {
        // Ignores notices about links, because this mode has no link with service addresses.
        false
    }

    fn check(&mut self, state: &mut State) {
        self.wants_look = true;
        state.ask(Part::Addresses);
    }

    fn prepare(&mut self, state: &mut State) {
        // Starts no check while a read of all rules is pending: the read detects more than a query
        // for the canary.
        if !state.look(Part::Rules).is_awaited() && mem::take(&mut self.wants_look) {
            if self.is_reading_due(state) {
                state.ask(Part::Rules);
            } else {
                self.canary.ask(state.now);
            }
        }
    }

    fn next(&mut self, lane: Lane, state: &mut State) -> Step<Self> {
        match lane {
            Lane::Rules => self.next_of_rules(state),
            // This worker thread (lane) works in parallel with writes, so a hanging query delays no
            // write.
            //
            // An outdated response does no harm: if the canary is missing, the other worker thread
            // reads all rules between two writes.
            Lane::Looks => {
                let is_due = self.canary.is_due(state.now);
                if !is_due || state.look(Part::Rules).is_awaited() {
                    return Step::NONE;
                }
                self.canary.begin();
                Step {
                    plan: None,
                    query: Some(CanaryQuery),
                }
            }
        }
    }

    fn next_due(&self, now: Instant) -> Option<Instant> {
        self.canary.next_due(now)
    }

    fn observe(&mut self, state: &mut State, _: &Model, found: PartState) {
        match found {
            PartState::Rules(saved, took) => {
                self.observe_rules(state, *saved);
                self.read = Some((state.now, took));
                self.freshness = Freshness::Read;
            }
            PartState::Addresses(addresses) => {
                // Loopback addresses count only if they serve NodePorts.
                let counts = |ip: &IpAddr| !ip.is_loopback() || state.config.localhost_node_ports;
                let addresses = addresses.into_iter().filter(counts).collect();
                state.node.interface_addresses = addresses;
                state.node.has_addresses = true;
                self.want_base(state);
            }
        }
    }

    fn settle(&mut self, state: &mut State, plan: &Plan, outcomes: WriteOutcomes) {
        let written = [Table::Filter, Table::Nat].map(|table| plan.rules(table));
        state.report.iptables = Some(self.counts(Some(written)));
        state.report.has_used_much |= plan.parts.len() >= MANY;
        state.report.failed_restores += outcomes.refused;
        let report = &mut state.report;
        report.written += outcomes.taken;
        report
            .writes
            .add(EntryKind::Rules, Fate::Done, outcomes.taken);
        report
            .writes
            .add(EntryKind::Rules, Fate::Refused, outcomes.refused);
        if outcomes.taken > 0 {
            state.wrote(Part::Rules);
        }
        if outcomes.refused > 0 {
            // `iptables-restore` may have written some tables before the refusal.
            self.is_uncertain = true;
            self.has_to_read |= outcomes.is_doubtful || outcomes.taken > 0;
            self.read = None;
            state.doubt(Part::Rules);
        } else {
            self.freshness = Freshness::Written;
        }
        if let Some(reason) = &outcomes.general {
            self.tables.fail_all(plan, state.now);
            state.report.failures.push(Failure {
                object: "write iptables rules".to_owned(),
                owner: None,
                reason: reason.to_string(),
            });
            return;
        }
        self.manner = if outcomes.refused > 0 {
            RestoreStrategy::Apart
        } else {
            RestoreStrategy::Together
        };
        if plan.manner == RestoreStrategy::Together && outcomes.refused > 0 {
            // The next plan isolates the refused commands, and its outcome is reported instead.
            return;
        }
        self.tables
            .settle(plan, &outcomes, state.now, &mut state.report);
        if plan.has_base() && outcomes.base == WriteOutcome::Done {
            state.news.review();
        }
        let owners = plan.parts.iter().filter_map(|part| part.owner.as_ref());
        let services = owners.map(|owner| owner.name.service.clone());
        state.news.wrote(services);
    }

    fn as_done(plan: &Plan) -> WriteOutcomes {
        WriteOutcomes {
            parts: vec![WriteOutcome::Done; plan.parts.len()],
            stale: vec![WriteOutcome::Done; plan.stale.len()],
            ..WriteOutcomes::default()
        }
    }

    fn take(&mut self, state: &mut State, seen: Result<bool, Unreadable>) {
        match seen {
            Ok(is_there) => {
                self.canary.succeed(state.now);
                if is_there {
                    state.tell_readable(Part::Rules.name());
                } else {
                    state.ask(Part::Rules);
                }
            }
            Err(error) => {
                self.canary.fail(state.now);
                state.tell_unreadable(error);
            }
        }
    }
}
