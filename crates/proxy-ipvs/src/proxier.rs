//! The IPVS mode: tables between the compiler and the kernel, and the sync that empties what is pending.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use futures::FutureExt as _;
use hashbrown::{HashMap, HashSet};
use netlink_batch::Worker;
use proxy::{
    Changes, Conflict, Failure, IpFamily, Mode, Model, NamespacedName, NodeFacts, Protocol,
    ServicePortName, SyncReport, Target,
};
use reconcile::Table;
use smallvec::SmallVec;

use crate::cleanup::{Leftovers, Place};
use crate::compile::{Fragment, Owner, compile};
use crate::config::Config;
use crate::drain::Drains;
use crate::drift::{Comparing, Drift, PIECE, Progress, READING, Touched};
use crate::kernel::{Kernel, KernelError, Snapshot};
use crate::plan::{Op, Outcome, Plan, Stage};
use crate::rules::{Rules, Shim};
use crate::server::{Properties, RealServer, VirtualServer, VirtualServerKey};
use crate::sets::{Member, Set};

/// How many members a set can hold, as upstream creates it; more where more are wanted.
const SET_SIZE: u32 = 65_536;

/// A plan ends at the virtual server with which it has so many writes, and another one follows: at 10,000 Services with 50
/// endpoints each, the first sync would otherwise hold 100 MB of writes, messages and answers at once.
const ENOUGH_OPS: usize = 32_768;

/// From so many Services at once on, room is made for them first.
const MANY: usize = 1_000;

/// An answer to [`Kernel::connections`], and what was asked.
struct Looked {
    keys: Vec<VirtualServerKey>,
    found: Result<BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>, KernelError>,
}

/// What must exist before anything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Foundation {
    Link,
    Set(Set),
}

/// The IPVS mode for one IP family.
pub struct Proxier<K: Kernel> {
    config: Config,
    node: NodeFacts,
    /// The addresses that serve NodePorts.
    node_ports: Vec<IpAddr>,
    kernel: Worker<K>,
    /// A second connection, which only reads.
    reader: Option<Worker<K>>,
    drift: Option<Drift>,
    /// Who claims entries for each Service, so that a Service that changes or goes releases what it no longer wants.
    owners: HashMap<NamespacedName, SmallVec<[Arc<Owner>; 1]>>,
    /// Services that lost an address and port to another, or got it back, and so have other set members now.
    disputed: Vec<NamespacedName>,
    /// With how many members each set must be able to hold; 0 for the link.
    foundation: Table<Foundation, u32, ()>,
    /// By the number of the set.
    members: [Table<Member, (), Arc<Owner>>; Set::COUNT],
    rules: Table<(), Arc<Rules>, ()>,
    /// What other modes have left; none of it is wanted.
    leftovers: Table<Place, Arc<Leftovers>, ()>,
    servers: Table<VirtualServerKey, VirtualServer, Arc<Owner>>,
    addresses: Table<IpAddr, (), Arc<Owner>>,
    /// Addresses in the form of the other `--ipvs-vip-mode`; none is wanted.
    bound_otherwise: Table<IpAddr, (), ()>,
    forbidden_to_node: Table<VirtualServerKey, (), Arc<Owner>>,
    /// What the wanted rules were last made from: the sets that they match, and `forbidden_version`.
    shim: Option<(BTreeSet<Set>, u64)>,
    forbidden_version: u64,
    drains: Drains,
    /// What drains and was looked at right after it was written.
    looked: Option<Looked>,
    /// True once the sources have told everything: before that, nothing may be taken away.
    may_delete: bool,
    needs_resync: bool,
    rules_read: Option<Instant>,
}

impl<K: Kernel> Proxier<K> {
    /// A proxier that wants nothing yet and has not looked at the kernel.
    pub fn new(config: Config, mut node: NodeFacts, kernel: Worker<K>) -> Self {
        node.ip = config.node_ip.or(node.ip);
        let mut foundation = Table::new();
        let sets = Set::all().map(|set| (Foundation::Set(set), SET_SIZE));
        foundation.claim(&(), [(Foundation::Link, 0)].into_iter().chain(sets));
        Self {
            drains: Drains::new(config.drain_timeout),
            looked: None,
            config,
            node,
            node_ports: Vec::new(),
            kernel,
            reader: None,
            drift: None,
            owners: HashMap::new(),
            disputed: Vec::new(),
            foundation,
            members: std::array::from_fn(|_| Table::new()),
            rules: Table::new(),
            leftovers: Table::new(),
            servers: Table::new(),
            addresses: Table::new(),
            bound_otherwise: Table::new(),
            forbidden_to_node: Table::new(),
            shim: None,
            forbidden_version: 0,
            may_delete: false,
            needs_resync: true,
            rules_read: None,
        }
    }

    /// The same with a second connection to the kernel, by which it is checked for drift while events go on. Without, they wait.
    #[must_use]
    pub fn with_reader(self, reader: Worker<K>) -> Self {
        let reader = Some(reader);
        Self { reader, ..self }
    }

    fn table(&mut self, set: Set) -> &mut Table<Member, (), Arc<Owner>> {
        #[allow(clippy::indexing_slicing, reason = "Set::COUNT is the number of sets")]
        &mut self.members[set as usize]
    }

    // ---- update: what is wanted ----

    /// Takes over what the model says beyond single Services; true if every Service has to be compiled again.
    fn learn(&mut self, model: &Model, is_node_new: bool) -> bool {
        let may_delete = model.is_complete() && model.is_whole();
        let may_now = may_delete && !self.may_delete;
        self.may_delete = may_delete;
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
        let bound = self.addresses.iter_actual().map(|(address, ())| *address);
        let node_ports = self.node.serving_node_ports(bound);
        let has_changed = node_ports != self.node_ports;
        self.node_ports = node_ports;
        has_changed
    }

    fn update_all(&mut self, model: &Model) {
        let known: HashSet<NamespacedName> = self
            .owners
            .keys()
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
        while let Some(name) = self.disputed.pop() {
            self.update_service(model, &name);
        }
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
        let is_new = |name: &&NamespacedName| !self.owners.contains_key(*name);
        let services = names.iter().filter(is_new).filter(is_ours).count();
        self.owners.reserve(services);
        self.servers.reserve(services);
        self.addresses.reserve(services);
        self.table(Set::ClusterIp).reserve(services);
        self.table(Set::IpvsIps).reserve(services);
    }

    fn update_service(&mut self, model: &Model, name: &NamespacedName) {
        let fragments = model
            .view(name)
            .map(|view| compile(&view, &self.node, &self.node_ports, &self.config))
            .unwrap_or_default();
        let owners: SmallVec<[Arc<Owner>; 1]> = fragments
            .iter()
            .map(|fragment| fragment.owner.clone())
            .collect();
        let before = if owners.is_empty() {
            self.owners.remove(name)
        } else {
            self.owners.insert(name.clone(), owners.clone())
        };
        for gone in before
            .into_iter()
            .flatten()
            .filter(|owner| !owners.contains(owner))
        {
            self.claim(Fragment {
                owner: gone,
                servers: Vec::new(),
                members: Vec::new(),
                addresses: Vec::new(),
                forbidden_to_node: Vec::new(),
            });
        }
        for fragment in fragments {
            self.claim(fragment);
        }
    }

    fn claim(&mut self, fragment: Fragment) {
        let Fragment {
            owner,
            servers,
            members,
            addresses,
            forbidden_to_node,
        } = fragment;
        // Of two entries with one key the first counts.
        let mut keys = HashSet::new();
        let servers: Vec<_> = servers
            .into_iter()
            .filter(|(key, _)| keys.insert(*key))
            .map(|(key, server)| (key, self.claim_of(&owner, key, server)))
            .collect();
        let released: Vec<_> = self
            .servers
            .keys_of(&owner)
            .iter()
            .filter(|key| !keys.contains(*key) && self.servers.owner(key) == Some(&owner))
            .copied()
            .collect();
        self.servers.claim(&owner, servers);
        for key in released {
            self.take_over(key);
        }
        // What the sets and rules say of an address and port is the winner's alone: a loser's source ranges or policy would
        // change who may use it, and how.
        let lost: HashSet<VirtualServerKey> = keys
            .into_iter()
            .filter(|key| self.servers.owner(key) != Some(&owner))
            .collect();
        for set in Set::all() {
            let own = members
                .iter()
                .filter(|(of, member)| {
                    let about = set.virtual_server(member);
                    *of == set && about.is_none_or(|key| !lost.contains(&key))
                })
                .map(|(_, member)| (*member, ()));
            self.table(set).claim(&owner, own);
        }
        self.addresses
            .claim(&owner, addresses.into_iter().map(|address| (address, ())));
        if !forbidden_to_node.is_empty() || !self.forbidden_to_node.keys_of(&owner).is_empty() {
            self.forbidden_version += 1;
            let own = forbidden_to_node
                .into_iter()
                .filter(|key| !lost.contains(key));
            self.forbidden_to_node
                .claim(&owner, own.map(|key| (key, ())));
        }
    }

    // ---- leftovers: what the kernel holds beyond the endpoints ----
    //
    // Of the claims for a virtual server, the first one has them among its destinations, and `drains` names them; the others
    // are as they were compiled.

    /// What an owner is to claim for a virtual server.
    fn claim_of(
        &mut self,
        owner: &Arc<Owner>,
        key: VirtualServerKey,
        compiled: VirtualServer,
    ) -> VirtualServer {
        match self.servers.owner(&key) {
            Some(first) if first < owner => return compiled,
            Some(first) if first > owner => {
                self.disputed.push(first.name.service.clone());
                if let Some((second, its)) = self.compiled(&key) {
                    self.servers.amend(&second, &key, its);
                }
            }
            _ => {}
        }
        self.with_leftovers(key, compiled)
    }

    /// The next owner gets what the one before has left.
    fn take_over(&mut self, key: VirtualServerKey) {
        let owner = self.servers.owner(&key).cloned();
        if let (Some(owner), Some(compiled)) = (owner, self.servers.wanted(&key).cloned()) {
            self.disputed.push(owner.name.service.clone());
            let claim = self.with_leftovers(key, compiled);
            self.servers.amend(&owner, &key, claim);
        }
    }

    /// The first claim without leftovers, and whose it is.
    fn compiled(&self, key: &VirtualServerKey) -> Option<(Arc<Owner>, VirtualServer)> {
        let wanted = self.servers.wanted(key)?;
        let endpoints = wanted
            .destinations
            .iter()
            .filter(|real| !self.drains.contains(key, real.target));
        let compiled = VirtualServer {
            destinations: endpoints.collect(),
            properties: wanted.properties.clone(),
        };
        Some((self.servers.owner(key)?.clone(), compiled))
    }

    /// Adds the leftovers: removed TCP endpoints drain at weight 0; while the sources have not told everything, what is there
    /// stays as it is.
    fn with_leftovers(&mut self, key: VirtualServerKey, compiled: VirtualServer) -> VirtualServer {
        let is_drained = key.protocol == Protocol::Tcp;
        let leftovers: Vec<RealServer> = self
            .servers
            .actual(&key)
            .into_iter()
            .flat_map(|actual| actual.destinations.iter())
            .filter(|real| compiled.destination(real.target).is_none())
            .filter(|_| is_drained || !self.may_delete)
            .map(|real| {
                if self.may_delete {
                    real.with_weight(0)
                } else {
                    real
                }
            })
            .collect();
        self.drains
            .set(key, leftovers.iter().map(|real| real.target).collect());
        if leftovers.is_empty() {
            return compiled;
        }
        let mut destinations: Vec<RealServer> =
            compiled.destinations.iter().chain(leftovers).collect();
        destinations.sort_unstable_by_key(|real| real.target);
        VirtualServer {
            destinations: destinations.into(),
            ..compiled
        }
    }

    /// Drops from the wanted destinations those that drain and that `is_over` names.
    fn end_drains(&mut self, key: &VirtualServerKey, is_over: impl Fn(Target) -> bool) {
        let (Some(wanted), Some(owner)) = (
            self.servers.wanted(key).cloned(),
            self.servers.owner(key).cloned(),
        ) else {
            self.drains.forget(key);
            return;
        };
        let (over, left): (BTreeSet<_>, BTreeSet<_>) = self
            .drains
            .targets(key)
            .partition(|target| is_over(*target));
        if over.is_empty() {
            return;
        }
        self.drains.set(*key, left);
        let destinations = wanted
            .destinations
            .iter()
            .filter(|real| !over.contains(&real.target))
            .collect();
        self.servers.amend(
            &owner,
            key,
            VirtualServer {
                destinations,
                ..wanted
            },
        );
    }

    /// Makes the rules wanted that match each set of which members are wanted, and those in `still` that hold something yet.
    fn want_rules(&mut self, still: impl Fn(Set) -> bool) {
        let filled: BTreeSet<Set> = Set::all()
            .zip(&self.members)
            .filter(|(set, table)| table.wanted_len() > 0 || (!table.is_empty() && still(*set)))
            .map(|(set, _)| set)
            .collect();
        let shim = (filled, self.forbidden_version);
        if self.shim.as_ref() == Some(&shim) {
            return;
        }
        let rules = Shim {
            family: self.node.family,
            filled: shim.0.clone(),
            forbidden_to_node: self
                .forbidden_to_node
                .iter_wanted()
                .map(|(key, ())| *key)
                .collect(),
        }
        .rules(&self.config);
        self.rules.claim(&(), [((), Arc::new(rules))]);
        self.shim = Some(shim);
    }

    // ---- observe: what is there ----

    /// Takes over what the node's other interfaces carry, and computes again the Services that depend on it: those with a node
    /// port, if other addresses serve these now, and those with an address that an interface has gained or lost.
    fn take_interface_addresses(&mut self, model: &Model, found: &BTreeSet<IpAddr>) {
        let before = std::mem::replace(&mut self.node.interface_addresses, found.clone());
        let moved: BTreeSet<&IpAddr> = before.symmetric_difference(found).collect();
        let has_other_ports = self.refresh_node_ports();
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

    fn observe(&mut self, model: &Model, snapshot: Snapshot, now: Instant) {
        self.addresses
            .observe(snapshot.bound.iter().map(|address| (*address, ())));
        self.bound_otherwise
            .observe(snapshot.bound_otherwise.iter().map(|ip| (*ip, ())));
        self.take_interface_addresses(model, &snapshot.interface_addresses);
        let sizes = snapshot.set_sizes.iter();
        let sets = sizes.map(|(set, size)| (Foundation::Set(*set), *size));
        let link = snapshot.has_link.then_some((Foundation::Link, 0));
        self.foundation.observe(link.into_iter().chain(sets));
        for set in Set::all() {
            let members = snapshot.sets.get(&set).into_iter().flatten();
            self.table(set).observe(members.map(|member| (*member, ())));
        }
        let ours: Vec<_> = snapshot
            .servers
            .iter()
            .filter(|(key, _)| self.is_known(key) || self.is_ours(key, &snapshot))
            .map(|(key, server)| (*key, server.clone()))
            .collect();
        self.servers.observe(ours);
        let differing: Vec<_> = self.servers.pending().copied().collect();
        for key in differing {
            self.settle_leftovers(key);
        }
        if let Some(rules) = snapshot.rules {
            self.rules
                .observe((!rules.is_empty()).then(|| ((), Arc::new(rules))));
            self.rules_read = Some(now);
        }
        if let Some(leftovers) = snapshot.leftovers {
            self.leftovers.observe(leftovers);
        }
        self.needs_resync = false;
    }

    // ---- drift: whether what is there is still what was believed ----

    /// Goes on with a check that is under way and due, by one piece.
    fn check_drift(&mut self, now: Instant) {
        let Some(mut drift) = self.drift.take_if(|drift| drift.due <= now) else {
            return;
        };
        if self.needs_resync {
            return;
        }
        let is_same = match &mut drift.progress {
            Progress::Reading(dumping) => match dumping.now_or_never() {
                None => {
                    drift.due = now + now.duration_since(drift.began).max(READING);
                    self.drift = Some(drift);
                    return;
                }
                // The rules first: what was read of them need not be read again when something else differs.
                Some(Ok(Ok(snapshot)))
                    if self.compare_base(&snapshot, &drift.touched, drift.began)
                        && self.is_same_node(&snapshot) =>
                {
                    drift.progress = Progress::Comparing(Box::new(self.comparing(snapshot)));
                    Some(true)
                }
                // Reading it again fails, too, and is reported then.
                Some(_) => Some(false),
            },
            Progress::Comparing(comparing) => self.compare(comparing, &drift.touched),
        };
        match is_same {
            Some(true) => {
                drift.due = now;
                self.drift = Some(drift);
            }
            Some(false) => self.needs_resync = true,
            None => {}
        }
    }

    /// Whether a dump says of the node's own addresses what was believed.
    fn is_same_node(&self, snapshot: &Snapshot) -> bool {
        let bound = snapshot.bound.iter().copied();
        let otherwise = self.bound_otherwise.iter_actual().map(|(ip, ())| *ip);
        otherwise.collect::<BTreeSet<_>>() == snapshot.bound_otherwise
            && self.node.interface_addresses == snapshot.interface_addresses
            && self.node.serving_node_ports(bound) == self.node_ports
    }

    fn comparing(&self, snapshot: Snapshot) -> Comparing {
        let members = Set::all().zip(&self.members).flat_map(|(set, table)| {
            let there = table.iter_actual();
            there.map(move |(member, ())| (set, *member))
        });
        Comparing {
            servers: self.servers.iter_actual().map(|(key, _)| *key).collect(),
            members: members.collect(),
            addresses: self.addresses.iter_actual().map(|(key, ())| *key).collect(),
            snapshot,
        }
    }

    /// Compares a piece; whether all of it was as believed, `None` when that was the last one.
    fn compare(&mut self, rest: &mut Comparing, touched: &Touched) -> Option<bool> {
        let mut room = PIECE;
        while room > 0 {
            room -= 1;
            if let Some((key, there)) = rest.next_server() {
                let actual = self.servers.actual(&key);
                let destinations = actual.map_or(0, |actual| actual.destinations.len());
                room = room.saturating_sub(destinations / 16);
                let is_ours = self.is_known(&key) || self.is_ours(&key, &rest.snapshot);
                if is_ours && actual != there.as_ref() && !touched.servers.contains(&key) {
                    return Some(false);
                }
            } else if let Some((set, member, is_there)) = rest.next_member() {
                let is_believed = self.table(set).actual(&member).is_some();
                if is_there != is_believed && !touched.members.contains(&(set, member)) {
                    return Some(false);
                }
            } else if let Some((address, is_there)) = rest.next_address() {
                let is_believed = self.addresses.actual(&address).is_some();
                if is_there != is_believed && !touched.addresses.contains(&address) {
                    return Some(false);
                }
            } else {
                return None;
            }
        }
        Some(true)
    }

    /// Whether the link, the sets, the rules and what other modes have left are as believed.
    fn compare_base(&mut self, snapshot: &Snapshot, touched: &Touched, began: Instant) -> bool {
        let is_there = |key: &Foundation| match key {
            Foundation::Link => snapshot.has_link.then_some(0),
            Foundation::Set(set) => snapshot.set_sizes.get(set).copied(),
        };
        let keys = [Foundation::Link].into_iter();
        let mut keys = keys.chain(Set::all().map(Foundation::Set));
        // A set may be larger than it was made: one of ports has room for all.
        let is_founded = keys.all(|key| is_there(&key).as_ref() >= self.foundation.actual(&key));
        let are_same = snapshot.rules.as_ref().is_none_or(|rules| {
            let actual = self.rules.actual(&()).map(|actual| &**actual);
            actual == (!rules.is_empty()).then_some(rules)
        });
        let leave_the_same = snapshot.leftovers.as_ref().is_none_or(|leftovers| {
            let actual = self.leftovers.iter_actual();
            let actual: BTreeMap<_, _> = actual
                .map(|(place, left)| (*place, Arc::clone(left)))
                .collect();
            actual == *leftovers
        });
        let is_ruled = (are_same && leave_the_same) || touched.rules;
        if snapshot.rules.is_some() {
            self.rules_read = is_ruled.then_some(began);
        }
        (is_founded || touched.foundation) && is_ruled
    }

    /// Decides again what is left over at a virtual server whose actual destinations have changed by themselves.
    fn settle_leftovers(&mut self, key: VirtualServerKey) {
        if let Some((owner, compiled)) = self.compiled(&key) {
            let claim = self.with_leftovers(key, compiled);
            self.servers.amend(&owner, &key, claim);
        }
    }

    /// Whether this proxy wants a virtual server, or has made or adopted it.
    fn is_known(&self, key: &VirtualServerKey) -> bool {
        self.servers.wanted(key).is_some() || self.servers.actual(key).is_some()
    }

    /// Whether a virtual server in a snapshot is one that this proxy, an earlier run of it, or upstream has made.
    fn is_ours(&self, key: &VirtualServerKey, snapshot: &Snapshot) -> bool {
        let excluded = &self.config.exclude_cidrs;
        !excluded.iter().any(|net| net.contains(&key.address)) && snapshot.says_ours(key)
    }

    // ---- plan ----

    fn plan(&mut self, stage: Stage, now: Instant) -> Plan {
        match stage {
            Stage::Make => self.plan_make(now),
            Stage::Break => self.plan_break(now),
            Stage::Forget => self.plan_forget(now),
            Stage::Clear => self.plan_clear(now),
        }
    }

    fn plan_make(&mut self, now: Instant) -> Plan {
        // What is about to be filled needs its rules before; what empties keeps those it has until its virtual servers are
        // gone, and does not get them back while a member cannot be removed.
        let had = self.shim.as_ref().map(|(filled, _)| filled.clone());
        self.want_rules(|set| had.as_ref().is_none_or(|had| had.contains(&set)));
        self.want_room();
        let mut ops = Vec::new();
        for key in sorted(self.foundation.due(now)) {
            let size = self.foundation.wanted(&key).copied().unwrap_or(SET_SIZE);
            ops.push(match key {
                Foundation::Link => Op::CreateLink,
                Foundation::Set(set) => Op::CreateSet(set, size),
            });
        }
        for (set, table) in Set::all().zip(&self.members) {
            let added = sorted(table.due(now))
                .into_iter()
                .filter(|member| table.wanted(member).is_some());
            ops.extend(added.map(|member| Op::AddMember(set, member)));
        }
        if !self.is_served_by_another_mode() {
            ops.extend(self.write_rules(now));
        }
        let mut keys: Vec<_> = self
            .servers
            .due(now)
            .filter_map(|key| Some((rank(&self.servers.owner(key)?.name), *key)))
            .collect();
        keys.sort_unstable();
        for (_, key) in keys {
            self.make_server(key, &mut ops);
            if ops.len() >= ENOUGH_OPS {
                return Plan { ops };
            }
        }
        let added = sorted(self.addresses.due(now))
            .into_iter()
            .filter(|a| self.addresses.wanted(a).is_some());
        ops.extend(added.map(Op::BindAddress));
        Plan { ops }
    }

    /// Wants each set as large as its members need, those that leave it after others have come included, and never smaller than
    /// it is.
    fn want_room(&mut self) {
        for (set, table) in Set::all().zip(&self.members) {
            let needed = u32::try_from(table.len().next_power_of_two()).unwrap_or(u32::MAX);
            let key = Foundation::Set(set);
            let there = self.foundation.actual(&key).copied().unwrap_or(SET_SIZE);
            let size = needed.max(there);
            if self.foundation.wanted(&key) != Some(&size) {
                self.foundation.amend(&(), &key, size);
            }
        }
    }

    fn write_rules(&self, now: Instant) -> Option<Op> {
        self.rules.due(now).next()?;
        let wanted = self.rules.wanted(&())?.clone();
        let installed = self.rules.actual(&()).cloned().unwrap_or_default();
        Some(Op::WriteRules { wanted, installed })
    }

    fn make_server(&self, key: VirtualServerKey, ops: &mut Vec<Op>) {
        let Some(wanted) = self.servers.wanted(&key) else {
            return;
        };
        let actual = self.servers.actual(&key);
        match actual {
            None => ops.push(Op::AddServer(key, wanted.properties.clone())),
            Some(actual) if actual.properties != wanted.properties => {
                ops.push(Op::SetServer(key, wanted.properties.clone()));
            }
            Some(_) => {}
        }
        for real in wanted.destinations.iter() {
            match actual.and_then(|actual| actual.destination(real.target)) {
                None => ops.push(Op::AddDestination(key, real)),
                Some(there) if there != real => ops.push(Op::SetDestination(key, real)),
                Some(_) => {}
            }
        }
    }

    fn plan_break(&self, now: Instant) -> Plan {
        let mut ops = Vec::new();
        let removed = sorted(self.addresses.due(now))
            .into_iter()
            .filter(|a| self.addresses.wanted(a).is_none());
        ops.extend(removed.map(Op::UnbindAddress));
        // An address that is wanted has a place at all times.
        let otherwise = sorted(self.bound_otherwise.due(now))
            .into_iter()
            .filter(|a| self.addresses.wanted(a).is_none() || self.addresses.actual(a).is_some());
        ops.extend(otherwise.map(Op::UnbindOtherwise));
        let mut removed_servers = Vec::new();
        for key in sorted(self.servers.due(now)) {
            let Some(actual) = self.servers.actual(&key) else {
                continue;
            };
            match self.servers.wanted(&key) {
                None => removed_servers.push(Op::RemoveServer(key)),
                Some(wanted) => {
                    let gone = actual.destinations.iter().map(|real| real.target);
                    let gone = gone.filter(|target| wanted.destination(*target).is_none());
                    ops.extend(gone.map(|target| Op::RemoveDestination(key, target)));
                }
            }
            if ops.len() >= ENOUGH_OPS {
                return Plan { ops };
            }
        }
        ops.extend(removed_servers);
        Plan { ops }
    }

    fn plan_forget(&mut self, now: Instant) -> Plan {
        self.want_rules(|_| false);
        let mut ops = Vec::new();
        ops.extend(self.write_rules(now));
        let mut held = Vec::new();
        for (set, table) in Set::all().zip(&self.members) {
            let removed = sorted(table.due(now))
                .into_iter()
                .filter(|member| table.wanted(member).is_none());
            for member in removed {
                if self.is_evidence(set, &member) {
                    held.push((set, member));
                } else {
                    ops.push(Op::RemoveMember(set, member));
                }
            }
        }
        for (set, member) in held {
            // It goes with its virtual server, whose next try is what has to be waited for.
            self.table(set).hold(&member);
        }
        Plan { ops }
    }

    /// Only once the shim is there: before that, its chains may still lead into what is to go.
    fn plan_clear(&self, now: Instant) -> Plan {
        let is_ready = self.rules.pending_len() == 0;
        let places = sorted(self.leftovers.due(now));
        let leftovers = places.into_iter().filter(|_| is_ready).filter_map(|place| {
            let found = self.leftovers.actual(&place)?;
            Some(Op::RemoveLeftovers(place, Arc::clone(found)))
        });
        Plan {
            ops: leftovers.collect(),
        }
    }

    /// Whether the chains that the shim is going to fill lead into those of another mode.
    fn is_served_by_another_mode(&self) -> bool {
        let mut leftovers = self.leftovers.iter_actual();
        self.rules.actual(&()).is_some_and(|installed| {
            leftovers
                .any(|(place, left)| matches!(place, Place::Beside(_)) && left.serve(installed))
        })
    }

    /// Whether a member still says that a virtual server which could not be removed yet is ours.
    fn is_evidence(&self, set: Set, member: &Member) -> bool {
        let is_left = |address: IpAddr, protocol: Protocol, port: u16| {
            let key = VirtualServerKey {
                address,
                port,
                protocol,
            };
            self.servers.actual(&key).is_some() && self.servers.wanted(&key).is_none()
        };
        match (set, *member) {
            (Set::NodePortTcp, Member::Port(port)) => self
                .node
                .interface_addresses
                .iter()
                .any(|address| is_left(*address, Protocol::Tcp, port)),
            (Set::NodePortUdp, Member::Port(port)) => self
                .node
                .interface_addresses
                .iter()
                .any(|address| is_left(*address, Protocol::Udp, port)),
            (set, Member::AddressPort(address, protocol, port)) if set.marks_ownership() => {
                is_left(address, protocol, port)
            }
            _ => false,
        }
    }

    // ---- book: what became of it ----

    fn book(&mut self, plan: &Plan, outcomes: Vec<Outcome>, now: Instant, report: &mut SyncReport) {
        let mut outcomes = outcomes.into_iter();
        let of_one = |one: &Op, next: &Op| {
            let key = server_of(one);
            key.is_some() && key == server_of(next)
        };
        // What is written to one virtual server stands in a row.
        for run in plan.ops.chunk_by(of_one) {
            let mut done: SmallVec<[bool; 16]> = SmallVec::new();
            let mut is_refused = false;
            for (op, outcome) in run.iter().zip(&mut outcomes) {
                let is_refusal = matches!(outcome, Outcome::Refused { .. });
                done.push(self.take_outcome(op, outcome, is_refused, report));
                is_refused |= is_refusal;
                if let Some(drift) = &mut self.drift {
                    drift.touched.note(op);
                }
            }
            match run.first().and_then(server_of) {
                Some(key) => {
                    self.book_server(&key, run, &done);
                    if is_refused {
                        self.servers.fail(&key, now);
                    }
                }
                None => {
                    for (op, is_done) in run.iter().zip(done) {
                        self.book_one(op, is_done, now);
                    }
                }
            }
        }
    }

    /// Whether a write was done; if not, why goes into the report.
    fn take_outcome(
        &mut self,
        op: &Op,
        outcome: Outcome,
        is_said: bool,
        report: &mut SyncReport,
    ) -> bool {
        match outcome {
            Outcome::Done => {
                report.written += 1;
                return true;
            }
            Outcome::Unknown => self.needs_resync = true,
            // A virtual server that was refused takes its destinations with it: that is no surprise, and it is said once.
            Outcome::Refused { .. } if is_said => {}
            Outcome::Refused {
                reason,
                is_surprise,
            } => {
                self.needs_resync |= is_surprise;
                let failure = Failure {
                    object: op.to_string(),
                    owner: self.owner_of(op),
                    reason,
                };
                report.failures.push(failure);
            }
        }
        if matches!(op, Op::WriteRules { .. } | Op::RemoveLeftovers(..)) {
            report.failed_restores += 1;
        }
        false
    }

    /// Books all that was written to one virtual server.
    fn book_server(&mut self, key: &VirtualServerKey, run: &[Op], done: &[bool]) {
        let is_all_done = done.len() == run.len() && !done.contains(&false);
        if is_all_done && matches!(run.first(), Some(Op::AddServer(..))) {
            // It was made with all that is wanted.
            self.servers.set_written(key);
        } else {
            let mut draft = self.servers.actual(key).map(Draft::of);
            for (op, _) in run.iter().zip(done).filter(|(_, is_done)| **is_done) {
                Draft::apply(&mut draft, op);
            }
            self.servers.set_actual(key, draft.map(Draft::into_server));
        }
        if self.servers.wanted(key).is_none() {
            self.drains.forget(key);
        }
    }

    fn book_one(&mut self, op: &Op, is_done: bool, now: Instant) {
        match op {
            Op::CreateLink => book_entry(&mut self.foundation, &Foundation::Link, is_done, now),
            Op::CreateSet(set, _) => {
                book_entry(&mut self.foundation, &Foundation::Set(*set), is_done, now);
            }
            Op::AddMember(set, member) | Op::RemoveMember(set, member) => {
                book_entry(self.table(*set), member, is_done, now);
            }
            Op::WriteRules { .. } => {
                book_entry(&mut self.rules, &(), is_done, now);
                if !is_done {
                    // Nobody knows what a refused restore has left: look before the next try.
                    self.rules_read = None;
                    self.needs_resync = true;
                }
            }
            Op::RemoveLeftovers(place, _) => {
                book_entry(&mut self.leftovers, place, is_done, now);
            }
            Op::BindAddress(address) | Op::UnbindAddress(address) => {
                book_entry(&mut self.addresses, address, is_done, now);
            }
            Op::UnbindOtherwise(address) => {
                book_entry(&mut self.bound_otherwise, address, is_done, now);
            }
            // By `book_server`.
            Op::AddServer(..)
            | Op::SetServer(..)
            | Op::RemoveServer(..)
            | Op::AddDestination(..)
            | Op::SetDestination(..)
            | Op::RemoveDestination(..) => {}
        }
    }

    fn owner_of(&self, op: &Op) -> Option<ServicePortName> {
        let owner = match op {
            Op::AddMember(set, member) => self.members.get(*set as usize)?.owner(member),
            Op::BindAddress(address) => self.addresses.owner(address),
            _ => self.servers.owner(&server_of(op)?),
        };
        owner.map(|owner| owner.name.clone())
    }

    fn pending(&self) -> usize {
        let members: usize = self.members.iter().map(Table::pending_len).sum();
        self.foundation.pending_len()
            + members
            + self.rules.pending_len()
            + self.leftovers.pending_len()
            + self.servers.pending_len()
            + self.addresses.pending_len()
            + self.bound_otherwise.pending_len()
    }

    fn failing(&self) -> usize {
        let members: usize = self.members.iter().map(Table::failing_len).sum();
        self.foundation.failing_len()
            + members
            + self.rules.failing_len()
            + self.servers.failing_len()
            + self.addresses.failing_len()
            + self.bound_otherwise.failing_len()
            + self.leftovers.failing_len()
    }

    fn conflicts(&self) -> Vec<Conflict> {
        let losers = self.servers.contested().flat_map(|(key, claims)| {
            let (winner, losers) = claims
                .split_first()
                .map_or((None, claims), |(first, rest)| (Some(first), rest));
            losers.iter().filter_map(move |loser| {
                Some(Conflict {
                    object: key.to_string(),
                    winner: winner?.0.name.clone(),
                    loser: loser.0.name.clone(),
                })
            })
        });
        let mut conflicts: Vec<_> = losers.collect();
        conflicts.sort_by(|a, b| (&a.object, &a.loser).cmp(&(&b.object, &b.loser)));
        conflicts
    }

    /// What a sync would write, in order, each plan as if all before it had been done; nothing is written. Call
    /// [`update`](Mode::update) and [`resync`](Mode::resync) before.
    pub async fn preview(mut self, now: Instant) -> Result<Vec<Plan>, Failure> {
        let mut report = SyncReport::default();
        let mut plans = Vec::new();
        for stage in Stage::ALL {
            if stage != Stage::Make && !self.may_delete {
                break;
            }
            if stage == Stage::Break {
                self.look_at_drains(now, &mut report).await;
            }
            loop {
                let plan = self.plan(stage, now);
                let outcomes = vec![Outcome::Done; plan.ops.len()];
                self.book(&plan, outcomes, now, &mut report);
                let is_last = plan.ops.len() < ENOUGH_OPS;
                plans.push(plan);
                if is_last {
                    break;
                }
            }
        }
        match report.failures.pop() {
            Some(failure) => Err(failure),
            None => Ok(plans),
        }
    }

    async fn run_sync(&mut self, now: Instant) -> SyncReport {
        let mut report = SyncReport::default();
        self.looked = None;
        for stage in Stage::ALL {
            if self.needs_resync || (stage != Stage::Make && !self.may_delete) {
                break;
            }
            if stage == Stage::Break {
                self.look_at_drains(now, &mut report).await;
            }
            // What a plan of many writes left over is what is due after it.
            while self.carry_out(stage, now, &mut report).await >= ENOUGH_OPS && !self.needs_resync
            {
            }
        }
        self.check_drift(now);
        report.pending = self.pending();
        report.is_base_failing = self.foundation.failing_len() + self.rules.failing_len() > 0;
        report.failing = self.failing();
        report.conflicts = self.conflicts();
        report.took = now.elapsed();
        report
    }

    /// Plans, writes and books; how many writes that were.
    async fn carry_out(&mut self, stage: Stage, now: Instant, report: &mut SyncReport) -> usize {
        let plan = self.plan(stage, now);
        let count = plan.ops.len();
        if count == 0 {
            return 0;
        }
        // What drains is looked at before the next stage: in the same call, when it is the last one of this.
        let asked = if stage == Stage::Make && self.may_delete && count < ENOUGH_OPS {
            self.drains_due(now)
        } else {
            Vec::new()
        };
        let applied = self.kernel.call(move |kernel| {
            let outcomes = kernel.apply(&plan);
            let looked = (!asked.is_empty()).then(|| (kernel.connections(&asked), asked));
            (plan, outcomes, looked)
        });
        match applied.await {
            Ok((plan, outcomes, looked)) => {
                self.looked = looked.map(|(found, keys)| Looked { keys, found });
                self.book(&plan, outcomes, now, report);
            }
            Err(gone) => {
                self.needs_resync = true;
                report.failures.push(failure("the kernel thread", &gone));
            }
        }
        count
    }

    /// The virtual servers at which something drains that is to be looked at now.
    fn drains_due(&mut self, now: Instant) -> Vec<VirtualServerKey> {
        let mut keys = self.drains.take_due(now);
        // A virtual server that goes takes along what drains.
        keys.retain(|key| {
            let is_wanted = self.servers.wanted(key).is_some();
            if !is_wanted {
                self.drains.forget(key);
            }
            is_wanted
        });
        keys
    }

    /// Looks at the connections of what drains and is due, unless that was done; what has none left, or has had its time, is no
    /// longer wanted.
    async fn look_at_drains(&mut self, now: Instant, report: &mut SyncReport) {
        let looked = if let Some(looked) = self.looked.take() {
            Ok(looked)
        } else {
            let keys = self.drains_due(now);
            if keys.is_empty() {
                return;
            }
            let look = move |kernel: &mut K| Looked {
                found: kernel.connections(&keys),
                keys,
            };
            self.kernel.call(look).await
        };
        match looked {
            Ok(Looked {
                keys,
                found: Ok(connections),
            }) => {
                for key in keys {
                    let Some(of) = connections.get(&key) else {
                        self.needs_resync = true;
                        continue;
                    };
                    let expired = self.drains.expired(&key, now);
                    let actual = self.servers.actual(&key).cloned();
                    // Until its weight is 0, a destination without connections gets the next one.
                    let drains = |target| {
                        let real = actual
                            .as_ref()
                            .and_then(|server| server.destination(target));
                        real.is_none_or(|real| real.weight == 0)
                    };
                    self.end_drains(&key, |target| {
                        let has_ended = of.get(&target).is_none_or(|open| *open == 0);
                        (has_ended && drains(target)) || expired.contains(&target)
                    });
                }
            }
            Ok(Looked {
                found: Err(error), ..
            }) => report
                .failures
                .push(failure("draining destinations", &error)),
            Err(gone) => report
                .failures
                .push(failure("draining destinations", &gone)),
        }
    }

    async fn run_resync(&mut self, model: &Model, now: Instant) -> Result<(), Failure> {
        // The second family's turn comes a little early when the first had less to do than last time.
        let period = self.config.sync_period;
        let with_rules = self
            .rules_read
            .is_none_or(|read| now.duration_since(read) >= period.saturating_sub(period / 8));
        if !self.needs_resync
            && let Some(reader) = &self.reader
        {
            if self.drift.is_none() {
                let dumping = reader.call(move |kernel| kernel.dump(with_rules));
                self.drift = Some(Drift {
                    progress: Progress::Reading(Box::pin(dumping)),
                    touched: Touched::default(),
                    began: now,
                    due: now + READING,
                });
            }
            if self.learn(model, false) {
                self.update_all(model);
            }
            return Ok(());
        }
        self.drift = None;
        let dump: Result<Snapshot, KernelError> = self
            .kernel
            .call(move |kernel| kernel.dump(with_rules))
            .await
            .map_err(|gone| failure("the kernel thread", &gone))?;
        let snapshot = dump.map_err(|error| failure("the kernel's state", &error))?;
        if self.learn(model, false) {
            self.update_all(model);
        }
        self.observe(model, snapshot, now);
        Ok(())
    }
}

impl<K: Kernel> Mode for Proxier<K> {
    fn family(&self) -> IpFamily {
        self.node.family
    }

    fn update(&mut self, model: &Model, changes: &Changes) {
        if self.learn(model, changes.node) {
            self.update_all(model);
            return;
        }
        if changes.services.len() >= MANY {
            self.reserve(model, &changes.services);
        }
        self.update_services(model, &changes.services);
    }

    fn sync(&mut self, now: Instant) -> Pin<Box<dyn Future<Output = SyncReport> + Send + '_>> {
        Box::pin(self.run_sync(now))
    }

    fn resync<'a>(
        &'a mut self,
        model: &'a Model,
        now: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 'a>> {
        Box::pin(self.run_resync(model, now))
    }

    fn next_due(&self) -> Option<Instant> {
        let retries = self.members.iter().map(Table::next_retry).chain([
            self.foundation.next_retry(),
            self.rules.next_retry(),
            self.leftovers.next_retry(),
            self.servers.next_retry(),
            self.addresses.next_retry(),
            self.bound_otherwise.next_retry(),
            self.drains.next_due(),
            self.drift.as_ref().map(|drift| drift.due),
        ]);
        retries.flatten().min()
    }

    fn needs_resync(&self) -> bool {
        self.needs_resync
    }

    fn node_port_addresses(&self) -> &[IpAddr] {
        &self.node_ports
    }
}

/// A virtual server while the outcomes of its writes are booked.
struct Draft {
    properties: Properties,
    destinations: Vec<RealServer>,
}

impl Draft {
    fn of(server: &VirtualServer) -> Self {
        Self {
            properties: server.properties.clone(),
            destinations: server.destinations.to_vec(),
        }
    }

    fn into_server(self) -> VirtualServer {
        VirtualServer {
            properties: self.properties,
            destinations: self.destinations.into(),
        }
    }

    fn apply(draft: &mut Option<Self>, op: &Op) {
        match (op, draft.as_mut()) {
            (Op::AddServer(_, properties), _) => {
                *draft = Some(Self {
                    properties: properties.clone(),
                    destinations: Vec::new(),
                });
            }
            (Op::SetServer(_, properties), Some(server)) => server.properties = properties.clone(),
            (Op::RemoveServer(_), _) => *draft = None,
            (Op::AddDestination(_, real) | Op::SetDestination(_, real), Some(server)) => {
                match server
                    .destinations
                    .binary_search_by_key(&real.target, |d| d.target)
                {
                    Ok(at) => {
                        if let Some(there) = server.destinations.get_mut(at) {
                            *there = *real;
                        }
                    }
                    Err(at) => server.destinations.insert(at, *real),
                }
            }
            (Op::RemoveDestination(_, target), Some(server)) => {
                if let Ok(at) = server
                    .destinations
                    .binary_search_by_key(target, |d| d.target)
                {
                    server.destinations.remove(at);
                }
            }
            _ => {}
        }
    }
}

fn server_of(op: &Op) -> Option<VirtualServerKey> {
    match op {
        Op::AddServer(key, _)
        | Op::SetServer(key, _)
        | Op::RemoveServer(key)
        | Op::AddDestination(key, _)
        | Op::SetDestination(key, _)
        | Op::RemoveDestination(key, _) => Some(*key),
        _ => None,
    }
}

/// Books the outcome of a write that brought one key to its wanted state.
fn book_entry<K, V, O>(table: &mut Table<K, V, O>, key: &K, is_done: bool, now: Instant)
where
    K: Clone + Eq + std::hash::Hash,
    V: Clone + Eq,
    O: Clone + Eq + std::hash::Hash + Ord,
{
    if is_done {
        table.set_written(key);
    } else {
        table.fail(key, now);
    }
}

fn sorted<'a, T: Ord + Copy + 'a>(keys: impl Iterator<Item = &'a T>) -> Vec<T> {
    let mut keys: Vec<T> = keys.copied().collect();
    keys.sort_unstable();
    keys
}

fn failure(object: &str, reason: &dyn std::fmt::Display) -> Failure {
    Failure {
        object: object.to_owned(),
        owner: None,
        reason: reason.to_string(),
    }
}

/// At a cold start the API server's own Service comes first, then DNS: everything else on the node waits for these
/// (k/k#133773).
fn rank(name: &ServicePortName) -> u8 {
    match (name.service.namespace(), name.service.name()) {
        ("default", "kubernetes") => 0,
        ("kube-system", name) if name.contains("dns") => 1,
        _ => 2,
    }
}
