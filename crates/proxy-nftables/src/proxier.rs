//! The nftables mode for one IP family, as a [`Scheme`](engine::Scheme) of the [`engine`].
//!
//! ```text
//!   update ─▶ Claims ─▶ Tables ─planner─▶ two lanes: one for the table, one that reads addresses
//!                         ▲                   │
//!                         └ settle, observe ◀─┘
//! ```

use std::collections::BTreeSet;
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{Engine, Extent, Served, Step};
use hashbrown::HashSet;
use nftables_netlink::{Name, Rule};
use proxy::{
    EntryKind, Failure, Fate, Model, NamespacedName, NodeFacts, Notice, Selection, is_outside,
};
use reconcile::Rows;

use crate::base::{Base, BaseKey, NodePortIps, unallocated};
use crate::budget::Budget;
use crate::choice::Chooser;
use crate::claims::Claims;
use crate::clients::SetMemory;
use crate::config::LocalhostNodePorts;
use crate::kinds::{Lane, NftablesKinds, Part, State};
use crate::layout::Layout;
use crate::plan::{Outcomes, Plan, Removal, Timeouts, UnitOutcome};
use crate::planner::Planner;
use crate::port::{ServedPort, compile};
use crate::snapshot::{PartContent, Snapshot};
use crate::tables::Tables;

/// Number of Service ports in a plan from which the process returns free memory to the operating
/// system.
const MANY: usize = 1_000;

/// Shortest pause between two reads of the table, as a multiple of the duration of the last read.
/// Pauses are necessary because the mode writes nothing during a read.
const READING_SHARE: u32 = 10;

/// Delay between a change by another program and the read of the table. In this time, the other
/// program can complete its changes.
const SETTLE: Duration = Duration::from_millis(50);

/// The nftables mode for one IP family.
pub type Proxier<K> = Engine<Nftables, K>;

/// Worker threads of this mode: [one for the table, one for addresses](Lane).
pub type Lanes<K> = engine::Lanes<Nftables, K>;

/// State of nftables mode for one IP family: wanted objects, actual objects, and observed
/// properties of the kernel.
pub struct Nftables {
    tables: Tables,
    claims: Claims,
    base: Arc<Base>,
    /// Chooser chains (each chooses among a fixed number of endpoints) that are wanted. A chain
    /// that no Service needs any more stays until the next start, because a Service may soon need
    /// it again.
    choosers: BTreeSet<Chooser>,
    /// True if Services need chooser chains that are not yet among the wanted base objects.
    lacks_choosers: bool,
    /// Rule in the kernel that drops packets to unallocated ClusterIPs, if any.
    unallocated: Option<Rule>,
    /// Method of deleting unwanted chains. Changes once a write shows that this kernel needs the
    /// other method.
    removal: Removal,
    timeouts: Timeouts,
    /// Budget of the next transaction, or `None` until the mode has written all Service ports once.
    budget: Option<Budget>,
    /// Time and duration of the table's last read, or `None` before the first read.
    read: Option<(Instant, Duration)>,
    /// Time of the next read, if another program has changed the table.
    reread: Option<Instant>,
    /// True if a write of this mode left the table's state unknown. The next read then reports no
    /// drift.
    is_uncertain: bool,
    /// True once the mode has known the node's own address. Stays true if the address becomes
    /// unknown.
    has_own_address: bool,
    /// Sets of session affinity clients for which the kernel has already released the reserved
    /// memory. Their handles never change, so each read of the table would report the memory as
    /// reserved again.
    shrunk: HashSet<Name>,
    /// Layout that the mode chose by the number of Service ports, or `None` before the first read
    /// of the table.
    chosen: Option<Layout>,
}

/// Addresses of the node at which NodePorts are served.
enum ServedAddresses {
    /// NodePorts are served at all addresses of the node.
    All,
    /// NodePorts are served only at the addresses in the list.
    At(Vec<IpAddr>),
    /// The addresses are unknown, so the addresses in the kernel's set stay.
    Unknown,
}

/// State of the mode's knowledge about the node's own address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnAddress {
    /// The address is known, was known before, or may still become known.
    Open,
    /// The node has no own address. This is certain, because all data about the node is known.
    None,
}

/// Returns the addresses at which NodePorts are served. Two cases are special:
///
/// | `--nodeport-addresses` | addresses that serve |
/// |---|---|
/// | `primary`, and the node has no address | all, as in upstream |
/// | only networks of the other family | none; in upstream, all |
fn serving(node: &NodeFacts, own_address: OwnAddress) -> ServedAddresses {
    if node.node_port_addresses.lacks(node.family) {
        return ServedAddresses::At(Vec::new());
    }
    let is_all = match node.node_port_addresses.of(node.family) {
        Selection::All => true,
        Selection::Primary => own_address == OwnAddress::None,
        Selection::Within(_) | Selection::PrimaryOrWithin(_) => false,
    };
    if is_all {
        return ServedAddresses::All;
    }
    let addresses = match node.serving_node_ports([]) {
        None if node.has_addresses && own_address == OwnAddress::None => {
            node.serving_node_ports_in_networks()
        }
        Some(addresses) => addresses,
        None => return ServedAddresses::Unknown,
    };
    let outside = addresses.into_iter().filter(|ip| !ip.is_loopback());
    ServedAddresses::At(outside.collect())
}

impl Nftables {
    /// Returns true if `--nodeport-addresses` contains `primary`, and an interface still has an
    /// address that serves NodePorts.
    fn serves_own_address(&self, state: &State) -> bool {
        let node = &state.node;
        let mut served = self.tables.node_ports.iter_wanted();
        let selection = node.node_port_addresses.of(node.family);
        matches!(
            selection,
            Selection::Primary | Selection::PrimaryOrWithin(_)
        ) && served.any(|(address, ())| node.interface_addresses.contains(address))
    }

    /// Claims the objects that do not depend on Services, from the current data about the node.
    fn want_base(&mut self, state: &mut State) {
        let (family, config) = (state.node.family, &state.config);
        self.has_own_address |= state.node.ip.is_some_and(|ip| !ip.is_loopback());
        let own_address = if state.may_delete() && !self.has_own_address {
            OwnAddress::None
        } else {
            OwnAddress::Open
        };
        let serving = match serving(&state.node, own_address) {
            // Keeps the addresses in the kernel's set. No interface has the Node object's address
            // now, but an interface may get this address soon.
            ServedAddresses::At(none) if none.is_empty() && self.serves_own_address(state) => {
                ServedAddresses::Unknown
            }
            serving => serving,
        };
        let is_all = |entries: &Tables| {
            let set = BaseKey::Set(crate::name::NODE_PORT_IPS);
            entries.base.actual(&BaseKey::Table).is_some() && entries.base.actual(&set).is_none()
        };
        let node_ports = match &serving {
            ServedAddresses::All => NodePortIps::All,
            ServedAddresses::Unknown if is_all(&self.tables) => NodePortIps::All,
            ServedAddresses::At(_) | ServedAddresses::Unknown => NodePortIps::InSet,
        };
        let unallocated = match &state.node.service_cidrs {
            // Uses the ServiceCIDRs as soon as they are known, because they come from the API
            // server. Until then, keeps the rule that the kernel has.
            Some(nets) => unallocated(family, nets),
            None => self.unallocated.clone(),
        };
        let base = Base::new(family, config, node_ports, unallocated);
        let base = base.with_choosers(&self.choosers);
        self.tables.base.claim(&(), base.entries());
        self.base = Arc::new(base);
        match serving {
            ServedAddresses::All => {
                self.tables.node_ports.release(&());
                let all = state.node.interface_addresses.iter().copied();
                state.serving.addresses = all.filter(is_outside).collect();
            }
            ServedAddresses::At(addresses) => {
                let entries = addresses.iter().map(|address| (*address, ()));
                self.tables.node_ports.claim(&(), entries);
                state.serving.addresses = addresses;
            }
            ServedAddresses::Unknown => {
                // Keeps the addresses that are in the kernel's set.
                let there = self.tables.node_ports.iter_actual();
                let there: Vec<IpAddr> = there.map(|(address, ())| *address).collect();
                let entries = there.iter().map(|address| (*address, ()));
                self.tables.node_ports.claim(&(), entries);
            }
        }
    }

    fn update_service(&mut self, state: &mut State, model: &Model, name: &NamespacedName) {
        let view = model.view(name);
        let ports = view.map_or_else(Vec::new, |view| compile(&view, &state.node));
        if state.config.layout == Layout::Flat {
            let known = self.choosers.len();
            let choosers = ports.iter().filter_map(ServedPort::chooser);
            self.choosers.extend(choosers);
            self.lacks_choosers |= self.choosers.len() > known;
        }
        let (tables, may_delete) = (&mut self.tables, state.may_delete());
        self.claims
            .put(name, ports, tables, &state.config, may_delete);
        state.news.changed(name);
    }

    /// Chooses the layout by the number of Service ports. Until the first choice, and while the
    /// mode must not delete objects, it uses the layout of the table in the kernel.
    fn choose_layout(&mut self, state: &mut State) {
        let Some(sizes) = state.config.sizes.filter(|_| state.knows(Part::Table)) else {
            return;
        };
        let there = self.tables.actual_layout();
        let present = self.chosen.or(there).unwrap_or_default();
        let layout = if there.is_some() && !state.may_delete() {
            present
        } else {
            sizes.choose(present, self.claims.count())
        };
        self.chosen = Some(layout);
        if layout != state.config.layout {
            self.lay_out(state, layout);
        }
    }

    /// Changes the layout to `layout`, and claims all objects again in this layout.
    fn lay_out(&mut self, state: &mut State, layout: Layout) {
        Arc::make_mut(&mut state.config).layout = layout;
        self.choosers = match layout {
            Layout::Upstream => BTreeSet::new(),
            Layout::Flat => self.claims.choosers().collect(),
        };
        self.lacks_choosers = false;
        self.want_base(state);
        let may_delete = state.may_delete();
        self.claims
            .lay_out(&mut self.tables, &state.config, may_delete);
        // Gives endpoints the positions that they already have in the kernel.
        self.tables.keep_places();
    }

    /// Adds missing chooser chains to the wanted base, if Services need them.
    fn want_choosers(&mut self, state: &mut State) {
        if mem::take(&mut self.lacks_choosers) {
            self.want_base(state);
        }
    }

    fn observe_table(&mut self, state: &mut State, found: Snapshot) {
        state.report.nftables.get_or_insert_default().is_full = true;
        let is_drift = state.knows(Part::Table) && !mem::take(&mut self.is_uncertain);
        let Snapshot {
            base,
            unallocated,
            node_ports,
            slots,
            members,
            chains,
            mut affinity,
        } = found;
        for (set, clients) in &mut affinity {
            if self.shrunk.contains(set) {
                clients.room = SetMemory::AsNeeded;
            }
        }
        self.unallocated = unallocated;
        let tables = &mut self.tables;
        let base = tables.base.observe(base);
        let node_ports = node_ports.into_iter().map(|address| (address, ()));
        let node_ports = tables.node_ports.observe(node_ports);
        let slots = tables.slots.observe(slots);
        let members = members.into_iter().map(|member| (member, ()));
        let members = tables.members.observe(members);
        let chains = tables.chains.observe(chains);
        let affinity = tables.affinity.observe(affinity);
        // A program that owned the table may have ended: the kernel then deletes the table without a
        // notification.
        if base.contains(&BaseKey::Table) {
            tables.retry_now(state.now);
        }
        tables.keep_places();
        if !state.may_delete() {
            self.claims.go_on(&mut self.tables, &state.config);
        }
        self.want_base(state);
        if !is_drift {
            return;
        }
        let (now, news) = (state.now, &mut state.news);
        for key in base {
            news.drifted(now, "chain", || key.to_string());
        }
        for address in node_ports {
            news.drifted(now, "set member", || address.to_string());
        }
        let tables = &self.tables;
        news.drifted_of(now, "set member", &tables.slots, slots);
        news.drifted_of(now, "set member", &tables.members, members);
        news.drifted_of(now, "chain", &tables.chains, chains);
        news.drifted_of(now, "set", &tables.affinity, affinity);
    }
}

impl engine::Scheme for Nftables {
    type Kinds = NftablesKinds;
    type Outcomes = Outcomes;
    type PartContent = PartContent;
    type Query = ();
    type QueryResponse = ();

    const ADDRESSES: Part = Part::Addresses;
    const EVIDENCE: &'static [Part] = &[Part::Table];
    const WRITING: &'static [Lane] = &[Lane::Table];
    // Empty: during a change of mode, no lane (worker thread) starts another write. Once all lanes
    // are idle, the new mode takes over.
    const SERVING: &'static [Lane] = &[];

    fn new(state: &State) -> Self {
        let family = state.node.family;
        Self {
            tables: Tables::new(state.now),
            claims: Claims::default(),
            base: Arc::new(Base::new(family, &state.config, NodePortIps::InSet, None)),
            choosers: BTreeSet::new(),
            lacks_choosers: false,
            unallocated: None,
            removal: Removal::Together,
            timeouts: Timeouts::Unknown,
            budget: None,
            read: None,
            reread: None,
            is_uncertain: false,
            has_own_address: false,
            shrunk: HashSet::new(),
            chosen: None,
        }
    }

    fn begin(&mut self, now: Instant) {
        self.tables.begin(now);
    }

    fn tables(&self, part: Part) -> impl Iterator<Item = &dyn Rows> {
        let of_table = (part == Part::Table).then(|| self.tables.all());
        of_table.into_iter().flatten()
    }

    fn served(&self) -> &dyn Served {
        &self.tables.slots
    }

    fn is_settled(&self, service: &NamespacedName) -> bool {
        self.claims.is_settled(service, &self.tables)
    }

    fn removals_change(&mut self, state: &State) {
        self.tables.count_removals(state.removals());
    }

    fn node_changed(&mut self, state: &mut State) -> bool {
        // Compiles no Service again: the addresses that serve NodePorts affect only the base.
        self.want_base(state);
        false
    }

    fn update(&mut self, state: &mut State, model: &Model, extent: Extent<'_>) {
        if !matches!(extent, Extent::These(_)) {
            if let Some(sizes) = state.config.sizes
                && self.chosen.is_none()
                && model.service_count() > sizes.flat_above
            {
                // Guesses the layout before the first read of the table, so that Services rarely
                // need to be compiled for both layouts.
                Arc::make_mut(&mut state.config).layout = Layout::Flat;
            }
            // Claims the base objects again, because all data about the node may be known now.
            self.want_base(state);
        }
        for name in extent.services(model, self.claims.services()) {
            self.update_service(state, model, &name);
        }
        self.want_choosers(state);
    }

    fn notice(&mut self, state: &mut State, notice: &Notice) -> bool {
        if *notice == Notice::Ruleset {
            let pause = |(at, took): (Instant, Duration)| at + took * READING_SHARE;
            let earliest = self.read.map_or(state.now, pause);
            let due = earliest.max(state.now + SETTLE);
            self.reread.get_or_insert(due);
        }
        // Returns false, because no link has service addresses in this mode. So the engine need not
        // read addresses.
        false
    }

    fn check(&mut self, state: &mut State) {
        // Reads only the addresses, because the kernel notifies the mode of changes to the table.
        state.ask(Part::Addresses);
    }

    fn prepare(&mut self, state: &mut State) {
        let is_due = |due: &mut Instant| *due <= state.now;
        if self.reread.take_if(is_due).is_some() {
            state.ask(Part::Table);
        }
        self.choose_layout(state);
    }

    fn form(&self, state: &State) -> Option<&'static str> {
        let is_open = state.config.sizes.is_some() && self.chosen.is_none();
        (!is_open).then(|| state.config.layout.form())
    }

    fn next(&mut self, lane: Lane, state: &mut State) -> Step<Self> {
        // Waits for the node's addresses. Without them, the plan might remove NodePort addresses
        // that still serve.
        let is_ready = state.knows(Part::Table) && state.look(Part::Addresses).is_tried();
        if lane != Lane::Table || !is_ready {
            return Step::NONE;
        }
        let planner = Planner {
            family: state.node.family,
            tables: &self.tables,
            claims: &self.claims,
            base: &self.base,
            removal: self.removal,
            timeouts: self.timeouts,
            budget: self.budget.unwrap_or(Budget::WHOLE),
            may_delete: state.may_delete(),
            now: state.now,
        };
        let plan = planner.plan(&state.config);
        Step {
            plan: (!plan.is_empty()).then_some(plan),
            query: None,
        }
    }

    fn next_due(&self, now: Instant) -> Option<Instant> {
        let listeners = self.tables.listeners.next_retry(now);
        self.reread.into_iter().chain(listeners).min()
    }

    fn observe(&mut self, state: &mut State, _: &Model, found: PartContent) {
        match found {
            PartContent::Table(found, took) => {
                self.observe_table(state, *found);
                self.read = Some((state.now, took));
            }
            PartContent::Addresses(addresses) => {
                let is_outside = |ip: &IpAddr| !ip.is_loopback();
                let addresses = addresses.into_iter().filter(is_outside).collect();
                state.node.interface_addresses = addresses;
                state.node.has_addresses = true;
                self.want_base(state);
            }
        }
    }

    fn settle(&mut self, state: &mut State, plan: &Plan, outcomes: Outcomes) {
        state.report.has_used_much |= plan.parts.len() >= MANY;
        state.report.written += outcomes.changes;
        let writes = &mut state.report.writes;
        writes.add(EntryKind::Table, Fate::Done, outcomes.taken);
        writes.add(EntryKind::Table, Fate::Refused, outcomes.refused);
        let counts = state.report.nftables.get_or_insert_default();
        if plan.is_cleanup() {
            counts.failed_cleanups += outcomes.refused;
        } else {
            counts.failed_syncs += outcomes.refused;
        }
        if outcomes.taken > 0 {
            state.wrote(Part::Table);
        }
        self.shrunk.extend(plan.shrunk(&outcomes));
        (self.removal, self.timeouts) = (outcomes.removal, outcomes.timeouts);
        let size = Planner::size(plan);
        self.budget = self.budget.map(|before| before.after(size, outcomes.took));
        if outcomes.is_doubtful || plan.replaces_set() {
            self.is_uncertain = true;
            state.doubt(Part::Table);
        }
        if let Some(reason) = &outcomes.general {
            state.report.failures.push(Failure {
                object: "write the nftables table kube-proxy".to_owned(),
                owner: None,
                reason: reason.to_string(),
            });
        }
        self.tables
            .settle(plan, &outcomes, state.now, &mut state.report);
        if state.config.localhost == LocalhostNodePorts::Served {
            let failed =
                self.tables
                    .settle_listeners(plan, &outcomes, state.now, &mut state.report);
            let counts = state.report.nftables.get_or_insert_default();
            counts.failed_listeners += failed;
            counts.listeners = Some(self.tables.listeners.iter_actual().count());
        }
        let slots = &self.tables.slots;
        let is_all = || slots.due(state.now).next().is_none();
        if self.budget.is_none() && slots.as_wanted_len() > 0 && is_all() {
            self.budget = Some(Budget::LEAST);
        }
        if plan.has_base() && outcomes.base == UnitOutcome::Done {
            self.unallocated = self.base.unallocated().cloned();
            state.news.review();
        }
        let owners = plan.parts.iter().filter_map(|part| part.owner.as_ref());
        let services = owners.map(|owner| owner.name.service.clone());
        state.news.wrote(services);
    }

    fn as_done(plan: &Plan) -> Outcomes {
        Outcomes::done(plan)
    }

    fn take(&mut self, _: &mut State, (): ()) {}
}
