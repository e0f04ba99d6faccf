//! Whose addresses are: the loop looks through its Services for those that are asked about, a bounded
//! number a turn, and copies nothing of the others.

use std::collections::HashSet;
use std::net::IpAddr;

use proxy::{Model, NamespacedName, Protocol, Service, ServicePort, ServicePortName};

use service_counters::At;
use service_counters::places::{Place, addresses, places};

/// How many Services are looked at in one turn.
pub(crate) const LOOKED_AT_A_TURN: usize = 5_000;

/// What is asked about.
#[derive(Debug, Default)]
pub struct Wanted {
    /// Addresses whose Service ports are wanted.
    pub(crate) at: HashSet<At>,
    /// Ports of those, which may be node ports: whose address is the node's nobody knows here.
    pub(crate) ports: HashSet<(u16, Protocol)>,
    /// Service ports that are known by name.
    pub(crate) names: HashSet<ServicePortName>,
}

impl Wanted {
    /// Asks about these addresses and names.
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
            Place::At(at) => self.at.contains(&at),
            Place::NodePort(number, protocol) => self.ports.contains(&(number, protocol)),
        };
        // Most have not even such a port, which is quicker to see.
        let may_be = port.node_port.is_some() || self.ports.contains(&(port.port, port.protocol));
        (may_be && places(service, port).any(is_wanted))
            || (!self.names.is_empty() && self.names.contains(&name(service, port)))
    }
}

/// A Service port that is one of those asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) name: ServicePortName,
    pub(crate) port: u16,
    pub(crate) node_port: Option<u16>,
    /// All of its Service's, but the node's.
    pub(crate) addresses: Vec<IpAddr>,
}

/// What was found among some Services.
#[derive(Debug, Default)]
pub struct Owners {
    pub(crate) found: Vec<Owner>,
    pub(crate) is_last: bool,
}

/// Looks behind the first so many Services.
pub fn owners(model: &Model, wanted: &Wanted, from: usize) -> Owners {
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

fn of<'a>(service: &'a Service, wanted: &'a Wanted) -> impl Iterator<Item = Owner> + use<'a> {
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
