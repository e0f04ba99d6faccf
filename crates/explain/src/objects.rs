//! What the daemon knows of the objects that a question is about. Without a daemon it is nothing.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use proxy::{IpFamily, LocalDetector, Protocol};
use view::{Address, AddressKind, Endpoint, Port, Service};

use super::asked::{Asked, PortOf, To, protocol_of};

/// Services that a question names, or that have the address that it names, and this node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Objects {
    /// `ipvs`, ...; `None` where there is no daemon.
    pub mode: Option<String>,
    /// The Services, with their endpoints.
    pub services: Vec<Service>,
    /// This node.
    pub node: OwnNode,
}

/// What is known of this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnNode {
    /// The addresses of its Node object, the first of each family first.
    pub addresses: Vec<IpAddr>,
    /// `spec.podCIDRs`.
    pub pod_networks: Vec<IpNet>,
    /// Some of its pods that EndpointSlices name.
    pub pods: Vec<IpAddr>,
    /// How its pods are told from other senders, by family.
    pub detectors: Vec<(IpFamily, LocalDetector)>,
    /// Services that name the address that is asked for as an external or load-balancer address, each
    /// with the field; some of them.
    pub named_by: Vec<String>,
}

/// An address of a Service port.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Place<'a> {
    pub(crate) service: &'a Service,
    pub(crate) port: &'a Port,
    pub(crate) address: &'a Address,
    pub(crate) at: SocketAddr,
    pub(crate) protocol: Protocol,
}

impl Objects {
    /// Every address of these Services.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place<'_>> {
        let ports = self
            .services
            .iter()
            .flat_map(|service| service.ports.iter().map(move |port| (service, port)));
        ports.flat_map(|(service, port)| {
            port.addresses.iter().filter_map(move |address| {
                Some(Place {
                    service,
                    port,
                    address,
                    at: address.at.parse().ok()?,
                    protocol: protocol_of(&port.protocol).ok()?,
                })
            })
        })
    }

    /// Whether one of these is what is asked for.
    pub fn has_asked(&self, asked: &Asked) -> bool {
        match &asked.to {
            To::Service(_, port) => self.places().any(|place| is_asked(&place, port.as_ref())),
            To::Address(..) => true,
        }
    }

    /// Whose an address is: of those that claim it, who has it.
    pub(crate) fn place_at(&self, at: SocketAddr, protocol: Protocol) -> Option<Place<'_>> {
        let mut places = self
            .places()
            .filter(|place| place.at == at && place.protocol == protocol)
            .collect::<Vec<_>>();
        places.sort_by_key(|place| place.address.lost_to.is_some());
        places.first().copied()
    }
}

/// Whether it is at the port that is asked for.
pub(crate) fn is_asked(place: &Place<'_>, port: Option<&PortOf>) -> bool {
    match port {
        None => true,
        Some(PortOf::Name(name)) => *name == place.port.name,
        Some(PortOf::Number(number)) => {
            *number == place.port.port || Some(*number) == place.port.node_port
        }
    }
}

impl Place<'_> {
    /// `default/web:http`
    pub(crate) fn port_name(&self) -> String {
        port_name(self.service, self.port)
    }

    /// `clusterIP of default/web:http`
    pub(crate) fn words(&self) -> String {
        format!("{} of {}", kind_word(self.address.kind), self.port_name())
    }

    /// The field of the Service that it comes from.
    pub(crate) fn field(&self) -> &'static str {
        match self.address.kind {
            AddressKind::ClusterIp => "spec.clusterIPs",
            AddressKind::ExternalIp => "spec.externalIPs",
            AddressKind::LoadBalancerIp => "status.loadBalancer.ingress",
            AddressKind::NodePort => "spec.ports[].nodePort",
        }
    }

    /// Whether the traffic policy that holds here is `Local`, and its field.
    pub(crate) fn policy(&self) -> (&'static str, bool) {
        let (name, value) = match self.address.kind {
            AddressKind::ClusterIp => (
                "internalTrafficPolicy",
                &self.service.internal_traffic_policy,
            ),
            _ => (
                "externalTrafficPolicy",
                &self.service.external_traffic_policy,
            ),
        };
        (name, value == "Local")
    }

    /// Its endpoints of the address' family.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = (SocketAddr, &Endpoint)> {
        let is_v4 = self.at.is_ipv4();
        let endpoints = self.port.endpoints.iter();
        endpoints
            .filter_map(|endpoint| Some((endpoint.at.parse::<SocketAddr>().ok()?, endpoint)))
            .filter(move |(at, _)| at.is_ipv4() == is_v4)
    }
}

/// `default/web:http`
pub(crate) fn port_name(service: &Service, port: &Port) -> String {
    if port.name.is_empty() {
        service.name.to_string()
    } else {
        format!("{}:{}", service.name, port.name)
    }
}

/// As [`AddressKind`] is written.
pub(crate) const fn kind_word(kind: AddressKind) -> &'static str {
    match kind {
        AddressKind::ClusterIp => "clusterIP",
        AddressKind::ExternalIp => "externalIP",
        AddressKind::LoadBalancerIp => "loadBalancerIP",
        AddressKind::NodePort => "nodePort",
    }
}
