//! Plans the writes of the link `kube-ipvs0` and its addresses.

use std::net::IpAddr;

use hashbrown::HashSet;
use ipnet::IpNet;

use super::situation::{Situation, are_rules_under_way, rank};
use crate::masquerading;
use crate::part::Part;
use crate::plan::{Op, Plan};
use crate::server::VirtualServerKey;
use crate::sets::Set;
use crate::tables::{Tables, sorted};

/// Maximum number of addresses in one plan. With very many addresses on the link, the kernel may
/// need half a millisecond for each new one, and an urgent address waits for the end of the running
/// plan.
const ADDRESSES_AT_ONCE: usize = 2_048;

/// Returns the next plan for the link `kube-ipvs0` and its addresses.
pub(crate) fn addresses(tables: &Tables, of: &Situation<'_>) -> Plan {
    let mut ops = Vec::new();
    if !of.knows(Part::Addresses) {
        return Plan::default();
    }
    if tables.link.due(of.now).next().is_some() {
        ops.push(Op::CreateLink);
    } else if tables.link.actual(&()).is_none() {
        return Plan::default();
    }
    let mut bound = Vec::new();
    let mut unbound = Vec::new();
    let new_ranges = new_ranges(tables, of);
    for address in tables.addresses.due(of.now) {
        if tables.addresses.wanted(address).is_some() {
            bound.push((rank(&tables.addresses, address), *address));
        } else if of.claims.may_delete && tables.is_covered(address) {
            unbound.push(*address);
        }
    }
    let unserved = if bound.is_empty() && new_ranges.is_empty() {
        HashSet::new()
    } else {
        unserved(tables, of)
    };
    let binds = first_sorted(bound, |(_, address)| !unserved.contains(address));
    ops.extend(binds.map(|(_, address)| Op::BindAddress(address)));
    // Adds a new range only after the virtual servers at all wanted addresses in it:
    //
    // - Without the range, a client's first packet is lost, and the client sends it again.
    // - With the range but without the virtual server, the node would reject the connection, and
    //   the client would give up.
    let serves = |net: &IpNet| !unserved.iter().any(|address| net.contains(address));
    let new_ranges = new_ranges.into_iter().filter(serves);
    ops.extend(new_ranges.map(Op::BindRange));
    // Removes addresses only if none is left to add. Alternating plans would be fairer, but
    // removals are rare.
    if ops.is_empty() {
        ops.extend(first_sorted(unbound, |_| true).map(Op::UnbindAddress));
    }
    if ops.is_empty() && of.claims.may_delete && of.has_all_addresses {
        // Keeps a wanted address local at all times: adds its new form (address or route) before it
        // removes the other form.
        let otherwise = sorted(tables.bound_otherwise.due(of.now)).into_iter();
        let otherwise = otherwise.filter(|address| {
            let addresses = &tables.addresses;
            let is_unwanted = addresses.wanted(address).is_none() && tables.is_covered(address);
            is_unwanted || addresses.actual(address).is_some()
        });
        ops.extend(otherwise.take(ADDRESSES_AT_ONCE).map(Op::UnbindOtherwise));
    }
    if ops.is_empty() && of.claims.may_delete {
        let ranges = sorted(tables.ranges.due(of.now)).into_iter();
        let left = ranges.filter(|net| is_replaced(tables, net));
        ops.extend(left.map(Op::UnbindRange));
    }
    Plan { ops }
}

/// Returns the ranges that may become local now. A range waits for the rules that protect the
/// node's own processes at its addresses. It does not wait if the kernel refused these rules, or
/// while another mode's rules serve.
fn new_ranges(tables: &Tables, of: &Situation<'_>) -> Vec<IpNet> {
    let are_rules_first = of.are_rules_pending && are_rules_under_way(tables, of);
    if !of.knows(Part::Rules) || are_rules_first {
        return Vec::new();
    }
    let due = sorted(tables.ranges.due(of.now)).into_iter();
    due.filter(|net| tables.ranges.wanted(net).is_some())
        .collect()
}

/// Returns true if an unwanted range's route can be removed, because all wanted addresses in it are
/// local without it. If the kernel refuses one of these addresses, the range stays.
fn is_replaced(tables: &Tables, net: &IpNet) -> bool {
    let (ranges, addresses) = (&tables.ranges, &tables.addresses);
    let mut missing_ranges = ranges.pending().filter(|other| {
        let overlaps = net.contains(*other) || other.contains(net);
        overlaps && ranges.wanted(other).is_some()
    });
    let mut missing = addresses
        .pending()
        .filter(|address| addresses.wanted(address).is_some() && net.contains(*address));
    ranges.wanted(net).is_none() && missing_ranges.next().is_none() && missing.next().is_none()
}

/// Returns the first entries for which `is_possible` is true, in ascending order, at most as many
/// as one plan holds.
fn first_sorted<T: Ord + Copy>(
    mut all: Vec<T>,
    is_possible: impl Fn(&T) -> bool,
) -> impl Iterator<Item = T> {
    // Selects the first entries without sorting all: sorting 50,000 entries for each plan of 2,000
    // would take longer than the plan's writes.
    let mut first = Vec::new();
    while first.len() < ADDRESSES_AT_ONCE && !all.is_empty() {
        let count = ADDRESSES_AT_ONCE.min(all.len());
        if count < all.len() {
            all.select_nth_unstable(count);
        }
        let rest = all.split_off(count);
        all.sort_unstable();
        first.extend(all.into_iter().filter(&is_possible));
        all = rest;
    }
    first.truncate(ADDRESSES_AT_ONCE);
    first.into_iter()
}

/// Returns the addresses of virtual servers that are not ready for clients, because they are
/// missing, still serve removed endpoints, or lose clients to a removed mark. Ignores entries whose
/// write failed, and removed endpoints that must stay. Costs O(pending entries), because one Service
/// may have thousands of addresses and ports.
fn unserved(tables: &Tables, of: &Situation<'_>) -> HashSet<IpAddr> {
    let servers = &tables.servers;
    let may_remove = of.claims.may_delete && of.knows(Part::Servers);
    let is_unready = |key: &&VirtualServerKey| {
        let is_missing = servers.wanted(key).is_some() && servers.actual(key).is_none();
        (is_missing && !servers.is_failing(key))
            || (may_remove && masquerading::loses_endpoints(tables, key))
    };
    let unready = servers.pending().filter(is_unready);
    let unready = unready.filter_map(VirtualServerKey::address);
    let marks = tables.members(Set::LocalMark);
    let stale = marks.pending().filter(|mark| {
        of.claims.may_delete && marks.wanted(mark).is_none() && !marks.is_failing(mark)
    });
    let marked = stale.filter_map(|mark| Set::LocalMark.service_address(mark));
    unready.chain(marked).map(|at| at.address).collect()
}
