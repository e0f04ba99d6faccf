//! Index that finds the Service port at an address and port. It exists only if the metrics report
//! single Services.

use std::collections::HashMap;
use std::sync::Arc;

use proxy::{
    Changes, IpFamily, Model, NamespacedName, NodePorts, Owner, ServicePortName, ServiceView,
};

use service_counters::At;
use service_counters::frontend_addresses::{FrontendAddress, is_of_node, places};

/// Service ports, indexed by the address and port where they are served.
#[derive(Debug, Default)]
pub(crate) struct Names {
    at: HashMap<FrontendAddress, Claims>,
    services: HashMap<NamespacedName, Vec<(FrontendAddress, Arc<Owner>)>>,
    /// Node addresses that serve NodePorts, for each IP family whose addresses are known.
    node: HashMap<IpFamily, NodePorts>,
}

/// Service ports that claim the same address and port, sorted by age and name. The first Service
/// port owns the address. Most addresses have only one claim.
type Claims = Vec<Arc<Owner>>;

impl Names {
    /// Updates the index with the addresses and ports of changed Services.
    pub(crate) fn note(&mut self, model: &Model, changes: &Changes) {
        for name in &changes.services {
            for (place, owner) in self.services.remove(name).unwrap_or_default() {
                release(&mut self.at, &place, &owner);
            }
            let Some(view) = model.view(name) else {
                continue;
            };
            let claimed = claimed(&view);
            for (place, owner) in &claimed {
                claim(self.at.entry(*place).or_default(), owner);
            }
            if !claimed.is_empty() {
                self.services.insert(name.clone(), claimed);
            }
        }
    }

    /// Sets the node addresses on which an IP family serves NodePorts.
    pub(crate) fn note_node_ports(&mut self, family: IpFamily, node_ports: &NodePorts) {
        self.node.insert(family, node_ports.clone());
    }

    /// Returns the Service port at an address, or `None` for another program's virtual server.
    pub(crate) fn find(&self, at: &At) -> Option<&ServicePortName> {
        let on_node = || {
            let place = FrontendAddress::NodePort(at.port, at.protocol);
            let node = self.node.get(&IpFamily::of(at.address));
            self.at.get(&place).filter(|_| is_of_node(node, at.address))
        };
        let claims = self.at.get(&FrontendAddress::At(*at)).or_else(on_node);
        Some(&claims?.first()?.name)
    }

    /// Reports whether a Service port exists, at any address.
    pub(crate) fn has(&self, port: &ServicePortName) -> bool {
        let of_service = self.services.get(&port.service);
        of_service.is_some_and(|claimed| claimed.iter().any(|(_, owner)| owner.name == *port))
    }
}

fn claimed(view: &ServiceView<'_>) -> Vec<(FrontendAddress, Arc<Owner>)> {
    let service = view.service;
    let of_port = |port| {
        let owner = Owner::new(service, port);
        places(service, port).map(move |place| (place, Arc::clone(&owner)))
    };
    service.ports.iter().flat_map(of_port).collect()
}

fn claim(claims: &mut Claims, owner: &Arc<Owner>) {
    if let Err(at) = claims.binary_search(owner) {
        claims.insert(at, Arc::clone(owner));
    }
}

fn release(
    all: &mut HashMap<FrontendAddress, Claims>,
    place: &FrontendAddress,
    owner: &Arc<Owner>,
) {
    if let Some(claims) = all.get_mut(place) {
        claims.retain(|claim| claim != owner);
        if claims.is_empty() {
            all.remove(place);
        }
    }
}
