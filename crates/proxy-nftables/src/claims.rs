//! Who wants what: what each Service has been compiled to.

use std::sync::Arc;

use hashbrown::HashMap;
use proxy::{NamespacedName, Owner};

use crate::config::Config;
use crate::port::ServedPort;
use crate::tables::Tables;

/// The claims of all Services of one IP family.
#[derive(Default)]
pub(crate) struct Claims {
    ports: HashMap<NamespacedName, Box<[Arc<ServedPort>]>>,
}

impl Claims {
    /// Whether something leads to endpoints of a Service port of which none is known.
    pub(crate) fn lost_endpoints(&self, owner: &Arc<Owner>, tables: &Tables) -> bool {
        let port = self.port(owner);
        port.is_some_and(|port| !port.has_endpoints()) && tables.leads_to(owner)
    }

    /// All Services that claim something.
    pub(crate) fn services(&self) -> impl Iterator<Item = &NamespacedName> {
        self.ports.keys()
    }

    /// What an owner has been compiled to.
    pub(crate) fn port(&self, owner: &Owner) -> Option<&Arc<ServedPort>> {
        let mut ports = self.ports.get(&owner.name.service)?.iter();
        ports.find(|port| *port.owner == *owner)
    }

    /// Whether all that a Service claims is there.
    pub(crate) fn is_settled(&self, service: &NamespacedName, tables: &Tables) -> bool {
        let mut ports = self.ports.get(service).into_iter().flatten();
        tables.has_base() && ports.all(|port| tables.has_all_of(&port.owner))
    }

    /// Makes these all that a Service claims.
    pub(crate) fn put(
        &mut self,
        service: &NamespacedName,
        ports: Vec<ServedPort>,
        tables: &mut Tables,
        config: &Config,
    ) {
        let ports: Box<[Arc<ServedPort>]> = ports.into_iter().map(Arc::new).collect();
        let before = if ports.is_empty() {
            self.ports.remove(service)
        } else {
            self.ports.insert(service.clone(), ports.clone())
        };
        for old in before.into_iter().flatten() {
            if !ports.iter().any(|port| port.owner == old.owner) {
                tables.slots.release(&old.owner);
                tables.members.release(&old.owner);
                tables.chains.release(&old.owner);
                tables.affinity.release(&old.owner);
            }
        }
        for port in &ports {
            tables.slots.claim(&port.owner, port.slots(config.layout));
            let members = port.members().map(|member| (member, ()));
            tables.members.claim(&port.owner, members);
            tables.chains.claim(&port.owner, port.chains(config));
            tables.affinity.claim(&port.owner, port.affinity());
        }
    }
}
