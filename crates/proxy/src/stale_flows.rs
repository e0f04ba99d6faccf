//! Finds stale conntrack entries: entries of UDP flows whose endpoint no longer serves the flow.
//!
//! The kernel cannot observe the end of a UDP flow. While a client keeps sending, the kernel keeps
//! the conntrack entry, with the endpoint of the first packet (kubernetes/kubernetes#71514,
//! kubernetes/kubernetes#76664). After the daemon has deleted the entry, the next packet opens a
//! new flow. A flow is stale in two cases:
//!
//! 1. A Service has the flow's original address and port, but none of its serving endpoints sends
//!    the replies. If the Service has no serving endpoint, all its flows are stale
//!    (kubernetes/kubernetes#139628).
//! 2. The mode has withdrawn its rules for the flow's address and port, no Service claims them, and
//!    the flow is translated. The translation shows that these rules had redirected the flow
//!    (kubernetes/kubernetes#141371). If a Service was deleted while this program was down, the
//!    Service's rules were still in the kernel, so its flows are stale, too.
//!
//! ```text
//!   ServiceView ─ UdpService::of ─▶ UdpServices ─ find_stale(original destination, reply source)
//!   Report::withdrawn ─ withdraw ─────▲
//! ```
//!
//! The first case is upstream's (`pkg/proxy/conntrack/cleanup.go`, 1.37), with two differences:
//!
//! * A node port counts only at this node's addresses. Packets to other hosts are only forwarded.
//! * If several Services claim an address and port, only the endpoints of the first
//!   [owner](crate::Owner) are valid, because only this Service is served there. Otherwise, a Service
//!   in another namespace could list the owner's endpoints, and so keep flows to removed endpoints.
//!
//! A tenant can create very many frontends (addresses × ports). A change to addresses or ports
//! costs O(frontends). Any other change costs O(endpoints). The check of one flow costs O(1).

use std::collections::BTreeSet;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};

use hashbrown::hash_map::Entry;
use hashbrown::{HashMap, HashSet};

use crate::names::{IpFamily, NamespacedName, Protocol};
use crate::node::NodePorts;
use crate::object::ServiceAddress;
use crate::view::ServiceView;

/// Destination address and port of a client's packets to a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Frontend {
    /// A port of a cluster IP, external IP or load-balancer IP.
    Address(SocketAddr),
    /// A node port, at all addresses of this node that serve NodePorts.
    NodePort(u16),
}

impl Frontend {
    /// Returns the frontend at an address, or the node port if `address` is `None`.
    pub fn new(address: Option<IpAddr>, port: u16) -> Self {
        address.map_or(Self::NodePort(port), |ip| {
            Self::Address(SocketAddr::new(ip, port))
        })
    }
}

/// The UDP ports of a Service in one IP family, and their endpoints.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UdpService {
    /// Creation time of the Service, as in [`Owner::created`](crate::Owner::created).
    created: i64,
    /// Addresses that serve the ports, sorted. `yielded` lists the exceptions: addresses and ports
    /// at which another Service is served.
    addresses: Vec<IpAddr>,
    yielded: Vec<ServiceAddress>,
    ports: Vec<UdpPort>,
}

/// One UDP port of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
struct UdpPort {
    port: u16,
    node_port: Option<u16>,
    /// Sorted endpoints that are serving, including terminating endpoints.
    serving: Vec<SocketAddr>,
}

impl UdpService {
    /// Returns the UDP ports of a Service, or no port if the Service has no cluster IP of the
    /// family.
    pub fn of(view: &ServiceView<'_>, family: IpFamily) -> Self {
        let service = view.service;
        let Some(cluster_ip) = service.cluster_ip(family) else {
            return Self::default();
        };
        let further = service.ingress_ips.iter().chain(&service.external_ips);
        let mut addresses: Vec<IpAddr> = further
            .copied()
            .filter(|ip| IpFamily::of(*ip) == family)
            .chain([cluster_ip])
            .collect();
        addresses.sort_unstable();
        addresses.dedup();
        let ports = service.ports.iter();
        let ports = ports.filter(|port| port.protocol == Protocol::Udp);
        let serving = serving(view, family);
        let ports = ports.map(|port| UdpPort {
            port: port.port,
            node_port: port.node_port,
            serving: serving.get(&*port.name).cloned().unwrap_or_default(),
        });
        // Another Service can be served only at this Service's external IPs. A Service always keeps
        // its own cluster IP and load-balancer IPs.
        let external = |of: &&ServiceAddress| {
            let ip = of.address;
            ip != cluster_ip && !service.ingress_ips.contains(&ip)
        };
        Self {
            created: service.created.unwrap_or(i64::MAX),
            ports: ports.collect(),
            yielded: service.yielded.iter().filter(external).copied().collect(),
            addresses,
        }
    }

    /// Reports whether the Service has no UDP port.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// Reports whether both Services claim the same frontends with the same age, in the same order of
    /// ports.
    fn has_frontends_of(&self, other: &Self) -> bool {
        let numbers = |of: &Self| {
            let ports = of.ports.iter();
            ports
                .map(|port| (port.port, port.node_port))
                .collect::<Vec<_>>()
        };
        self.created == other.created
            && self.addresses == other.addresses
            && self.yielded == other.yielded
            && numbers(self) == numbers(other)
    }
}

/// Returns the serving endpoints of each UDP port in the EndpointSlices, by the port's name.
fn serving<'a>(view: &ServiceView<'a>, family: IpFamily) -> HashMap<&'a str, Vec<SocketAddr>> {
    let mut all: HashMap<&str, Vec<SocketAddr>> = HashMap::new();
    for slice in view.slices().filter(|slice| slice.family == family) {
        let ports = slice.ports.iter();
        for port in ports.filter(|port| port.protocol == Protocol::Udp) {
            let endpoints = slice.endpoints.iter().filter(|endpoint| endpoint.serving);
            let endpoints = endpoints.map(|endpoint| SocketAddr::new(endpoint.address, port.port));
            all.entry(&port.name).or_default().extend(endpoints);
        }
    }
    for serving in all.values_mut() {
        serving.sort_unstable();
        serving.dedup();
    }
    all
}

/// Largest number of withdrawn frontends that are stored until their flows can be deleted.
const WITHDRAWN_MAX: usize = 262_144;

/// Index of a Service port in [`UdpServices`], not its port number.
type PortId = u32;

/// The UDP ports of all Services in one family, and the frontends that the mode has withdrawn.
#[derive(Debug, Default)]
pub struct UdpServices {
    services: HashMap<NamespacedName, KnownService>,
    /// Serving endpoints of each UDP port.
    ports: HashMap<PortId, Vec<SocketAddr>>,
    claims: HashMap<Frontend, Claimants>,
    withdrawn: HashSet<Frontend>,
    last_id: PortId,
}

/// A Service, with the [`PortId`] of each of its UDP ports in the same order.
#[derive(Debug)]
struct KnownService {
    service: UdpService,
    ids: Vec<PortId>,
}

/// Service port that claims a frontend. Claimants of one frontend are sorted as
/// [`Owner`](crate::Owner) sorts Service ports: by age, then by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Claimant {
    created: i64,
    service: NamespacedName,
    id: PortId,
}

impl Claimant {
    fn new(service: &UdpService, name: &NamespacedName, id: PortId) -> Self {
        Self {
            created: service.created,
            service: name.clone(),
            id,
        }
    }
}

/// Service ports that claim one frontend. A frontend nearly always has one claimant.
#[derive(Debug)]
enum Claimants {
    One(Claimant),
    Many(BTreeSet<Claimant>),
}

impl Claimants {
    fn add(&mut self, claimant: Claimant) {
        match self {
            Self::One(one) => *self = Self::Many(BTreeSet::from([one.clone(), claimant])),
            Self::Many(many) => drop(many.insert(claimant)),
        }
    }

    /// Removes a Service port. Returns true if no other port claims the frontend.
    fn remove(&mut self, claimant: &Claimant) -> bool {
        match self {
            Self::One(one) => one == claimant,
            Self::Many(many) => {
                many.remove(claimant);
                many.is_empty()
            }
        }
    }

    /// Returns the Service port that is served at the frontend.
    fn first(&self) -> Option<&Claimant> {
        match self {
            Self::One(one) => Some(one),
            Self::Many(many) => many.first(),
        }
    }
}

/// Owner of a stale flow. If the daemon deletes flows in several batches, flows of one owner may
/// wait while it deletes flows of another owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StaleOf<'a> {
    /// The Service that has the flow's destination.
    Service(&'a NamespacedName),
    /// A withdrawn frontend that no Service claims.
    Withdrawn(Frontend),
}

impl UdpServices {
    /// Replaces the UDP ports of a Service. `service` is empty if the Service was deleted or has no
    /// UDP port. Returns true if a flow may have become stale.
    pub fn set(&mut self, name: &NamespacedName, service: UdpService) -> bool {
        let known = self.services.get_mut(name);
        match known {
            None if service.is_empty() => return false,
            Some(known) if known.service == service => return false,
            Some(known) if known.service.has_frontends_of(&service) => {
                for (id, port) in known.ids.iter().zip(&service.ports) {
                    if let Some(serving) = self.ports.get_mut(id) {
                        serving.clone_from(&port.serving);
                    }
                }
                known.service = service;
                return true;
            }
            _ => {}
        }
        let is_gone = service.is_empty();
        let concerns_flows = self.remove(name);
        if !is_gone {
            self.add(name, service);
        }
        concerns_flows || !is_gone
    }

    fn add(&mut self, name: &NamespacedName, service: UdpService) {
        let mut ids = Vec::with_capacity(service.ports.len());
        for port in &service.ports {
            let id = self.next_id();
            ids.push(id);
            self.ports.insert(id, port.serving.clone());
            let claimant = Claimant::new(&service, name, id);
            for frontend in frontends(&service, port) {
                match self.claims.entry(frontend) {
                    Entry::Vacant(vacant) => {
                        vacant.insert(Claimants::One(claimant.clone()));
                    }
                    Entry::Occupied(mut claimants) => claimants.get_mut().add(claimant.clone()),
                }
            }
        }
        self.services
            .insert(name.clone(), KnownService { service, ids });
    }

    /// Removes a Service. Returns true if flows to one of its frontends may be stale now: another
    /// Service claims the frontend, or the mode has withdrawn the frontend. Before a withdrawal,
    /// the kernel still serves the frontend.
    fn remove(&mut self, name: &NamespacedName) -> bool {
        let Some(KnownService { service, ids }) = self.services.remove(name) else {
            return false;
        };
        let mut concerns_flows = false;
        for (id, port) in ids.into_iter().zip(&service.ports) {
            self.ports.remove(&id);
            let claimant = Claimant::new(&service, name, id);
            for frontend in frontends(&service, port) {
                if let Entry::Occupied(mut claimants) = self.claims.entry(frontend) {
                    if claimants.get_mut().remove(&claimant) {
                        claimants.remove();
                        concerns_flows |= self.withdrawn.contains(&frontend);
                    } else {
                        concerns_flows = true;
                    }
                }
            }
        }
        concerns_flows
    }

    fn next_id(&mut self) -> PortId {
        loop {
            self.last_id = self.last_id.wrapping_add(1);
            if !self.ports.contains_key(&self.last_id) {
                return self.last_id;
            }
        }
    }

    /// Records that the mode has removed its rules for these frontends.
    pub fn withdraw(&mut self, frontends: impl IntoIterator<Item = Frontend>) {
        let room = WITHDRAWN_MAX.saturating_sub(self.withdrawn.len());
        self.withdrawn.extend(frontends.into_iter().take(room));
    }

    /// Forgets all [withdrawn](Self::withdraw) frontends that no Service claims. The caller must
    /// have deleted their stale flows. While the node's addresses are unknown (`knows_node_ports`
    /// is false), keeps the withdrawn node ports. Returns false if node ports were kept.
    pub fn forget_withdrawn(&mut self, knows_node_ports: bool) -> bool {
        let waits =
            |frontend: &Frontend| matches!(frontend, Frontend::NodePort(_)) && !knows_node_ports;
        self.withdrawn
            .retain(|frontend| waits(frontend) || self.claims.contains_key(frontend));
        self.withdrawn.shrink_to_fit();
        !self.withdrawn.iter().any(waits)
    }

    /// Returns the owner of a stale UDP flow, or `None` if the flow is not stale. `destination` is
    /// the flow's original destination, and `answerer` is the source of its replies.
    pub fn find_stale(
        &self,
        destination: SocketAddr,
        answerer: SocketAddr,
        node_ports: &NodePorts,
    ) -> Option<StaleOf<'_>> {
        let mut owner = None;
        for (service, serving) in self.served(destination, node_ports) {
            if serving.binary_search(&answerer).is_ok() {
                return None;
            }
            owner.get_or_insert(service);
        }
        if let Some(service) = owner {
            return Some(StaleOf::Service(service));
        }
        // Our rules translate every flow that they redirect, so an untranslated flow is not stale.
        let is_translated = answerer != destination;
        let mut frontends = frontends_at(destination, node_ports);
        let withdrawn = frontends.find(|frontend| self.withdrawn.contains(frontend));
        withdrawn.filter(|_| is_translated).map(StaleOf::Withdrawn)
    }

    /// Reports whether the Service `service` is served at `destination`.
    pub fn is_served_by(
        &self,
        service: &NamespacedName,
        destination: SocketAddr,
        node_ports: &NodePorts,
    ) -> bool {
        let mut served = self.served(destination, node_ports);
        served.any(|(of, _)| of == service)
    }

    /// Returns the Services that are served at the destination, each with the serving endpoints of
    /// its UDP port: at most one at the address, and one at the node port.
    fn served(
        &self,
        destination: SocketAddr,
        node_ports: &NodePorts,
    ) -> impl Iterator<Item = (&NamespacedName, &[SocketAddr])> {
        frontends_at(destination, node_ports)
            .filter_map(|frontend| self.claims.get(&frontend)?.first())
            .filter_map(|owner| Some((&owner.service, self.ports.get(&owner.id)?.as_slice())))
    }
}

/// Returns the frontends that a packet to this address and port may match.
fn frontends_at(
    destination: SocketAddr,
    node_ports: &NodePorts,
) -> impl Iterator<Item = Frontend> + use<> {
    let node_port = node_ports
        .contains(destination.ip())
        .then_some(Frontend::NodePort(destination.port()));
    node_port
        .into_iter()
        .chain([Frontend::Address(destination)])
}

/// Returns the frontends of a UDP port: its addresses and its node port.
fn frontends<'a>(
    service: &'a UdpService,
    port: &'a UdpPort,
) -> impl Iterator<Item = Frontend> + use<'a> {
    let at = |ip: &IpAddr| ServiceAddress::new(*ip, port.port, Protocol::Udp);
    let addresses = service.addresses.iter().map(at);
    let addresses = addresses.filter(|at| service.yielded.binary_search(at).is_err());
    let addresses = addresses.map(|of| Frontend::Address(of.socket()));
    addresses.chain(port.node_port.map(Frontend::NodePort))
}
