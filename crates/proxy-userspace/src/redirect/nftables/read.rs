//! Reads redirects from the nf\_tables table.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use footprint::Leftovers;
use hashbrown::HashMap;
use nftables_netlink::{Element, ElementData, Rule, Set, Table, TableDump};
use proxy::{IpFamily, Protocol};

use super::layout::{Origin, elements, maps, table};
use super::rules;
use crate::config::Config;
use crate::part_state::RedirectState;
use crate::plan::{Base, NodePortsAt, RedirectTarget};
use crate::port::Portal;

/// Element of a map: the name of its Service port, and the address and port of the redirect.
struct MapEntry {
    name: Arc<str>,
    address: IpAddr,
    port: u16,
}

/// Elements that a portal has in the maps of each origin, in the order of [`Origin::ALL`].
type MapEntries = [Option<MapEntry>; 3];

/// Returns the redirects that a dump of the table contains.
pub(crate) fn parse(family: IpFamily, config: &Config, whole: &TableDump) -> RedirectState {
    let table = whole.table.as_ref();
    let mut is_ours = table.is_some_and(|table| is_ours(family, table)) && has_maps(family, whole);
    let mut portals: HashMap<Portal, MapEntries> = HashMap::new();
    let mut count = 0;
    for (at, from) in Origin::ALL.into_iter().enumerate() {
        for map in from.maps() {
            let named = |name: &str| name == map;
            let sets = whole.sets.iter();
            let sets = sets.filter(|(found, _)| named(&found.set.name));
            for element in sets.flat_map(|(_, elements)| elements) {
                count += 1;
                let Some((portal, found)) = parse_element(family, from, map, element) else {
                    is_ours = false;
                    continue;
                };
                let of_all = portals.entry(portal).or_default();
                if let Some(place) = of_all.get_mut(at) {
                    *place = Some(found);
                }
            }
        }
    }
    let mut written = 0;
    let mut redirects = HashMap::with_capacity(portals.len());
    for (portal, [outside, pods, node]) in portals {
        let via = outside.as_ref().map(|found| found.address);
        let port = |found: &Option<MapEntry>| found.as_ref().map(|found| found.port);
        let node_port = port(&node).unwrap_or_default();
        let outside_port = port(&outside).unwrap_or(node_port);
        let named = node.or(outside);
        let aim = RedirectTarget {
            name: named.map_or_else(Arc::default, |found| found.name),
            via,
            outside: outside_port,
            pods: port(&pods).unwrap_or(outside_port),
            node: node_port,
        };
        written += elements(family, &portal, &aim).len();
        redirects.insert(portal, aim);
    }
    // Compares the number of elements with the number that the redirects need, because a redirect
    // may lack elements or have superfluous ones.
    is_ours &= written == count;
    RedirectState {
        base: is_ours.then(|| base(family, config, whole)).flatten(),
        redirects,
        leftovers: Leftovers::default(),
    }
}

/// Reports whether a table is this mode's table. Accepts a missing comment, because Linux before
/// 5.10 stores no table comments.
pub(super) fn is_ours(family: IpFamily, found: &Table) -> bool {
    let (mut wanted, lost) = (table(family), found.comment.is_none());
    wanted.comment = wanted.comment.filter(|_| !lost);
    *found == wanted
}

fn has_maps(family: IpFamily, whole: &TableDump) -> bool {
    let mut wanted: Vec<Set> = maps(family).collect();
    let found = whole.sets.iter();
    let mut found: Vec<Set> = found.map(|(found, _)| found.set.clone()).collect();
    wanted.sort_by(|one, other| one.name.cmp(&other.name));
    found.sort_by(|one, other| one.name.cmp(&other.name));
    wanted == found
}

/// Returns the addresses for NodePorts and the mark for which this mode would write exactly these
/// chains and rules. Returns `None` if no addresses fit.
fn base(family: IpFamily, config: &Config, whole: &TableDump) -> Option<Base> {
    let of_output = whole.rules.iter().filter(|rule| &*rule.chain == "output");
    let addresses = of_output.filter_map(|found| {
        let comment = found.rule.comment.as_deref()?;
        let address = comment.strip_prefix(rules::EVERYWHERE)?;
        address.strip_prefix(" at ")?.parse().ok()
    });
    let these = NodePortsAt::These(addresses.collect());
    let all = [NodePortsAt::Everywhere, NodePortsAt::NotAtLocalhost, these];
    all.into_iter()
        .map(|node_ports| Base {
            node_ports,
            own_mark: config.own_mark,
        })
        .find(|base| {
            let wanted = rules::chains(family, base, &config.detector);
            wanted.len() == whole.chains.len()
                && wanted.iter().all(|(chain, rules)| {
                    let found = whole.rules.iter();
                    let found = found.filter(|rule| rule.chain == chain.name);
                    let found: Vec<&Rule> = found.map(|found| &found.rule).collect();
                    whole.chains.contains(chain) && found.iter().copied().eq(rules)
                })
        })
}

fn parse_element(
    family: IpFamily,
    from: Origin,
    map: &str,
    element: &Element,
) -> Option<(Portal, MapEntry)> {
    let [portals, _] = from.maps();
    let mut key = element.key.as_slice();
    let address = if map == portals {
        Some(take_address(family, &mut key)?)
    } else {
        None
    };
    let protocol = Protocol::from_number(*key.first()?)?;
    let portal = Portal {
        address,
        protocol,
        port: port_of(key.get(4..6)?)?,
    };
    let Some(ElementData::Value(value)) = &element.data else {
        return None;
    };
    let mut value = value.as_slice();
    let address = take_address(family, &mut value)?;
    let found = MapEntry {
        name: element.comment.clone()?,
        address,
        port: port_of(value.get(..2)?)?,
    };
    Some((portal, found))
}

fn take_address(family: IpFamily, bytes: &mut &[u8]) -> Option<IpAddr> {
    match family {
        IpFamily::V4 => {
            let (address, rest) = bytes.split_first_chunk::<4>()?;
            *bytes = rest;
            Some(Ipv4Addr::from(*address).into())
        }
        IpFamily::V6 => {
            let (address, rest) = bytes.split_first_chunk::<16>()?;
            *bytes = rest;
            Some(Ipv6Addr::from(*address).into())
        }
    }
}

fn port_of(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.try_into().ok()?))
}
