//! Claims: the compiled ports of each Service, from which the mode computes wanted objects.

use std::mem;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use nftables_netlink::Name;
use proxy::{NamespacedName, Owner, released};

use crate::choice::Chooser;
use crate::config::Config;
use crate::port::{Route, ServedPort, Slot};
use crate::tables::Tables;

/// Claims (compiled ports) of all Services of one IP family.
#[derive(Default)]
pub(crate) struct Claims {
    /// Ports of each Service, sorted by owner. A Service may have thousands of ports.
    ports: HashMap<NamespacedName, Box<[Arc<ServedPort>]>>,
    /// Services that keep endpoints from an earlier process, because a Kubernetes object has not
    /// been readable yet.
    going_on: HashSet<NamespacedName>,
    /// Total number of ports of all Services.
    count: usize,
}

impl Claims {
    /// Returns the names of all Services with claims.
    pub(crate) fn services(&self) -> impl Iterator<Item = &NamespacedName> {
        self.ports.keys()
    }

    /// Returns the total number of ports of all Services.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns the compiled port of an owner, or `None` if the owner has no claims.
    pub(crate) fn port(&self, owner: &Owner) -> Option<&Arc<ServedPort>> {
        let ports = self.ports.get(&owner.name.service)?;
        let at = ports.binary_search_by(|port| (*port.owner).cmp(owner));
        ports.get(at.ok()?)
    }

    /// Returns true if the kernel has all objects that a Service needs.
    pub(crate) fn is_settled(&self, service: &NamespacedName, tables: &Tables) -> bool {
        let mut ports = self.ports.get(service).into_iter().flatten();
        tables.has_base()
            && !self.going_on.contains(service)
            && ports.all(|port| tables.has_all_of(&port.owner))
    }

    /// Replaces all claims of a Service. While the mode must not delete objects, routes in the
    /// kernel that lead to endpoints stay.
    pub(crate) fn put(
        &mut self,
        service: &NamespacedName,
        ports: Vec<ServedPort>,
        tables: &mut Tables,
        config: &Config,
        may_delete: bool,
    ) {
        let mut ports: Box<[Arc<ServedPort>]> = ports.into_iter().map(Arc::new).collect();
        ports.sort_by(|one, other| one.owner.cmp(&other.owner));
        self.count += ports.len();
        let before = if ports.is_empty() {
            self.ports.remove(service)
        } else {
            self.ports.insert(service.clone(), ports.clone())
        };
        let before = before.map_or_else(Vec::new, <[_]>::into_vec);
        self.count -= before.len();
        for old in released(before, &ports, |port| &port.owner) {
            tables.slots.release(&old.owner);
            tables.members.release(&old.owner);
            tables.chains.release(&old.owner);
            tables.affinity.release(&old.owner);
            tables.listeners.release(&old.owner);
        }
        self.claim(service, &ports, tables, config, may_delete);
    }

    /// Claims the objects that the ports of a Service need.
    fn claim(
        &mut self,
        service: &NamespacedName,
        ports: &[Arc<ServedPort>],
        tables: &mut Tables,
        config: &Config,
        may_delete: bool,
    ) {
        let mut goes_on = false;
        for port in ports {
            let members = port.members(config.localhost).map(|member| (member, ()));
            tables.members.claim(&port.owner, members);
            let on_localhost = port.on_localhost(config.localhost);
            let on_localhost = on_localhost.map(|(port, serving)| (port, Arc::new(serving)));
            tables.listeners.claim(&port.owner, on_localhost);
            tables.affinity.claim(&port.owner, port.affinity());
            if !may_delete && port.is_cut_off() {
                goes_on |= claim_as_there(port, tables, config);
            } else {
                let slots = arranged_slots(port, tables, config);
                tables.slots.claim(&port.owner, slots);
                tables.chains.claim(&port.owner, port.chains(config));
            }
        }
        if goes_on {
            self.going_on.insert(service.clone());
        } else {
            self.going_on.remove(service);
        }
    }

    /// Claims the objects of all Services again, after a change of the layout.
    pub(crate) fn lay_out(&mut self, tables: &mut Tables, config: &Config, may_delete: bool) {
        let ports = mem::take(&mut self.ports);
        for (service, ports) in &ports {
            self.claim(service, ports, tables, config, may_delete);
        }
        self.ports = ports;
    }

    /// Returns the chooser chains that Services need in the layout `flat`.
    pub(crate) fn choosers(&self) -> impl Iterator<Item = Chooser> {
        let ports = self.ports.values().flatten();
        ports.filter_map(|port| port.chooser())
    }

    /// Claims the objects of some ports again after a read of the table, so that routes in the
    /// kernel that lead to endpoints stay. These ports lack an endpoint for some clients. The mode
    /// calls this function only while it must not delete objects.
    pub(crate) fn go_on(&mut self, tables: &mut Tables, config: &Config) {
        self.going_on.clear();
        for (service, ports) in &self.ports {
            for port in ports.iter().filter(|port| port.is_cut_off()) {
                if claim_as_there(port, tables, config) {
                    self.going_on.insert(service.clone());
                }
            }
        }
    }
}

/// Returns the addresses of a port with their routes. Endpoints keep their positions in the shared
/// maps.
fn arranged_slots(port: &ServedPort, tables: &Tables, config: &Config) -> Vec<(Slot, Route)> {
    let slots = port.slots(config.layout).into_iter();
    let arranged = slots.map(|(slot, route)| {
        let before = tables.slots.wanted(&slot);
        let route = route.arranged(before.or_else(|| tables.slots.actual(&slot)));
        (slot, route)
    });
    arranged.collect()
}

/// Claims the objects of a port, but keeps routes and chains in the kernel that lead to endpoints.
/// Returns true if it kept a route or chain.
fn claim_as_there(port: &ServedPort, tables: &mut Tables, config: &Config) -> bool {
    let mut goes_on = false;
    // Chains to which kept routes lead. They also stay unchanged, because their last rule depends
    // on the layout.
    let mut led_to: HashSet<Name> = HashSet::new();
    let arranged = arranged_slots(port, tables, config);
    let slots = arranged.into_iter().map(|(slot, route)| {
        let holder = tables.slots.owner(&slot);
        let there = tables.slots.actual(&slot);
        let there = there.filter(|_| holder.is_none_or(|holder| *holder == port.owner));
        match there.filter(|there| port.goes_on(there, &route)) {
            Some(there) => {
                goes_on = true;
                led_to.extend(there.chains().cloned());
                (slot, there.clone())
            }
            None => (slot, route),
        }
    });
    let slots: Vec<_> = slots.collect();
    tables.slots.claim(&port.owner, slots);
    let chains = port.chains(config).into_iter().map(|(chain, content)| {
        let there = tables.chains.actual(&chain);
        let stays = led_to.contains(&chain) || port.ends_in_nothing(&chain, config.layout);
        match there.filter(|_| stays) {
            Some(there) => {
                goes_on |= *there != content;
                (chain, *there)
            }
            None => (chain, content),
        }
    });
    let chains: Vec<_> = chains.collect();
    tables.chains.claim(&port.owner, chains);
    goes_on
}
