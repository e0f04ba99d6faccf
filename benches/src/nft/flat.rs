//! Reads the flat layout of nftables mode from the kernel: the endpoints that packets to a Service
//! can reach.
//!
//! A Service with one to three endpoints has no element in `service-ips`. Rules look up its packets
//! in the map for this number of endpoints.
//!
//! For a Service with more endpoints, `service-ips` leads to the chain `endpoints-of-tcp-N`, which
//! looks up packets in the map `endpoints-tcp`.
//!
//! Each key of these maps consists of an endpoint's number (less than the number of endpoints), the
//! Service address and the Service port.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddrV4;

use anyhow::{Context as _, Result, ensure};
use nftables_netlink::{Element, ElementData, Family, Name, Verdict};

use super::{PROTOCOL_TCP, SERVICES, TABLE, Tables, address, endpoint};
use crate::rules::Servers;

/// Name of the map with the endpoints of Services that have more than three.
pub(super) const MANY: &str = "endpoints-tcp";
/// Maps for Services with one to three endpoints: number of endpoints, and name of the map.
const FEW: [(u32, &str); 3] = [
    (1, "endpoints-tcp-1"),
    (2, "endpoints-tcp-2"),
    (3, "endpoints-tcp-3"),
];

/// Result of a look-up in a map: an endpoint, or a chain.
enum ElementTarget {
    Endpoint(SocketAddrV4),
    Chain(Name),
}

impl Tables {
    /// Returns true if the table has a set or map with this name.
    pub(super) fn has_set(&mut self, name: &str) -> Result<bool> {
        Ok(self.nft.set(Family::Ip, TABLE, name)?.is_some())
    }

    /// Looks up a key in a map. Returns `None` if the map has no such element.
    fn find(&mut self, map: &str, key: &[u8]) -> Result<Option<ElementTarget>> {
        let element = self.nft.element(Family::Ip, TABLE, map, key)?;
        Ok(match element.and_then(|element| element.data) {
            Some(ElementData::Value(value)) => endpoint(&value).map(ElementTarget::Endpoint),
            Some(ElementData::Verdict(Verdict::Goto(chain))) => Some(ElementTarget::Chain(chain)),
            _ => None,
        })
    }

    /// Returns the endpoints that new connections to a Service can reach. Returns none if the map
    /// lacks one of them.
    pub(super) fn flat_endpoints(&mut self, at: SocketAddrV4) -> Result<BTreeSet<SocketAddrV4>> {
        let service = service_key(at);
        let (mut map, mut count) = (MANY, 0);
        if let Some(ElementTarget::Chain(chain)) = self.find(SERVICES, &service)? {
            count = choices(&chain)?;
        } else {
            for (few, name) in FEW {
                if self.find(name, &slot(0, at))?.is_some() {
                    (map, count) = (name, few);
                    break;
                }
            }
        }
        let mut ends = BTreeSet::new();
        for number in 0..count {
            match self.find(map, &slot(number, at))? {
                Some(ElementTarget::Endpoint(end)) => _ = ends.insert(end),
                _ => return Ok(BTreeSet::new()),
            }
        }
        Ok(ends)
    }

    /// Returns all Services in the table, with their endpoints.
    pub(super) fn flat_servers(&mut self) -> Result<Servers> {
        let mut chosen: BTreeMap<SocketAddrV4, u32> = BTreeMap::new();
        for element in self.members(TABLE, SERVICES)? {
            let at = address(&element.key).context("a key that is not of the objects")?;
            if let Some(ElementData::Verdict(Verdict::Goto(chain))) = element.data {
                chosen.insert(at, choices(&chain)?);
            }
        }
        let mut servers = Servers::new();
        for (count, map) in FEW {
            for (at, ends) in of_services(self.members(TABLE, map)?, |_| Some(count))? {
                ensure!(
                    !chosen.contains_key(&at) && servers.insert(at, ends).is_none(),
                    "{at} is in two maps"
                );
            }
        }
        servers.extend(of_services(self.members(TABLE, MANY)?, |at| {
            chosen.get(&at).copied()
        })?);
        Ok(servers)
    }

    /// Returns a map and its elements that lead to a Service. For a Service with more than three
    /// endpoints, this is its element in `service-ips`.
    pub(super) fn flat_elements(
        &mut self,
        at: SocketAddrV4,
    ) -> Result<(&'static str, Vec<Element>)> {
        for (_, map) in FEW {
            let mut elements = self.members(TABLE, map)?;
            elements.retain(|one| served(&one.key).is_some_and(|(_, to)| to == at));
            if !elements.is_empty() {
                return Ok((map, elements));
            }
        }
        let mut elements = self.members(TABLE, SERVICES)?;
        elements.retain(|one| address(&one.key) == Some(at));
        Ok((SERVICES, elements))
    }
}

/// Returns the endpoints of each Service, from the elements of an endpoint map. `count` returns the
/// number from which the rules choose a Service's endpoint, or `None` if no packet gets to this
/// map.
fn of_services(
    elements: Vec<Element>,
    count: impl Fn(SocketAddrV4) -> Option<u32>,
) -> Result<Servers> {
    let mut found: BTreeMap<SocketAddrV4, BTreeMap<u32, SocketAddrV4>> = BTreeMap::new();
    for element in elements {
        let (number, at) = served(&element.key).context("a key that is not of the objects")?;
        let end = match &element.data {
            Some(ElementData::Value(value)) => endpoint(value),
            _ => None,
        };
        let end = end.context("a value that is no endpoint")?;
        found.entry(at).or_default().insert(number, end);
    }
    let mut servers = Servers::new();
    for (at, ends) in found {
        if let Some(count) = count(at) {
            // The rules choose a number below `count`, and drop the packet if the map lacks it. So
            // a Service works only with an element for every number.
            let is_whole = ends.keys().copied().eq(0..count);
            let ends = ends.into_values().filter(|_| is_whole);
            servers.insert(at, ends.collect());
        }
    }
    Ok(servers)
}

/// Returns N in the name of a chain `endpoints-of-tcp-N`.
fn choices(chain: &str) -> Result<u32> {
    let count = chain
        .strip_prefix("endpoints-of-tcp-")
        .and_then(|count| count.parse().ok());
    count.with_context(|| format!("{SERVICES} leads to {chain}"))
}

fn service_key(at: SocketAddrV4) -> Vec<u8> {
    let [high, low] = at.port().to_be_bytes();
    [at.ip().octets(), [PROTOCOL_TCP, 0, 0, 0], [high, low, 0, 0]].concat()
}

/// Returns the key of the endpoint map for the endpoint with this number of the Service at `at`.
fn slot(number: u32, at: SocketAddrV4) -> Vec<u8> {
    let [high, low] = at.port().to_be_bytes();
    [number.to_ne_bytes(), at.ip().octets(), [high, low, 0, 0]].concat()
}

/// Parses the key of an endpoint map into the endpoint's number, and the Service's address and
/// port.
fn served(key: &[u8]) -> Option<(u32, SocketAddrV4)> {
    let (number, at) = key.split_first_chunk::<4>()?;
    Some((u32::from_ne_bytes(*number), endpoint(at)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(key: &[u8], value: &[u8]) -> Element {
        Element::of_map(key.into(), value.into())
    }

    #[test]
    fn a_flat_service_has_endpoints_only_if_each_endpoint_number_is_present() {
        let at = "10.96.1.0:80".parse().unwrap();
        assert_eq!(served(&slot(3, at)), Some((3, at)));
        let ends = |numbers: &[u8]| {
            let elements = numbers.iter().map(|number| {
                element(
                    &slot((*number).into(), at),
                    &[10, 128, 0, *number, 31, 144, 0, 0],
                )
            });
            of_services(elements.collect(), |_| Some(2)).unwrap()
        };
        assert_eq!(ends(&[0, 1])[&at].len(), 2);
        assert_eq!(ends(&[0])[&at].len(), 0);
        assert_eq!(ends(&[0, 2])[&at].len(), 0);
        assert_eq!(choices("endpoints-of-tcp-4").unwrap(), 4);
        assert!(choices("service-X").is_err());
    }
}
