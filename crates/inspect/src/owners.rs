//! Finds the Service ports that own addresses. In one turn, the daemon's main loop checks a limited
//! number of Services, and copies the Service ports that match.

use std::collections::HashSet;
use std::net::IpAddr;

use proxy::{Model, NamespacedName, Protocol, Service, ServicePort, ServicePortName};

use service_counters::At;
use service_counters::frontend_addresses::{FrontendAddress, addresses, places};

/// Maximum number of Services that the daemon's main loop checks in one turn for owners.
pub(crate) const LOOKED_AT_A_TURN: usize = 5_000;

/// Addresses and names of the Service ports to find.
#[derive(Debug, Default)]
pub struct RequestedPorts {
    /// Addresses of the Service ports to find.
    pub(crate) at: HashSet<At>,
    /// Port numbers of the addresses in `at`. Each may be a NodePort, because the request does not
    /// know which addresses belong to the node.
    pub(crate) ports: HashSet<(u16, Protocol)>,
    /// Names of the Service ports to find.
    pub(crate) names: HashSet<ServicePortName>,
}

impl RequestedPorts {
    /// Creates a request for the Service ports that have the given addresses or names.
    pub(crate) fn new(
        at: impl IntoIterator<Item = At>,
        names: impl IntoIterator<Item = ServicePortName>,
    ) -> Self {
        let at: HashSet<At> = at.into_iter().collect();
        Self {
            ports: at.iter().map(|at| (at.port, at.protocol)).collect(),
            at,
            names: names.into_iter().collect(),
        }
    }

    fn has(&self, service: &Service, port: &ServicePort) -> bool {
        let is_wanted = |place| match place {
            FrontendAddress::At(at) => self.at.contains(&at),
            FrontendAddress::NodePort(number, protocol) => self.ports.contains(&(number, protocol)),
        };
        // Compares port numbers first, because this excludes most Services quickly.
        let may_be = port.node_port.is_some() || self.ports.contains(&(port.port, port.protocol));
        (may_be && places(service, port).any(is_wanted))
            || (!self.names.is_empty() && self.names.contains(&name(service, port)))
    }
}

/// A Service port that matches the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) name: ServicePortName,
    pub(crate) port: u16,
    pub(crate) node_port: Option<u16>,
    /// Addresses of the Service itself, without the node's addresses that serve its NodePort.
    pub(crate) addresses: Vec<IpAddr>,
}

/// Service ports that the daemon's main loop has found in one turn.
#[derive(Debug, Default)]
pub struct Owners {
    pub(crate) found: Vec<Owner>,
    pub(crate) is_last: bool,
}

/// Searches at most `LOOKED_AT_A_TURN` Services, from index `from` on, for the ports in `wanted`.
pub fn owners(model: &Model, wanted: &RequestedPorts, from: usize) -> Owners {
    let names = model.service_names().skip(from).take(LOOKED_AT_A_TURN);
    let mut found = Vec::new();
    for name in names {
        if let Some(view) = model.view(name) {
            found.extend(of(view.service, wanted));
        }
    }
    Owners {
        found,
        is_last: from.saturating_add(LOOKED_AT_A_TURN) >= model.service_count(),
    }
}

fn of<'a>(
    service: &'a Service,
    wanted: &'a RequestedPorts,
) -> impl Iterator<Item = Owner> + use<'a> {
    let ports = service.ports.iter();
    let ports = ports.filter(move |port| wanted.has(service, port));
    ports.map(move |port| Owner {
        name: name(service, port),
        port: port.port,
        node_port: port.node_port,
        addresses: addresses(service).collect(),
    })
}

fn name(service: &Service, port: &ServicePort) -> ServicePortName {
    ServicePortName {
        service: NamespacedName::clone(&service.name),
        port: port.name.clone(),
        protocol: port.protocol,
    }
}
