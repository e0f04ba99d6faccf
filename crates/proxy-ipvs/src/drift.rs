//! The check for drift: whether the kernel still holds what is believed, while events go on.
//!
//! A dump of 10,000 virtual servers takes the kernel a good part of a second, and to compare it
//! takes this proxy many milliseconds. No event waits for either:
//!
//! ```text
//!   check ─▶ a lane that only reads dumps ─▶ compared a piece at a time ─▶ what differs is believed, and so repaired
//! ```
//!
//! The dump is older than what has been written since it began. What was written meanwhile is
//! therefore left out of the comparison, and looked at the next time; all else is in the kernel as
//! the dump says. A write that the kernel refused has changed nothing: its entry is compared, or a
//! retry that coincides with each check would hide what others do there. While nobody knows yet
//! what came of a write, its entry is passed over, and all is compared again if the write was
//! refused. Of the link, the node's addresses and the sizes of sets only that they differ is
//! found: the lane that writes them reads them again.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashSet;
use ipnet::IpNet;
use proxy::{Drift, NamespacedName, Owner, Target, Unreadable};

use crate::exchange::Dump;
use crate::kernel::{Evidence, FoundAddresses, FoundSets, Glance};
use crate::kinds::State;
use crate::part::Part;
use crate::plan::{Op, Outcome, Plan};
use crate::server::{VirtualServer, VirtualServerKey};
use crate::sets::{Member, Set};
use crate::tables::Tables;

/// How many entries are compared in one piece, each 16 destinations counting as one more: about two
/// milliseconds.
const PIECE: usize = 4096;

/// The check for drift, and the glances between two of them.
#[derive(Default)]
pub(crate) struct Drifts {
    check: Option<Check>,
    /// Whether another check is to follow the one under way.
    is_asked: bool,
    /// Virtual servers that differed from the dump while a plan for them was being written.
    passed_over: HashSet<VirtualServerKey>,
    glances: Glances,
}

/// A check under way.
enum Check {
    /// The dump is being made.
    Reading(Touched),
    /// It is being compared.
    Comparing(Box<Comparing>),
}

/// How many virtual servers there should be, and when it is next glanced at whether they are all
/// there: somebody's `ipvsadm -C` takes every Service away, and the kernel tells nobody.
#[derive(Default)]
struct Glances {
    period: Option<Duration>,
    next: Option<Instant>,
    /// How many there should be, where the kernel says how many there are.
    count: Option<u32>,
}

impl Drifts {
    /// Nothing is compared; virtual servers are glanced at once in this time, if at all.
    pub(crate) fn new(glance_period: Option<Duration>, now: Instant) -> Self {
        Self {
            glances: Glances {
                period: glance_period,
                next: glance_period.map(|period| now + period),
                count: None,
            },
            ..Self::default()
        }
    }

    /// Has all compared, after what is being compared.
    pub(crate) fn ask(&mut self) {
        self.is_asked = true;
    }

    /// Begins a dump if one is to be made now, and reports whether it has.
    pub(crate) fn begin(&mut self) -> bool {
        if !self.is_asked || self.check.is_some() {
            return false;
        }
        self.is_asked = false;
        self.check = Some(Check::Reading(Touched::default()));
        true
    }

    /// What is being compared is no longer what is believed: another check is to follow.
    pub(crate) fn abort(&mut self) {
        self.is_asked |= self.check.take().is_some();
    }

    /// Notes what was written meanwhile, or may have been.
    pub(crate) fn note(&mut self, plan: &Plan, outcomes: &[Outcome]) {
        let (mut was_passed_over, mut is_refused) = (false, false);
        for (op, outcome) in plan.ops.iter().zip(outcomes) {
            if let Some(key) = op.server() {
                was_passed_over |= self.passed_over.remove(key);
            }
            if let Outcome::Refused { .. } = outcome {
                is_refused = true;
                if let (Op::AddServer(key, _), Some(check)) = (op, &mut self.check) {
                    check.touched().refused_servers.insert(*key);
                }
            } else if let Some(check) = &mut self.check {
                check.touched().note(op);
            }
        }
        self.is_asked |= was_passed_over && is_refused;
    }

    /// Notes that the kernel has told of an address.
    pub(crate) fn note_address(&mut self, address: IpAddr) {
        if let Some(check) = &mut self.check {
            check.touched().note_address(address);
        }
    }

    /// Takes a dump to be compared.
    pub(crate) fn take_dump(&mut self, dump: Dump, tables: &Tables, state: &mut State) {
        let Dump {
            servers,
            sets,
            addresses,
        } = dump;
        let servers = known(state, Part::Servers, servers);
        let sets = known(state, Part::Sets, sets);
        let addresses = known(state, Part::Addresses, addresses);
        if let Some(Check::Reading(mut touched)) = self.check.take() {
            let in_flight = Touched::in_flight(state);
            touched.link |= in_flight.link;
            touched.sets |= in_flight.sets;
            let comparing = Comparing::new(servers, sets, addresses, touched, tables, state);
            self.check = Some(Check::Comparing(Box::new(comparing)));
        }
    }

    /// Compares a piece, tells what differs, and believes the kernel; the virtual servers of which
    /// something else is there.
    pub(crate) fn compare(
        &mut self,
        tables: &mut Tables,
        state: &mut State,
    ) -> Vec<VirtualServerKey> {
        let is_read = |check: &mut Check| matches!(check, Check::Comparing(_));
        let Some(Check::Comparing(mut comparing)) = self.check.take_if(is_read) else {
            return Vec::new();
        };
        let found = comparing.piece(tables, &Touched::in_flight(state));
        self.passed_over.extend(found.passed_over);
        if found.has_lost_servers {
            // The kernel tells them by their number, and passes one over where another is removed
            // meanwhile. The lane that writes them reads them while none is.
            state.ask(Part::Servers);
        }
        if let Some(others) = found.others {
            tables.foreign.found(others);
        }
        let mut changed = Vec::new();
        for (key, there) in found.servers {
            let believed = tables.servers.actual(&key).cloned();
            tell_server(state, tables, &key, believed.as_ref(), Some(&there));
            tables.servers.set_actual(&key, Some(there));
            changed.push(key);
        }
        for (set, member, is_there) in found.members {
            tell_member(state, tables, set, &member);
            let actual = is_there.then_some(());
            tables.members_mut(set).set_actual(&member, actual);
        }
        if found.has_other_addresses {
            state.ask(Part::Addresses);
        }
        if !found.is_over {
            self.check = Some(Check::Comparing(comparing));
        }
        changed
    }

    // ---- glances ----

    /// So many virtual servers are there, whoever's. What is taken away before the first glance
    /// would be missed by it.
    pub(crate) fn count(&mut self, found: usize) {
        self.glances.count = u32::try_from(found).ok();
    }

    /// Follows how many virtual servers there are.
    pub(crate) fn follow_count(&mut self, plan: &Plan, outcomes: &[Outcome]) {
        let count = &mut self.glances.count;
        for (op, outcome) in plan.ops.iter().zip(outcomes) {
            *count = match (op, outcome, *count) {
                (Op::AddServer(..), Outcome::Done, Some(count)) => count.checked_add(1),
                (Op::RemoveServer(..), Outcome::Done, Some(count)) => count.checked_sub(1),
                (Op::AddServer(..) | Op::RemoveServer(..), Outcome::Unknown, _) => None,
                (_, _, count) => count,
            };
        }
    }

    /// A virtual server to glance at, if that is due.
    pub(crate) fn glance_due(&mut self, tables: &Tables, now: Instant) -> Option<VirtualServerKey> {
        let glances = &mut self.glances;
        if glances.next.is_none_or(|at| at > now) {
            return None;
        }
        glances.next = glances.period.map(|period| now + period);
        tables.servers.iter_actual().next().map(|(one, _)| *one)
    }

    /// Takes over what a glance has told.
    pub(crate) fn take_glance(&mut self, glance: &Result<Glance, Unreadable>) {
        let is_as_believed = match glance {
            Ok(Glance::Count(count)) => {
                let before = self.glances.count.replace(*count);
                before.is_none_or(|before| before == *count)
            }
            Ok(Glance::IsThere(is_there)) => *is_there,
            // The next check says what is wrong.
            Err(_) => true,
        };
        if !is_as_believed {
            self.ask();
        }
    }

    /// When the next piece, or glance, is due.
    pub(crate) fn next_due(&self, tables: &Tables, now: Instant) -> Option<Instant> {
        if matches!(self.check, Some(Check::Comparing(_))) {
            return Some(now);
        }
        let has_servers = tables.servers.iter_actual().next().is_some();
        // One that cannot be taken yet is taken once the lane is free, and wakes nobody.
        self.glances.next.filter(|at| has_servers && *at > now)
    }
}

/// What is still to be compared: first what was believed to be there, then what the dump holds
/// beyond that.
struct Comparing {
    touched: Touched,
    believed_servers: Vec<VirtualServerKey>,
    servers: BTreeMap<VirtualServerKey, VirtualServer>,
    believed_members: Vec<(Set, Member)>,
    members: BTreeMap<Set, BTreeSet<Member>>,
    believed_addresses: Vec<IpAddr>,
    addresses: BTreeSet<IpAddr>,
    /// Virtual servers of other programs that the dump has told, if it has told all.
    others: Vec<(VirtualServerKey, VirtualServer)>,
    has_servers: bool,
    /// Virtual servers that nobody here has made or wants, and that are ours by all that says so.
    adopted: BTreeSet<VirtualServerKey>,
}

/// Entries that were written since the dump began, or may have been.
#[derive(Debug, Default)]
struct Touched {
    servers: HashSet<VirtualServerKey>,
    /// Virtual servers that the kernel refused to make.
    refused_servers: HashSet<VirtualServerKey>,
    members: HashSet<(Set, Member)>,
    addresses: HashSet<IpAddr>,
    link: bool,
    sets: bool,
}

/// What a piece of a check has found.
#[derive(Debug, Default)]
struct Found {
    /// Virtual servers of ours that are otherwise, and how.
    servers: Vec<(VirtualServerKey, VirtualServer)>,
    /// All virtual servers of other programs, at the end of a dump that could be read.
    others: Option<Vec<(VirtualServerKey, VirtualServer)>>,
    /// Whether the dump lacks virtual servers that were believed to be there.
    has_lost_servers: bool,
    /// Virtual servers that differ while a plan for them is being written.
    passed_over: Vec<VirtualServerKey>,
    /// Members that are there and should not be, or the other way round.
    members: Vec<(Set, Member, bool)>,
    /// Whether addresses on the link are others.
    has_other_addresses: bool,
    /// Whether there is nothing more to compare.
    is_over: bool,
}

impl Touched {
    /// Notes what is being written.
    fn in_flight(state: &State) -> Self {
        let mut touched = Self::default();
        let writes = state.in_flight().flat_map(|plan| &plan.ops);
        writes.for_each(|op| touched.note(op));
        touched
    }

    fn note(&mut self, op: &Op) {
        match op {
            Op::CreateSet(..) => self.sets = true,
            Op::AddMember(set, member) | Op::RemoveMember(set, member) => {
                self.members.insert((*set, *member));
            }
            Op::CreateLink => self.link = true,
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
}

impl Touched {
    fn note_address(&mut self, address: IpAddr) {
        self.addresses.insert(address);
    }
}

impl Check {
    fn touched(&mut self) -> &mut Touched {
        match self {
            Self::Reading(touched) => touched,
            Self::Comparing(comparing) => &mut comparing.touched,
        }
    }
}

impl Comparing {
    /// Begins to compare what was read. What cannot be compared entry by entry is read again by the
    /// lane that writes it, if it differs.
    fn new(
        servers: Option<BTreeMap<VirtualServerKey, VirtualServer>>,
        mut sets: Option<FoundSets>,
        mut addresses: Option<FoundAddresses>,
        touched: Touched,
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
                || !is_otherwise(found, tables)
        };
        if !touched.link && addresses.take_if(is_other).is_some() {
            state.ask(Part::Addresses);
        }
        // A set may be larger than it was made: one of ports has room for all. One that is to be
        // read again takes its members along.
        let is_too_small = |found: &mut FoundSets| {
            Set::all().any(|set| found.sizes.get(&set) < tables.sets.actual(&set))
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

    /// Compares a piece.
    fn piece(&mut self, tables: &Tables, in_flight: &Touched) -> Found {
        let mut found = Found::default();
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
                        // They are read again, all of them.
                        found.has_lost_servers = true;
                        self.believed_servers.clear();
                        self.servers.clear();
                        self.has_servers = false;
                    }
                } else if let Some(there) = there.filter(|_| !is_ours()) {
                    self.others.push((key, there));
                }
            } else if let Some((set, member, is_there)) = self.next_member() {
                let is_believed = tables.members(set).actual(&member).is_some();
                let entry = (set, member);
                let mut touched = [&self.touched, in_flight].into_iter();
                let is_touched = touched.any(|of| of.members.contains(&entry));
                if is_there != is_believed && !is_touched {
                    found.members.push((set, member, is_there));
                }
            } else if let Some((address, is_there)) = self.next_address() {
                let is_believed = tables.addresses.actual(&address).is_some();
                let mut touched = [&self.touched, in_flight].into_iter();
                let is_touched = touched.any(|of| of.addresses.contains(&address));
                found.has_other_addresses |= is_there != is_believed && !is_touched;
            } else {
                found.is_over = true;
                // What was made meanwhile is read by the lane that writes.
                let touched = self.touched.servers.iter();
                let mut touched = touched.chain(&in_flight.servers);
                let is_touched = touched.any(|key| tables.foreign.stands_at(key));
                if self.has_servers && !is_touched {
                    found.others = Some(self.take_others(tables));
                }
                break;
            }
        }
        found
    }

    /// Virtual servers of other programs. One at which ours was refused meanwhile is there, though it
    /// may have come after the dump.
    fn take_others(&mut self, tables: &Tables) -> Vec<(VirtualServerKey, VirtualServer)> {
        let mut others = mem::take(&mut self.others);
        let known = tables.foreign.iter();
        let refused = known.filter(|(key, _)| self.touched.refused_servers.contains(*key));
        let is_told: HashSet<VirtualServerKey> = others.iter().map(|(key, _)| *key).collect();
        let refused = refused.filter(|(key, _)| !is_told.contains(*key));
        others.extend(refused.map(|(key, server)| (*key, server.clone())));
        others
    }

    /// The next virtual server, and what the dump says of it.
    fn next_server(&mut self) -> Option<(VirtualServerKey, Option<VirtualServer>)> {
        if let Some(key) = self.believed_servers.pop() {
            return Some((key, self.servers.remove(&key)));
        }
        let (key, server) = self.servers.pop_first()?;
        Some((key, Some(server)))
    }

    /// The next member, and whether the dump holds it.
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

    /// The next address, and whether the dump holds it.
    fn next_address(&mut self) -> Option<(IpAddr, bool)> {
        match self.believed_addresses.pop() {
            Some(address) => Some((address, self.addresses.remove(&address))),
            None => Some((self.addresses.pop_first()?, true)),
        }
    }
}

/// What was found of a part, if it is known what was there before; it is told whether it could be
/// read.
fn known<T>(state: &mut State, part: Part, found: Result<T, Unreadable>) -> Option<T> {
    match found {
        Ok(found) => {
            state.tell_readable(part.name());
            state.knows(part).then_some(found)
        }
        Err(error) => {
            state.tell_unreadable(error);
            None
        }
    }
}

/// The virtual servers that are neither wanted nor believed to be there, and that are ours by all
/// that says so.
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

/// Whether a dump says of addresses in the other form what is believed. Hardly ever is there one.
fn is_otherwise(found: &FoundAddresses, tables: &Tables) -> bool {
    let believed = tables.bound_otherwise.iter_actual();
    let believed: BTreeSet<IpAddr> = believed.map(|(address, ())| *address).collect();
    believed == found.bound_otherwise
}

// ---- what is told ----

/// Somebody else has changed a virtual server.
pub(crate) fn tell_server(
    state: &mut State,
    tables: &Tables,
    key: &VirtualServerKey,
    believed: Option<&VirtualServer>,
    there: Option<&VirtualServer>,
) {
    let note = |drift: &mut Drift| note_server(drift, key, believed, there);
    state.news.note_drift(state.now, note);
    state.news.disturb(services(tables.servers.owners(key)));
}

/// Somebody else has added or removed a member.
pub(crate) fn tell_member(state: &mut State, tables: &Tables, set: Set, member: &Member) {
    let family = state.node.family;
    let name = || format!("{member} of {}", set.name(family));
    state.news.drifted(state.now, "set member", name);
    state
        .news
        .disturb(services(tables.members(set).owners(member)));
}

/// Somebody else has bound or unbound an address.
pub(crate) fn tell_address(state: &mut State, tables: &Tables, address: IpAddr) {
    state
        .news
        .drifted(state.now, "address", || address.to_string());
    state
        .news
        .disturb(services(tables.addresses.owners(&address)));
}

/// Notes how a virtual server differs from what was believed.
fn note_server(
    drift: &mut Drift,
    key: &VirtualServerKey,
    believed: Option<&VirtualServer>,
    there: Option<&VirtualServer>,
) {
    let (Some(believed), Some(there)) = (believed, there) else {
        return drift.add("virtual server", || key.to_string());
    };
    if believed.properties != there.properties {
        drift.add("virtual server", || key.to_string());
    }
    let mut name = |target: Target| {
        drift.add("destination", || {
            let target = SocketAddr::new(target.ip, target.port);
            format!("{target} of {key}")
        });
    };
    for real in believed.destinations.iter() {
        if there.destination(real.target) != Some(real) {
            name(real.target);
        }
    }
    for real in there.destinations.iter() {
        if believed.destination(real.target).is_none() {
            name(real.target);
        }
    }
}

/// The Services that want a virtual server, or a member of a set.
fn services<'a>(
    owners: impl Iterator<Item = &'a Arc<Owner>>,
) -> impl Iterator<Item = NamespacedName> {
    owners.map(|owner| owner.name.service.clone())
}
