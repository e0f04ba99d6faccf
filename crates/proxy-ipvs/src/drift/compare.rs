//! Compares a dump of the kernel with the tables, in steps that take about 2 ms each.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::IpAddr;

use hashbrown::HashSet;
use ipnet::IpNet;

use crate::kernel::{Evidence, FoundAddresses, FoundSets};
use crate::kinds::State;
use crate::part::Part;
use crate::plan::Op;
use crate::ranges::RangeSource;
use crate::server::{VirtualServer, VirtualServerKey};
use crate::sets::{Member, Set};
use crate::tables::Tables;

/// Maximum number of entries that one step compares in about 2 ms. Every 16 destinations count as
/// one more entry.
const PIECE: usize = 4096;

/// Entries still to compare: first the entries of the tables, then the entries that only the dump
/// contains.
pub(super) struct Comparison {
    pub(super) touched: WrittenEntries,
    believed_servers: Vec<VirtualServerKey>,
    servers: BTreeMap<VirtualServerKey, VirtualServer>,
    believed_members: Vec<(Set, Member)>,
    members: BTreeMap<Set, BTreeSet<Member>>,
    believed_addresses: Vec<IpAddr>,
    addresses: BTreeSet<IpAddr>,
    /// Other programs' virtual servers found in the dump so far.
    others: Vec<(VirtualServerKey, VirtualServer)>,
    has_servers: bool,
    /// Virtual servers to adopt: the tables lack them, but the kernel has evidence that a
    /// kube-proxy created them.
    adopted: BTreeSet<VirtualServerKey>,
}

/// Entries that plans may have written since the dump began.
#[derive(Debug, Default)]
pub(super) struct WrittenEntries {
    servers: HashSet<VirtualServerKey>,
    /// Virtual servers that the kernel refused to create.
    pub(super) refused_servers: HashSet<VirtualServerKey>,
    members: HashSet<(Set, Member)>,
    addresses: HashSet<IpAddr>,
    pub(super) link: bool,
    pub(super) sets: bool,
}

/// Differences that one step of the comparison has found.
#[derive(Debug, Default)]
pub(super) struct Differences {
    /// Virtual servers of this proxy that differ from the tables, each as it is in the dump.
    pub(super) servers: Vec<(VirtualServerKey, VirtualServer)>,
    /// Other programs' virtual servers, or `None` until the whole dump is compared.
    pub(super) others: Option<Vec<(VirtualServerKey, VirtualServer)>>,
    /// True if the dump lacks virtual servers that the tables contain.
    pub(super) has_lost_servers: bool,
    /// Virtual servers that differ from the tables, but that a plan is writing.
    pub(super) passed_over: Vec<VirtualServerKey>,
    /// Set members that differ from the tables. The `bool` is true if only the kernel has the
    /// member, and false if only the tables have it.
    pub(super) members: Vec<(Set, Member, bool)>,
    /// True if the addresses on the link differ from the tables.
    pub(super) has_other_addresses: bool,
    /// True if this step was the last of the comparison.
    pub(super) is_over: bool,
}

impl WrittenEntries {
    /// Returns the entries that plans are writing at present.
    pub(super) fn in_flight(state: &State) -> Self {
        let mut touched = Self::default();
        let writes = state.in_flight().flat_map(|plan| &plan.ops);
        writes.for_each(|op| touched.note(op));
        touched
    }

    pub(super) fn note(&mut self, op: &Op) {
        match op {
            Op::CreateSet(..) | Op::RemoveSet(_) => self.sets = true,
            Op::AddMember(set, member) | Op::RemoveMember(set, member) => {
                self.members.insert((*set, *member));
            }
            Op::ReplaceMember(set, former, member) => {
                self.members.extend([(*set, *former), (*set, *member)]);
            }
            Op::CreateLink | Op::BindRange(_) | Op::UnbindRange(_) => self.link = true,
            Op::BindAddress(address)
            | Op::UnbindAddress(address)
            | Op::UnbindOtherwise(address) => self.note_address(*address),
            Op::WriteRules { .. } | Op::RemoveLeftovers(..) => {}
            Op::AddServer(key, _)
            | Op::SetServer(key, _)
            | Op::RemoveServer(key)
            | Op::AddDestination(key, _)
            | Op::SetDestination(key, _)
            | Op::RemoveDestination(key, _) => {
                self.servers.insert(*key);
            }
        }
    }

    pub(super) fn note_address(&mut self, address: IpAddr) {
        self.addresses.insert(address);
    }
}

impl Comparison {
    /// Begins to compare a dump with the tables. This first step compares the link, the node's
    /// addresses and the sizes of sets. If one of them differs, a worker thread reads it again.
    pub(super) fn new(
        servers: Option<BTreeMap<VirtualServerKey, VirtualServer>>,
        mut sets: Option<FoundSets>,
        mut addresses: Option<FoundAddresses>,
        touched: WrittenEntries,
        tables: &Tables,
        state: &mut State,
    ) -> Self {
        let adopted = match (&servers, &sets, &addresses) {
            (Some(servers), Some(sets), Some(addresses)) => adopted(
                servers,
                sets,
                addresses,
                tables,
                &state.config.exclude_cidrs,
            ),
            _ => BTreeSet::new(),
        };
        let is_other = |found: &mut FoundAddresses| {
            found.has_link != tables.link.actual(&()).is_some()
                || found.interface_addresses != state.node.interface_addresses
                || !is_same_otherwise(found, tables)
        };
        if !touched.link && addresses.take_if(is_other).is_some() {
            state.ask(Part::Addresses);
        }
        // The kernel may make a set larger than requested: a bitmap has room for every port. Only a
        // set that is too small differs, and then a worker thread reads all sets with their
        // members.
        let is_too_small = |found: &mut FoundSets| {
            Set::every().any(|set| found.sizes.get(&set) < tables.sets.actual(&set))
        };
        if !touched.sets && sets.take_if(is_too_small).is_some() {
            state.ask(Part::Sets);
        }
        let believed_servers = || tables.servers.iter_actual().map(|(key, _)| *key);
        let believed_addresses = || tables.addresses.iter_actual().map(|(address, ())| *address);
        let believed_members = || {
            tables.all_members().flat_map(|(set, table)| {
                let there = table.iter_actual();
                there.map(move |(member, ())| (set, *member))
            })
        };
        Self {
            believed_servers: servers.iter().flat_map(|_| believed_servers()).collect(),
            others: Vec::new(),
            has_servers: servers.is_some(),
            servers: servers.unwrap_or_default(),
            believed_members: sets.iter().flat_map(|_| believed_members()).collect(),
            members: sets.map(|found| found.members).unwrap_or_default(),
            believed_addresses: addresses
                .iter()
                .flat_map(|_| believed_addresses())
                .collect(),
            addresses: addresses.map(|found| found.bound).unwrap_or_default(),
            adopted,
            touched,
        }
    }

    /// Compares the next [`PIECE`] entries with the tables.
    pub(super) fn piece(&mut self, tables: &Tables, in_flight: &WrittenEntries) -> Differences {
        let mut found = Differences::default();
        let mut room = PIECE;
        while room > 0 {
            room -= 1;
            if let Some((key, there)) = self.next_server() {
                let actual = tables.servers.actual(&key);
                let destinations = actual.map_or(0, |actual| actual.destinations.len());
                room = room.saturating_sub(destinations / 16);
                let is_ours = || tables.is_ours(&key) || self.adopted.contains(&key);
                let differs = actual != there.as_ref() && !self.touched.servers.contains(&key);
                if differs && is_ours() {
                    if in_flight.servers.contains(&key) {
                        found.passed_over.push(key);
                    } else if let Some(there) = there {
                        found.servers.push((key, there));
                    } else {
                        // The dump lacks this virtual server. Skips the remaining ones, because a
                        // worker thread reads all virtual servers again.
                        found.has_lost_servers = true;
                        self.believed_servers.clear();
                        self.servers.clear();
                        self.has_servers = false;
                    }
                } else if let Some(there) = there.filter(|_| !is_ours()) {
                    // A virtual server that a plan has just added is this proxy's own. If the
                    // kernel refuses to add it, a worker thread reads the virtual servers again.
                    if !self.is_written(in_flight, |of| of.servers.contains(&key)) {
                        self.others.push((key, there));
                    }
                }
            } else if let Some((set, member, is_there)) = self.next_member() {
                let is_believed = tables.members(set).actual(&member).is_some();
                let entry = (set, member);
                let is_written = self.is_written(in_flight, |of| of.members.contains(&entry));
                if is_there != is_believed && !is_written {
                    found.members.push((set, member, is_there));
                }
            } else if let Some((address, is_there)) = self.next_address() {
                let is_believed = tables.addresses.actual(&address).is_some();
                let is_written = self.is_written(in_flight, |of| of.addresses.contains(&address));
                found.has_other_addresses |= is_there != is_believed && !is_written;
            } else {
                found.is_over = true;
                // A plan may have written to the key of a foreign virtual server since the dump
                // began, so the dump may be outdated. The tables then keep their list, and a worker
                // thread reads this virtual server again.
                let has_foreign = |of: &WrittenEntries| {
                    let mut keys = of.servers.iter();
                    keys.any(|key| tables.foreign.stands_at(key))
                };
                if self.has_servers && !self.is_written(in_flight, has_foreign) {
                    found.others = Some(self.take_others(tables));
                }
                break;
            }
        }
        found
    }

    /// Returns true if `is_in` is true for the entries written since the dump began, or for the
    /// entries being written now (`in_flight`).
    fn is_written(
        &self,
        in_flight: &WrittenEntries,
        is_in: impl Fn(&WrittenEntries) -> bool,
    ) -> bool {
        is_in(&self.touched) || is_in(in_flight)
    }

    /// Returns other programs' virtual servers in the dump. Includes known ones at keys that the
    /// kernel has refused to this proxy, because another program may have created them after the
    /// dump.
    fn take_others(&mut self, tables: &Tables) -> Vec<(VirtualServerKey, VirtualServer)> {
        let mut others = mem::take(&mut self.others);
        let known = tables.foreign.iter();
        let refused = known.filter(|(key, _)| self.touched.refused_servers.contains(*key));
        let is_told: HashSet<VirtualServerKey> = others.iter().map(|(key, _)| *key).collect();
        let refused = refused.filter(|(key, _)| !is_told.contains(*key));
        others.extend(refused.map(|(key, server)| (*key, server.clone())));
        others
    }

    /// Takes the next virtual server from the lists, with its state in the dump, or `None` if the
    /// dump lacks it.
    fn next_server(&mut self) -> Option<(VirtualServerKey, Option<VirtualServer>)> {
        if let Some(key) = self.believed_servers.pop() {
            return Some((key, self.servers.remove(&key)));
        }
        let (key, server) = self.servers.pop_first()?;
        Some((key, Some(server)))
    }

    /// Takes the next set member from the lists, with true if the dump contains the member.
    fn next_member(&mut self) -> Option<(Set, Member, bool)> {
        if let Some((set, member)) = self.believed_members.pop() {
            let of = self.members.get_mut(&set);
            return Some((set, member, of.is_some_and(|of| of.remove(&member))));
        }
        while let Some(mut first) = self.members.first_entry() {
            if let Some(member) = first.get_mut().pop_first() {
                return Some((*first.key(), member, true));
            }
            first.remove();
        }
        None
    }

    /// Takes the next address from the lists, with true if the dump contains the address.
    fn next_address(&mut self) -> Option<(IpAddr, bool)> {
        match self.believed_addresses.pop() {
            Some(address) => Some((address, self.addresses.remove(&address))),
            None => Some((self.addresses.pop_first()?, true)),
        }
    }
}

/// Returns the virtual servers to adopt: the tables lack them, but the kernel has evidence that a
/// kube-proxy created them.
fn adopted(
    servers: &BTreeMap<VirtualServerKey, VirtualServer>,
    sets: &FoundSets,
    addresses: &FoundAddresses,
    tables: &Tables,
    excluded: &[IpNet],
) -> BTreeSet<VirtualServerKey> {
    let evidence = Evidence {
        bound: &addresses.bound,
        bound_otherwise: &addresses.bound_otherwise,
        interface_addresses: &addresses.interface_addresses,
        sets: &sets.members,
    };
    let is_adopted = |(key, server): &(&VirtualServerKey, &VirtualServer)| {
        tables.servers.wanted(key).is_none()
            && tables.servers.actual(key).is_none()
            && !key.is_within(excluded)
            && evidence.says_ours(key, Some(server))
    };
    servers
        .iter()
        .filter(is_adopted)
        .map(|(key, _)| *key)
        .collect()
}

/// Returns true if the dump and the tables agree on:
///
/// - the ranges of service addresses;
/// - the networks that no range may make local;
/// - the addresses that a run with another `--ipvs-vip-mode` bound.
fn is_same_otherwise(found: &FoundAddresses, tables: &Tables) -> bool {
    let believed = tables.bound_otherwise.iter_actual();
    let believed: BTreeSet<IpAddr> = believed.map(|(address, ())| *address).collect();
    let ranges = tables.ranges.iter_actual();
    let ranges: BTreeMap<IpNet, RangeSource> = ranges.map(|(net, of)| (*net, *of)).collect();
    believed == found.bound_otherwise && ranges == found.ranges && tables.networks == found.networks
}
