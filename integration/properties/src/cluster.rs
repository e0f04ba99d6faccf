//! Objects of a cluster that an event sequence changes. It has few Services, addresses and ports,
//! so that Services often claim the same address and port.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use chance::Chance;
use fixtures::KINDS;
pub use fixtures::{at, net};
use proxy::options::{SCHEDULER, SLOW_START, WEIGHTS};
use proxy::{
    Endpoint, EndpointPort, EndpointSlice, Event, IpFamily, Kind, Model, NamespacedName, Node,
    Placement, Protocol, Service, ServiceOptions, ServicePort, ServiceType, Target,
};

use crate::action::Verb;
use crate::stepped_threads::{ClientLocation, Front};
use crate::subject::RejectedPart;

/// Name of the node on which the daemon runs.
pub const NODE: &str = "node1";

/// Permanent address of the daemon's node (IPv4; `at` derives the IPv6 address).
pub const NODE_ADDRESS: [u8; 4] = [192, 168, 99, 10];

/// Address of a client pod on the daemon's node (IPv4). It can also be an endpoint of a Service.
pub const POD_ADDRESS: [u8; 4] = [10, 244, 1, 1];

/// Maximum number of Services in the cluster.
pub const SERVICES: u8 = 6;
/// ClusterIP of the first Service. Sometimes an endpoint has the same address.
const CLUSTER_IP: [u8; 4] = [10, 96, 0, 10];

/// Returns true if an endpoint has the address `CLUSTER_IP`. In nftables mode, packets to it may
/// be rejected: depending on the layout, rules match this address before or after DNAT.
pub fn is_a_cluster_ip(target: &Target) -> bool {
    [IpFamily::V4, IpFamily::V6]
        .iter()
        .any(|family| at(*family, CLUSTER_IP) == target.ip)
}

/// Returns true if an address is in the range of ClusterIPs.
pub fn is_for_cluster(address: IpAddr) -> bool {
    let network = net(IpFamily::of(address), [10, 96, 0, 0], 24);
    network.is_some_and(|network| network.contains(&address))
}

/// The objects of the API server, and which of them are unreadable.
#[derive(Debug)]
pub struct Cluster {
    family: IpFamily,
    services: BTreeMap<NamespacedName, Service>,
    slices: BTreeMap<NamespacedName, EndpointSlice>,
    node: Option<Node>,
    /// All versions of Services that the source has ever sent.
    versions: Vec<Service>,
    /// Names of objects that are unreadable at present: true for a Service, false for an
    /// EndpointSlice.
    garbled: BTreeSet<(bool, NamespacedName)>,
    /// Model of all objects. Of an unreadable object, it has the last readable version.
    pub model: Model,
}

/// Returns the name of the Service with this number.
pub fn name(number: u8) -> NamespacedName {
    NamespacedName::new("default", &format!("s{number}"))
}

fn slice_name(number: u8, which: u8) -> NamespacedName {
    NamespacedName::new("default", &format!("s{number}-{which}"))
}

/// Returns an empty model for the daemon's node.
pub fn model() -> Model {
    Model::of_node(NODE)
}

/// Returns random options for a Service, in two of three cases `None`. Each slow start ends before
/// the time that passes at the end of an event sequence.
fn some_options(chance: &mut Chance) -> Option<Box<ServiceOptions>> {
    if !chance.is_one_in(3) {
        return None;
    }
    let mut one_of = |values: &[&'static str]| chance.one_of(values).copied().unwrap_or_default();
    let options = [
        (SCHEDULER, one_of(&["wrr", "wlc", "mh", "rr"])),
        (WEIGHTS, one_of(&["", "local=3", "zone=2,local=9"])),
        (SLOW_START, one_of(&["", "10s", "30s"])),
    ];
    ServiceOptions::read(options.into_iter())
}

impl Cluster {
    /// Creates a cluster without Services, whose only object is the daemon's Node.
    pub fn new(family: IpFamily) -> Self {
        let mut cluster = Self {
            family,
            services: BTreeMap::new(),
            slices: BTreeMap::new(),
            node: None,
            versions: Vec::new(),
            garbled: BTreeSet::new(),
            model: model(),
        };
        cluster.node = Some(cluster.node_at(0));
        for event in cluster.list(&KINDS) {
            cluster.model.apply(event);
        }
        cluster.model.take_changes();
        cluster
    }

    /// Returns the model of a daemon that starts now and has received its initial lists.
    pub fn model_of_now(&self) -> Model {
        let mut model = model();
        for event in self.list_all() {
            model.apply(event);
        }
        model.take_changes();
        model
    }

    fn node_at(&self, zone: u8) -> Node {
        Node {
            name: NODE.into(),
            addresses: vec![at(self.family, NODE_ADDRESS)],
            zone: Some(format!("zone{zone}").into()),
            pod_cidrs: net(self.family, [10, 244, 1, 0], 24).into_iter().collect(),
            is_leaving: false,
        }
    }

    /// Returns the frontends of all Services, each with the Service ports that claim it.
    /// `addresses` are those of the node. With `has_localhost`, NodePorts have frontends at
    /// loopback addresses as well.
    pub fn fronts(
        &self,
        addresses: &BTreeSet<IpAddr>,
        has_localhost: bool,
    ) -> BTreeMap<Front, BTreeSet<String>> {
        let mut fronts: BTreeMap<Front, BTreeSet<String>> = BTreeMap::new();
        for service in self.services.values() {
            let own = service.cluster_ips.iter().chain(&service.external_ips);
            let own: Vec<IpAddr> = own.chain(&service.ingress_ips).copied().collect();
            for port in &service.ports {
                let at_own = own.iter().map(|address| (*address, port.port));
                let node_port = port.node_port.into_iter();
                let at_node = node_port.flat_map(|port| {
                    let is_asked = move |at: &&IpAddr| has_localhost || !at.is_loopback();
                    let addresses = addresses.iter().filter(is_asked);
                    addresses.map(move |address| (*address, port))
                });
                for (address, number) in at_own.chain(at_node) {
                    let clients = [
                        ClientLocation::Node,
                        ClientLocation::Pod,
                        ClientLocation::Outside,
                    ];
                    let is_of_node = address == at(self.family, NODE_ADDRESS);
                    let is_possible = |from: &ClientLocation| match from {
                        ClientLocation::Node => true,
                        // For NodePorts, packets from a pod are checked at one address of the node,
                        // because all its addresses give the same result.
                        ClientLocation::Pod => is_of_node || own.contains(&address),
                        ClientLocation::Outside => !address.is_loopback(),
                    };
                    for from in clients.into_iter().filter(is_possible) {
                        let front = Front {
                            address,
                            protocol: port.protocol,
                            port: number,
                            from,
                        };
                        let claim = format!("{}:{}", service.name, port.name);
                        fronts.entry(front).or_default().insert(claim);
                    }
                }
            }
        }
        fronts
    }

    /// Returns all versions of Services for which the kernel always refuses a part. Includes
    /// Services that had one of their addresses or node ports at any time: if the kernel refuses
    /// the new owner's rules, the former owner's rules stay.
    pub fn barred(&self, barred: &[RejectedPart]) -> Vec<Service> {
        let names = self.barred_names(barred);
        let is_named = |version: &&Service| names.contains(&version.name.to_string());
        let of_barred: Vec<&Service> = self.versions.iter().filter(is_named).collect();
        let shares = |version: &Service| of_barred.iter().any(|other| shares_place(version, other));
        let versions = self.versions.iter().filter(|version| shares(version));
        versions.cloned().collect()
    }

    /// Returns the names of existing Services for which the kernel always refuses a part.
    pub fn barred_names(&self, barred: &[RejectedPart]) -> BTreeSet<String> {
        let has = |service: &Service, barred: &RejectedPart| match *barred {
            RejectedPart::Service(number) => service.name == name(number),
            RejectedPart::Endpoint(address) => self.slices.values().any(|slice| {
                let mut endpoints = slice.endpoints.iter();
                slice.service == service.name && endpoints.any(|one| one.address == address)
            }),
            RejectedPart::Portal(address, protocol, port) => {
                let own = service.cluster_ips.iter().chain(&service.external_ips);
                let mut own = own.chain(&service.ingress_ips);
                let mut ports = service.ports.iter();
                own.any(|own| *own == address)
                    && ports.any(|own| own.protocol == protocol && own.port == port)
            }
        };
        let services = self.services.values();
        let barred = services.filter(|service| barred.iter().any(|barred| has(service, barred)));
        barred.map(|service| service.name.to_string()).collect()
    }

    /// Returns all endpoints that are serving if any object is unreadable, otherwise none. Without
    /// the unreadable object, the daemon cannot know whether a Service has ready endpoints, and may
    /// use those that are only serving.
    pub fn makeshift(&self) -> BTreeSet<Target> {
        let mut all = BTreeSet::new();
        if self.garbled.is_empty() {
            return all;
        }
        for slice in self.slices.values() {
            for endpoint in slice.endpoints.iter().filter(|one| one.serving) {
                let ip = endpoint.address;
                let ports = slice.ports.iter().map(|port| port.port);
                all.extend(ports.map(|port| Target { ip, port }));
            }
        }
        all
    }

    /// Returns the events of a source that lists all objects.
    pub fn list_all(&self) -> Vec<Event> {
        self.list(&KINDS)
    }

    /// Returns the events of a source that lists all objects of a random kind.
    pub fn list_one(&self, chance: &mut Chance) -> Vec<Event> {
        let kind = chance.one_of(&KINDS).copied();
        self.list(kind.as_slice())
    }

    fn list(&self, kinds: &[Kind]) -> Vec<Event> {
        let mut events = Vec::new();
        for &kind in kinds {
            events.push(Event::ListStarted(kind));
            match kind {
                Kind::Service => events.extend(self.services.values().map(|service| {
                    if self.garbled.contains(&(true, service.name.clone())) {
                        Event::Unreadable(kind, service.name.clone())
                    } else {
                        Event::ServiceApplied(service.clone())
                    }
                })),
                Kind::EndpointSlice => events.extend(self.slices.values().map(|slice| {
                    if self.garbled.contains(&(false, slice.name.clone())) {
                        Event::Unreadable(kind, slice.name.clone())
                    } else {
                        Event::SliceApplied(slice.clone())
                    }
                })),
                _ => events.extend(self.node.clone().map(Event::NodeApplied)),
            }
            events.push(Event::ListComplete {
                kind,
                is_whole: true,
            });
        }
        events
    }

    fn apply(&mut self, event: Event) -> Event {
        if let Event::ServiceApplied(service) = &event {
            self.versions.push(service.clone());
        }
        self.model.apply(event.clone());
        self.model.take_changes();
        event
    }

    /// Adds or changes a random Service. Returns the event of the source.
    pub fn service(&mut self, chance: &mut Chance) -> Event {
        let number = chance.small(SERVICES);
        let service = self.some_service(number, chance);
        self.garbled.remove(&(true, service.name.clone()));
        self.services.insert(service.name.clone(), service.clone());
        self.apply(Event::ServiceApplied(service))
    }

    /// Deletes a random Service. Returns `None` if there is none.
    fn service_gone(&mut self, chance: &mut Chance) -> Option<Event> {
        let at = chance.index(self.services.len());
        let name = self.services.keys().nth(at)?.clone();
        self.services.remove(&name);
        self.garbled.remove(&(true, name.clone()));
        Some(self.apply(Event::ServiceDeleted(name)))
    }

    /// Gives a Service's external IP to the load balancer of a random Service. Returns `None` if no
    /// Service has an external IP.
    fn assign(&mut self, chance: &mut Chance) -> Option<Event> {
        let all = self.services.values();
        let external: Vec<IpAddr> = all.flat_map(|of| of.external_ips.clone()).collect();
        let address = *chance.one_of(&external)?;
        let at = chance.index(self.services.len());
        let service = self.services.values_mut().nth(at)?;
        service.kind = ServiceType::LoadBalancer;
        service.ingress_ips = vec![address];
        let service = service.clone();
        self.garbled.remove(&(true, service.name.clone()));
        Some(self.apply(Event::ServiceApplied(service)))
    }

    /// Adds or changes a random EndpointSlice. Returns the event of the source.
    pub fn slice(&mut self, chance: &mut Chance) -> Event {
        // Prefers EndpointSlices of existing Services.
        let number = if chance.is_one_in(6) || self.services.is_empty() {
            chance.small(SERVICES)
        } else {
            let at = chance.index(self.services.len());
            let number = (0..SERVICES).filter(|number| self.services.contains_key(&name(*number)));
            number.into_iter().nth(at).unwrap_or(0)
        };
        let slice = self.some_slice(number, chance);
        self.garbled.remove(&(false, slice.name.clone()));
        self.slices.insert(slice.name.clone(), slice.clone());
        self.apply(Event::SliceApplied(slice))
    }

    /// Deletes a random EndpointSlice. Returns `None` if there is none.
    fn slice_gone(&mut self, chance: &mut Chance) -> Option<Event> {
        let at = chance.index(self.slices.len());
        let name = self.slices.keys().nth(at)?.clone();
        self.slices.remove(&name);
        self.garbled.remove(&(false, name.clone()));
        Some(self.apply(Event::SliceDeleted(name)))
    }

    /// Moves the Node to a random zone.
    fn node(&mut self, chance: &mut Chance) -> Event {
        let node = self.node_at(chance.small(2));
        self.node = Some(node.clone());
        self.apply(Event::NodeApplied(node))
    }

    /// Makes a random object unreadable, so that the daemon must keep its previous version. Returns
    /// `None` if no object is suitable.
    fn garble(&mut self, chance: &mut Chance) -> Option<Event> {
        let is_service = chance.is_one_in(2);
        let (kind, name) = if is_service {
            let at = chance.index(self.services.len());
            (Kind::Service, self.services.keys().nth(at)?.clone())
        } else {
            let at = chance.index(self.slices.len());
            (Kind::EndpointSlice, self.slices.keys().nth(at)?.clone())
        };
        // Skips this while an EndpointSlice has a loopback address: the daemon could then use this
        // endpoint alone, but no pod has such an address.
        let has_no_pod = |slice: &EndpointSlice| {
            let mut endpoints = slice.endpoints.iter();
            endpoints.any(|endpoint| endpoint.address.is_loopback())
        };
        if self.slices.values().any(has_no_pod) {
            return None;
        }
        self.garbled.insert((is_service, name.clone()));
        Some(Event::Unreadable(kind, name))
    }

    /// Makes all objects readable again. Returns the events of the source.
    pub fn mend(&mut self) -> Vec<Event> {
        let garbled = std::mem::take(&mut self.garbled);
        let events = garbled.iter().filter_map(|(is_service, name)| {
            if *is_service {
                self.services.get(name).cloned().map(Event::ServiceApplied)
            } else {
                self.slices.get(name).cloned().map(Event::SliceApplied)
            }
        });
        events.collect()
    }

    /// Makes a random change of this kind. Returns the event of the source, or `None` if the change
    /// is impossible.
    pub fn change(&mut self, verb: Verb, chance: &mut Chance) -> Option<Event> {
        match verb {
            Verb::Service => Some(self.service(chance)),
            Verb::ServiceGone => self.service_gone(chance),
            Verb::Assign => self.assign(chance),
            Verb::Slice => Some(self.slice(chance)),
            Verb::SliceGone => self.slice_gone(chance),
            Verb::Node => Some(self.node(chance)),
            Verb::Garbled => self.garble(chance),
            _ => None,
        }
    }

    fn some_service(&self, number: u8, chance: &mut Chance) -> Service {
        let family = self.family;
        // Sometimes uses another Service's ClusterIP.
        let own = if chance.is_one_in(12) {
            chance.small(SERVICES)
        } else {
            number
        };
        let mut service = Service::at(name(number), [at(family, [10, 96, 0, 10 + own])]);
        service.created = Some(chance.small(3).into());
        service.kind = match chance.below(4) {
            0 => ServiceType::NodePort,
            1 => ServiceType::LoadBalancer,
            _ => ServiceType::ClusterIp,
        };
        if chance.is_one_in(3) {
            // Several Services may have the same external IP.
            service.external_ips = vec![at(family, [198, 51, 100, chance.small(3)])];
        }
        if chance.is_one_in(25) {
            service.external_ips.push(at(family, NODE_ADDRESS));
        }
        if chance.is_one_in(25) {
            let same = service.external_ips.first().copied();
            service.external_ips.extend(same);
        }
        if service.kind == ServiceType::LoadBalancer {
            service.ingress_ips = vec![at(family, [203, 0, 113, chance.small(3)])];
            if chance.is_one_in(2) {
                let ranges = [
                    net(family, [198, 51, 100, 0], 24),
                    net(family, [10, 244, 0, 0], 16),
                    net(family, NODE_ADDRESS, 32),
                    net(family, [0, 0, 0, 0], 0),
                ];
                let range = chance.one_of(&ranges).copied().flatten();
                service.source_ranges = range.into_iter().collect();
            }
        }
        service.external_local = service.kind != ServiceType::ClusterIp && chance.is_one_in(4);
        service.internal_local = chance.is_one_in(8);
        service.affinity_seconds = chance.is_one_in(5).then_some(10_800);
        if service.external_local && service.kind == ServiceType::LoadBalancer {
            service.health_check_node_port = Some(32_000 + u16::from(number));
        }
        service.ports.push(ServicePort {
            name: "a".into(),
            protocol: match chance.below(10) {
                0 => Protocol::Sctp,
                1 | 2 => Protocol::Udp,
                _ => Protocol::Tcp,
            },
            port: 80,
            node_port: self.node_port(&service, number, chance),
        });
        if chance.is_one_in(4) {
            service.ports.push(ServicePort {
                name: "b".into(),
                protocol: Protocol::Tcp,
                port: if chance.is_one_in(8) { 80 } else { 443 },
                node_port: self.node_port(&service, number + 10, chance),
            });
        }
        // Uses a copy of the random generator, so that options do not change the other fields'
        // random values.
        service.options = some_options(&mut Chance::new(chance.clone().number()));
        service
    }

    #[allow(clippy::unused_self, reason = "it belongs to the others")]
    fn node_port(&self, service: &Service, number: u8, chance: &mut Chance) -> Option<u16> {
        // Sometimes two Services have the same NodePort. An API server would reject this, but a
        // directory of manifests can contain it.
        let number = if chance.is_one_in(20) { 1 } else { number };
        let is_wanted = service.kind != ServiceType::ClusterIp;
        is_wanted.then_some(30_000 + u16::from(number))
    }

    fn some_slice(&self, number: u8, chance: &mut Chance) -> EndpointSlice {
        let port = |name: &str, port: u16, protocol| EndpointPort {
            name: name.into(),
            protocol,
            port,
        };
        let mut ports: Vec<EndpointPort> = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
            .map(|protocol| port("a", 8080, protocol))
            .to_vec();
        let other = if chance.is_one_in(6) { 9443 } else { 8443 };
        ports.push(port("b", other, Protocol::Tcp));
        let len = chance.below(4);
        let endpoints: Vec<Endpoint> = (0..len).map(|_| self.some_endpoint(chance)).collect();
        EndpointSlice {
            name: slice_name(number, u8::from(chance.is_one_in(4))),
            service: name(number),
            family: self.family,
            ports: ports.into_iter().collect(),
            endpoints: endpoints.into(),
            change_trigger: None,
        }
    }

    fn some_endpoint(&self, chance: &mut Chance) -> Endpoint {
        let node = chance.small(2);
        let octets = match chance.below(60) {
            // An endpoint without a pod. While an object is unreadable, the daemon could use this
            // endpoint alone.
            0 if self.garbled.is_empty() => [127, 0, 0, 1],
            1 => NODE_ADDRESS,
            2 => CLUSTER_IP,
            _ => [10, 244, node + 1, 1 + chance.small(5)],
        };
        let (ready, serving, terminating) = match chance.below(12) {
            0 => (false, false, false),
            1 => (false, true, true),
            2 => (false, false, true),
            _ => (true, true, false),
        };
        let for_zones: Box<[Box<str>]> = if chance.is_one_in(4) {
            [format!("zone{}", chance.small(2)).into()].into()
        } else {
            Box::default()
        };
        Endpoint {
            address: at(self.family, octets),
            ready,
            serving,
            terminating,
            placement: Arc::new(Placement {
                node: Some(format!("node{}", node + 1).into()),
                for_zones,
                ..Placement::default()
            }),
        }
    }
}

/// Formats an event for the log of a sequence.
pub fn tell(event: &Event) -> String {
    match event {
        Event::ServiceApplied(of) => {
            let ports = of.ports.iter().map(|port| {
                format!(
                    "{}/{}:{}",
                    port.port,
                    port.protocol,
                    port.node_port.unwrap_or(0)
                )
            });
            let ports = ports.collect::<Vec<String>>().join(" ");
            format!(
                "{} {:?} since {} at {:?}, external {:?}, ingress {:?}, ports {ports}, sources {:?}, affinity {:?}, local {}/{}",
                of.name,
                of.kind,
                of.created.unwrap_or(0),
                of.cluster_ips,
                of.external_ips,
                of.ingress_ips,
                of.source_ranges,
                of.affinity_seconds,
                of.internal_local,
                of.external_local,
            )
        }
        Event::SliceApplied(of) => {
            let endpoints = of.endpoints.iter().map(|endpoint| {
                let state = match (endpoint.ready, endpoint.serving, endpoint.terminating) {
                    (true, ..) => "",
                    (_, true, _) => " serves yet",
                    (_, _, true) => " ends",
                    _ => " not ready",
                };
                let placement = endpoint.placement;
                format!("{}@{:?}{state}", endpoint.address, placement.node)
            });
            let endpoints: Vec<String> = endpoints.collect();
            format!("{} of {}: {}", of.name, of.service, endpoints.join(", "))
        }
        other => format!("{other:?}"),
    }
}

/// Returns true if two Services have an address or a node port in common.
fn shares_place(one: &Service, other: &Service) -> bool {
    let addresses = |service: &Service| -> BTreeSet<IpAddr> {
        let all = service.cluster_ips.iter().chain(&service.external_ips);
        all.chain(&service.ingress_ips).copied().collect()
    };
    let node_ports = |service: &Service| -> BTreeSet<u16> {
        let ports = service.ports.iter();
        ports.filter_map(|port| port.node_port).collect()
    };
    !addresses(one).is_disjoint(&addresses(other))
        || !node_ports(one).is_disjoint(&node_ports(other))
}
