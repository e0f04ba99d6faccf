//! Plans for the link and its addresses.

use std::net::IpAddr;

use hashbrown::HashSet;

use super::situation::{Situation, rank};
use crate::part::Part;
use crate::plan::{Op, Plan};
use crate::server::VirtualServerKey;
use crate::tables::{Tables, sorted};

/// Largest number of addresses in one plan. With very many addresses on the link, each new one may
/// take the kernel half a millisecond, and an urgent address waits for the running plan.
const ADDRESSES_AT_ONCE: usize = 2_048;

/// Returns the next plan for the link and its addresses.
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
    for address in tables.addresses.due(of.now) {
        if tables.addresses.wanted(address).is_some() {
            bound.push((rank(&tables.addresses, address), *address));
        } else if of.claims.may_delete {
            unbound.push(*address);
        }
    }
    let unserved = if bound.is_empty() {
        HashSet::new()
    } else {
        unserved(tables)
    };
    let binds = first_sorted(bound, |(_, address)| !unserved.contains(address));
    ops.extend(binds.map(|(_, address)| Op::BindAddress(address)));
    // Additions precede removals. Taking turns would be fairer, but removals are few.
    if ops.is_empty() {
        ops.extend(first_sorted(unbound, |_| true).map(Op::UnbindAddress));
    }
    if ops.is_empty() && of.claims.may_delete && of.has_all_addresses {
        // A wanted address always exists in at least one of the two forms.
        let otherwise = sorted(tables.bound_otherwise.due(of.now)).into_iter();
        let otherwise = otherwise.filter(|address| {
            tables.addresses.wanted(address).is_none() || tables.addresses.actual(address).is_some()
        });
        ops.extend(otherwise.take(ADDRESSES_AT_ONCE).map(Op::UnbindOtherwise));
    }
    Plan { ops }
}

/// Returns the first entries, in order, that may be written now. Returns at most one plan's worth.
fn first_sorted<T: Ord + Copy>(
    mut all: Vec<T>,
    is_possible: impl Fn(&T) -> bool,
) -> impl Iterator<Item = T> {
    // Selects without sorting everything: sorting 50,000 entries for each 2,000 would cost more
    // than writing them.
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

/// Returns the addresses of virtual servers that still have to be created, without failed ones.
/// Costs O(pending entries), because a single Service may have thousands of addresses and ports.
fn unserved(tables: &Tables) -> HashSet<IpAddr> {
    let servers = &tables.servers;
    let missing = servers.pending().filter(|key| {
        servers.wanted(key).is_some() && servers.actual(key).is_none() && !servers.is_failing(key)
    });
    let at = missing.filter_map(VirtualServerKey::address);
    at.map(|at| at.address).collect()
}
