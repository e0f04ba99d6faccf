//! Which tracked UDP flows lead to endpoints that are gone.
//!
//! UDP has no end that the kernel could see: while a client goes on sending, the kernel keeps its
//! flow, and with it the endpoint that was chosen for the first packet (k/k#71514, k/k#76664). A
//! flow is stale if it was opened towards a UDP Service and is answered by none of its serving
//! endpoints; then it is to be deleted, and the next packet opens a new one. A Service with no
//! serving endpoint has no stale flows: there is nowhere else to go.
//!
//! ```text
//!   ServiceView ── udp_ports ──▶ UdpServices ── is_stale(original destination, reply source)
//! ```
//!
//! The rule is upstream's (`pkg/proxy/conntrack/cleanup.go`, 1.36), but for two cases in which
//! upstream takes flows that are not its own: a node port counts at addresses of this node only,
//! not wherever a packet that passes through goes; and where several Services claim one address and
//! port, an endpoint of any of them will do.

use std::net::{IpAddr, SocketAddr};

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::mode::NodePorts;
use crate::model::ServiceView;
use crate::names::{IpFamily, NamespacedName, Protocol};

/// What the packets of a Service's clients are sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Frontend {
    /// A port of a cluster IP, external IP or load-balancer IP.
    Address(SocketAddr),
    /// A port of this node's addresses.
    NodePort(u16),
}

/// One UDP port of a Service in one IP family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpPort {
    frontends: SmallVec<[Frontend; 2]>,
    /// Endpoints that serve, also while terminating; sorted.
    serving: Vec<SocketAddr>,
}

/// The UDP ports of a Service in one family; none if it has no cluster IP of it.
pub fn udp_ports(view: &ServiceView<'_>, family: IpFamily) -> Vec<UdpPort> {
    let service = view.service;
    let Some(cluster_ip) = service.cluster_ip(family) else {
        return Vec::new();
    };
    let further = service.ingress_ips.iter().chain(&service.external_ips);
    let own: Vec<IpAddr> = further
        .copied()
        .filter(|ip| IpFamily::of(*ip) == family)
        .chain([cluster_ip])
        .collect();
    let ports = service.ports.iter();
    ports
        .filter(|port| port.protocol == Protocol::Udp)
        .map(|port| UdpPort {
            frontends: own
                .iter()
                .map(|ip| Frontend::Address(SocketAddr::new(*ip, port.port)))
                .chain(port.node_port.map(Frontend::NodePort))
                .collect(),
            serving: serving(view, &port.name, family),
        })
        .collect()
}

fn serving(view: &ServiceView<'_>, port: &str, family: IpFamily) -> Vec<SocketAddr> {
    let mut serving = Vec::new();
    for slice in view.slices().filter(|slice| slice.family == family) {
        let numbers = slice.ports.iter();
        for own in numbers.filter(|own| &*own.name == port && own.protocol == Protocol::Udp) {
            let endpoints = slice.endpoints.iter().filter(|endpoint| endpoint.serving);
            serving.extend(endpoints.map(|endpoint| SocketAddr::new(endpoint.address, own.port)));
        }
    }
    serving.sort_unstable();
    serving.dedup();
    serving
}

/// The UDP ports of all Services in one family: kept at the cost of what changes, asked in O(1) for
/// a flow.
#[derive(Debug, Default)]
pub struct UdpServices {
    ports: HashMap<NamespacedName, Vec<UdpPort>>,
    /// Who claims a frontend.
    claims: HashMap<Frontend, SmallVec<[NamespacedName; 1]>>,
}

impl UdpServices {
    /// Sets a Service's ports; none if it is gone or has no UDP port. Says whether that changed
    /// anything, so that a flow may have become stale.
    pub fn set(&mut self, service: &NamespacedName, ports: Vec<UdpPort>) -> bool {
        if self.ports.get(service).map_or(&[][..], Vec::as_slice) == ports {
            return false;
        }
        for frontend in frontends(&self.ports.remove(service).unwrap_or_default()) {
            if let Some(claimants) = self.claims.get_mut(&frontend) {
                claimants.retain(|claimant| claimant != service);
                if claimants.is_empty() {
                    self.claims.remove(&frontend);
                }
            }
        }
        for frontend in frontends(&ports) {
            self.claims
                .entry(frontend)
                .or_default()
                .push(service.clone());
        }
        if !ports.is_empty() {
            self.ports.insert(service.clone(), ports);
        }
        true
    }

    /// Whether a UDP flow, opened towards `destination` and answered by `answerer`, is stale.
    pub fn is_stale(
        &self,
        destination: SocketAddr,
        answerer: SocketAddr,
        node_ports: &NodePorts,
    ) -> bool {
        let frontends = frontends_at(destination, node_ports);
        let mut is_served = false;
        for serving in frontends.flat_map(|frontend| self.serving(frontend)) {
            if serving.binary_search(&answerer).is_ok() {
                return false;
            }
            is_served |= !serving.is_empty();
        }
        is_served
    }

    /// Whether a Service claims what is sent to `destination`.
    pub fn is_claimed_by(
        &self,
        service: &NamespacedName,
        destination: SocketAddr,
        node_ports: &NodePorts,
    ) -> bool {
        frontends_at(destination, node_ports)
            .filter_map(|frontend| self.claims.get(&frontend))
            .any(|claimants| claimants.contains(service))
    }

    /// The serving endpoints of each port that claims a frontend.
    fn serving(&self, frontend: Frontend) -> impl Iterator<Item = &[SocketAddr]> {
        let claimants = self.claims.get(&frontend).into_iter().flatten();
        claimants
            .filter_map(|service| self.ports.get(service))
            .flatten()
            .filter(move |port| port.frontends.contains(&frontend))
            .map(|port| port.serving.as_slice())
    }
}

/// What is sent to an address and port may be meant for each of these.
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

/// The frontends of ports, each once.
fn frontends(ports: &[UdpPort]) -> impl Iterator<Item = Frontend> {
    let mut all: Vec<Frontend> = Vec::new();
    for frontend in ports.iter().flat_map(|port| &port.frontends) {
        if !all.contains(frontend) {
            all.push(*frontend);
        }
    }
    all.into_iter()
}
