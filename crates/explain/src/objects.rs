//! Kubernetes objects that a request needs, as the daemon returns them. Without a daemon, there are
//! none.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use proxy::{IpFamily, LocalDetector, Protocol};
use view::{Address, AddressKind, Endpoint, Port, Service};

use super::trace_request::{PortOf, TraceDestination, TraceRequest, protocol_of};

/// Facts about this node, and the Services with the requested name or address.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Objects {
    /// Mode of the daemon, or `None` if no daemon runs.
    pub mode: Option<String>,
    /// Services that have the requested name or address, with their addresses and endpoints.
    pub services: Vec<Service>,
    /// Facts about this node that select the packets to trace.
    pub node: OwnNode,
}

/// Facts about this node, as the daemon knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnNode {
    /// Addresses in the Node object, in its order.
    pub addresses: Vec<IpAddr>,
    /// Pod networks of the node (`spec.podCIDRs`).
    pub pod_networks: Vec<IpNet>,
    /// Addresses of some pods on this node, taken from EndpointSlices.
    pub pods: Vec<IpAddr>,
    /// Method by which the mode's rules recognise traffic of local pods, for each IP family.
    pub detectors: Vec<(IpFamily, LocalDetector)>,
    /// Names of some Services that have the requested address in a field for external or
    /// load-balancer addresses, each with this field.
    pub named_by: Vec<String>,
    /// Names of some Services that have the requested address as a load-balancer address with
    /// `ipMode: Proxy`.
    pub proxied_by: Vec<String>,
}

/// An address and port at which this node serves a Service port.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ServicePortAddress<'a> {
    pub(crate) service: &'a Service,
    pub(crate) port: &'a Port,
    pub(crate) address: &'a Address,
    pub(crate) at: SocketAddr,
    pub(crate) protocol: Protocol,
}

impl Objects {
    /// Lists all addresses and ports at which the Services are served.
    pub(crate) fn places(&self) -> impl Iterator<Item = ServicePortAddress<'_>> {
        let ports = self
            .services
            .iter()
            .flat_map(|service| service.ports.iter().map(move |port| (service, port)));
        ports.flat_map(|(service, port)| {
            port.addresses.iter().filter_map(move |address| {
                Some(ServicePortAddress {
                    service,
                    port,
                    address,
                    at: address.at.parse().ok()?,
                    protocol: protocol_of(&port.protocol)?,
                })
            })
        })
    }

    /// Reports whether one of the Services has the requested port. Returns true for a request that
    /// names an address.
    pub fn has_asked(&self, asked: &TraceRequest) -> bool {
        match &asked.to {
            TraceDestination::Service(_, port) => {
                self.places().any(|place| is_asked(&place, port.as_ref()))
            }
            TraceDestination::Address(..) => true,
        }
    }

    /// Returns the Service port that is served at an address and protocol. If several Service ports
    /// claim the address, prefers its owner.
    pub(crate) fn place_at(
        &self,
        at: SocketAddr,
        protocol: Protocol,
    ) -> Option<ServicePortAddress<'_>> {
        let mut places = self
            .places()
            .filter(|place| place.at == at && place.protocol == protocol)
            .collect::<Vec<_>>();
        places.sort_by_key(|place| place.address.lost_to.is_some());
        places.first().copied()
    }
}

/// Reports whether an address belongs to the requested port, given by its name, number or node
/// port. Returns true if no port is requested.
pub(crate) fn is_asked(place: &ServicePortAddress<'_>, port: Option<&PortOf>) -> bool {
    match port {
        None => true,
        Some(PortOf::Name(name)) => *name == place.port.name,
        Some(PortOf::Number(number)) => {
            *number == place.port.port || Some(*number) == place.port.node_port
        }
    }
}

impl<'a> ServicePortAddress<'a> {
    /// Returns the name of the Service port, such as `default/web:http`.
    pub(crate) fn port_name(&self) -> String {
        port_name(self.service, self.port)
    }

    /// Returns the kind of the address and the name of the Service port, such as `clusterIP of
    /// default/web:http`.
    pub(crate) fn words(&self) -> String {
        format!("{} of {}", kind_word(self.address.kind), self.port_name())
    }

    /// Returns the name of the field of the Service object that contains the address.
    pub(crate) fn field(&self) -> &'static str {
        match self.address.kind {
            AddressKind::ClusterIp => "spec.clusterIPs",
            AddressKind::ExternalIp => "spec.externalIPs",
            AddressKind::LoadBalancerIp => "status.loadBalancer.ingress",
            AddressKind::NodePort => "spec.ports[].nodePort",
        }
    }

    /// Returns the field for the traffic policy that applies to the address, and true if its value
    /// is `Local`.
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

    /// Lists the endpoints of the Service port, in the IP family of the address.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = (SocketAddr, &'a Endpoint)> + use<'a> {
        let is_v4 = self.at.is_ipv4();
        let endpoints = self.port.endpoints.iter();
        endpoints
            .filter_map(|endpoint| Some((endpoint.at.parse::<SocketAddr>().ok()?, endpoint)))
            .filter(move |(at, _)| at.is_ipv4() == is_v4)
    }
}

/// Returns the name of a Service port, such as `default/web:http`.
pub(crate) fn port_name(service: &Service, port: &Port) -> String {
    if port.name.is_empty() {
        service.name.to_string()
    } else {
        format!("{}:{}", service.name, port.name)
    }
}

/// Returns the name of an address kind, as JSON output has it.
pub(crate) const fn kind_word(kind: AddressKind) -> &'static str {
    match kind {
        AddressKind::ClusterIp => "clusterIP",
        AddressKind::ExternalIp => "externalIP",
        AddressKind::LoadBalancerIp => "loadBalancerIP",
        AddressKind::NodePort => "nodePort",
    }
}
