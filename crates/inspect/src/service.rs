//! Converts copied Services to objects of the API, with their counters.

mod draining;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proxy::{
    EndpointVerdict, Endpoints, IpFamily, Reason, Service, ServicePort, ServicePortName,
    ServiceType,
};
use service_counters::{At, Count, CounterSamples};
use source::EndpointPlaces;
use view::{
    ANOTHER_PROGRAM, Address, AddressKind, Condition, Counters, Endpoint, EndpointCounts, Port,
    ServiceName, ServiceOption,
};

use draining::HeldEndpoints;

use super::question::{NodeContext, ServiceCopy};

/// Choice of the details that an API object of a Service includes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Detail {
    /// True to list endpoints, false to only count them.
    pub(super) has_endpoints: bool,
}

/// Inputs for the conversion of Services: the node's state, counters, and the names of pods and
/// nodes.
pub(super) struct ServiceContext<'a> {
    ground: &'a NodeContext,
    counted: &'a CounterSamples,
    places: &'a EndpointPlaces,
    held: HeldEndpoints<'a>,
}

impl NodeContext {
    /// Lists the addresses at which this node serves a Service port, each with its kind.
    pub(super) fn addresses(
        &self,
        service: &Service,
        port: &ServicePort,
    ) -> Vec<(AddressKind, At)> {
        let is_served = |ip: &IpAddr| {
            self.families
                .iter()
                .any(|of| of.node.family == IpFamily::of(*ip))
        };
        let at = |address, port_number| At {
            address,
            port: port_number,
            protocol: port.protocol,
        };
        let of_kind = |kind, ips: &[IpAddr]| -> Vec<_> {
            let ips = ips.iter().filter(|ip| is_served(ip));
            ips.map(|ip| (kind, at(*ip, port.port))).collect()
        };
        let mut addresses = of_kind(AddressKind::ClusterIp, &service.cluster_ips);
        let external: Vec<IpAddr> = service.external_ips_of(port).collect();
        addresses.extend(of_kind(AddressKind::ExternalIp, &external));
        addresses.extend(of_kind(AddressKind::LoadBalancerIp, &service.ingress_ips));
        if let Some(number) = port.node_port {
            for of in &self.families {
                // A NodePort is served only in IP families in which the Service has a cluster IP.
                let has_family = service.cluster_ip(of.node.family).is_some();
                let node_ports = of.node_ports.as_ref().filter(|_| has_family);
                let localhost = match of.node.family {
                    IpFamily::V4 => Ipv4Addr::LOCALHOST.into(),
                    IpFamily::V6 => Ipv6Addr::LOCALHOST.into(),
                };
                let ips = node_ports.into_iter().flat_map(|of| {
                    let localhost = of.on_localhost.then_some(localhost);
                    of.addresses.iter().copied().chain(localhost)
                });
                addresses.extend(ips.map(|ip| (AddressKind::NodePort, at(ip, number))));
            }
        }
        addresses
    }
}

impl<'a> ServiceContext<'a> {
    pub(super) fn new(
        ground: &'a NodeContext,
        counted: &'a CounterSamples,
        places: &'a EndpointPlaces,
    ) -> Self {
        Self {
            ground,
            counted,
            places,
            held: HeldEndpoints::new(ground, counted),
        }
    }

    /// Converts a copied Service to an object of the API.
    pub(super) fn service(&self, copied: &ServiceCopy, detail: Detail) -> view::Service {
        let service = &copied.service;
        let policy = |is_local| if is_local { "Local" } else { "Cluster" }.to_owned();
        let families = self.ground.families.iter();
        let endpoints: Vec<Endpoints<'_>> = families
            .map(|of| Endpoints::of(&copied.view(), &of.node))
            .collect();
        let ports = service.ports.iter();
        view::Service {
            name: ServiceName {
                namespace: service.name.namespace().to_owned(),
                name: service.name.name().to_owned(),
            },
            kind: match service.kind {
                ServiceType::ClusterIp => "ClusterIP",
                ServiceType::NodePort => "NodePort",
                ServiceType::LoadBalancer => "LoadBalancer",
            }
            .to_owned(),
            internal_traffic_policy: policy(service.internal_local),
            external_traffic_policy: policy(service.external_local),
            session_affinity_seconds: service.affinity_seconds,
            source_ranges: service
                .source_ranges
                .iter()
                .map(ToString::to_string)
                .collect(),
            health_check_node_port: service.health_check_node_port,
            options: options(service),
            errors: self.errors(service),
            ports: ports
                .map(|port| self.port(service, port, &endpoints, detail))
                .collect(),
            notes: Vec::new(),
        }
    }

    /// Lists the problems that the daemon has with a Service, as texts.
    fn errors(&self, service: &Service) -> Vec<String> {
        let refused = self.ground.refused.iter();
        let refused = refused.filter(|one| one.service == service.name);
        let mut errors: Vec<String> = refused
            .map(|one| {
                let of = one.family().map(|of| format!("{of}: "));
                let of = of.unwrap_or_default();
                format!("{of}cannot {}: {}", one.object(), one.reason(None))
            })
            .collect();
        for of in &self.ground.families {
            let family = of.node.family;
            let failures = of.failures.iter();
            let own = failures.filter(|failure| {
                let owner = failure.owner.as_ref();
                owner.is_some_and(|owner| owner.service == service.name)
            });
            errors.extend(
                own.map(|failure| {
                    format!("{family}: cannot {}: {}", failure.object, failure.reason)
                }),
            );
            let lost = of.conflicts.iter();
            let lost = lost.filter(|conflict| conflict.loser.service == service.name);
            errors.extend(lost.map(|conflict| {
                let (at, winner) = (&conflict.object, &conflict.winner);
                format!("{family}: {at} is served for Service {winner}, which claims it too and is older, or first by name")
            }));
        }
        errors
    }

    fn port(
        &self,
        service: &Service,
        port: &ServicePort,
        of_families: &[Endpoints<'_>],
        detail: Detail,
    ) -> Port {
        let name = ServicePortName {
            service: service.name.clone(),
            port: port.name.clone(),
            protocol: port.protocol,
        };
        let at = self.ground.addresses(service, port);
        let addresses = at.iter().map(|(kind, at)| self.address(*kind, at, &name));
        let addresses: Vec<Address> = addresses.collect();
        // Omits addresses at which another program owns the virtual server, because its counters do
        // not belong to the Service.
        let at = at.into_iter().map(|(_, at)| at);
        let at = at.filter(|at| !self.is_held_by_others(at));
        let at: Vec<At> = at.chain(anywhere(port)).collect();
        let judged = of_families.iter().flat_map(|of| of.verdicts(port));
        let judged: Vec<EndpointVerdict<'_>> = judged.collect();
        let endpoints = if detail.has_endpoints {
            self.endpoints(&judged, &name, &at)
        } else {
            Vec::new()
        };
        Port {
            name: port.name.to_string(),
            protocol: port.protocol.to_string(),
            port: port.port,
            node_port: port.node_port,
            addresses,
            endpoint_counts: EndpointCounts {
                draining: self.held.count(&at),
                ..counts(&judged)
            },
            endpoints,
            counters: self.of_port(&name, &at),
        }
    }

    fn is_held_by_others(&self, at: &At) -> bool {
        let mut families = self.ground.families.iter();
        families.any(|of| of.held_by_others.contains(at))
    }

    fn address(&self, kind: AddressKind, at: &At, of: &ServicePortName) -> Address {
        let is_held = self.is_held_by_others(at);
        let counted = self.counted.addresses.get(at).filter(|_| !is_held);
        let text = SocketAddr::new(at.address, at.port).to_string();
        let object = format!("{text}/{}", at.protocol);
        let conflicts = self.ground.families.iter().flat_map(|of| &of.conflicts);
        let mut lost = conflicts.filter(|one| one.loser == *of && one.object == object);
        Address {
            kind,
            at: text,
            scheduler: counted.and_then(|counted| counted.scheduler.clone()),
            lost_to: if is_held {
                Some(ANOTHER_PROGRAM.to_owned())
            } else {
                lost.next().map(|conflict| conflict.winner.to_string())
            },
            counters: counted.map(|counted| counters(&counted.count)),
        }
    }

    /// Adds up the counters of a Service port at all its addresses.
    fn of_port(&self, name: &ServicePortName, at: &[At]) -> Option<Counters> {
        let of_addresses = at.iter().filter_map(|at| self.counted.addresses.get(at));
        let counts = of_addresses.map(|of| &of.count);
        sum(counts.chain(self.counted.ports.get(name)))
    }

    /// Lists the endpoints in EndpointSlices, then endpoints that only the kernel or the relay
    /// still has.
    fn endpoints(
        &self,
        judged: &[EndpointVerdict<'_>],
        name: &ServicePortName,
        at: &[At],
    ) -> Vec<Endpoint> {
        let mut held = self.held.all(name, at);
        let mut endpoints: Vec<Endpoint> = Vec::with_capacity(judged.len());
        for one in judged {
            let socket = one.port.map(|port| SocketAddr::new(one.ip, port));
            let mut endpoint = self.endpoint(one, name);
            if let Some(socket) = socket {
                held.remove(&socket);
                self.add_held(&mut endpoint, socket, name, at);
                self.held.add_drain(&mut endpoint, socket, name, at);
            }
            endpoints.push(endpoint);
        }
        endpoints.extend(held.into_iter().map(|socket| {
            let place = self.places.find(name, socket.ip(), Some(socket.port()));
            let place = place.cloned();
            let place = place.unwrap_or_default();
            let mut endpoint = Endpoint {
                at: socket.to_string(),
                pod: place.pod,
                node: place.node,
                zone: place.zone,
                ..Endpoint::default()
            };
            self.add_held(&mut endpoint, socket, name, at);
            self.held.left(&mut endpoint, socket, name, at);
            endpoint
        }));
        endpoints
    }

    /// Converts an endpoint of an EndpointSlice to an object of the API.
    fn endpoint(&self, one: &EndpointVerdict<'_>, name: &ServicePortName) -> Endpoint {
        let place = self.places.find(name, one.ip, one.port).cloned();
        let place = place.unwrap_or_default();
        let node = one.endpoint.placement.node.as_deref();
        let is_ready = one.endpoint.ready;
        Endpoint {
            at: match one.port {
                Some(port) => SocketAddr::new(one.ip, port).to_string(),
                None => one.ip.to_string(),
            },
            pod: place.pod,
            node: place.node.or_else(|| node.map(ToString::to_string)),
            zone: place.zone,
            local: one.is_local,
            condition: match (is_ready, one.endpoint.serving, one.endpoint.terminating) {
                (true, ..) => Condition::Ready,
                (false, true, true) => Condition::ServingTerminating,
                (false, false, true) => Condition::Terminating,
                (false, _, false) => Condition::NotReady,
            },
            ready: is_ready,
            serving: one.endpoint.serving,
            terminating: one.endpoint.terminating,
            cluster: one.cluster.is_in(),
            local_policy: one.local.is_in(),
            why: why(one),
            ..Endpoint::default()
        }
    }

    /// Adds an endpoint's weight and counters, which the kernel or the relay has.
    fn add_held(
        &self,
        endpoint: &mut Endpoint,
        socket: SocketAddr,
        name: &ServicePortName,
        at: &[At],
    ) {
        let of = at.iter().map(|at| (*at, socket));
        let counted = of.filter_map(|key| self.counted.endpoints.get(&key));
        let by_name = self.counted.port_endpoints.get(&(name.clone(), socket));
        endpoint.weight = counted.clone().filter_map(|of| of.weight).max();
        endpoint.counters = sum(counted.map(|of| &of.count).chain(by_name));
    }
}

/// Returns `0.0.0.0` and `::` with the NodePort, if the Service port has one. In some modes, the
/// counter at such an address counts the NodePort at all addresses of the node.
pub(super) fn anywhere(port: &ServicePort) -> impl Iterator<Item = At> {
    let unspecified = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let (number, protocol) = (port.node_port, port.protocol);
    unspecified.into_iter().filter_map(move |address| {
        Some(At {
            address,
            port: number?,
            protocol,
        })
    })
}

/// Lists the options in a Service's annotations, valid ones first.
fn options(service: &Service) -> Vec<ServiceOption> {
    let options = service.options.as_deref().into_iter();
    let all = options.flat_map(|of| {
        let given = of.given().map(|(row, value)| (row.annotation, value));
        let wrong = of.wrong.iter();
        given.chain(wrong.map(|one| (&*one.annotation, one.value.to_string())))
    });
    all.map(|(annotation, value)| ServiceOption {
        annotation: annotation.to_owned(),
        value,
    })
    .collect()
}

fn counts(judged: &[EndpointVerdict<'_>]) -> EndpointCounts {
    let count =
        |is_meant: fn(&&EndpointVerdict<'_>) -> bool| judged.iter().filter(is_meant).count();
    EndpointCounts {
        draining: 0,
        total: count(|one| one.port.is_some()),
        ready: count(|one| one.port.is_some() && one.endpoint.ready),
        local: count(|one| one.port.is_some() && one.is_local),
        used: count(|one| one.cluster.is_in() || one.local.is_in()),
    }
}

/// Explains why an endpoint receives traffic or not, under each traffic policy that the Service
/// has.
fn why(one: &EndpointVerdict<'_>) -> String {
    let why = match (one.cluster, one.local) {
        (Reason::Unasked, local) => local.to_string(),
        (cluster, Reason::Unasked) => cluster.to_string(),
        (cluster, local) if cluster == local => cluster.to_string(),
        (cluster, local) => format!("policy Cluster: {cluster}; policy Local: {local}"),
    };
    if one.listed > 1 {
        let times = one.listed;
        format!("{why} (listed {times} times in its EndpointSlices; one counts)")
    } else {
        why
    }
}

fn sum<'a>(counts: impl Iterator<Item = &'a Count>) -> Option<Counters> {
    let sum = counts.copied().reduce(|mut sum, count| {
        sum.add(&count);
        sum
    });
    sum.as_ref().map(counters)
}

pub(super) fn counters(count: &Count) -> Counters {
    let Count {
        connections,
        packets_in,
        packets_out,
        bytes_in,
        bytes_out,
        active,
        inactive,
        ..
    } = *count;
    Counters {
        connections,
        packets_in,
        packets_out,
        bytes_in,
        bytes_out,
        active,
        inactive,
    }
}

#[cfg(test)]
mod tests;
