//! The model: what the sources have said so far, and which Services changed since it was last
//! asked.

use std::hash::Hash;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;

use hashbrown::{HashMap, HashSet};
use ipnet::IpNet;

use crate::admission::{AddressRules, Admission, RefusedAddress};
use crate::event::{Event, Kind};
use crate::limits::{self, Excess};
use crate::names::{IpFamily, NamespacedName, Protocol};
use crate::object::{EndpointSlice, Node, Placement, Service, ServiceAddress, ServiceCidr};
use crate::options::ServiceOptions;
use crate::owner::Rank;
use crate::pieces::Left;
use crate::service_cidrs::{Changed, ServiceCidrs};

/// So many shared values are not worth a look at which of them are in use.
const FEW_SHARED: usize = 64;
/// Stands for all other nodes in hints; no node is called so.
const ELSEWHERE: &str = "";

/// All Services, slices and the own Node. Costs O(event) to keep and O(changed Services) to read.
#[derive(Debug, Default)]
pub struct Model {
    /// Boxed: a hash table is up to twice as large as what it holds, and three times while it
    /// grows.
    services: HashMap<NamespacedName, Box<Service>>,
    /// By Service, sorted by name, so that a Service's slices have a fixed order. Most Services
    /// have one, for which the node of a tree would be ten times as large.
    slices: HashMap<NamespacedName, Vec<EndpointSlice>>,
    /// Which Service a slice was for: a deletion names the slice only, and its label may have
    /// changed.
    service_of: HashMap<NamespacedName, NamespacedName>,
    /// Another number whenever a Service has come or gone: the order of names may be another then.
    names_version: u64,
    /// Of endpoints on other nodes it is not kept on which.
    own_node: Option<Box<str>>,
    /// What is kept of those that are meant for all: nothing.
    elsewhere: Arc<Placement>,
    node: Option<Node>,
    /// Whether the own Node exists, as far as was told: by an event, or by a list that did not name
    /// it.
    has_node: Option<bool>,
    is_node_named: bool,
    service_cidrs: ServiceCidrs,
    service_list: List,
    slice_list: List,
    node_list: List,
    service_cidr_list: List,
    external_ips: ExternalIps,
    admission: Admission,
    /// The Services that have options.
    with_options: HashSet<NamespacedName>,
    /// Another number whenever one of them has changed.
    options_version: u64,
    /// Whether a list of Services is under way: what cluster IPs come and go is judged at its end.
    is_listing_services: bool,
    changes: Changes,
    placements: Shared<Placement>,
    port_names: Shared<str>,
}

/// What becomes of `spec.externalIPs` (KEP-5707).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExternalIps {
    /// They are addresses of their Services.
    #[default]
    Served,
    /// They are as if they were not given.
    Ignored,
}

/// Equal values that are held once.
#[derive(Debug)]
struct Shared<T: ?Sized> {
    known: HashSet<Arc<T>>,
    /// How many were in use when the others were last dropped.
    used: usize,
}

impl<T: ?Sized> Default for Shared<T> {
    fn default() -> Self {
        Self {
            known: HashSet::new(),
            used: 0,
        }
    }
}

impl<T: Eq + Hash + ?Sized> Shared<T> {
    /// The one that is equal. Drops those that nobody uses, each time their number has doubled:
    /// amortised O(1).
    fn one(&mut self, value: &Arc<T>) -> Arc<T> {
        if self.known.len() > 2 * self.used + FEW_SHARED {
            self.known.retain(|known| Arc::strong_count(known) > 1);
            self.used = self.known.len();
        }
        Arc::clone(self.known.get_or_insert_with(value, Arc::clone))
    }
}

/// Where the list of one kind stands.
#[derive(Debug, Default)]
struct List {
    /// Once true, always true: what a list told stays known while the next one runs.
    has_completed: bool,
    /// A list that named everything has completed. Stays true once nothing is `unreadable`: what
    /// cannot be read later is either known in an older state, or so new that the kernel holds
    /// nothing of it.
    was_whole: bool,
    /// Names that the running list, or one that was not whole, has not confirmed; gone when one
    /// completes whole.
    unconfirmed: Option<HashSet<NamespacedName>>,
    /// Objects that exist and of which nothing was ever known.
    unreadable: HashSet<NamespacedName>,
}

impl List {
    fn start<'a>(&mut self, known: impl Iterator<Item = &'a NamespacedName>) {
        self.was_whole = self.is_whole();
        self.unreadable.clear();
        self.unconfirmed = Some(known.cloned().collect());
    }

    fn confirm(&mut self, name: &NamespacedName) {
        self.unreadable.remove(name);
        if let Some(unconfirmed) = &mut self.unconfirmed {
            unconfirmed.remove(name);
        }
    }

    fn confirm_unreadable(&mut self, name: NamespacedName, is_known: bool) {
        // One that was not readable before is still not.
        let was_whole = self.is_whole();
        self.confirm(&name);
        if !is_known && !was_whole {
            self.unreadable.insert(name);
        }
    }

    fn complete(&mut self, is_whole: bool) -> HashSet<NamespacedName> {
        self.has_completed = true;
        if !is_whole {
            return HashSet::new();
        }
        self.was_whole = true;
        self.unconfirmed.take().unwrap_or_default()
    }

    fn is_whole(&self) -> bool {
        self.was_whole && self.unreadable.is_empty()
    }
}

/// What changed since [`Model::take_changes`] was last called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Services that changed, or whose endpoints did, or that are gone.
    pub services: HashSet<NamespacedName>,
    /// What those of them had that had more than they have now.
    pub left: HashMap<NamespacedName, Left>,
    /// Families in which these Services have a cluster IP, or had one, or whose endpoints changed.
    pub families: FamilySet,
    /// Whether the own Node changed.
    pub node: bool,
    /// Whether the networks that ClusterIPs come from did.
    pub service_cidrs: bool,
    /// How often a Service changed.
    pub service_changes: usize,
    /// How often an EndpointSlice did.
    pub slice_changes: usize,
    /// What led to the slices' changes. Not for slices that are gone: theirs is of the change
    /// before.
    pub triggers: Vec<Trigger>,
    /// What lists no longer named, one entry for each list that did not name something.
    pub vanished: Vec<Vanished>,
}

/// IP families.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FamilySet {
    v4: bool,
    v6: bool,
}

impl FamilySet {
    /// Reports whether a family is one of them.
    pub fn contains(self, family: IpFamily) -> bool {
        match family {
            IpFamily::V4 => self.v4,
            IpFamily::V6 => self.v6,
        }
    }
}

impl Extend<IpFamily> for FamilySet {
    fn extend<T: IntoIterator<Item = IpFamily>>(&mut self, families: T) {
        for family in families {
            match family {
                IpFamily::V4 => self.v4 = true,
                IpFamily::V6 => self.v6 = true,
            }
        }
    }
}

/// What led to a change of an EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trigger {
    /// Whose endpoints the slice has.
    pub service: NamespacedName,
    /// Their family.
    pub family: IpFamily,
    /// When it happened, by [`EndpointSlice::change_trigger`].
    pub at: SystemTime,
}

/// Objects that were known, that a list no longer named, and of whose deletion nothing had told
/// before: normal for some after the source was away, and for many only where the source has lost
/// them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vanished {
    /// What was listed.
    pub kind: Kind,
    /// How many were not named.
    pub count: usize,
    /// How many were known, these included.
    pub known: usize,
    /// The first of those that were not named, by name, at most [`Vanished::NAMED`]. A Node's has
    /// no namespace.
    pub first: Vec<NamespacedName>,
}

impl Vanished {
    /// How many are named at most.
    pub const NAMED: usize = 5;

    /// `None` if all were named.
    fn of(kind: Kind, known: usize, gone: &HashSet<NamespacedName>) -> Option<Self> {
        if gone.is_empty() {
            return None;
        }
        let mut names: Vec<_> = gone.iter().collect();
        names.sort_unstable();
        names.truncate(Self::NAMED);
        Some(Self {
            kind,
            count: gone.len(),
            known,
            first: names.into_iter().cloned().collect(),
        })
    }
}

impl Changes {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && !self.node && !self.service_cidrs && self.vanished.is_empty()
    }

    /// Reports whether anything of these may change what a family has in the kernel.
    pub fn concerns(&self, family: IpFamily) -> bool {
        self.node || self.service_cidrs || self.families.contains(family)
    }

    /// Notes a change of a Service, as it was or as it is.
    fn note_service(&mut self, service: &Service) {
        let ips = service.cluster_ips.iter();
        self.families.extend(ips.map(|ip| IpFamily::of(*ip)));
        self.services.insert(service.name.clone());
    }

    /// Notes what a Service has less from now on, if another one that it becomes has less.
    fn note_left(&mut self, service: &Service, by: Option<&Service>) {
        if let Some(left) = Left::of(service, by) {
            self.leave(service.name.clone(), left);
        }
    }

    fn leave(&mut self, name: NamespacedName, left: Left) {
        self.left.entry(name).or_default().extend(left);
    }

    /// Adds those that came after these.
    pub fn extend(&mut self, later: Self) {
        let Self {
            services,
            left,
            families,
            node,
            service_cidrs,
            service_changes,
            slice_changes,
            triggers,
            vanished,
        } = later;
        if self.services.is_empty() {
            self.services = services;
        } else {
            self.services.extend(services);
        }
        for (name, left) in left {
            self.leave(name, left);
        }
        let families = IpFamily::ALL
            .into_iter()
            .filter(|of| families.contains(*of));
        self.families.extend(families);
        self.node |= node;
        self.service_cidrs |= service_cidrs;
        self.service_changes += service_changes;
        self.slice_changes += slice_changes;
        self.triggers.extend(triggers);
        self.vanished.extend(vanished);
    }
}

/// One Service and its slices, to be compiled.
#[derive(Debug, Clone, Copy)]
pub struct ServiceView<'a> {
    /// The Service.
    pub service: &'a Service,
    slices: &'a [EndpointSlice],
    /// Slices that are above the Service's limits.
    left_out: Option<&'a HashSet<NamespacedName>>,
    api_servers: &'a [SocketAddr],
}

impl<'a> ServiceView<'a> {
    /// A Service and its slices, which are in the order of their names.
    pub fn new(service: &'a Service, slices: &'a [EndpointSlice]) -> Self {
        Self {
            service,
            slices,
            left_out: None,
            api_servers: &[],
        }
    }

    /// Whether the API server is at this address, as far as is known: no node but its own may take
    /// it for an address of itself.
    pub fn is_api_server(&self, address: IpAddr) -> bool {
        self.api_servers.iter().any(|at| at.ip() == address)
    }

    /// Its slices, of both families, in the order of their names. Those above the
    /// [limits](crate::limits) are not among them.
    pub fn slices(&self) -> impl Iterator<Item = &'a EndpointSlice> + use<'a> {
        let left_out = self.left_out;
        let slices = self.slices.iter();
        slices.filter(move |slice| left_out.is_none_or(|names| !names.contains(&slice.name)))
    }
}

impl Model {
    /// A model that knows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, for the node of this name. It keeps less: whether an endpoint is on this node or
    /// meant for it, but not which other nodes are named instead.
    pub fn of_node(name: &str) -> Self {
        Self {
            own_node: Some(name.into()),
            ..Self::default()
        }
    }

    /// The same, with this done to the external IPs of Services that it is told of. No mode sees
    /// those that are ignored.
    #[must_use]
    pub fn with_external_ips(mut self, external_ips: ExternalIps) -> Self {
        self.external_ips = external_ips;
        self
    }

    /// The same, where external and load-balancer addresses are held against these rules. No mode
    /// sees those that are refused.
    #[must_use]
    pub fn with_address_rules(mut self, rules: AddressRules) -> Self {
        self.admission = Admission::new(rules);
        self
    }

    /// Takes in one event.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::ListStarted(Kind::Service) => {
                self.is_listing_services = true;
                self.service_list.start(self.services.keys());
            }
            Event::ListStarted(Kind::EndpointSlice) => {
                self.slice_list.start(self.service_of.keys());
            }
            Event::ListStarted(Kind::Node) => {
                self.is_node_named = false;
                self.node_list.start(std::iter::empty());
            }
            Event::ListStarted(Kind::ServiceCidr) => {
                self.service_cidr_list.start(self.service_cidrs.names());
            }
            Event::ListComplete { kind, is_whole } => self.complete(kind, is_whole),
            Event::Unreadable(Kind::Service, name) => {
                let is_known = self.services.contains_key(&name);
                self.service_list.confirm_unreadable(name, is_known);
            }
            Event::Unreadable(Kind::EndpointSlice, name) => {
                let is_known = self.service_of.contains_key(&name);
                self.slice_list.confirm_unreadable(name, is_known);
            }
            Event::ServiceApplied(service) => self.apply_service(service),
            Event::ServiceDeleted(name) => self.delete_service(&name),
            Event::SliceApplied(slice) => self.apply_slice(slice),
            Event::SliceDeleted(name) => self.delete_slice(&name),
            Event::NodeApplied(node) => {
                self.has_node = Some(true);
                self.is_node_named = true;
                if self.node.as_ref() != Some(&node) {
                    self.node = Some(node);
                    self.changes.node = true;
                }
            }
            // The Node object may be deleted while the node still serves: what was known of it
            // stays in use.
            Event::NodeDeleted(_) => {
                self.has_node = Some(false);
                self.is_node_named = false;
            }
            Event::Unreadable(Kind::Node, _) => {
                self.has_node = Some(true);
                self.is_node_named = true;
            }
            Event::Unreadable(Kind::ServiceCidr, name) => {
                let is_known = self.service_cidrs.contains(&name);
                self.service_cidr_list.confirm_unreadable(name, is_known);
            }
            Event::ServiceCidrApplied(ServiceCidr { name, nets }) => {
                let name = NamespacedName::new("", &name);
                self.service_cidr_list.confirm(&name);
                let changed = self.service_cidrs.apply(name, nets);
                self.note_service_cidrs(changed);
            }
            Event::ServiceCidrDeleted(name) => {
                self.delete_service_cidr(&NamespacedName::new("", &name));
            }
            Event::ApiServerAt(addresses) => {
                self.admission.reach_api_server_at(addresses);
                self.judge_doubted();
            }
        }
    }

    /// Takes away what the list that ends has not named.
    fn complete(&mut self, kind: Kind, is_whole: bool) {
        let (known, gone) = match kind {
            Kind::Service => (self.services.len(), self.service_list.complete(is_whole)),
            Kind::EndpointSlice => (self.service_of.len(), self.slice_list.complete(is_whole)),
            Kind::Node => {
                self.node_list.complete(is_whole);
                let is_gone = is_whole && self.has_node == Some(true) && !self.is_node_named;
                if is_whole {
                    self.has_node = Some(self.is_node_named);
                }
                let node = self.node.as_ref().filter(|_| is_gone);
                let gone = node.map(|node| NamespacedName::new("", &node.name));
                (1, gone.into_iter().collect())
            }
            Kind::ServiceCidr => {
                let known = self.service_cidrs.len();
                let gone = self.service_cidr_list.complete(is_whole);
                (known, gone)
            }
        };
        let vanished = Vanished::of(kind, known, &gone);
        self.changes.vanished.extend(vanished);
        for name in gone {
            match kind {
                Kind::Service => self.delete_service(&name),
                Kind::EndpointSlice => self.delete_slice(&name),
                // What was known of it stays in use.
                Kind::Node => {}
                Kind::ServiceCidr => self.delete_service_cidr(&name),
            }
        }
        if kind == Kind::Service {
            self.is_listing_services = false;
            self.judge_again();
        }
        if is_whole && kind == Kind::ServiceCidr {
            let changed = self.service_cidrs.know();
            self.note_service_cidrs(changed);
        }
    }

    fn delete_service_cidr(&mut self, name: &NamespacedName) {
        self.service_cidr_list.confirm(name);
        let changed = self.service_cidrs.delete(name);
        self.note_service_cidrs(changed);
    }

    fn note_service_cidrs(&mut self, changed: Changed) {
        self.changes.service_cidrs |= changed == Changed::Yes;
    }

    /// Whether Services and slices have both been listed once: before that, nothing is programmed.
    pub fn is_complete(&self) -> bool {
        self.service_list.has_completed && self.slice_list.has_completed
    }

    /// Whether every Service and slice that exists is, or was, known. Before that, what the kernel
    /// holds and no known Service wants may belong to one that could not be read, and so may not be
    /// deleted. Once true, always true.
    pub fn is_whole(&self) -> bool {
        self.service_list.is_whole() && self.slice_list.is_whole()
    }

    /// Whether a kind has been listed once.
    pub fn is_listed(&self, kind: Kind) -> bool {
        match kind {
            Kind::Service => self.service_list.has_completed,
            Kind::EndpointSlice => self.slice_list.has_completed,
            Kind::Node => self.is_node_listed(),
            Kind::ServiceCidr => self.are_service_cidrs_listed(),
        }
    }

    /// Whether the own Node has been listed once (it need not exist).
    pub fn is_node_listed(&self) -> bool {
        self.node_list.has_completed
    }

    /// Whether ServiceCIDRs have been listed once, or it is known that they cannot be.
    pub fn are_service_cidrs_listed(&self) -> bool {
        self.service_cidr_list.has_completed
    }

    /// The networks of a family that ClusterIPs come from, as [`NodeFacts`] has them.
    ///
    /// [`NodeFacts`]: crate::NodeFacts::service_cidrs
    pub fn service_cidrs(&self, family: IpFamily) -> Option<Vec<IpNet>> {
        self.service_cidrs.of(family)
    }

    /// External and load-balancer addresses that are not served, and whose they are, in no order.
    pub fn refused_addresses(&self) -> impl Iterator<Item = (&NamespacedName, &RefusedAddress)> {
        self.admission.refused()
    }

    /// Those of one Service.
    pub fn addresses_refused_to(&self, name: &NamespacedName) -> &[RefusedAddress] {
        self.admission.refused_to(name)
    }

    /// The Services that are larger than the [limits](crate::limits), and the part that is not
    /// served, in no order.
    pub fn oversized(&self) -> impl Iterator<Item = (&NamespacedName, &Excess)> {
        self.admission.excess()
    }

    /// The part of one Service that is above the limits, at most one for each family.
    pub fn excess_of(&self, name: &NamespacedName) -> &[Excess] {
        self.admission.excess_of(name)
    }

    /// The Services that name this as an external or load-balancer address, in no order; those that
    /// it is refused to, too.
    pub fn naming_externally(&self, address: IpAddr) -> impl Iterator<Item = &Service> {
        let names = self.admission.asking(address);
        names.filter_map(|name| self.services.get(name).map(|service| &**service))
    }

    /// The Services that name an address of a network as an external or load-balancer address, each
    /// with the address. Costs O(those).
    pub fn naming_within(&self, net: IpNet) -> impl Iterator<Item = (IpAddr, &Service)> {
        let asking = self.admission.asking_within(net);
        asking.filter_map(|(address, name)| Some((address, &**self.services.get(name)?)))
    }

    /// All Services, in no order.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.values().map(|service| &**service)
    }

    /// The Services that have options, in no order. Costs O(those).
    pub fn services_with_options(&self) -> impl Iterator<Item = (&Service, &ServiceOptions)> {
        self.with_options.iter().filter_map(|name| {
            let service = self.services.get(name)?;
            Some((&**service, service.options.as_deref()?))
        })
    }

    /// Another number whenever [`services_with_options`](Self::services_with_options) may say something
    /// else.
    pub fn options_version(&self) -> u64 {
        self.options_version
    }

    /// Whose cluster IP this is. Looks at all Services.
    pub fn service_at(&self, cluster_ip: IpAddr) -> Option<&NamespacedName> {
        let mut all = self.services();
        let has = |service: &&Service| service.cluster_ips.contains(&cluster_ip);
        all.find(has).map(|service| &service.name)
    }

    /// The Service whose load balancer has this, the first of several by age and name.
    pub fn load_balancer_at(&self, at: ServiceAddress) -> Option<&NamespacedName> {
        let has = |service: &&Service| {
            let mut ports = service.ports.iter();
            service.ingress_ips.contains(&at.address)
                && ports.any(|port| (port.port, port.protocol) == (at.port, at.protocol))
        };
        let all = self.naming_externally(at.address).filter(has);
        let age = |service: &&Service| (service.created.unwrap_or(i64::MAX), service.name.clone());
        all.min_by_key(age).map(|service| &service.name)
    }

    /// The Service that has this node port, the first of several by age and name. Looks at all
    /// Services.
    pub fn node_port_of(&self, number: u16, protocol: Protocol) -> Option<&NamespacedName> {
        let has = |service: &&Service| {
            let mut ports = service.ports.iter();
            ports.any(|port| (port.node_port, port.protocol) == (Some(number), protocol))
        };
        let age = |service: &&Service| (service.created.unwrap_or(i64::MAX), service.name.clone());
        let all = self.services().filter(has);
        all.min_by_key(age).map(|service| &service.name)
    }

    /// Takes over the addresses of this node that serve NodePorts, sorted: no external IP takes a
    /// node port of another Service there.
    pub fn serve_node_ports_at(&mut self, addresses: &[IpAddr]) {
        self.admission.serve_node_ports_at(addresses);
        self.judge_again();
    }

    /// Another number whenever what [`refused_addresses`](Self::refused_addresses) and
    /// [`naming_externally`](Self::naming_externally) say may be something else.
    pub fn external_addresses_version(&self) -> u64 {
        self.admission.version()
    }

    /// What changed since the last call.
    pub fn take_changes(&mut self) -> Changes {
        mem::take(&mut self.changes)
    }

    /// Whether [`take_changes`](Self::take_changes) would return something.
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// What [`take_changes`](Self::take_changes) would return.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// One Service with its slices; `None` if there is no such Service.
    pub fn view(&self, name: &NamespacedName) -> Option<ServiceView<'_>> {
        let service = self.services.get(name)?;
        Some(ServiceView {
            service,
            slices: slices_of(&self.slices, name),
            left_out: self.admission.slices_left_out(name),
            api_servers: self.admission.api_servers(),
        })
    }

    /// The addresses and ports of the API server that no Service may take, sorted: those at which
    /// the source reaches it, and the endpoints of `default/kubernetes`.
    pub fn api_servers(&self) -> &[SocketAddr] {
        self.admission.api_servers()
    }

    /// The names of all Services, in no order.
    pub fn service_names(&self) -> impl Iterator<Item = &NamespacedName> {
        self.services.keys()
    }

    /// Another number whenever [`service_names`](Self::service_names) may tell others, or in
    /// another order.
    pub fn names_version(&self) -> u64 {
        self.names_version
    }

    /// How many Services there are.
    pub fn service_count(&self) -> usize {
        self.services.len()
    }

    /// How many EndpointSlices there are, those of Services that are not proxied included.
    pub fn slice_count(&self) -> usize {
        self.service_of.len()
    }

    /// The own Node, if it was ever seen.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// Whether the own Node exists; `None` before that was told. What [`node`](Self::node) says
    /// stays when it is deleted.
    pub fn has_node(&self) -> Option<bool> {
        self.has_node
    }

    fn apply_service(&mut self, mut service: Service) {
        self.service_list.confirm(&service.name);
        if self.external_ips == ExternalIps::Ignored {
            service.external_ips = Vec::new();
        }
        let known = self.services.get(&service.name);
        if let Some(known) = known {
            if self.admission.is_as_given(known, &service) {
                return;
            }
            let given = self.admission.as_given(known).clone();
            self.admission.leave(&given);
            self.changes.note_service(known);
        }
        service.name = self.shared_name(service.name);
        self.note_options(&service.name, service.options.is_some());
        self.admission.enter(&service);
        let slices = slices_of(&self.slices, &service.name);
        self.admission.admit(&mut service, slices);
        self.changes.service_changes += 1;
        for port in &mut service.ports {
            port.name = self.port_names.one(&port.name);
        }
        self.changes.note_service(&service);
        if let Some(known) = self.services.get(&service.name) {
            self.changes.note_left(known, Some(&service));
        }
        let before = self
            .services
            .insert(service.name.clone(), Box::new(service));
        self.names_version += u64::from(before.is_none());
        self.judge_again();
    }

    /// Notes that a Service has come, changed or gone, and whether it has options now.
    fn note_options(&mut self, name: &NamespacedName, has_options: bool) {
        let had_options = if has_options {
            !self.with_options.insert(name.clone())
        } else {
            self.with_options.remove(name)
        };
        self.options_version += u64::from(had_options || has_options);
    }

    /// Judges again who may have the addresses of which something else is known now, once a list
    /// that is under way has ended.
    fn judge_again(&mut self) {
        if !self.is_listing_services {
            self.judge_doubted();
        }
    }

    /// Judges them at once. Who has the API server's address cannot wait for the end of a list:
    /// without that address the list may never end.
    fn judge_doubted(&mut self) {
        // A load-balancer address that is not served any more leaves it to external IPs.
        loop {
            let doubted = self.admission.take_doubted();
            if doubted.is_empty() {
                return;
            }
            for name in doubted {
                self.admit_again(&name);
                if let Some(service) = self.services.get(&name) {
                    self.changes.note_service(service);
                }
            }
        }
    }

    fn admit_again(&mut self, name: &NamespacedName) {
        if let Some(service) = self.services.get_mut(name) {
            let mut given = self.admission.as_given(service).clone();
            self.admission
                .admit(&mut given, slices_of(&self.slices, name));
            self.changes.note_left(service, Some(&given));
            **service = given;
        }
    }

    /// Cuts a Service to its limits, as other slices than before count for these.
    fn weigh_again(&mut self, name: &NamespacedName) {
        let slices = slices_of(&self.slices, name);
        let is_within = |service: &Service| limits::is_within(service, slices);
        let has_excess = self.admission.has_excess(name);
        if has_excess || !self.services.get(name).is_none_or(|of| is_within(of)) {
            self.admit_again(name);
            self.judge_again();
        }
    }

    fn delete_service(&mut self, name: &NamespacedName) {
        self.service_list.confirm(name);
        if let Some(service) = self.services.remove(name) {
            let given = self.admission.as_given(&service).clone();
            self.admission.leave(&given);
            self.note_options(name, false);
            self.names_version += 1;
            self.changes.service_changes += 1;
            self.changes.note_service(&service);
            self.changes.note_left(&service, None);
            self.judge_again();
        }
    }

    /// Takes over where the API server is, if these were its slices.
    fn follow_api_servers(&mut self, service: &NamespacedName) {
        if Rank::of(service) == Rank::ApiServer {
            let slices = slices_of(&self.slices, service);
            self.admission.learn_api_servers(slices);
            self.judge_doubted();
        }
    }

    fn apply_slice(&mut self, mut slice: EndpointSlice) {
        self.slice_list.confirm(&slice.name);
        let own_node = self.own_node.as_deref();
        slice.endpoints = slice.endpoints.with_placements(|placement| {
            if is_just_elsewhere(placement, own_node) {
                return Arc::clone(&self.elsewhere);
            }
            self.placements.one(&seen(placement, own_node))
        });
        let known = self.service_of.get(&slice.name).and_then(|service| {
            let slices = self.slices.get(service)?;
            slices.get(position(slices, &slice.name).ok()?)
        });
        if known == Some(&slice) {
            return;
        }
        if self
            .service_of
            .get(&slice.name)
            .is_some_and(|service| *service != slice.service)
        {
            self.delete_slice(&slice.name.clone());
        }
        slice.service = self.shared_name(slice.service);
        for port in &mut slice.ports {
            port.name = self.port_names.one(&port.name);
        }
        self.service_of
            .insert(slice.name.clone(), slice.service.clone());
        self.changes.slice_changes += 1;
        let trigger = slice.change_trigger.map(|at| Trigger {
            service: slice.service.clone(),
            family: slice.family,
            at,
        });
        self.changes.triggers.extend(trigger);
        let service = slice.service.clone();
        self.changes.services.insert(service.clone());
        self.changes.families.extend([slice.family]);
        let slices = self.slices.entry(service.clone()).or_default();
        match position(slices, &slice.name) {
            Ok(at) => {
                if let Some(known) = slices.get_mut(at) {
                    *known = slice;
                }
            }
            Err(at) => {
                if slices.is_empty() {
                    slices.reserve_exact(1);
                }
                slices.insert(at, slice);
            }
        }
        self.weigh_again(&service);
        self.follow_api_servers(&service);
    }

    fn delete_slice(&mut self, name: &NamespacedName) {
        self.slice_list.confirm(name);
        let Some(service) = self.service_of.remove(name) else {
            return;
        };
        if let Some(slices) = self.slices.get_mut(&service) {
            if let Ok(at) = position(slices, name) {
                let gone = slices.remove(at);
                self.changes.families.extend([gone.family]);
            }
            if slices.is_empty() {
                self.slices.remove(&service);
            }
        }
        self.changes.slice_changes += 1;
        self.weigh_again(&service);
        self.follow_api_servers(&service);
        self.changes.services.insert(service);
    }

    /// The name of a Service as something holds it already.
    fn shared_name(&self, name: NamespacedName) -> NamespacedName {
        let service = self.services.get_key_value(&name).map(|(known, _)| known);
        let known = service.or_else(|| Some(self.slices.get_key_value(&name)?.0));
        known.cloned().unwrap_or(name)
    }
}

/// Whether nothing is to be kept of a placement: it is on another node, and meant for all. Nearly
/// all are.
fn is_just_elsewhere(placement: &Placement, own_node: Option<&str>) -> bool {
    let Placement {
        node: Some(node),
        for_nodes,
        for_zones,
    } = placement
    else {
        return false;
    };
    own_node.is_some_and(|own| **node != *own) && for_nodes.is_empty() && for_zones.is_empty()
}

/// What is kept of a placement on the node of this name.
fn seen(placement: &Arc<Placement>, own_node: Option<&str>) -> Arc<Placement> {
    let Some(own) = own_node else {
        return Arc::clone(placement);
    };
    let is_elsewhere = placement.node.as_deref().is_some_and(|node| node != own);
    let names_others = placement.for_nodes.iter().any(|node| **node != *own);
    if !is_elsewhere && !names_others {
        return Arc::clone(placement);
    }
    let mut seen = Placement::clone(placement);
    seen.node = seen.node.filter(|_| !is_elsewhere);
    if names_others {
        let is_for_own = seen.for_nodes.iter().any(|node| **node == *own);
        seen.for_nodes = [if is_for_own { own } else { ELSEWHERE }.into()].into();
    }
    Arc::new(seen)
}

fn slices_of<'a>(
    slices: &'a HashMap<NamespacedName, Vec<EndpointSlice>>,
    service: &NamespacedName,
) -> &'a [EndpointSlice] {
    slices.get(service).map_or(&[], Vec::as_slice)
}

/// Where a slice is among those of its Service, or would be.
fn position(slices: &[EndpointSlice], name: &NamespacedName) -> Result<usize, usize> {
    slices.binary_search_by(|slice| slice.name.cmp(name))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::object::Endpoint;

    fn name(name: &str) -> NamespacedName {
        NamespacedName::new("default", name)
    }

    fn service(service: &str) -> Event {
        Event::ServiceApplied(Service {
            ..Service::at(name(service), ["10.96.0.10".parse().unwrap()])
        })
    }

    fn complete(kind: Kind, is_whole: bool) -> Event {
        Event::ListComplete { kind, is_whole }
    }

    fn unreadable(service: &str) -> Event {
        Event::Unreadable(Kind::Service, name(service))
    }

    #[test]
    fn a_change_concerns_the_families_that_it_is_of() {
        let service_at = |ips: &[&str]| {
            let ips = ips.iter().map(|ip| ip.parse().unwrap());
            Event::ServiceApplied(Service::at(name("web"), ips))
        };
        let slice = |family, port: u16| {
            Event::SliceApplied(EndpointSlice {
                name: name("web-6"),
                service: name("web"),
                family,
                ports: [crate::object::EndpointPort {
                    name: "".into(),
                    protocol: Protocol::Tcp,
                    port,
                }]
                .into_iter()
                .collect(),
                endpoints: Vec::new().into(),
                change_trigger: None,
            })
        };
        let mut model = Model::new();
        let mut families = |event: Event| {
            model.apply(event);
            let changes = model.take_changes();
            let mut all = IpFamily::ALL.into_iter();
            (
                all.next().is_some_and(|of| changes.concerns(of)),
                all.next().is_some_and(|of| changes.concerns(of)),
            )
        };
        let (v4, v6) = ("10.96.0.1", "fd96::1");
        let is_v4_first = IpFamily::ALL[0] == IpFamily::V4;
        assert!(is_v4_first);
        for (event, concerned) in [
            (service_at(&[v4]), (true, false)),
            (service_at(&[v4]), (false, false)),
            (slice(IpFamily::V6, 80), (false, true)),
            (slice(IpFamily::V6, 81), (false, true)),
            (Event::SliceDeleted(name("web-6")), (false, true)),
            (service_at(&[v4, v6]), (true, true)),
            (service_at(&[v6]), (true, true)),
            (Event::ServiceDeleted(name("web")), (false, true)),
            (Event::NodeApplied(Node::default()), (true, true)),
        ] {
            assert_eq!(families(event.clone()), concerned, "{event:?}");
        }
    }

    /// A model whose slices are listed, after these events.
    fn model(events: impl IntoIterator<Item = Event>) -> Model {
        let mut model = Model::new();
        model.apply(Event::ListStarted(Kind::EndpointSlice));
        model.apply(complete(Kind::EndpointSlice, true));
        for event in events {
            model.apply(event);
        }
        model
    }

    fn names(model: &Model) -> Vec<&str> {
        let mut names: Vec<_> = model.service_names().map(NamespacedName::name).collect();
        names.sort_unstable();
        names
    }

    const START: Event = Event::ListStarted(Kind::Service);

    #[test]
    fn external_ips_may_be_as_if_they_were_not_given() {
        let with = |address: &str| {
            let mut event = service("web");
            if let Event::ServiceApplied(service) = &mut event {
                service.external_ips = vec![address.parse().unwrap()];
            }
            event
        };
        let seen = |external_ips| {
            let mut model = Model::new().with_external_ips(external_ips);
            model.apply(with("192.0.2.1"));
            let view = model.view(&name("web")).unwrap();
            let seen = view.service.external_ips.len();
            model.take_changes();
            model.apply(with("192.0.2.2"));
            (seen, model.has_changes())
        };
        assert_eq!(seen(ExternalIps::Served), (1, true));
        // What is not seen changes nothing, either.
        assert_eq!(seen(ExternalIps::Ignored), (0, false));
    }

    #[test]
    fn placements_of_nodes_that_are_gone_are_dropped() {
        let mut model = Model::new();
        for generation in 0..100 {
            let endpoints = (0..100).map(|number| Endpoint {
                address: [10, 244, 0, number].into(),
                ready: true,
                serving: true,
                terminating: false,
                placement: Arc::new(Placement {
                    node: Some(format!("node-{generation}-{number}").into()),
                    ..Placement::default()
                }),
            });
            model.apply(Event::SliceApplied(EndpointSlice {
                name: name("web-a"),
                service: name("web"),
                family: IpFamily::V4,
                ports: [].into_iter().collect(),
                endpoints: endpoints.collect(),
                change_trigger: None,
            }));
        }
        let held = model.placements.known.len();
        assert!(held <= 3 * 100 + FEW_SHARED, "{held} are held");
    }

    #[test]
    fn of_other_nodes_it_is_not_kept_which_they_are() {
        let placed = |node: &str, hints: &[&str]| Endpoint {
            address: [10, 244, 0, 1].into(),
            ready: true,
            serving: true,
            terminating: false,
            placement: Arc::new(Placement {
                node: Some(node.into()),
                for_nodes: hints.iter().map(|hint| (*hint).into()).collect(),
                for_zones: ["a".into()].into(),
            }),
        };
        let slice = |endpoints: &[Endpoint]| EndpointSlice {
            name: name("a-1"),
            service: name("a"),
            family: IpFamily::V4,
            ports: [].into_iter().collect(),
            endpoints: endpoints.iter().cloned().collect(),
            change_trigger: None,
        };
        let told = [
            placed("own", &[]),
            placed("own", &["own"]),
            placed("other", &["other", "own"]),
            placed("other", &["other"]),
            placed("another", &["another"]),
            placed("another", &[]),
        ];
        let mut model = Model::of_node("own");
        model.apply(service("a"));
        model.apply(Event::SliceApplied(slice(&told)));
        let view = model.view(&name("a")).unwrap();
        let endpoints = view.slices().flat_map(|slice| slice.endpoints.iter());
        let kept: Vec<_> = endpoints
            .map(|endpoint| {
                let Placement {
                    node,
                    for_nodes,
                    for_zones,
                } = &**endpoint.placement;
                assert_eq!(**for_zones, ["a".into()]);
                let for_nodes: Vec<&str> = for_nodes.iter().map(|node| &**node).collect();
                (node.as_deref(), for_nodes)
            })
            .collect();
        let wanted = [
            (Some("own"), vec![]),
            (Some("own"), vec!["own"]),
            (None, vec!["own"]),
            (None, vec![ELSEWHERE]),
            (None, vec![ELSEWHERE]),
            (None, vec![]),
        ];
        assert_eq!(kept, wanted);
        model.take_changes();
        model.apply(Event::SliceApplied(slice(&told)));
        assert!(!model.has_changes(), "the same is no change");
    }

    #[test]
    fn a_whole_list_takes_away_what_it_does_not_name() {
        let mut model = model([START, service("a"), service("b")]);
        assert!(!model.is_complete());
        model.apply(complete(Kind::Service, true));
        assert!(model.is_complete() && model.is_whole());
        model.take_changes();
        for event in [START, service("b"), START, service("b")] {
            model.apply(event);
        }
        assert_eq!(names(&model), ["a", "b"], "a broken list takes nothing");
        model.apply(complete(Kind::Service, true));
        assert_eq!(names(&model), ["b"]);
        assert_eq!(model.take_changes().services, [name("a")].into());
    }

    #[test]
    fn what_a_list_no_longer_names_is_told_with_how_much_there_was() {
        let names: Vec<_> = (0..9).map(|number| format!("s{number}")).collect();
        let mut model = model([START]);
        for name in &names {
            model.apply(service(name));
        }
        model.apply(complete(Kind::Service, true));
        assert_eq!(
            model.take_changes().vanished,
            [],
            "the first list takes nothing"
        );
        // A watch has told of this one, and of one that comes and goes while the list is told.
        model.apply(Event::ServiceDeleted(name("s8")));
        for event in [
            START,
            service("s3"),
            service("new"),
            Event::ServiceDeleted(name("new")),
        ] {
            model.apply(event);
        }
        assert_eq!(
            model.take_changes().vanished,
            [],
            "not before it is complete"
        );
        model.apply(complete(Kind::Service, true));
        let mut vanished = Vanished {
            kind: Kind::Service,
            count: 7,
            known: 8,
            first: ["s0", "s1", "s2", "s4", "s5"].map(name).into(),
        };
        assert!(model.has_changes());
        assert_eq!(model.take_changes().vanished, [vanished.clone()]);
        for event in [START, complete(Kind::Service, false)] {
            model.apply(event);
        }
        assert_eq!(model.take_changes().vanished, [], "there may be more");
        model.apply(complete(Kind::Service, true));
        (vanished.count, vanished.known, vanished.first) = (1, 1, vec![name("s3")]);
        assert_eq!(model.take_changes().vanished, [vanished]);
    }

    #[test]
    fn slices_and_the_own_node_vanish_too() {
        let slice = Event::SliceApplied(EndpointSlice {
            name: name("a-1"),
            service: name("a"),
            family: IpFamily::V4,
            ports: [].into_iter().collect(),
            endpoints: Vec::new().into(),
            change_trigger: None,
        });
        let node = Event::NodeApplied(Node {
            name: "n".into(),
            ..Node::default()
        });
        for (kind, object, first) in [
            (Kind::EndpointSlice, slice, name("a-1")),
            (Kind::Node, node, NamespacedName::new("", "n")),
        ] {
            let list = |object| {
                [
                    Some(Event::ListStarted(kind)),
                    object,
                    Some(complete(kind, true)),
                ]
            };
            let mut model = model(list(Some(object)).into_iter().flatten());
            assert_eq!(model.take_changes().vanished, []);
            for event in list(None)
                .into_iter()
                .flatten()
                .chain(list(None).into_iter().flatten())
            {
                model.apply(event);
            }
            let vanished = Vanished {
                kind,
                count: 1,
                known: 1,
                first: vec![first],
            };
            assert_eq!(model.take_changes().vanished, [vanished], "and once");
        }
    }

    #[test]
    fn networks_of_services_are_known_once_all_are_told() {
        let cidr = |name: &str, nets: &[&str]| {
            Event::ServiceCidrApplied(ServiceCidr {
                name: name.into(),
                nets: nets.iter().map(|net| net.parse().unwrap()).collect(),
            })
        };
        let kind = Kind::ServiceCidr;
        let changed = |model: &mut Model| model.take_changes().service_cidrs;
        let of = |model: &Model| {
            let nets = model.service_cidrs(IpFamily::V4)?;
            Some(nets.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let mut model = Model::new();
        // The server does not tell.
        model.apply(complete(kind, false));
        assert!(model.are_service_cidrs_listed() && !changed(&mut model));
        assert_eq!(of(&model), None);
        model.apply(Event::ListStarted(kind));
        model.apply(cidr("a", &["10.0.0.0/16"]));
        assert_eq!(of(&model), None);
        model.apply(cidr("b", &["10.8.0.0/16", "fd00::/112"]));
        model.apply(complete(kind, true));
        assert!(changed(&mut model));
        assert_eq!(of(&model).unwrap(), ["10.0.0.0/16", "10.8.0.0/16"]);
        // What is told again changes nothing, what a list no longer names is gone.
        model.apply(cidr("a", &["10.0.0.0/16"]));
        assert!(!model.has_changes());
        model.apply(Event::ListStarted(kind));
        model.apply(cidr("b", &["10.8.0.0/16", "fd00::/112"]));
        model.apply(complete(kind, true));
        assert!(changed(&mut model));
        assert_eq!(of(&model).unwrap(), ["10.8.0.0/16"]);
        model.apply(Event::ServiceCidrDeleted("b".into()));
        assert!(changed(&mut model));
        assert_eq!(of(&model).unwrap(), [""; 0]);
        // What else is known waits for none of this.
        assert!(!model.is_complete() && !model.is_node_listed());
    }

    #[test]
    fn the_own_node_is_gone_by_an_event_or_by_a_list_without_it() {
        let node = || {
            Event::NodeApplied(Node {
                name: "n".into(),
                ..Node::default()
            })
        };
        let list = |model: &mut Model, node: Option<Event>| {
            model.apply(Event::ListStarted(Kind::Node));
            if let Some(node) = node {
                model.apply(node);
            }
            model.apply(complete(Kind::Node, true));
            model.has_node()
        };
        let mut model = Model::new();
        assert_eq!(model.has_node(), None);
        assert_eq!(list(&mut model, None), Some(false));
        assert_eq!(list(&mut model, Some(node())), Some(true));
        model.apply(Event::NodeDeleted("n".into()));
        assert_eq!(model.has_node(), Some(false));
        model.apply(node());
        assert_eq!(model.has_node(), Some(true));
        assert_eq!(list(&mut model, None), Some(false));
        assert!(model.node().is_some(), "what was known of it stays");
    }

    #[test]
    fn changes_are_counted_with_what_triggered_them() {
        let at = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        let slice = |change_trigger| {
            Event::SliceApplied(EndpointSlice {
                name: name("a-1"),
                service: name("a"),
                family: IpFamily::V6,
                ports: [].into_iter().collect(),
                endpoints: Vec::new().into(),
                change_trigger,
            })
        };
        let mut model = model([service("a"), service("a"), slice(at(1)), slice(at(1))]);
        model.apply(slice(at(2)));
        let changes = model.take_changes();
        assert_eq!((changes.service_changes, changes.slice_changes), (1, 2));
        let triggers = [1, 2].map(|seconds| Trigger {
            service: name("a"),
            family: IpFamily::V6,
            at: at(seconds).unwrap(),
        });
        assert_eq!(changes.triggers, triggers);
        model.apply(Event::SliceDeleted(name("a-1")));
        let changes = model.take_changes();
        assert_eq!((changes.slice_changes, changes.triggers.len()), (1, 0));
    }

    #[test]
    fn a_list_that_is_not_whole_takes_nothing_away_until_it_is() {
        let mut model = model([START, service("a"), complete(Kind::Service, false)]);
        assert!(model.is_complete() && !model.is_whole());
        for event in [START, complete(Kind::Service, false)] {
            model.apply(event);
        }
        assert_eq!(names(&model), ["a"]);
        model.apply(complete(Kind::Service, true));
        assert_eq!(names(&model), [""; 0]);
        assert!(model.is_whole());
    }

    #[test]
    fn an_unreadable_object_stays_as_it_was_known() {
        let mut model = model([START, service("a"), complete(Kind::Service, true)]);
        for event in [START, unreadable("a"), complete(Kind::Service, true)] {
            model.apply(event);
        }
        assert_eq!(names(&model), ["a"]);
        model.apply(unreadable("new"));
        assert!(model.is_whole(), "nothing of it can be in the kernel");
    }

    #[test]
    fn an_object_never_read_that_changes_is_still_not_read() {
        let first = [START, unreadable("a"), complete(Kind::Service, true)];
        let mut model = model(first);
        model.apply(unreadable("a"));
        assert!(!model.is_whole(), "what it was may be in the kernel");
        model.apply(service("a"));
        assert!(model.is_whole());
    }

    #[test]
    fn an_object_never_read_keeps_the_model_from_being_whole() {
        let first = [
            START,
            unreadable("a"),
            unreadable("b"),
            complete(Kind::Service, true),
        ];
        let mut healed = model(first.clone());
        assert!(healed.is_complete() && !healed.is_whole());
        healed.apply(Event::ServiceDeleted(name("a")));
        assert!(!healed.is_whole());
        healed.apply(service("b"));
        assert!(healed.is_whole());

        let mut gone = model(first);
        for event in [START, unreadable("a"), complete(Kind::Service, true)] {
            gone.apply(event);
        }
        assert!(!gone.is_whole());
        for event in [START, complete(Kind::Service, true)] {
            gone.apply(event);
        }
        assert!(gone.is_whole());
    }
}
