//! Endpoints as elements of the maps that all Services share, in the layout `flat`.
//!
//! A packet to an address and port takes a random number below that of its endpoints, and finds the
//! endpoint in a map by that number and by where it goes. For each small number of endpoints there
//! is a map of its own, which is asked with that number by a rule in front; the others are in one
//! map, which chains for each number ask.

use std::net::SocketAddr;
use std::sync::Arc;

use hashbrown::HashSet;
use proxy::Protocol;

/// So many endpoints are few: there is a map for each number up to this.
pub(crate) const FEW: u32 = 3;

/// The names of a protocol's maps: of all Services with more endpoints than few, of those with one,
/// two and three.
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

/// A map of endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Map {
    pub(crate) protocol: Protocol,
    /// Of Services with so many endpoints; 0: of those with more than few.
    pub(crate) count: u8,
}

impl Map {
    /// All of them, each with its name.
    pub(crate) fn all() -> impl Iterator<Item = (Self, &'static str)> {
        MAPS.into_iter().flat_map(|(protocol, names)| {
            let counts = (0..).zip(names);
            counts.map(move |(count, name)| (Self { protocol, count }, name))
        })
    }

    /// Its name; `None` of a number that is not few.
    pub(crate) fn name(self) -> Option<&'static str> {
        Self::all().find_map(|(map, name)| (map == self).then_some(name))
    }

    /// The one of this name.
    pub(crate) fn find(name: &str) -> Option<Self> {
        name.starts_with("endpoints-")
            .then(|| Self::all().find_map(|(map, of)| (*of == *name).then_some(map)))?
    }
}

/// How the names of these chains begin: so that nobody else's chain, such as `tcp-443`, is taken for
/// one of them.
const CHOOSER: &str = "endpoints-of-";

/// A chain that chooses one of so many endpoints, more than few, by where a packet goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Chooser {
    pub(crate) protocol: Protocol,
    pub(crate) count: u32,
}

impl Chooser {
    /// Its chain.
    pub(crate) fn name(self) -> String {
        format!("{CHOOSER}{}-{}", self.protocol.lower(), self.count)
    }

    /// The map that it asks.
    pub(crate) fn map(self) -> Map {
        Map {
            protocol: self.protocol,
            count: match u8::try_from(self.count) {
                Ok(few) if self.count <= FEW => few,
                _ => 0,
            },
        }
    }

    /// The one whose chain has this name.
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

/// Where an endpoint stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// In the map of Services with so many endpoints; 0: of those with more than three.
    pub map: u8,
    /// With this number, from 0.
    pub number: u32,
}

/// The endpoints of one address and port, by place.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Choices(Option<Arc<Vec<(Place, SocketAddr)>>>);

impl Choices {
    /// These, as they are to stand.
    pub(crate) fn new(endpoints: impl ExactSizeIterator<Item = SocketAddr>) -> Self {
        let count = endpoints.len();
        let few = u8::try_from(count).ok();
        let map = few
            .filter(|count| u32::from(*count) <= FEW)
            .unwrap_or_default();
        let places = (0..).map(|number| Place { map, number });
        let all: Vec<(Place, SocketAddr)> = places.zip(endpoints).collect();
        Self((!all.is_empty()).then(|| Arc::new(all)))
    }

    /// Has endpoints stay in their places; the others take the places that are free. So one endpoint
    /// more or less moves one other at most.
    #[must_use]
    pub(crate) fn arranged(self, before: Option<&Self>) -> Self {
        let (Some(all), Some(before)) = (&self.0, before) else {
            return self;
        };
        let mut left: HashSet<SocketAddr> = all.iter().map(|(_, at)| *at).collect();
        if left.len() != all.len() {
            return self;
        }
        let mut places: Vec<(Place, Option<SocketAddr>)> =
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

    /// Adds one that was found.
    pub(crate) fn insert(&mut self, place: Place, endpoint: SocketAddr) {
        let all = Arc::make_mut(self.0.get_or_insert_default());
        match all.binary_search_by_key(&place, |(at, _)| *at) {
            Ok(_) => {}
            Err(at) => all.insert(at, (place, endpoint)),
        }
    }

    /// All of them, in the order of their places.
    pub fn iter(&self) -> impl Iterator<Item = (Place, SocketAddr)> {
        self.0.iter().flat_map(|all| all.iter().copied())
    }

    /// Which one stands in a place.
    pub fn at(&self, place: Place) -> Option<SocketAddr> {
        let all = self.0.as_ref()?;
        let at = all.binary_search_by_key(&place, |(at, _)| *at).ok()?;
        all.get(at).map(|(_, endpoint)| *endpoint)
    }
}

impl FromIterator<(Place, SocketAddr)> for Choices {
    /// From endpoints in the order of their places.
    fn from_iter<T: IntoIterator<Item = (Place, SocketAddr)>>(all: T) -> Self {
        let all: Vec<(Place, SocketAddr)> = all.into_iter().collect();
        Self((!all.is_empty()).then(|| Arc::new(all)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_again() {
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
    fn one_endpoint_less_moves_one_other() {
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
        // Another map has other places.
        assert_eq!(of(&[2, 3]).arranged(Some(&before)), of(&[2, 3]));
        assert_eq!(of(&[]).arranged(Some(&before)), of(&[]));
    }

    #[test]
    fn few_stand_in_a_map_of_their_number() {
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
        // Whatever the order in which they are found.
        let mut found = Choices::default();
        let all: Vec<_> = endpoints(4).iter().collect();
        for (place, endpoint) in all.into_iter().rev() {
            found.insert(place, endpoint);
        }
        assert_eq!(found, endpoints(4));
    }
}
