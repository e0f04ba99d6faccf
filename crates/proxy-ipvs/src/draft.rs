//! Working copy of a virtual server, to which booking applies the outcomes of writes.

use std::collections::BTreeMap;

use proxy::Target;

use crate::plan::Op;
use crate::server::{Properties, RealServer, VirtualServer};

/// Maximum number of writes for which a sorted list is faster than a map.
const FEW: usize = 32;

/// A virtual server while the outcomes of its writes are recorded.
pub(crate) struct Draft {
    properties: Properties,
    destinations: Destinations,
}

/// Destinations of a draft: a list or a map, depending on the number of writes.
enum Destinations {
    List(Vec<RealServer>),
    /// Map, for a virtual server with more than [`FEW`] writes.
    Map(BTreeMap<Target, RealServer>),
}

impl Draft {
    pub(crate) fn of(server: &VirtualServer, writes: usize) -> Self {
        Self {
            properties: server.properties.clone(),
            destinations: Destinations::of(server.destinations.iter(), writes),
        }
    }

    pub(crate) fn into_server(self) -> VirtualServer {
        VirtualServer {
            properties: self.properties,
            destinations: match self.destinations {
                Destinations::List(list) => list.into(),
                Destinations::Map(map) => map.into_values().collect(),
            },
        }
    }

    /// Applies a successful write to `draft`. If the write removes the virtual server, `draft`
    /// becomes `None`. `writes` is the number of all writes to this virtual server. It decides
    /// whether the draft stores its destinations in a list or in a map.
    pub(crate) fn apply(draft: &mut Option<Self>, op: &Op, writes: usize) {
        match (op, draft.as_mut()) {
            (Op::AddServer(_, properties), _) => {
                *draft = Some(Self {
                    properties: properties.clone(),
                    destinations: Destinations::of([].into_iter(), writes),
                });
            }
            (Op::SetServer(_, properties), Some(server)) => server.properties = properties.clone(),
            (Op::RemoveServer(_), _) => *draft = None,
            (Op::AddDestination(_, real) | Op::SetDestination(_, real), Some(server)) => {
                server.destinations.put(real.target, Some(*real));
            }
            (Op::RemoveDestination(_, target), Some(server)) => {
                server.destinations.put(*target, None);
            }
            _ => {}
        }
    }
}

impl Destinations {
    fn of(all: impl Iterator<Item = RealServer>, writes: usize) -> Self {
        if writes <= FEW {
            Self::List(all.collect())
        } else {
            Self::Map(all.map(|real| (real.target, real)).collect())
        }
    }

    fn put(&mut self, target: Target, real: Option<RealServer>) {
        let list = match (self, real) {
            (Self::Map(map), Some(real)) => {
                map.insert(target, real);
                return;
            }
            (Self::Map(map), None) => {
                map.remove(&target);
                return;
            }
            (Self::List(list), _) => list,
        };
        let at = list.binary_search_by_key(&target, |real| real.target);
        match (at, real) {
            (Ok(at), Some(real)) => {
                if let Some(there) = list.get_mut(at) {
                    *there = real;
                }
            }
            (Ok(at), None) => {
                list.remove(at);
            }
            (Err(at), Some(real)) => list.insert(at, real),
            (Err(_), None) => {}
        }
    }
}
