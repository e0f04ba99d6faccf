//! State of the fake kernel, and the writes that it refuses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use proxy::{IpFamily, Target};

use super::table;
use crate::config::ShimStyle;
use crate::kernel::Snapshot;
use crate::leftovers::LeftoverPlace;
use crate::plan::{Fault, Op, Outcome, Plan};
use crate::ranges::RangeSource;
use crate::rules::Rules;
use crate::server::{RealServer, VirtualServer, VirtualServerKey};
use crate::sets::{Member, Set, SetKind};

const NO_FIT: &str = "the member does not fit the set's type or family";

/// Maximum number of set members in one netlink message.
const MEMBERS_PER_MESSAGE: usize = 1600;

/// Work that the fake kernel has done since the last call of `take_work`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Number of netlink messages for writes.
    pub messages: usize,
    /// Number of started processes (`iptables-restore` and `iptables-save`).
    pub processes: usize,
    /// Number of dumps of all virtual servers.
    pub dumps: usize,
    /// Number of virtual servers whose connections were queried.
    pub looks: usize,
    /// Number of glances: cheap checks that the virtual servers still exist.
    pub glances: usize,
    /// Number of dumps of all addresses.
    pub address_reads: usize,
    /// Number of queries whether the kernel has a scheduler.
    pub scheduler_questions: usize,
}

/// State of the fake kernel.
#[derive(Debug)]
pub struct State {
    /// IP family of the fake kernel.
    pub family: IpFamily,
    /// Variant of the shim that the proxy writes.
    pub shim: ShimStyle,
    /// Set members of the former shim, left by an earlier run. Only the first read through each
    /// handle returns them.
    pub former: BTreeMap<Set, BTreeSet<Member>>,
    /// All entries in the fake kernel, as a dump returns them.
    pub snapshot: Snapshot,
    /// IPVS schedulers that this kernel has.
    pub schedulers: BTreeSet<&'static str>,
    /// Number of open connections of each destination.
    pub connections: BTreeMap<(VirtualServerKey, Target), u32>,
    /// Writes that the kernel refuses, by their text, each with the reason.
    pub refusals: BTreeMap<String, String>,
    /// Addresses that the kernel refuses as destinations, for example the broadcast address of a
    /// subnet.
    pub forbidden: BTreeSet<IpAddr>,
    /// Kind of fault in `refusals`: true for a problem of the kernel, false for an invalid entry.
    pub is_kernel_ill: bool,
    /// True if the replies to the next plan get lost. Its writes still take effect.
    pub lose_acknowledgements: bool,
    /// Virtual server that the next dump skips, as the real kernel may do if another virtual server
    /// is removed during the dump.
    pub passed_over: Option<VirtualServerKey>,
    /// Parts of the kernel's state that reads cannot return, each with the reason.
    pub unreadable: BTreeMap<&'static str, String>,
    /// Successful writes since the last `take_work`, in order.
    pub done: Vec<Op>,
    /// Work since the last `take_work`.
    pub work: Work,
}

impl State {
    pub(super) fn count(&mut self, plan: &Plan) {
        let mut run: Option<(Set, bool, usize)> = None;
        for op in &plan.ops {
            let member = match op {
                Op::AddMember(set, _) | Op::ReplaceMember(set, ..) => Some((*set, true)),
                Op::RemoveMember(set, _) => Some((*set, false)),
                _ => None,
            };
            run = match (member, run) {
                (Some((set, add)), Some((of, adding, length)))
                    if (set, add) == (of, adding) && length < MEMBERS_PER_MESSAGE =>
                {
                    Some((of, adding, length + 1))
                }
                (Some((set, add)), _) => {
                    self.work.messages += 1;
                    Some((set, add, 1))
                }
                (None, _) => {
                    if self.costs_a_process(op) {
                        self.work.processes += 1;
                    } else {
                        self.work.messages += 1;
                    }
                    None
                }
            };
        }
    }

    fn costs_a_process(&self, op: &Op) -> bool {
        match op {
            Op::WriteRules { .. } => !self.shim.is_native(),
            Op::RemoveLeftovers(place, _) => {
                matches!(place, LeftoverPlace::Beside(_) | LeftoverPlace::Other(_))
            }
            _ => false,
        }
    }

    pub(super) fn write(&mut self, op: &Op) -> Outcome {
        if let Some(reason) = self.refusals.get(&op.to_string()) {
            return Outcome::Refused {
                reason: reason.clone(),
                fault: if self.is_kernel_ill {
                    Fault::Node
                } else {
                    Fault::Entry
                },
            };
        }
        match self.try_write(op) {
            Ok(()) => {
                self.done.push(op.clone());
                Outcome::Done
            }
            Err((reason, fault)) => Outcome::Refused {
                reason: reason.to_owned(),
                fault,
            },
        }
    }

    fn try_write(&mut self, op: &Op) -> Result<(), (&'static str, Fault)> {
        let own = |address: &IpAddr| IpFamily::of(*address) == self.family;
        match op {
            Op::CreateLink => self.snapshot.has_link = true,
            Op::CreateSet(set, size) => {
                self.snapshot.sets.entry(*set).or_default();
                let room = match set.kind() {
                    _ if self.shim.is_native() => u32::MAX,
                    // A set of ports is a bitmap, with room for every port.
                    SetKind::Port => u32::MAX,
                    _ => *size,
                };
                let holds = self.snapshot.set_sizes.entry(*set).or_insert(room);
                *holds = (*holds).max(room);
            }
            Op::RemoveSet(set) => {
                let rules = self.snapshot.rules.iter();
                let mut used = rules.flat_map(|rules| rules.native().sets_named());
                if used.any(|name| *name == *set.name(self.family)) {
                    return Err(("a rule matches the set", Fault::Node));
                }
                self.snapshot.sets.remove(set);
                self.snapshot.set_sizes.remove(set);
            }
            Op::AddMember(set, member) => {
                let size = self.snapshot.set_sizes.get(set).copied().unwrap_or(0) as usize;
                let members = self.snapshot.sets.get_mut(set);
                let members = members.ok_or(("no such set", Fault::Belief))?;
                if !fits(*set, member, self.family) {
                    return Err((NO_FIT, Fault::Belief));
                }
                if members.len() >= size && !members.contains(member) {
                    return Err(("the set is full", Fault::Belief));
                }
                if let Member::AddressPortMark(..) = member {
                    let is_same =
                        |there: &Member| set.service_address(there) == set.service_address(member);
                    if self.shim.is_native()
                        && members
                            .iter()
                            .any(|there| is_same(there) && there != member)
                    {
                        return Err(("the address has another mark", Fault::Belief));
                    }
                    // Replaces the entry's mark, as ipset does.
                    members.retain(|there| !is_same(there));
                }
                members.insert(*member);
            }
            Op::RemoveMember(set, member) => {
                // Ignores the write if the set is missing, as the kernel does.
                if let Some(members) = self.snapshot.sets.get_mut(set) {
                    if !fits(*set, member, self.family) {
                        return Err((NO_FIT, Fault::Belief));
                    }
                    members.remove(member);
                    if let Member::AddressPortMark(..) = member {
                        // Compares only address and port, as the kernel does.
                        members.retain(|there| {
                            set.service_address(there) != set.service_address(member)
                        });
                    }
                }
            }
            Op::ReplaceMember(set, former, member) => {
                self.try_write(&Op::RemoveMember(*set, *former))?;
                self.try_write(&Op::AddMember(*set, *member))?;
            }
            Op::WriteRules { wanted, installed } if self.shim.is_native() => {
                let there = self.snapshot.rules.take().unwrap_or_default();
                let changes = wanted.native().changes(installed.native(), self.family);
                let sets = self.snapshot.sets.keys().copied().collect();
                let tried = table::apply(there.native(), &changes, &sets, self.family);
                let (content, result) = match tried {
                    Ok(content) if content == *wanted.native() => (content, Ok(())),
                    Ok(content) => (content, Err(("the table is not as wanted", Fault::Belief))),
                    Err(reason) => (there.native().clone(), Err((reason, Fault::Node))),
                };
                self.snapshot.rules = Some(Rules::in_nftables(content));
                return result;
            }
            Op::WriteRules { wanted, .. } => {
                if !wanted.native().is_empty() {
                    return Err(("these rules are not for iptables", Fault::Node));
                }
                let text = wanted.restore_text(&Rules::default());
                let names = text
                    .split("-set ")
                    .skip(1)
                    .filter_map(|rest| rest.split(' ').next());
                let sets: BTreeSet<_> = self
                    .snapshot
                    .sets
                    .keys()
                    .map(|set| set.name(self.family))
                    .collect();
                if names.into_iter().any(|name| !sets.contains(name)) {
                    return Err(("a rule matches a set that does not exist", Fault::Node));
                }
                self.snapshot.rules = Some((**wanted).clone());
            }
            Op::AddServer(key, properties) => {
                if key.address().is_some_and(|at| !own(&at.address)) {
                    return Err(("address of another family", Fault::Entry));
                }
                if self.snapshot.servers.contains_key(key) {
                    return Err(("exists", Fault::Belief));
                }
                if !self.schedulers.contains(&*properties.scheduler) {
                    return Err(("no such scheduler", Fault::Scheduler));
                }
                let server = VirtualServer {
                    properties: properties.clone(),
                    destinations: [].into(),
                };
                self.snapshot.servers.insert(*key, server);
            }
            Op::SetServer(key, properties) => {
                // Looks up the virtual server first, as the kernel does.
                self.server(key)?;
                if !self.schedulers.contains(&*properties.scheduler) {
                    return Err(("no such scheduler", Fault::Scheduler));
                }
                self.server(key)?.properties = properties.clone();
            }
            Op::RemoveServer(key) => {
                self.snapshot.servers.remove(key);
                self.connections.retain(|(of, _), _| of != key);
            }
            Op::AddDestination(key, real) => {
                if !own(&real.target.ip) {
                    return Err(("destination of another family", Fault::Entry));
                }
                if self.forbidden.contains(&real.target.ip) {
                    return Err(("Invalid argument", Fault::Entry));
                }
                let server = self.server(key)?;
                if server.destination(real.target).is_some() {
                    return Err(("exists", Fault::Belief));
                }
                let mut list = server.destinations.to_vec();
                list.push(*real);
                list.sort_unstable();
                server.destinations = list.into();
            }
            Op::SetDestination(key, real) => {
                let server = self.server(key)?;
                server
                    .destination(real.target)
                    .ok_or(("no such destination", Fault::Belief))?;
                let edit = |there: RealServer| {
                    if there.target == real.target {
                        *real
                    } else {
                        there
                    }
                };
                server.destinations = server.destinations.iter().map(edit).collect();
            }
            Op::RemoveDestination(key, target) => {
                // Ignores the write if the virtual server is missing, as the kernel does.
                if let Ok(server) = self.server(key) {
                    server.destinations = server
                        .destinations
                        .iter()
                        .filter(|real| real.target != *target)
                        .collect();
                }
                self.connections.remove(&(*key, *target));
            }
            Op::BindAddress(address) => {
                if !own(address) {
                    return Err(("address of another family", Fault::Entry));
                }
                if !self.snapshot.has_link {
                    return Err(("no such device", Fault::Belief));
                }
                self.snapshot.bound.insert(*address);
            }
            Op::UnbindAddress(address) => {
                self.snapshot.bound.remove(address);
            }
            Op::UnbindOtherwise(address) => {
                self.snapshot.bound_otherwise.remove(address);
            }
            Op::BindRange(net) => {
                if !own(&net.addr()) {
                    return Err(("network of another family", Fault::Entry));
                }
                if !self.snapshot.has_link {
                    return Err(("no such device", Fault::Belief));
                }
                self.snapshot.ranges.insert(*net, RangeSource::Current);
            }
            Op::UnbindRange(net) => {
                self.snapshot.ranges.remove(net);
            }
            Op::RemoveLeftovers(place, leftovers) => {
                let installed = self.snapshot.rules.as_ref();
                let there = self.snapshot.leftovers.as_ref();
                let has_rules = there.is_some_and(|there| {
                    there
                        .keys()
                        .any(|place| matches!(place, LeftoverPlace::Other(_)))
                });
                if *place == LeftoverPlace::Ipsets && has_rules {
                    return Err(("rules name the sets", Fault::Node));
                }
                if matches!(place, LeftoverPlace::Beside(_))
                    && installed.is_some_and(|installed| leftovers.serve(installed.rules()))
                {
                    return Err(("a rule leads into a chain that is to go", Fault::Node));
                }
                let there = self.snapshot.leftovers.get_or_insert_default();
                there.remove(place);
            }
        }
        Ok(())
    }

    fn server(
        &mut self,
        key: &VirtualServerKey,
    ) -> Result<&mut VirtualServer, (&'static str, Fault)> {
        self.snapshot
            .servers
            .get_mut(key)
            .ok_or(("no such virtual server", Fault::Belief))
    }
}

fn fits(set: Set, member: &Member, family: IpFamily) -> bool {
    let own = |address: &IpAddr| IpFamily::of(*address) == family;
    match (set.kind(), member) {
        (SetKind::Address, Member::Address(address))
        | (SetKind::AddressPort, Member::AddressPort(address, ..))
        | (SetKind::AddressPortMark, Member::AddressPortMark(address, ..)) => own(address),
        (SetKind::AddressPortAddress, Member::AddressPortAddress(address, _, _, second)) => {
            own(address) && own(second)
        }
        (SetKind::AddressPortNet, Member::AddressPortNet(address, _, _, net)) => {
            own(address) && own(&net.addr())
        }
        (SetKind::Port, Member::Port(_)) => true,
        _ => false,
    }
}
