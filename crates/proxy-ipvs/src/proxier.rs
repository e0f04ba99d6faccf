//! The IPVS mode: what goes on between the model and the kernel, in one IP family.
//!
//! ```text
//!   update ─▶ Claims ─▶ Tables ─planner─▶ three lanes that write, one that only reads
//!                         ▲                        │
//!                         └── book: outcomes, looks ┘
//! ```
//!
//! Each lane is a kernel thread: virtual servers and sets, addresses, rules. None waits for another but where an entry of one needs
//! one of the other's (`planner`). What could not be read of the kernel is read again by itself, and only what builds on it waits.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};
use netlink_batch::{Gone, Lane, Worker};
use proxy::{
    Changes, Drift, IpFamily, Mode, Model, NamespacedName, NodeFacts, NodePorts, Notice, Report,
    Standing, Target, Unreadable,
};
use reconcile::Look;

use crate::claims::Claims;
use crate::compile::{NodePortAddresses, compile};
use crate::config::{Config, VipMode};
use crate::drain::Drains;
use crate::drift::{self, Check, Comparing, Dump, Touched};
use crate::kernel::{
    CONNECTIONS, FoundAddresses, FoundRules, FoundSets, Glance, Kernel, KernelError, Part, Snapshot,
};
use crate::plan::{Op, Outcome, Plan};
use crate::planner::{self, Budget, HEAD_START, Situation, Turn};
use crate::rules::Shim;
use crate::server::{RealServer, VirtualServer, VirtualServerKey};
use crate::sets::{Member, Set};
use crate::tables::{Booked, Rows, Tables, part_of, server_of};

/// From so many Services at once on, room is made for them first.
const MANY: usize = 1_000;

/// After so many writes at once, memory is given back.
const MANY_WRITES: usize = 1_000;

/// How soon after the kernel has told of an address all of them are read: they change in bursts.
const SETTLE: Duration = Duration::from_millis(50);

/// How soon what is not as believed is read again, at the earliest, after it was read.
const REREAD_PAUSE: Duration = Duration::from_millis(100);

/// What the kernel tells of an address that this proxy has taken off the link comes within so long.
const TOLD_WITHIN: Duration = Duration::from_secs(10);

/// How long what somebody else has changed is gathered, if it takes long to be repaired, until it is told.
const TELL_DRIFT: Duration = Duration::from_secs(5);

/// The kernel threads of one IP family.
pub struct Lanes<K> {
    services: KernelLane<K>,
    addresses: KernelLane<K>,
    rules: KernelLane<K>,
    reader: KernelLane<K>,
}

type KernelLane<K> = Lane<K, Done>;

impl<K: Kernel> Lanes<K> {
    /// One worker for each: for virtual servers and sets, for addresses, for rules, and for reading beside these.
    pub fn new(
        services: Worker<K>,
        addresses: Worker<K>,
        rules: Worker<K>,
        reader: Worker<K>,
    ) -> Self {
        Self {
            services: Lane::new(services),
            addresses: Lane::new(addresses),
            rules: Lane::new(rules),
            reader: Lane::new(reader),
        }
    }

    /// Lanes without threads: what each does is done when it is begun. For tests whose writes are to come in one order.
    pub fn inline(kernel: impl Fn() -> K) -> Self {
        Self {
            services: Lane::inline(kernel()),
            addresses: Lane::inline(kernel()),
            rules: Lane::inline(kernel()),
            reader: Lane::inline(kernel()),
        }
    }

    fn all_mut(&mut self) -> [&mut KernelLane<K>; 4] {
        [
            &mut self.services,
            &mut self.addresses,
            &mut self.rules,
            &mut self.reader,
        ]
    }
}

/// What a kernel thread has done.
pub(crate) enum Done {
    Wrote {
        lane: LaneOf,
        plan: Arc<Plan>,
        outcomes: Vec<Outcome>,
        /// How long the writes have taken, if there were enough to tell.
        took: Option<Duration>,
        looked: Option<Looked>,
    },
    Read(Vec<Found>),
    Looked(Looked),
    Glanced(Result<Glance, KernelError>),
    Dumped(Box<Dump>),
}

/// What was found of a part.
pub(crate) enum Found {
    Servers(Result<BTreeMap<VirtualServerKey, VirtualServer>, KernelError>),
    Sets(Result<FoundSets, KernelError>),
    Addresses(Result<FoundAddresses, KernelError>),
    Rules(Result<FoundRules, KernelError>),
}

impl Found {
    fn read(kernel: &mut impl Kernel, part: Part) -> Self {
        match part {
            Part::Servers => Self::Servers(kernel.read_servers()),
            Part::Sets => Self::Sets(kernel.read_sets()),
            Part::Addresses => Self::Addresses(kernel.read_addresses()),
            Part::Rules => Self::Rules(kernel.read_rules()),
        }
    }
}

/// An answer to [`Kernel::connections`], and what was asked.
pub(crate) struct Looked {
    keys: Vec<VirtualServerKey>,
    found: Result<BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>, KernelError>,
}

impl Looked {
    fn at(kernel: &mut impl Kernel, keys: Vec<VirtualServerKey>) -> Self {
        Self {
            found: kernel.connections(&keys),
            keys,
        }
    }
}

/// What is known of a part of the kernel's state.
struct Knowledge {
    look: Look,
    /// When something of it was last written.
    written: Option<Instant>,
}

/// The IPVS mode for one IP family.
pub struct Proxier<K: Kernel> {
    config: Config,
    node: NodeFacts,
    node_ports: NodePortAddresses,
    /// The same for those who ask.
    serving: NodePorts,
    lanes: Lanes<K>,
    claims: Claims,
    tables: Tables,
    /// By the number of the part.
    parts: [Knowledge; Part::ALL.len()],
    /// Whether the model has told what is wanted: before that, nothing is written, and nothing taken away.
    has_claims: bool,
    /// What lanes are writing.
    in_flight: Vec<(LaneOf, Arc<Plan>)>,
    /// What the lane of virtual servers and sets has done last, while there is more.
    last_turn: Option<Turn>,
    /// The virtual server at which its last plan ended, if that was long enough.
    last_server: Option<VirtualServerKey>,
    budget: Budget,
    /// Virtual servers that were found at the start and of which it is not known yet whose they are.
    unjudged: Option<Unjudged>,
    /// Virtual servers that may have been made, or not.
    uncertain: HashSet<VirtualServerKey>,
    /// Addresses that this proxy has taken off the link: the kernel tells of these, too.
    taken_off: HashMap<IpAddr, TakenOff>,
    /// Whether addresses that are gone may be so because this proxy has set the link down, until they are read again.
    has_set_link: bool,
    /// What the wanted rules were last made from: the sets that they match, and the number of what is forbidden to the node.
    shim: Option<(BTreeSet<Set>, u64)>,
    /// Sets that the rules are to match and do not match yet.
    uncovered: BTreeSet<Set>,
    /// Until when new virtual servers of cluster IPs wait for the rules, if there are none at the start.
    head_start: Option<Instant>,
    /// Until when, after a start, rules wait for sets that an earlier run has filled to be emptied, so that they are written once.
    emptied_by: Option<Instant>,
    check: Option<Check>,
    /// Whether another check is to follow the one under way.
    wants_check: bool,
    /// When it is next glanced at whether the virtual servers are all there: somebody's `ipvsadm -C` takes every Service away, and
    /// the kernel tells nobody.
    next_glance: Option<Instant>,
    /// How many virtual servers there should be, where the kernel says how many there are.
    count: Option<u32>,
    /// When the rules were last read.
    rules_read: Option<Instant>,
    /// Since when no virtual server that is wanted is there.
    unserved: Option<Instant>,
    news: News,
}

/// What is to be told with the next report.
#[derive(Default)]
struct News {
    /// Services that changed, and are not settled yet.
    awaited: HashSet<NamespacedName>,
    /// Those of them that have to be looked at.
    fresh: Vec<NamespacedName>,
    /// Those of them of which somebody else had changed something.
    disturbed: HashSet<NamespacedName>,
    /// What is settled now.
    settled: Vec<NamespacedName>,
    repaired: Vec<NamespacedName>,
    drift: Drift,
    /// Since when there is any.
    drifting: Option<Instant>,
    conflicts_version: u64,
}

/// An address that this proxy has taken off the link, and of which the kernel has not told yet.
struct TakenOff {
    at: Instant,
    is_bound_again: bool,
}

/// What was found before anything was written.
#[derive(Default)]
struct Unjudged {
    /// Virtual servers that are not known to be ours, and what says whose they are.
    evidence: Snapshot,
    /// Whether what is ours by that has been adopted; the rest may still be wanted.
    is_judged: bool,
}

impl<K: Kernel> Proxier<K> {
    /// A proxier that wants nothing yet and has not looked at the kernel.
    pub fn new(config: Config, mut node: NodeFacts, lanes: Lanes<K>, now: Instant) -> Self {
        node.ip = config.node_ip.or(node.ip);
        let part = |_| Knowledge {
            look: Look::new(now, config.sync_period),
            written: None,
        };
        let mut tables = Tables::new(now);
        tables.count_removals(false);
        Self {
            parts: std::array::from_fn(part),
            claims: Claims::new(Drains::new(config.drain_timeout)),
            node,
            node_ports: NodePortAddresses::default(),
            serving: NodePorts::default(),
            lanes,
            tables,
            has_claims: false,
            in_flight: Vec::new(),
            last_turn: None,
            last_server: None,
            budget: Budget::default(),
            unjudged: Some(Unjudged::default()),
            uncertain: HashSet::new(),
            taken_off: HashMap::new(),
            has_set_link: false,
            shim: None,
            uncovered: BTreeSet::new(),
            head_start: Some(now + HEAD_START),
            emptied_by: None,
            check: None,
            wants_check: false,
            next_glance: config.glance_period.map(|period| now + period),
            count: None,
            rules_read: None,
            unserved: None,
            news: News::default(),
            config,
        }
    }

    fn part(&self, part: Part) -> &Knowledge {
        #[allow(clippy::indexing_slicing, reason = "Part::ALL has all of them")]
        &self.parts[part as usize]
    }

    fn part_mut(&mut self, part: Part) -> &mut Knowledge {
        #[allow(clippy::indexing_slicing, reason = "Part::ALL has all of them")]
        &mut self.parts[part as usize]
    }

    fn knows(&self, part: Part) -> bool {
        self.part(part).look.is_known()
    }

    // ---- update: what is wanted ----

    /// Takes over what the model says beyond single Services; true if every Service has to be compiled again.
    fn learn(&mut self, model: &Model, is_node_new: bool) -> bool {
        // What says whose something is has to be known as well.
        let is_evident = [Part::Servers, Part::Sets, Part::Addresses]
            .iter()
            .all(|part| self.knows(*part));
        let may_delete = self.has_claims && model.is_complete() && model.is_whole() && is_evident;
        let may_now = may_delete && !self.claims.may_delete;
        if may_delete != self.claims.may_delete {
            self.claims.may_delete = may_delete;
            self.tables.count_removals(may_delete);
        }
        let is_node_changed = is_node_new && (self.refresh_node(model) | self.refresh_node_ports());
        may_now || is_node_changed
    }

    /// Takes over what the Node object says; true if something changed that entries depend on.
    fn refresh_node(&mut self, model: &Model) -> bool {
        let family = self.node.family;
        let object = model.node();
        let ip = self.config.node_ip.or_else(|| {
            object.and_then(|node| {
                node.addresses
                    .iter()
                    .copied()
                    .find(|ip| IpFamily::of(*ip) == family)
            })
        });
        let zone = object.and_then(|node| node.zone.clone());
        let has_changed = (self.node.ip, &self.node.zone) != (ip, &zone);
        self.node.ip = ip;
        self.node.zone = zone;
        has_changed
    }

    /// Computes again which addresses serve NodePorts; true if they changed.
    fn refresh_node_ports(&mut self) -> bool {
        let bound = self.tables.addresses.iter_actual();
        let bound = bound.map(|(address, ())| *address);
        let known = self.node.serving_node_ports(bound);
        let node_ports = NodePortAddresses {
            are_known: known.is_some(),
            addresses: known.unwrap_or_else(|| self.found_node_ports()),
        };
        let has_changed = node_ports != self.node_ports;
        if has_changed {
            self.serving.addresses.clone_from(&node_ports.addresses);
            self.node_ports = node_ports;
        }
        has_changed
    }

    /// The node's addresses at which NodePorts are served as it is: they go on to be, until it is known where they are to be.
    fn found_node_ports(&self) -> Vec<IpAddr> {
        let is_node_port = |key: &VirtualServerKey| {
            let set = Set::node_port(key.protocol);
            let members = [
                Member::Port(key.port),
                Member::AddressPort(key.address, key.protocol, key.port),
            ];
            self.node.interface_addresses.contains(&key.address)
                && members
                    .iter()
                    .any(|member| self.tables.members(set).actual(member).is_some())
        };
        let servers = self.tables.servers.iter_actual();
        let found = servers.filter(|(key, _)| is_node_port(key));
        let found: BTreeSet<IpAddr> = found.map(|(key, _)| key.address).collect();
        found.into_iter().collect()
    }

    fn update_all(&mut self, model: &Model) {
        let known: HashSet<NamespacedName> = self
            .claims
            .services()
            .chain(model.service_names())
            .cloned()
            .collect();
        self.update_services(model, &known);
    }

    fn update_services<'a>(
        &mut self,
        model: &Model,
        names: impl IntoIterator<Item = &'a NamespacedName>,
    ) {
        for name in names {
            self.update_service(model, name);
        }
        // Once more these claim the same virtual servers, so that nothing new becomes disputed.
        while let Some(name) = self.claims.next_disputed() {
            self.update_service(model, &name);
        }
    }

    fn update_service(&mut self, model: &Model, name: &NamespacedName) {
        let fragments = model
            .view(name)
            .map(|view| compile(&view, &self.node, &self.node_ports, &self.config))
            .unwrap_or_default();
        self.claims.put(name, fragments, &mut self.tables);
        self.news.changed(name);
    }

    /// Makes room for the Services that come, which is far cheaper than to grow with them.
    fn reserve(&mut self, model: &Model, names: &HashSet<NamespacedName>) {
        let family = self.node.family;
        let is_ours = |name: &&NamespacedName| {
            model.view(name).is_some_and(|view| {
                let mut addresses = view.service.cluster_ips.iter();
                addresses.any(|address| IpFamily::of(*address) == family)
            })
        };
        let is_new = |name: &&NamespacedName| !self.claims.knows(name);
        let services = names.iter().filter(is_new).filter(is_ours).count();
        self.claims.reserve(services);
        self.tables.servers.reserve(services);
        self.tables.addresses.reserve(services);
        for set in [Set::ClusterIp, Set::IpvsIps] {
            self.tables.members_mut(set).reserve(services);
        }
    }

    /// Makes the rules wanted that match each set of which members are wanted. What is about to be filled needs its rules before;
    /// what empties keeps those it has until its members are gone, and does not get them back while one cannot be removed.
    fn want_rules(&mut self) {
        let had = self.shim.as_ref().map(|(filled, _)| filled);
        let keeps = |set: Set| had.is_none_or(|had| had.contains(&set));
        let members = self.tables.all_members();
        let filled: BTreeSet<Set> = members
            .filter(|(set, table)| table.wanted_len() > 0 || (!table.is_empty() && keeps(*set)))
            .map(|(set, _)| set)
            .collect();
        let version = self.claims.forbidden_version();
        if self.shim.as_ref() == Some(&(filled.clone(), version)) {
            return;
        }
        let (forbidden_to_node, version) = self.claims.forbidden_to_node();
        let rules = Shim {
            family: self.node.family,
            filled: filled.clone(),
            forbidden_to_node,
        }
        .rules(&self.config);
        self.tables.rules.claim(&(), [((), Arc::new(rules))]);
        self.shim = Some((filled, version));
        self.refresh_covered();
    }

    /// Computes again which sets the rules do not match yet.
    fn refresh_covered(&mut self) {
        if self.tables.rules.actual(&()).is_some() {
            self.head_start = None;
        }
        let wanted = self.tables.rules.wanted(&()).cloned().unwrap_or_default();
        let installed = self.tables.rules.actual(&()).cloned().unwrap_or_default();
        self.uncovered = if self.are_rules_awaited() {
            wanted.uncovered(&installed, self.node.family)
        } else {
            BTreeSet::new()
        };
    }

    /// Whether new virtual servers may have to wait for the rules: not where another mode's rules serve until all is made.
    fn are_rules_awaited(&self) -> bool {
        self.tables.rules.pending_len() > 0 && !planner::is_served_by_another_mode(&self.tables)
    }

    /// Whether another mode's rules go on serving because not all that they serve is known: an object cannot be read. That takes
    /// somebody who mends it, and no restart.
    fn leaves_rules(&self) -> bool {
        !self.claims.may_delete && planner::is_served_by_another_mode(&self.tables)
    }

    // ---- observe: what is there ----

    /// Takes over what a read has found.
    fn observe(&mut self, model: &Model, found: Found, now: Instant, report: &mut Report) {
        let (part, result) = match found {
            Found::Servers(found) => {
                let found = found.map(|found| self.observe_servers(found, now));
                (Part::Servers, found)
            }
            Found::Sets(found) => {
                let found = found.map(|found| self.observe_sets(found, now));
                (Part::Sets, found)
            }
            Found::Addresses(found) => {
                let found = found.map(|found| self.observe_addresses(model, &found, now));
                (Part::Addresses, found)
            }
            Found::Rules(found) => {
                let found = found.map(|found| self.observe_rules(found, now));
                (Part::Rules, found)
            }
        };
        let look = &mut self.part_mut(part).look;
        match result {
            Ok(()) => {
                look.succeed(now);
                report.readable.push(part.name());
            }
            Err(KernelError { what, reason }) => {
                look.fail(now);
                report.unreadable.push(Unreadable { part: what, reason });
            }
        }
    }

    fn observe_servers(&mut self, found: BTreeMap<VirtualServerKey, VirtualServer>, now: Instant) {
        let was_known = self.knows(Part::Servers);
        // What is taken away before the first glance is missed by it.
        self.count = u32::try_from(found.len()).ok();
        let (ours, others): (BTreeMap<_, _>, BTreeMap<_, _>) = if self.has_servers() {
            found.into_iter().partition(|(key, _)| self.is_ours(key))
        } else {
            (BTreeMap::new(), found)
        };
        let believed: Vec<_> = if was_known {
            let differs = |(key, actual): &(&VirtualServerKey, &VirtualServer)| {
                !self.uncertain.contains(*key) && ours.get(*key) != Some(*actual)
            };
            let all = self.tables.servers.iter_actual().filter(differs);
            all.map(|(key, actual)| (*key, actual.clone())).collect()
        } else {
            Vec::new()
        };
        for (key, actual) in believed {
            self.note_server(&key, Some(&actual), ours.get(&key), now);
        }
        self.uncertain.clear();
        let changed = self.tables.servers.observe(ours);
        for key in changed {
            self.claims.settle_leftovers(key, &mut self.tables);
        }
        if let Some(unjudged) = &mut self.unjudged
            && !was_known
        {
            unjudged.evidence.servers = others;
        }
        // The check compares with what was believed before.
        self.abort_check();
    }

    fn observe_sets(&mut self, found: FoundSets, now: Instant) {
        let was_known = self.knows(Part::Sets);
        if let Some(unjudged) = &mut self.unjudged
            && !was_known
        {
            let is_evidence = |(set, _): &(&Set, &BTreeSet<_>)| set.marks_ownership();
            let evidence = found.members.iter().filter(is_evidence);
            unjudged.evidence.sets = evidence.map(|(set, of)| (*set, of.clone())).collect();
        }
        let FoundSets { mut members, sizes } = found;
        let believed = self.tables.sets.iter_actual();
        let believed: BTreeMap<Set, u32> = believed.map(|(set, size)| (*set, *size)).collect();
        let changed = self.tables.sets.observe(sizes);
        if was_known {
            // One may be larger than it was made: a set of ports has room for all.
            let is_less = |set: &Set| self.tables.sets.actual(set) < believed.get(set);
            let lessened: Vec<Set> = changed.into_iter().filter(is_less).collect();
            for set in lessened {
                let family = self.node.family;
                self.note("set", now, || set.name(family));
            }
        }
        for set in Set::all() {
            let found = members.remove(&set).unwrap_or_default().into_iter();
            let table = self.tables.members_mut(set);
            let changed = table.observe(found.map(|member| (member, ())));
            if was_known {
                for member in changed {
                    self.note_member(set, &member, now);
                }
            }
        }
        self.abort_check();
    }

    fn observe_addresses(&mut self, model: &Model, found: &FoundAddresses, now: Instant) {
        let was_known = self.knows(Part::Addresses);
        if let Some(unjudged) = &mut self.unjudged
            && !was_known
        {
            unjudged.evidence.bound.clone_from(&found.bound);
            let otherwise = &mut unjudged.evidence.bound_otherwise;
            otherwise.clone_from(&found.bound_otherwise);
            let others = &mut unjudged.evidence.interface_addresses;
            others.clone_from(&found.interface_addresses);
        }
        let link = found.has_link.then_some(((), ()));
        let is_link_other = !self.tables.link.observe(link).is_empty();
        let bound = found.bound.iter().map(|address| (*address, ()));
        let changed = self.tables.addresses.observe(bound);
        let otherwise = found.bound_otherwise.iter();
        let otherwise = otherwise.map(|address| (*address, ()));
        let otherwise = self.tables.bound_otherwise.observe(otherwise);
        if was_known {
            if is_link_other {
                self.note("link", now, || "kube-ipvs0".to_owned());
            }
            let changed = changed.into_iter().chain(otherwise);
            let has_set_link = mem::take(&mut self.has_set_link);
            for address in changed.filter(|_| !has_set_link) {
                self.note_address(address, now);
            }
        }
        self.take_interface_addresses(model, &found.interface_addresses);
    }

    fn observe_rules(&mut self, found: FoundRules, now: Instant) {
        let was_known = self.knows(Part::Rules);
        let FoundRules { rules, leftovers } = found;
        let before = self.tables.rules.actual(&()).cloned();
        let there = (!rules.is_empty()).then(|| ((), Arc::new(rules)));
        let is_other = !self.tables.rules.observe(there).is_empty();
        // A restore that was refused may have written a part.
        let is_doubted = self.tables.rules.is_failing(&());
        if was_known && is_other && !is_doubted {
            let there = self.tables.rules.actual(&()).cloned().unwrap_or_default();
            let differences = before.unwrap_or_default().differences(&there);
            for line in differences {
                let is_chain = line.contains(": -N ");
                self.note(if is_chain { "chain" } else { "rule" }, now, || line);
            }
            // Whoever flushes the rules may have gone on to the sets.
            self.part_mut(Part::Sets).look.ask(now);
        }
        self.tables.leftovers.observe(leftovers);
        self.rules_read = Some(now);
        if !was_known {
            self.head_start = Some(now + HEAD_START);
        }
        self.refresh_covered();
    }

    /// Takes over what the node's other interfaces carry, and computes again the Services that depend on it: those with a node
    /// port, if other addresses serve these now, and those with an address that an interface has gained or lost.
    fn take_interface_addresses(&mut self, model: &Model, found: &BTreeSet<IpAddr>) {
        let before = mem::replace(&mut self.node.interface_addresses, found.clone());
        let is_first = !mem::replace(&mut self.node.has_addresses, true);
        let has_other_ports = self.refresh_node_ports();
        if is_first {
            let claimed: Vec<NamespacedName> = self.claims.services().cloned().collect();
            return self.update_services(model, &claimed);
        }
        let moved: BTreeSet<&IpAddr> = before.symmetric_difference(found).collect();
        if moved.is_empty() && !has_other_ports {
            return;
        }
        let depends = |name: &&NamespacedName| {
            let service = model.view(name).map(|view| view.service);
            service.is_some_and(|service| {
                let external = service.external_ips.iter().chain(&service.ingress_ips);
                let mut addresses = service.cluster_ips.iter().chain(external);
                addresses.any(|address| moved.contains(address))
                    || (has_other_ports
                        && service.ports.iter().any(|port| port.node_port.is_some()))
            })
        };
        let names: Vec<_> = model.service_names().filter(depends).cloned().collect();
        self.update_services(model, &names);
    }

    /// Whether this proxy wants any virtual server, or has made or adopted one.
    fn has_servers(&self) -> bool {
        !self.tables.servers.is_empty() || !self.uncertain.is_empty()
    }

    /// Whether a virtual server is one that this proxy wants, or has made or adopted.
    fn is_ours(&self, key: &VirtualServerKey) -> bool {
        let servers = &self.tables.servers;
        servers.wanted(key).is_some()
            || servers.actual(key).is_some()
            || self.uncertain.contains(key)
    }

    /// Adopts what an earlier run, or upstream, has left, once all that says so was read as it was before anything was written.
    fn judge(&mut self) {
        let is_read = [Part::Servers, Part::Sets, Part::Addresses]
            .iter()
            .all(|part| self.knows(*part));
        let Some(unjudged) = self.unjudged.as_mut().filter(|of| is_read && !of.is_judged) else {
            return;
        };
        unjudged.is_judged = true;
        let mut evidence = mem::take(&mut unjudged.evidence);
        let excluded = &self.config.exclude_cidrs;
        let is_ours = |key: &&VirtualServerKey| {
            !excluded.iter().any(|net| net.contains(&key.address)) && evidence.says_ours(key)
        };
        let ours: Vec<_> = evidence.servers.keys().filter(is_ours).copied().collect();
        let adopted: Vec<_> = ours
            .into_iter()
            .filter_map(|key| evidence.servers.remove_entry(&key))
            .collect();
        unjudged.evidence.servers = evidence.servers;
        for (key, server) in adopted {
            self.adopt(key, server);
        }
        self.refresh_node_ports();
    }

    fn adopt(&mut self, key: VirtualServerKey, server: VirtualServer) {
        if self.tables.servers.actual(&key).is_none() {
            self.tables.servers.set_actual(&key, Some(server));
            if self.tables.servers.is_pending(&key) {
                self.claims.settle_leftovers(key, &mut self.tables);
            }
        }
    }

    /// Adopts what is wanted and was there before, whosever it was. Once all is known and claimed, the rest is others'.
    fn adopt_wanted(&mut self) {
        let Some(mut unjudged) = self.unjudged.take() else {
            return;
        };
        let servers = &mut unjudged.evidence.servers;
        if unjudged.is_judged {
            for (key, server) in mem::take(servers) {
                if self.tables.servers.wanted(&key).is_some() {
                    self.adopt(key, server);
                }
            }
            return;
        }
        let wanted = |key: &VirtualServerKey, _: &mut VirtualServer| {
            self.tables.servers.wanted(key).is_some()
        };
        let adopted: Vec<_> = servers.extract_if(.., wanted).collect();
        for (key, server) in adopted {
            self.adopt(key, server);
        }
        self.unjudged = Some(unjudged);
    }

    // ---- drift ----

    fn note(&mut self, kind: &'static str, now: Instant, name: impl FnOnce() -> String) {
        self.news.drift.add(kind, name);
        self.news.drifting.get_or_insert(now);
    }

    fn note_server(
        &mut self,
        key: &VirtualServerKey,
        believed: Option<&VirtualServer>,
        there: Option<&VirtualServer>,
        now: Instant,
    ) {
        drift::note_server(&mut self.news.drift, key, believed, there);
        self.news.drifting.get_or_insert(now);
        let services = drift::services(self.tables.servers.owners(key));
        self.news.disturb(services);
    }

    fn note_member(&mut self, set: Set, member: &Member, now: Instant) {
        let family = self.node.family;
        self.note("set member", now, || {
            format!("{member} of {}", set.name(family))
        });
        let services = drift::services(self.tables.members(set).owners(member));
        self.news.disturb(services);
    }

    fn note_address(&mut self, address: IpAddr, now: Instant) {
        self.note("address", now, || address.to_string());
        let services = drift::services(self.tables.addresses.owners(&address));
        self.news.disturb(services);
    }

    /// An address is no longer on the link, as the kernel tells. True if all of them have to be read: it does not say whether this one
    /// is there.
    fn lose(&mut self, address: IpAddr, now: Instant) -> bool {
        if let Some(taken_off) = self.taken_off.remove(&address) {
            // Our own doing, unless it is there again: then it may have come late, or be somebody else's.
            return taken_off.is_bound_again;
        }
        if self.config.vip_mode == VipMode::Route {
            // Another one keeps the routes.
            return true;
        }
        if self.has_set_link {
            return true;
        }
        let is_binding = !self.lanes.addresses.is_free();
        if self.tables.addresses.actual(&address).is_none() {
            // It may have been bound just now, which is not booked yet.
            return is_binding;
        }
        self.tables.begin(now);
        self.note_address(address, now);
        self.tables.addresses.set_actual(&address, None);
        if let Some(check) = &mut self.check {
            check.note_address(address);
        }
        is_binding
    }

    /// Begins a check, unless one is under way.
    fn begin_check(&mut self) {
        if self.check.is_some() || !self.lanes.reader.is_free() {
            self.wants_check = true;
            return;
        }
        self.wants_check = false;
        let mut touched = Touched::default();
        let in_flight = self.in_flight.iter().flat_map(|(_, plan)| &plan.ops);
        in_flight.for_each(|op| touched.note(op));
        self.check = Some(Check::Reading(touched));
        self.lanes.reader.start(|kernel| {
            Done::Dumped(Box::new(Dump {
                servers: kernel.read_servers(),
                sets: kernel.read_sets(),
                addresses: kernel.read_addresses(),
            }))
        });
    }

    /// What is being compared is no longer what is believed: another check is to follow.
    fn abort_check(&mut self) {
        self.wants_check |= self.check.take().is_some();
    }

    /// Takes a dump to be compared.
    fn take_dump(&mut self, dump: Dump, now: Instant, report: &mut Report) {
        for (part, error) in [
            (Part::Servers, dump.servers.as_ref().err()),
            (Part::Sets, dump.sets.as_ref().err()),
            (Part::Addresses, dump.addresses.as_ref().err()),
        ] {
            match error {
                None => report.readable.push(part.name()),
                Some(error) => report.unreadable.push(Unreadable {
                    part: error.what,
                    reason: error.reason.clone(),
                }),
            }
        }
        let Some(Check::Reading(touched)) = self.check.take() else {
            return;
        };
        let (comparing, doubted) = Comparing::new(
            dump.into_known(|part| self.knows(part)),
            touched,
            &self.tables,
            &self.node.interface_addresses,
            &self.config.exclude_cidrs,
        );
        for part in doubted {
            self.part_mut(part).look.ask(now);
        }
        self.check = Some(Check::Comparing(Box::new(comparing)));
    }

    /// Compares a piece.
    fn compare(&mut self, now: Instant) {
        let Some(Check::Comparing(mut comparing)) = self
            .check
            .take_if(|check| matches!(check, Check::Comparing(_)))
        else {
            return;
        };
        let found = comparing.piece(&self.tables, |key| self.is_ours(key));
        if found.has_lost_servers {
            // The kernel tells them by their number, and passes one over where another is removed meanwhile. The lane that writes them reads
            // them while none is.
            self.part_mut(Part::Servers).look.ask(now);
        }
        for (key, there) in found.servers {
            let believed = self.tables.servers.actual(&key).cloned();
            self.note_server(&key, believed.as_ref(), Some(&there), now);
            self.tables.servers.set_actual(&key, Some(there));
            self.claims.settle_leftovers(key, &mut self.tables);
        }
        for (set, member, is_there) in found.members {
            self.note_member(set, &member, now);
            let actual = is_there.then_some(());
            self.tables.members_mut(set).set_actual(&member, actual);
        }
        if found.has_other_addresses {
            self.part_mut(Part::Addresses).look.ask(now);
        }
        if !found.is_over {
            self.check = Some(Check::Comparing(comparing));
        }
    }

    /// Takes over what a glance has told.
    fn take_glance(&mut self, glance: &Result<Glance, KernelError>) {
        let is_as_believed = match glance {
            Ok(Glance::Count(count)) => {
                let before = self.count.replace(*count);
                before.is_none_or(|before| before == *count)
            }
            Ok(Glance::IsThere(is_there)) => *is_there,
            // The next check says what is wrong.
            Err(_) => true,
        };
        if !is_as_believed {
            self.begin_check();
        }
    }

    // ---- proceed: what the lanes do next ----

    fn plan(&self, lane: LaneOf, turn: Turn, now: Instant) -> Plan {
        let known: Vec<Part> = Part::ALL
            .into_iter()
            .filter(|part| self.knows(*part))
            .collect();
        // They name all sets, and are refused where one is missing.
        let awaits_sets = self.part(Part::Sets).look.is_awaited();
        let awaits_end =
            self.emptied_by.is_some_and(|until| now < until) && self.tables.empties_sets();
        if lane == LaneOf::Rules && (awaits_sets || awaits_end) {
            return Plan::default();
        }
        let situation = Situation {
            claims: &self.claims,
            known: &known,
            are_rules_pending: self.are_rules_awaited() || !self.knows(Part::Rules),
            uncovered: &self.uncovered,
            gives_head_start: self.head_start.is_some_and(|until| now < until),
            budget: self.budget,
            last: self.last_server,
            now,
        };
        match lane {
            LaneOf::Services => planner::services(&self.tables, turn, &situation),
            LaneOf::Addresses => planner::addresses(&self.tables, &situation),
            LaneOf::Rules => planner::rules(&self.tables, &situation),
        }
    }

    fn start_services(&mut self, now: Instant) {
        if !self.lanes.services.is_free()
            || self.start_reading(LaneOf::Services, now)
            || !self.has_claims
        {
            return;
        }
        for turn in Turn::after(self.last_turn.take()) {
            let plan = self.plan(LaneOf::Services, turn, now);
            if plan.ops.is_empty() {
                continue;
            }
            let is_long = self.budget.is_used_up(plan.ops.len());
            self.last_turn = Some(turn);
            if turn == Turn::Make {
                let last = plan.ops.last().filter(|_| is_long);
                self.last_server = last.and_then(server_of);
            }
            // What drains is looked at in the same call.
            for op in &plan.ops {
                if let Op::SetDestination(key, RealServer { weight: 0, .. }) = op {
                    self.claims.drains.ask(key);
                }
            }
            let asked = if turn == Turn::Make && !is_long {
                self.drains_due(now)
            } else {
                Vec::new()
            };
            self.write(LaneOf::Services, plan, asked);
            return;
        }
        let keys = self.drains_due(now);
        if !keys.is_empty() {
            let look = move |kernel: &mut K| Done::Looked(Looked::at(kernel, keys));
            return self.lanes.services.start(look);
        }
        if self.next_glance.is_some_and(|at| at <= now) {
            self.next_glance = self.config.glance_period.map(|period| now + period);
            if let Some((one, _)) = self.tables.servers.iter_actual().next() {
                let one = *one;
                let glance = move |kernel: &mut K| Done::Glanced(kernel.glance(&one));
                self.lanes.services.start(glance);
            }
        }
    }

    /// Reads what a lane has to read before it writes on; false if that is nothing.
    fn start_reading(&mut self, lane: LaneOf, now: Instant) -> bool {
        let of: &[Part] = match lane {
            LaneOf::Services => &[Part::Servers, Part::Sets],
            LaneOf::Addresses => &[Part::Addresses],
            LaneOf::Rules => &[Part::Rules],
        };
        let mut due = Vec::new();
        for part in of {
            let look = &mut self.part_mut(*part).look;
            if look.is_due(now) {
                look.begin();
                due.push(*part);
            }
        }
        if due.is_empty() {
            return false;
        }
        let read = move |kernel: &mut K| {
            let found = due.into_iter().map(|part| Found::read(kernel, part));
            Done::Read(found.collect())
        };
        self.lane(lane).start(read);
        true
    }

    fn lane(&mut self, lane: LaneOf) -> &mut KernelLane<K> {
        match lane {
            LaneOf::Services => &mut self.lanes.services,
            LaneOf::Addresses => &mut self.lanes.addresses,
            LaneOf::Rules => &mut self.lanes.rules,
        }
    }

    fn start_other(&mut self, lane: LaneOf, now: Instant) {
        if !self.lane(lane).is_free() || self.start_reading(lane, now) || !self.has_claims {
            return;
        }
        let plan = self.plan(lane, Turn::Make, now);
        if plan.ops.is_empty() {
            return;
        }
        self.taken_off
            .retain(|_, off| now.saturating_duration_since(off.at) < TOLD_WITHIN);
        for op in &plan.ops {
            match op {
                Op::CreateLink => self.has_set_link = true,
                Op::UnbindAddress(address) | Op::UnbindOtherwise(address) => {
                    let off = TakenOff {
                        at: now,
                        is_bound_again: false,
                    };
                    self.taken_off.insert(*address, off);
                }
                Op::BindAddress(address) => {
                    if let Some(off) = self.taken_off.get_mut(address) {
                        off.is_bound_again = true;
                    }
                }
                _ => {}
            }
        }
        self.write(lane, plan, Vec::new());
    }

    fn write(&mut self, lane: LaneOf, plan: Plan, asked: Vec<VirtualServerKey>) {
        let plan = Arc::new(plan);
        if let Some(check) = &mut self.check {
            plan.ops.iter().for_each(|op| check.note(op));
        }
        self.in_flight.push((lane, Arc::clone(&plan)));
        self.lane(lane).start(move |kernel| {
            // To ask for the time costs a change as much as a message where it is a system call.
            let began = Budget::tells(plan.ops.len()).then(Instant::now);
            let outcomes = kernel.apply(&plan);
            let took = began.map(|began| began.elapsed());
            let looked = (!asked.is_empty()).then(|| Looked::at(kernel, asked));
            Done::Wrote {
                lane,
                plan,
                outcomes,
                took,
                looked,
            }
        });
    }

    /// The virtual servers at which something drains that is to be looked at now.
    fn drains_due(&mut self, now: Instant) -> Vec<VirtualServerKey> {
        if !self.claims.may_delete {
            return Vec::new();
        }
        let mut keys = self.claims.drains.take_due(now);
        // A virtual server that goes takes along what drains.
        keys.retain(|key| {
            let is_wanted = self.tables.servers.wanted(key).is_some();
            if !is_wanted {
                self.claims.drains.forget(key);
            }
            is_wanted
        });
        keys
    }

    // ---- book: what became of it ----

    fn take(&mut self, model: &Model, done: Done, now: Instant, report: &mut Report) {
        match done {
            Done::Wrote {
                lane,
                plan,
                outcomes,
                took,
                looked,
            } => {
                self.in_flight.retain(|(of, _)| *of != lane);
                if let (LaneOf::Services, Some(took)) = (lane, took) {
                    self.budget = Budget::after(plan.ops.len(), took);
                }
                self.take_outcomes(&plan, outcomes, now, report);
                if let Some(looked) = looked {
                    self.take_look(looked, now, report);
                }
            }
            Done::Read(found) => {
                for found in found {
                    self.observe(model, found, now, report);
                }
                self.judge();
                self.news.review();
                report.has_used_much = self.tables.servers.len() >= MANY;
            }
            Done::Looked(looked) => self.take_look(looked, now, report),
            Done::Glanced(glance) => self.take_glance(&glance),
            Done::Dumped(dump) => {
                self.take_dump(*dump, now, report);
                report.has_used_much = self.tables.servers.len() >= MANY;
            }
        }
    }

    fn take_outcomes(
        &mut self,
        plan: &Plan,
        outcomes: Vec<Outcome>,
        now: Instant,
        report: &mut Report,
    ) {
        self.follow_count(plan, &outcomes);
        let Booked {
            written,
            failures,
            failed_restores,
            doubted,
            uncertain,
            touched,
        } = self.tables.settle(plan, outcomes, now);
        let part = plan.ops.first().map(part_of);
        if written > 0 {
            for part in written_parts(plan) {
                self.part_mut(part).written = Some(now);
            }
        }
        if part == Some(Part::Rules) {
            self.refresh_covered();
        }
        for part in doubted {
            self.part_mut(part).look.ask_apart(now, REREAD_PAUSE);
        }
        self.uncertain.extend(uncertain);
        // What was written may be wanted no longer by now.
        let servers: HashSet<VirtualServerKey> = plan.ops.iter().filter_map(server_of).collect();
        for key in servers {
            if self.tables.servers.is_pending(&key) {
                self.claims.settle_leftovers(key, &mut self.tables);
            } else if self.tables.servers.wanted(&key).is_none() {
                self.claims.drains.forget(&key);
            }
        }
        if plan.ops.contains(&Op::CreateLink) {
            // To set it down takes IPv6 addresses away.
            self.part_mut(Part::Addresses).look.ask(now);
        }
        self.news.fresh.extend(touched);
        report.written += written;
        report.failures.extend(failures);
        report.failed_restores += failed_restores;
        report.has_used_much |= plan.ops.len() >= MANY_WRITES;
    }

    /// Notes since when none of the virtual servers is there: since they were asked for, not since they were refused.
    fn note_unserved(&mut self, now: Instant) {
        let servers = &self.tables.servers;
        let mut wanted = servers.iter_wanted();
        let is_any = servers.wanted_len() > 0;
        let is_none = is_any && wanted.all(|(key, _)| servers.actual(key).is_none());
        self.unserved = is_none.then(|| self.unserved.unwrap_or(now));
    }

    /// Follows how many virtual servers there are.
    fn follow_count(&mut self, plan: &Plan, outcomes: &[Outcome]) {
        for (op, outcome) in plan.ops.iter().zip(outcomes) {
            self.count = match (op, outcome, self.count) {
                (Op::AddServer(..), Outcome::Done, Some(count)) => count.checked_add(1),
                (Op::RemoveServer(..), Outcome::Done, Some(count)) => count.checked_sub(1),
                (Op::AddServer(..) | Op::RemoveServer(..), Outcome::Unknown, _) => None,
                (_, _, count) => count,
            };
        }
    }

    /// Takes over the connections of what drains; what has none left, or has had its time, is no longer wanted.
    fn take_look(&mut self, looked: Looked, now: Instant, report: &mut Report) {
        let Looked { keys, found } = looked;
        let connections = match found {
            Ok(connections) => connections,
            Err(KernelError { what, reason }) => {
                report.unreadable.push(Unreadable { part: what, reason });
                return;
            }
        };
        report.readable.push(CONNECTIONS);
        for key in keys {
            let Some(of) = connections.get(&key) else {
                self.part_mut(Part::Servers)
                    .look
                    .ask_apart(now, REREAD_PAUSE);
                continue;
            };
            let expired = self.claims.drains.expired(&key, now);
            let actual = self.tables.servers.actual(&key).cloned();
            // Until its weight is 0, a destination without connections gets the next one.
            let drains = |target| {
                let real = actual
                    .as_ref()
                    .and_then(|server| server.destination(target));
                real.is_none_or(|real| real.weight == 0)
            };
            let is_over = |target| {
                let has_ended = of.get(&target).is_none_or(|open| *open == 0);
                (has_ended && drains(target)) || expired.contains(&target)
            };
            self.claims.end_drains(&key, is_over, &mut self.tables);
        }
    }

    /// Reads the kernel, and writes nothing.
    ///
    /// # Errors
    ///
    /// What could not be read.
    pub async fn read(&mut self, model: &Model, now: Instant) -> Result<(), Unreadable> {
        while !self.parts.iter().all(|part| part.look.is_tried()) {
            self.proceed(model, now);
            poll_fn(|context| self.poll_finished(context)).await;
            let report = self.book(model, now).unwrap_or_default();
            if let Some(unreadable) = report.unreadable.into_iter().next() {
                return Err(unreadable);
            }
        }
        Ok(())
    }

    /// What would be written, in order, each plan as if all before it had been done; nothing is written. The kernel has been read,
    /// and all that is wanted is known.
    pub async fn preview(mut self, now: Instant) -> Vec<Plan> {
        let mut plans = Vec::new();
        self.head_start = None;
        self.emptied_by = None;
        loop {
            let count = plans.len();
            self.tables.want_room();
            for turn in [Turn::Make, Turn::Break, Turn::Forget] {
                if turn == Turn::Break {
                    self.foresee_drains(now).await;
                }
                self.foresee(LaneOf::Services, turn, now, &mut plans);
            }
            self.foresee(LaneOf::Addresses, Turn::Make, now, &mut plans);
            if plans.len() > count {
                // Once these are done, rules are written once.
                continue;
            }
            self.want_rules();
            self.foresee(LaneOf::Rules, Turn::Make, now, &mut plans);
            if plans.len() == count {
                return plans;
            }
        }
    }

    /// The next plan of a lane, as if it had been done.
    fn foresee(&mut self, lane: LaneOf, turn: Turn, now: Instant, plans: &mut Vec<Plan>) {
        let plan = self.plan(lane, turn, now);
        if !plan.ops.is_empty() {
            let outcomes = vec![Outcome::Done; plan.ops.len()];
            self.take_outcomes(&plan, outcomes, now, &mut Report::default());
            plans.push(plan);
        }
    }

    /// Looks at what would drain.
    async fn foresee_drains(&mut self, now: Instant) {
        let keys = self.drains_due(now);
        if keys.is_empty() {
            return;
        }
        let lane = &mut self.lanes.services;
        lane.start(move |kernel| Done::Looked(Looked::at(kernel, keys)));
        poll_fn(|context| lane.poll(context)).await;
        if let Some(Ok(Done::Looked(looked))) = lane.take() {
            self.take_look(looked, now, &mut Report::default());
        }
    }
}

/// The lanes that write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaneOf {
    Services,
    Addresses,
    Rules,
}

/// The parts that a plan writes to.
fn written_parts(plan: &Plan) -> impl Iterator<Item = Part> {
    Part::ALL.into_iter().filter(|part| {
        let mut ops = plan.ops.iter();
        ops.any(|op| part_of(op) == *part)
    })
}

impl News {
    fn changed(&mut self, service: &NamespacedName) {
        if self.awaited.insert(service.clone()) {
            self.fresh.push(service.clone());
        }
    }

    fn disturb(&mut self, services: impl Iterator<Item = NamespacedName>) {
        for service in services {
            self.awaited.insert(service.clone());
            self.disturbed.insert(service);
        }
    }

    /// What they wait for may be there without having been written.
    fn review(&mut self) {
        self.fresh = self.awaited.iter().cloned().collect();
    }

    /// Looks which of the Services that changed, or wrote something, are settled by now.
    fn settle(&mut self, claims: &Claims, tables: &Tables) {
        for service in mem::take(&mut self.fresh) {
            if self.awaited.contains(&service) && claims.is_settled(&service, tables) {
                self.awaited.remove(&service);
                if self.disturbed.remove(&service) {
                    self.repaired.push(service.clone());
                }
                self.settled.push(service);
            }
        }
    }
}

impl<K: Kernel> Mode for Proxier<K> {
    fn family(&self) -> IpFamily {
        self.node.family
    }

    fn is_ready(&self) -> bool {
        // Which entries are wanted depends on the node's addresses: to compile twice is to be spared.
        self.part(Part::Addresses).look.is_tried() && self.lanes.services.is_free()
    }

    fn update(&mut self, model: &Model, changes: &Changes, now: Instant) {
        self.tables.begin(now);
        let is_first = !mem::replace(&mut self.has_claims, true);
        if is_first {
            self.emptied_by = Some(now + HEAD_START);
        }
        if self.learn(model, changes.node || is_first) {
            self.update_all(model);
        } else {
            if changes.services.len() >= MANY {
                self.reserve(model, &changes.services);
            }
            self.update_services(model, &changes.services);
        }
        self.adopt_wanted();
        self.note_unserved(now);
    }

    fn notice(&mut self, notice: &Notice, now: Instant) {
        let is_own = |address: &IpAddr| IpFamily::of(*address) == self.node.family;
        let carries = |address: &IpAddr| self.node.interface_addresses.contains(address);
        // What a look has found that is under way may be older than this.
        let is_looking = self.part(Part::Addresses).look.is_awaited();
        let reread = match notice {
            // Its lifetime was prolonged.
            Notice::AddressAdded(address) if !is_looking && carries(address) => false,
            Notice::AddressRemoved(address) if !is_looking && !carries(address) => false,
            Notice::AddressAdded(address) | Notice::AddressRemoved(address) => is_own(address),
            Notice::ServiceAddressRemoved(address) => is_own(address) && self.lose(*address, now),
            Notice::ServiceLink | Notice::Anything => true,
        };
        if reread {
            self.part_mut(Part::Addresses).look.ask_after(now, SETTLE);
        }
    }

    fn check(&mut self, now: Instant) {
        // The rules that were just read, after something was refused, need not be read again.
        let period = self.config.sync_period;
        let period = period.saturating_sub(period / 8);
        let is_read = self
            .rules_read
            .is_some_and(|read| now.saturating_duration_since(read) < period);
        if !is_read {
            self.part_mut(Part::Rules).look.ask(now);
        }
        self.begin_check();
    }

    fn proceed(&mut self, model: &Model, now: Instant) {
        self.tables.begin(now);
        if self.learn(model, false) {
            self.update_all(model);
            self.adopt_wanted();
        }
        self.compare(now);
        if self.wants_check && self.check.is_none() {
            self.begin_check();
        }
        if self.part(Part::Sets).look.is_tried() {
            self.want_rules();
        }
        if self.knows(Part::Rules) && self.tables.rules.pending_len() == 0 {
            self.emptied_by = None;
        }
        self.tables.want_room();
        // What most wait for comes first.
        self.start_services(now);
        self.start_other(LaneOf::Addresses, now);
        self.start_other(LaneOf::Rules, now);
    }

    fn go_on_serving(&mut self, now: Instant) {
        self.tables.begin(now);
        self.start_services(now);
    }

    fn poll_finished(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let lanes = self.lanes.all_mut();
        let is_ready = lanes
            .into_iter()
            .map(|lane| lane.poll(context).is_ready())
            // Each is to be polled, so that each wakes.
            .fold(false, |any, is_ready| any | is_ready);
        if is_ready {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    fn book(&mut self, model: &Model, now: Instant) -> Option<Report> {
        let mut report = Report::default();
        self.tables.begin(now);
        let taken: Vec<Result<Done, Gone>> = self
            .lanes
            .all_mut()
            .into_iter()
            .filter_map(Lane::take)
            .collect();
        let has_taken = !taken.is_empty();
        for done in taken {
            match done {
                Ok(done) => self.take(model, done, now, &mut report),
                Err(gone) => report.gone = Some(gone.to_string()),
            }
        }
        self.news.settle(&self.claims, &self.tables);
        let conflicts = self.tables.servers.contested_version();
        if mem::replace(&mut self.news.conflicts_version, conflicts) != conflicts {
            report.conflicts = Some(Claims::conflicts(&self.tables));
        }
        let is_repaired = self
            .tables
            .all()
            .all(|table| table.pending_len() == table.failing_len());
        let is_late = |since: Instant| now.saturating_duration_since(since) >= TELL_DRIFT;
        if self
            .news
            .drifting
            .take_if(|since| is_repaired || is_late(*since))
            .is_some()
        {
            report.drift = mem::take(&mut self.news.drift);
        }
        self.note_unserved(now);
        report.settled = mem::take(&mut self.news.settled);
        report.repaired = mem::take(&mut self.news.repaired);
        let has_news = has_taken
            || !report.settled.is_empty()
            || report.conflicts.is_some()
            || !report.drift.is_empty();
        has_news.then_some(report)
    }

    fn is_idle(&self) -> bool {
        let Lanes {
            services,
            addresses,
            rules,
            reader,
        } = &self.lanes;
        [services, addresses, rules, reader]
            .into_iter()
            .all(Lane::is_free)
    }

    fn next_due(&self, now: Instant) -> Option<Instant> {
        if matches!(self.check, Some(Check::Comparing(_))) {
            return Some(now);
        }
        let retries = self.tables.all().map(|table| table.next_retry(now));
        let looks = self.parts.iter().map(|part| part.look.next_due(now));
        let has_servers = self.tables.servers.iter_actual().next().is_some();
        let others = [
            self.claims.drains.next_due(now),
            self.head_start,
            self.emptied_by,
            self.next_glance.filter(|_| has_servers),
        ];
        let all = retries.chain(looks).chain(others);
        all.flatten().filter(|due| *due > now).min()
    }

    fn standing(&self) -> Standing {
        let mut standing = Standing {
            is_settled: self.lanes.services.is_free()
                && self.lanes.addresses.is_free()
                && self.lanes.rules.is_free(),
            pending: self.tables.all().map(Rows::pending_len).sum(),
            failing: self.tables.all().map(Rows::failing_len).sum(),
            ..Standing::default()
        };
        let earlier =
            |one: Option<Instant>, other: Instant| Some(one.map_or(other, |one| one.min(other)));
        for part in Part::ALL {
            let knowledge = self.part(part);
            let tables = self.tables.of(part);
            let since = tables
                .filter_map(Rows::pending_since)
                .chain(knowledge.look.unknown_since())
                .min();
            let Some(since) = since else {
                continue;
            };
            standing.pending_since = earlier(standing.pending_since, since);
            if part == Part::Rules && self.leaves_rules() && knowledge.look.is_known() {
                continue;
            }
            let stuck = knowledge.written.map_or(since, |at| at.max(since));
            standing.stuck_since = earlier(standing.stuck_since, stuck);
        }
        // Each may seem to be wrong in itself, but not all at once.
        let servers = &self.tables.servers;
        let all_refused = servers.failing_len() >= servers.wanted_len();
        if let Some(since) = self.unserved.filter(|_| all_refused) {
            standing.pending_since = earlier(standing.pending_since, since);
            standing.stuck_since = earlier(standing.stuck_since, since);
        }
        standing
    }

    fn node_ports(&self) -> Option<&NodePorts> {
        self.node.has_addresses.then_some(&self.serving)
    }
}
