//! Working copy of a virtual server, to which booking applies the writes that succeeded.

use std::collections::BTreeMap;

use proxy::Target;

use crate::plan::Op;
use crate::server::{Properties, RealServer, VirtualServer};

/// Maximum number of writes for which the draft keeps destinations in a sorted list, which is then
/// faster than a map.
const FEW: usize = 32;

/// Copy of a virtual server to which booking applies the writes that succeeded.
pub(crate) struct Draft {
    properties: Properties,
    destinations: Destinations,
}

/// Destinations of a draft: a sorted list for few writes, a map for many.
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

    /// Applies a successful write to `draft`, which becomes `None` if the write removes the virtual
    /// server. `writes` is the number of writes to this virtual server: it decides between list and
    /// map.
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
