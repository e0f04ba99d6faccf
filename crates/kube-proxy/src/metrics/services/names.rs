//! Whose an address is: kept only where Services are counted one by one.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use proxy::{Changes, Model, NamespacedName, Owner, Protocol, ServicePortName, ServiceView};

use crate::modes::counters::At;

/// Service ports by their addresses.
#[derive(Debug, Default)]
pub(crate) struct Names {
    at: HashMap<At, Claims>,
    node_ports: HashMap<(u16, Protocol), Claims>,
    services: HashMap<NamespacedName, Vec<(Key, Arc<Owner>)>>,
}

/// Those who claim one address and port. Nearly always one; the first by age and name has it.
type Claims = Vec<Arc<Owner>>;

#[derive(Debug, Clone, Copy)]
enum Key {
    At(At),
    NodePort(u16, Protocol),
}

impl Names {
    /// Looks again at what changed.
    pub(crate) fn note(&mut self, model: &Model, changes: &Changes) {
        for name in &changes.services {
            for (key, owner) in self.services.remove(name).unwrap_or_default() {
                match key {
                    Key::At(at) => release(&mut self.at, &at, &owner),
                    Key::NodePort(port, protocol) => {
                        release(&mut self.node_ports, &(port, protocol), &owner);
                    }
                }
            }
            let Some(view) = model.view(name) else {
                continue;
            };
            let keys = keys(&view);
            for (key, owner) in &keys {
                let claims = match *key {
                    Key::At(at) => self.at.entry(at),
                    Key::NodePort(port, protocol) => {
                        claim(self.node_ports.entry((port, protocol)).or_default(), owner);
                        continue;
                    }
                };
                claim(claims.or_default(), owner);
            }
            if !keys.is_empty() {
                self.services.insert(name.clone(), keys);
            }
        }
    }

    /// Whose an address is; `None` of somebody else's virtual server.
    pub(crate) fn find(&self, at: &At) -> Option<&ServicePortName> {
        let claims = self
            .at
            .get(at)
            .or_else(|| self.node_ports.get(&(at.port, at.protocol)));
        Some(&claims?.first()?.name)
    }
}

fn keys(view: &ServiceView<'_>) -> Vec<(Key, Arc<Owner>)> {
    let service = view.service;
    let addresses = service.cluster_ips.iter().chain(&service.external_ips);
    let addresses = addresses.chain(&service.ingress_ips);
    let mut keys = Vec::new();
    for port in &service.ports {
        let owner = Owner::new(service, port);
        let at = |address: &std::net::IpAddr| {
            let at = At {
                address: *address,
                port: port.port,
                protocol: port.protocol,
            };
            (Key::At(at), Arc::clone(&owner))
        };
        keys.extend(addresses.clone().map(at));
        let node_port = port.node_port.map(|number| {
            let key = Key::NodePort(number, port.protocol);
            (key, Arc::clone(&owner))
        });
        keys.extend(node_port);
    }
    keys
}

fn claim(claims: &mut Claims, owner: &Arc<Owner>) {
    if let Err(at) = claims.binary_search(owner) {
        claims.insert(at, Arc::clone(owner));
    }
}

fn release<K: Eq + Hash>(all: &mut HashMap<K, Claims>, key: &K, owner: &Arc<Owner>) {
    if let Some(claims) = all.get_mut(key) {
        claims.retain(|claim| claim != owner);
        if claims.is_empty() {
            all.remove(key);
        }
    }
}
