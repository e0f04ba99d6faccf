//! Claims of Services: the listening ports and redirects that each Service needs.

use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use proxy::{LocalDetector, NamespacedName, Owner, released};

use crate::plan::RedirectTarget;
use crate::port::{Listener, ListenerKind, ServedPort};
use crate::tables::Tables;

/// Listening ports and redirects that the Services of one IP family want (their claims).
#[derive(Default)]
pub(crate) struct Claims {
    ports: HashMap<NamespacedName, Vec<Arc<ServedPort>>>,
    by_owner: HashMap<Arc<Owner>, Arc<ServedPort>>,
}

/// Facts about the node that affect redirects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RedirectFacts {
    /// Address of the node to which rules redirect packets from other hosts. `None` while this
    /// address is unknown.
    pub(crate) via: Option<IpAddr>,
    /// Detector of traffic from pods of this node.
    pub(crate) detector: LocalDetector,
}

impl Claims {
    /// Returns all Services that want listening ports or redirects.
    pub(crate) fn services(&self) -> impl Iterator<Item = &NamespacedName> {
        self.ports.keys()
    }

    /// True if every listening port and redirect that a Service claims exists.
    pub(crate) fn is_settled(&self, service: &NamespacedName, tables: &Tables) -> bool {
        let mut ports = self.ports.get(service).into_iter().flatten();
        tables.base.pending_len() == 0 && ports.all(|port| tables.has_all_of(&port.owner))
    }

    /// Replaces a Service's claims on listening ports and redirects with those of `ports`.
    pub(crate) fn put(
        &mut self,
        service: &NamespacedName,
        ports: Vec<ServedPort>,
        tables: &mut Tables,
        surroundings: &RedirectFacts,
    ) {
        let ports: Vec<Arc<ServedPort>> = ports.into_iter().map(Arc::new).collect();
        let before = if ports.is_empty() {
            self.ports.remove(service)
        } else {
            self.ports.insert(service.clone(), ports.clone())
        };
        for old in released(before.unwrap_or_default(), &ports, |port| &port.owner) {
            tables.sockets.release(&old.owner);
            tables.redirects.release(&old.owner);
            self.by_owner.remove(&old.owner);
        }
        for port in ports {
            tables.sockets.claim(&port.owner, port.listeners.clone());
            aim(&port, tables, surroundings);
            self.by_owner.insert(Arc::clone(&port.owner), port);
        }
    }

    /// Returns the port numbers that an earlier process used for this Service port only, according
    /// to the rules in the kernel. If this process opens the same numbers, the rules stay correct.
    pub(crate) fn ports_before(
        &self,
        owner: &Arc<Owner>,
        tables: &Tables,
    ) -> HashMap<ListenerKind, u16> {
        let mut found: HashMap<u16, (ListenerKind, usize)> = HashMap::new();
        let mut mixed: HashSet<u16> = HashSet::new();
        let Some(port) = self.by_owner.get(owner) else {
            return HashMap::new();
        };
        for (portal, kinds) in &port.portals {
            let Some(aim) = tables.redirects.actual(portal) else {
                continue;
            };
            let is_owner = tables.redirects.owner(portal) == Some(owner);
            for number in aim.ports() {
                let of = |at: u16, kind: ListenerKind| (at == number).then_some(kind);
                let pods = (aim.pods != aim.outside).then(|| of(aim.pods, kinds.pods));
                let outside = of(aim.outside, kinds.outside);
                let mut all = [outside, pods.flatten(), of(aim.node, kinds.node)]
                    .into_iter()
                    .flatten();
                let Some(kind) = all.next() else { continue };
                let (known, count) = found.entry(number).or_insert((kind, 0));
                *count += 1;
                if *known != kind || !is_owner || all.any(|other| other != kind) {
                    mixed.insert(number);
                }
            }
        }
        let protocol = owner.name.protocol;
        let mut ports: HashMap<ListenerKind, u16> = HashMap::new();
        for (number, (kind, count)) in found {
            if !mixed.contains(&number) && tables.leads_alone(protocol, number, count) {
                let known = ports.entry(kind).or_insert(number);
                *known = number.min(*known);
            }
        }
        ports
    }

    /// Updates the redirects that a Service port wants, after its listening ports were opened.
    pub(crate) fn aim(
        &self,
        owner: &Arc<Owner>,
        tables: &mut Tables,
        surroundings: &RedirectFacts,
    ) {
        if let Some(port) = self.by_owner.get(owner) {
            aim(port, tables, surroundings);
        }
    }
}

fn aim(port: &ServedPort, tables: &mut Tables, surroundings: &RedirectFacts) {
    let number = |kind: ListenerKind| {
        tables.port(&Listener {
            name: port.owner.name.clone(),
            kind,
        })
    };
    let aims = port.portals.iter().map(|(portal, kinds)| {
        let node = number(kinds.node);
        let via = surroundings.via;
        let outside = via.map_or(node, |_| number(kinds.outside));
        let tells_pods = via.is_some() && surroundings.detector != LocalDetector::None;
        let aim = RedirectTarget {
            name: Arc::clone(&port.name),
            via,
            outside,
            pods: if tells_pods {
                number(kinds.pods)
            } else {
                outside
            },
            node,
        };
        (*portal, aim)
    });
    let aims: Vec<_> = aims.collect();
    tables.redirects.claim(&port.owner, aims);
}
