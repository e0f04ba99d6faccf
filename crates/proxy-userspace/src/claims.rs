//! Who wants which listening ports and redirects.

use std::net::IpAddr;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use proxy::{LocalDetector, NamespacedName, Owner, released};

use crate::plan::Aim;
use crate::port::{Listener, ServedPort, Way};
use crate::tables::Tables;

/// The claims of all Services of one IP family.
#[derive(Default)]
pub(crate) struct Claims {
    ports: HashMap<NamespacedName, Vec<Arc<ServedPort>>>,
    by_owner: HashMap<Arc<Owner>, Arc<ServedPort>>,
}

/// What redirects depend on beside the Services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Surroundings {
    /// The address for what comes from elsewhere.
    pub(crate) via: Option<IpAddr>,
    /// How this node's pods are told apart.
    pub(crate) detector: LocalDetector,
}

impl Claims {
    /// All Services that claim something.
    pub(crate) fn services(&self) -> impl Iterator<Item = &NamespacedName> {
        self.ports.keys()
    }

    /// Whether all that a Service claims is there.
    pub(crate) fn is_settled(&self, service: &NamespacedName, tables: &Tables) -> bool {
        let mut ports = self.ports.get(service).into_iter().flatten();
        tables.base.pending_len() == 0 && ports.all(|port| tables.has_all_of(&port.owner))
    }

    /// Makes these all that a Service claims.
    pub(crate) fn put(
        &mut self,
        service: &NamespacedName,
        ports: Vec<ServedPort>,
        tables: &mut Tables,
        surroundings: &Surroundings,
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

    /// The ports that rules lead to for a Service port's own addresses and ways alone, so that they are
    /// right as they are if these ports are opened again.
    pub(crate) fn ports_before(&self, owner: &Arc<Owner>, tables: &Tables) -> HashMap<Way, u16> {
        let mut found: HashMap<u16, (Way, usize)> = HashMap::new();
        let mut mixed: HashSet<u16> = HashSet::new();
        let Some(port) = self.by_owner.get(owner) else {
            return HashMap::new();
        };
        for (portal, ways) in &port.portals {
            let Some(aim) = tables.redirects.actual(portal) else {
                continue;
            };
            let is_owner = tables.redirects.owner(portal) == Some(owner);
            for number in aim.ports() {
                let of = |at: u16, way: Way| (at == number).then_some(way);
                let pods = (aim.pods != aim.outside).then(|| of(aim.pods, ways.pods));
                let outside = of(aim.outside, ways.outside);
                let mut all = [outside, pods.flatten(), of(aim.node, ways.node)]
                    .into_iter()
                    .flatten();
                let Some(way) = all.next() else { continue };
                let (known, count) = found.entry(number).or_insert((way, 0));
                *count += 1;
                if *known != way || !is_owner || all.any(|other| other != way) {
                    mixed.insert(number);
                }
            }
        }
        let protocol = owner.name.protocol;
        let mut ports: HashMap<Way, u16> = HashMap::new();
        for (number, (way, count)) in found {
            if !mixed.contains(&number) && tables.leads_alone(protocol, number, count) {
                let known = ports.entry(way).or_insert(number);
                *known = number.min(*known);
            }
        }
        ports
    }

    /// Claims the redirects of an owner anew: ports of his were opened.
    pub(crate) fn aim(&self, owner: &Arc<Owner>, tables: &mut Tables, surroundings: &Surroundings) {
        if let Some(port) = self.by_owner.get(owner) {
            aim(port, tables, surroundings);
        }
    }
}

fn aim(port: &ServedPort, tables: &mut Tables, surroundings: &Surroundings) {
    let number = |way: Way| {
        tables.port(&Listener {
            name: port.owner.name.clone(),
            way,
        })
    };
    let aims = port.portals.iter().map(|(portal, ways)| {
        let node = number(ways.node);
        let via = surroundings.via;
        let outside = via.map_or(node, |_| number(ways.outside));
        let tells_pods = via.is_some() && surroundings.detector != LocalDetector::None;
        let aim = Aim {
            name: Arc::clone(&port.name),
            via,
            outside,
            pods: if tells_pods {
                number(ways.pods)
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
