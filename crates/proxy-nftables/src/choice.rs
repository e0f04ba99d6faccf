//! Endpoints as elements of maps that all Services share, in the layout `flat`.
//!
//! The rules choose the endpoint of a packet to an address and port in two steps:
//!
//! 1. A rule draws a random number below the number of endpoints.
//! 2. A map returns the endpoint with this number at this address and port.
//!
//! The number of endpoints decides which map contains a Service's endpoints:
//!
//! | endpoints | map | the map is looked up by |
//! |---|---|---|
//! | 1, 2 or 3 | one for each number and protocol | a rule in the chain `services` |
//! | more | one for each protocol | a chooser chain for each number |

use std::net::SocketAddr;
use std::sync::Arc;

use hashbrown::HashSet;
use proxy::Protocol;

/// Largest number of endpoints for which Services have a separate map.
pub(crate) const FEW: u32 = 3;

/// Names of the maps of each protocol: first the map for Services with more than three endpoints,
/// then the maps for Services with one, two and three endpoints.
const MAPS: [(Protocol, [&str; 4]); 3] = [
    (
        Protocol::Tcp,
        [
            "endpoints-tcp",
            "endpoints-tcp-1",
            "endpoints-tcp-2",
            "endpoints-tcp-3",
        ],
    ),
    (
        Protocol::Udp,
        [
            "endpoints-udp",
            "endpoints-udp-1",
            "endpoints-udp-2",
            "endpoints-udp-3",
        ],
    ),
    (
        Protocol::Sctp,
        [
            "endpoints-sctp",
            "endpoints-sctp-1",
            "endpoints-sctp-2",
            "endpoints-sctp-3",
        ],
    ),
];

/// A map whose elements are endpoints of many Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Map {
    pub(crate) protocol: Protocol,
    /// Number of endpoints of each Service in this map, or 0 for the map of Services with more than
    /// three endpoints.
    pub(crate) count: u8,
}

impl Map {
    /// Returns all maps with their names.
    pub(crate) fn all() -> impl Iterator<Item = (Self, &'static str)> {
        MAPS.into_iter().flat_map(|(protocol, names)| {
            let counts = (0..).zip(names);
            counts.map(move |(count, name)| (Self { protocol, count }, name))
        })
    }

    /// Returns the name of the map, or `None` if `count` is above 3.
    pub(crate) fn name(self) -> Option<&'static str> {
        Self::all().find_map(|(map, name)| (map == self).then_some(name))
    }

    /// Returns the map with the name `name`, if any.
    pub(crate) fn find(name: &str) -> Option<Self> {
        name.starts_with("endpoints-")
            .then(|| Self::all().find_map(|(map, of)| (*of == *name).then_some(map)))?
    }
}

/// Prefix of the names of chooser chains, such as `endpoints-of-tcp-4` for TCP ports with four
/// endpoints. Without the prefix, a name could equal that of another chain in the table.
const CHOOSER: &str = "endpoints-of-";

/// Chain that chooses one of `count` endpoints (more than three), by the packet's destination and a
/// random number. All Services with this number of endpoints share the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Chooser {
    pub(crate) protocol: Protocol,
    pub(crate) count: u32,
}

impl Chooser {
    /// Returns the name of the chooser chain.
    pub(crate) fn name(self) -> String {
        format!("{CHOOSER}{}-{}", self.protocol.lower(), self.count)
    }

    /// Returns the map in which the chain looks up endpoints.
    pub(crate) fn map(self) -> Map {
        Map {
            protocol: self.protocol,
            count: match u8::try_from(self.count) {
                Ok(few) if self.count <= FEW => few,
                _ => 0,
            },
        }
    }

    /// Returns the chooser whose chain has the name `name`, if any.
    pub(crate) fn find(name: &str) -> Option<Self> {
        let (protocol, count) = name.strip_prefix(CHOOSER)?.split_once('-')?;
        let (protocol, _) = MAPS.into_iter().find(|(of, _)| of.lower() == protocol)?;
        let found = Self {
            protocol,
            count: count.parse().ok()?,
        };
        (found.count > FEW && *found.name() == *name).then_some(found)
    }
}

/// Position of an endpoint of a Service: the map that contains it, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointIndex {
    /// Number of endpoints of each Service in the map, or 0 for the map of Services with more than
    /// three endpoints.
    pub map: u8,
    /// Number of the endpoint among the endpoints of its address and port, counted from 0.
    pub number: u32,
}

/// Endpoints of one service address and port, in the order of their positions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Choices(Option<Arc<Vec<(EndpointIndex, SocketAddr)>>>);

impl Choices {
    /// Gives the endpoints positions in the given order.
    pub(crate) fn new(endpoints: impl ExactSizeIterator<Item = SocketAddr>) -> Self {
        let count = endpoints.len();
        let few = u8::try_from(count).ok();
        let map = few
            .filter(|count| u32::from(*count) <= FEW)
            .unwrap_or_default();
        let places = (0..).map(|number| EndpointIndex { map, number });
        let all: Vec<(EndpointIndex, SocketAddr)> = places.zip(endpoints).collect();
        Self((!all.is_empty()).then(|| Arc::new(all)))
    }

    /// Keeps each endpoint at the position that it had in `before`, and gives the free positions to
    /// new endpoints. So an added or removed endpoint moves at most one other endpoint.
    #[must_use]
    pub(crate) fn arranged(self, before: Option<&Self>) -> Self {
        let (Some(all), Some(before)) = (&self.0, before) else {
            return self;
        };
        let mut left: HashSet<SocketAddr> = all.iter().map(|(_, at)| *at).collect();
        if left.len() != all.len() {
            return self;
        }
        let mut places: Vec<(EndpointIndex, Option<SocketAddr>)> =
            all.iter().map(|(place, _)| (*place, None)).collect();
        for (place, endpoint) in before.iter() {
            if let Ok(at) = places.binary_search_by_key(&place, |(of, _)| *of)
                && let Some((_, taken)) = places.get_mut(at)
                && left.remove(&endpoint)
            {
                *taken = Some(endpoint);
            }
        }
        let mut others = all.iter().map(|(_, at)| *at).filter(|at| left.contains(at));
        let filled = places.into_iter();
        filled
            .filter_map(|(place, taken)| Some((place, taken.or_else(|| others.next())?)))
            .collect()
    }

    /// Adds an endpoint that was read from the kernel, at its position there.
    pub(crate) fn insert(&mut self, place: EndpointIndex, endpoint: SocketAddr) {
        let all = Arc::make_mut(self.0.get_or_insert_default());
        match all.binary_search_by_key(&place, |(at, _)| *at) {
            Ok(_) => {}
            Err(at) => all.insert(at, (place, endpoint)),
        }
    }

    /// Returns all endpoints in the order of their positions.
    pub fn iter(&self) -> impl Iterator<Item = (EndpointIndex, SocketAddr)> {
        self.0.iter().flat_map(|all| all.iter().copied())
    }

    /// Returns the endpoint at a position, or `None` if the position is free.
    pub fn at(&self, place: EndpointIndex) -> Option<SocketAddr> {
        let all = self.0.as_ref()?;
        let at = all.binary_search_by_key(&place, |(at, _)| *at).ok()?;
        all.get(at).map(|(_, endpoint)| *endpoint)
    }
}

impl FromIterator<(EndpointIndex, SocketAddr)> for Choices {
    /// Collects endpoints that are sorted by position.
    fn from_iter<T: IntoIterator<Item = (EndpointIndex, SocketAddr)>>(all: T) -> Self {
        let all: Vec<(EndpointIndex, SocketAddr)> = all.into_iter().collect();
        Self((!all.is_empty()).then(|| Arc::new(all)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_maps_and_choosers_parse_to_their_keys() {
        assert_eq!(Map::all().count(), 12);
        for (map, name) in Map::all() {
            assert_eq!(Map::find(name), Some(map));
            assert_eq!(map.name(), Some(name));
        }
        let four = Chooser {
            protocol: Protocol::Udp,
            count: 4,
        };
        assert_eq!(Chooser::find(&four.name()), Some(four));
        for other in ["udp-3", "udp-04", "udp-+4", "udp", "icmp-4", "tcp-4-b"] {
            let other = format!("endpoints-of-{other}");
            assert_eq!(Chooser::find(&other), None, "{other}");
        }
        for strange in ["tcp-443", "udp-53", "endpoints-tcp-443"] {
            assert_eq!(Chooser::find(strange), None, "{strange}");
        }
    }

    #[test]
    fn a_removed_endpoint_changes_the_position_of_at_most_one_other_endpoint() {
        let of = |hosts: &[u8]| {
            let all = hosts.iter().map(|host| ([10, 0, 0, *host], 80).into());
            Choices::new(all.collect::<Vec<SocketAddr>>().into_iter())
        };
        let hosts = |choices: Choices| -> Vec<SocketAddr> {
            choices.iter().map(|(_, endpoint)| endpoint).collect()
        };
        let before = of(&[1, 2, 3, 4, 5, 6]);
        let arranged = of(&[1, 3, 4, 5, 6]).arranged(Some(&before));
        assert_eq!(hosts(arranged.clone()), hosts(of(&[1, 6, 3, 4, 5])));
        let arranged = of(&[0, 1, 3, 4, 5, 6, 7]).arranged(Some(&arranged));
        assert_eq!(hosts(arranged), hosts(of(&[1, 6, 3, 4, 5, 0, 7])));
        // The Service now has two endpoints instead of six, which are in another map. So all
        // endpoints get new positions.
        assert_eq!(of(&[2, 3]).arranged(Some(&before)), of(&[2, 3]));
        assert_eq!(of(&[]).arranged(Some(&before)), of(&[]));
    }

    #[test]
    fn services_with_the_same_small_number_of_endpoints_share_a_map() {
        let endpoints = |count: u8| {
            let all = (0..count).map(|host| ([10, 0, 0, host], 80).into());
            Choices::new(all.collect::<Vec<SocketAddr>>().into_iter())
        };
        assert_eq!(endpoints(0), Choices::default());
        let maps = |count: u8| -> Vec<(u8, u32)> {
            let places = endpoints(count);
            let places = places.iter().map(|(place, _)| (place.map, place.number));
            places.collect()
        };
        assert_eq!(maps(2), [(2, 0), (2, 1)]);
        assert_eq!(maps(4), [(0, 0), (0, 1), (0, 2), (0, 3)]);
        // The kernel may return the elements in any order. The result is the same.
        let mut found = Choices::default();
        let all: Vec<_> = endpoints(4).iter().collect();
        for (place, endpoint) in all.into_iter().rev() {
            found.insert(place, endpoint);
        }
        assert_eq!(found, endpoints(4));
    }
}
