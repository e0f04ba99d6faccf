//! The flat layout of nftables mode, as it is in the kernel: which endpoints a packet to a Service
//! may come to.
//!
//! A packet that `service-ips` leads nowhere asks the maps of Services with one, two and three
//! endpoints; one that it leads to `endpoints-of-tcp-N` asks the map of all others. The key is a number below
//! that of the endpoints, then address and port.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddrV4;

use anyhow::{Context as _, Result, ensure};
use netlink_batch::{Attribute, Attributes, Connection, Protocol};
use nftables_netlink::{Element, ElementData, Verdict};

use super::{PROTOCOL_TCP, SERVICES, TABLE, Tables, address, endpoint};
use crate::rules::Servers;

/// The map of Services with more endpoints than a few.
pub(super) const MANY: &str = "endpoints-tcp";
/// Those of Services with so many.
const FEW: [(u32, &str); 3] = [
    (1, "endpoints-tcp-1"),
    (2, "endpoints-tcp-2"),
    (3, "endpoints-tcp-3"),
];

/// Asks for single elements.
pub(super) struct Lookups(Connection);

impl Lookups {
    pub(super) fn open() -> Result<Self> {
        Ok(Self(Connection::open(Protocol::Netfilter)?))
    }

    /// Whether the table has this set or map.
    pub(super) fn has_set(&mut self, name: &str) -> Result<bool> {
        const GET_SET: u16 = 10;
        let answer = self.0.request(message(GET_SET), 0, |to| {
            to.bytes(&HEADER);
            to.attr_str(1, TABLE);
            to.attr_str(2, name);
        });
        match answer {
            Err(error) if is_absent(&error) => Ok(false),
            answer => answer.map(|_| true).context("cannot ask for a set"),
        }
    }

    /// What a map has for a key.
    fn find(&mut self, map: &str, key: &[u8]) -> Result<Option<Found>> {
        const GET_ELEMENTS: u16 = 13;
        let answer = self.0.request(message(GET_ELEMENTS), 0, |to| {
            to.bytes(&HEADER);
            to.attr_str(1, TABLE);
            to.attr_str(2, map);
            to.nest(3, |list| {
                list.nest(1, |element| element.nest(1, |data| data.attr(1, key)));
            });
        });
        let answer = match answer {
            Err(error) if is_absent(&error) => return Ok(None),
            answer => answer.context("cannot ask for an element")?,
        };
        let (_, payload) = answer.iter().next().context("no answer for an element")?;
        found(payload)
    }

    /// Where new connections to a Service get; nowhere if it is not there, or not whole.
    pub(super) fn endpoints(&mut self, at: SocketAddrV4) -> Result<BTreeSet<SocketAddrV4>> {
        let service = service_key(at);
        let (mut map, mut count) = (MANY, 0);
        if let Some(Found::Chain(chain)) = self.find(SERVICES, &service)? {
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
                Some(Found::Endpoint(end)) => _ = ends.insert(end),
                _ => return Ok(BTreeSet::new()),
            }
        }
        Ok(ends)
    }
}

/// What an element leads to.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Endpoint(SocketAddrV4),
    Chain(String),
}

impl Tables {
    /// All Services with their endpoints.
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

    /// The elements that a Service of few endpoints has, with their map.
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

/// The endpoints of each Service; `count` says of how many one is chosen, if it is reached at all.
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
            // A number that has no endpoint leads packets nowhere.
            let is_whole = ends.keys().copied().eq(0..count);
            let ends = ends.into_values().filter(|_| is_whole);
            servers.insert(at, ends.collect());
        }
    }
    Ok(servers)
}

/// Of how many a chain chooses: `endpoints-of-tcp-4`.
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

/// The key of one of a Service's endpoints.
fn slot(number: u32, at: SocketAddrV4) -> Vec<u8> {
    let [high, low] = at.port().to_be_bytes();
    [number.to_ne_bytes(), at.ip().octets(), [high, low, 0, 0]].concat()
}

/// The number and the Service of a key.
fn served(key: &[u8]) -> Option<(u32, SocketAddrV4)> {
    let (number, at) = key.split_first_chunk::<4>()?;
    Some((u32::from_ne_bytes(*number), endpoint(at)?))
}

/// `nfgenmsg`: the family `ip`.
const HEADER: [u8; 4] = [2, 0, 0, 0];

const fn message(command: u16) -> u16 {
    (10 << 8) | command
}

fn is_absent(error: &netlink_batch::Error) -> bool {
    matches!(error, netlink_batch::Error::Refused(refusal) if refusal.errno == libc::ENOENT)
}

fn get(attributes: Attributes<'_>, kind: u16) -> Option<Attribute<'_>> {
    attributes
        .filter_map(Result::ok)
        .find(|one| one.kind == kind)
}

/// The data of the one element of an answer.
fn found(payload: &[u8]) -> Result<Option<Found>> {
    let list = get(Attributes::after(HEADER.len(), payload)?, 3);
    let element = list.and_then(|list| get(list.nested(), 1));
    let Some(data) = element.and_then(|element| get(element.nested(), 2)) else {
        return Ok(None);
    };
    if let Some(value) = get(data.nested(), 1) {
        return Ok(endpoint(value.payload).map(Found::Endpoint));
    }
    let verdict = get(data.nested(), 2);
    let chain = verdict.and_then(|verdict| get(verdict.nested(), 2));
    chain
        .map(|chain| Ok(Found::Chain(chain.string()?.to_owned())))
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(key: &[u8], value: &[u8]) -> Element {
        Element::of_map(key.into(), value.into())
    }

    #[test]
    fn endpoints_are_those_of_all_numbers() {
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
