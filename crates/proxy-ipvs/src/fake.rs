//! A strict fake kernel for tests: it refuses what the kernel refuses, and then changes nothing.
//!
//! It also counts what the real one would cost: netlink messages (many members of one set in one
//! message) and processes. It knows nothing of packets: what IPVS does with them is proved in the
//! lab.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proxy::{IpFamily, Target, Unreadable};

mod table;

pub use table::NativeTable;

use crate::config::ShimStyle;
use crate::kernel::{FoundAddresses, FoundRules, FoundSets, Glance, Kernel, Snapshot};
use crate::leftovers::Place;
use crate::part::Part;
use crate::plan::{Fault, Op, Outcome, Plan};
use crate::rules::Rules;
use crate::server::{RealServer, VirtualServer, VirtualServerKey};
use crate::sets::{Member, Set, SetKind};

const NO_FIT: &str = "the member does not fit the set's type or family";

/// How many members fit into one message to the kernel.
const MEMBERS_PER_MESSAGE: usize = 1600;

/// What the fake has been asked to do since it was last looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Netlink messages that write.
    pub messages: usize,
    /// Processes started: `iptables-restore` and `iptables-save`.
    pub processes: usize,
    /// Times that the virtual servers were read.
    pub dumps: usize,
    /// Virtual servers whose connections were read.
    pub looks: usize,
    /// Times that the virtual servers were glanced at.
    pub glances: usize,
    /// Times that the addresses were read.
    pub address_reads: usize,
    /// Times that a scheduler was asked for.
    pub scheduler_questions: usize,
}

/// What the fake kernel holds.
#[derive(Debug)]
pub struct State {
    /// The family it serves.
    pub family: IpFamily,
    /// Which shim it carries.
    pub shim: ShimStyle,
    /// What sets of the other kind hold, at the first look.
    pub former: BTreeMap<Set, BTreeSet<Member>>,
    /// Everything that a dump shows.
    pub snapshot: Snapshot,
    /// The schedulers it has.
    pub schedulers: BTreeSet<&'static str>,
    /// Open connections of destinations.
    pub connections: BTreeMap<(VirtualServerKey, Target), u32>,
    /// Writes to refuse (by their text), with the kernel's reason.
    pub refusals: BTreeMap<String, String>,
    /// Addresses that the kernel never takes as a destination, as it refuses the broadcast address of
    /// a subnet of the node.
    pub forbidden: BTreeSet<IpAddr>,
    /// Whether the kernel is to blame for these, and not the entries.
    pub is_kernel_ill: bool,
    /// Lose the acknowledgements of the next plan, which is carried out all the same.
    pub lose_acknowledgements: bool,
    /// A virtual server that the next dump leaves out, as one that another one's end makes the
    /// kernel pass over.
    pub passed_over: Option<VirtualServerKey>,
    /// Parts that refuse to be read, with the reason.
    pub unreadable: BTreeMap<&'static str, String>,
    /// Every write that was carried out, in order.
    pub done: Vec<Op>,
    /// What it cost.
    pub work: Work,
}

/// A handle on a fake kernel; clones share it.
#[derive(Debug)]
pub struct FakeKernel {
    state: Arc<Mutex<State>>,
    /// Each handle tells of former sets once.
    has_told_former: bool,
}

impl Clone for FakeKernel {
    fn clone(&self) -> Self {
        Self {
            state: Arc::clone(&self.state),
            has_told_former: false,
        }
    }
}

impl FakeKernel {
    /// An empty kernel with the node addresses given.
    pub fn new(family: IpFamily, addresses: &[IpAddr]) -> Self {
        let state = State {
            family,
            shim: ShimStyle::default(),
            former: BTreeMap::new(),
            snapshot: Snapshot {
                interface_addresses: addresses.iter().copied().collect(),
                rules: Some(Rules::default()),
                leftovers: Some(BTreeMap::new()),
                ..Snapshot::default()
            },
            schedulers: ["rr", "wrr", "lc", "wlc", "sh", "mh"].into(),
            connections: BTreeMap::new(),
            refusals: BTreeMap::new(),
            forbidden: BTreeSet::new(),
            is_kernel_ill: false,
            lose_acknowledgements: false,
            passed_over: None,
            unreadable: BTreeMap::new(),
            done: Vec::new(),
            work: Work::default(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            has_told_former: false,
        }
    }

    /// The state, to look at or to damage.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, if a part of it can be read.
    fn readable(&self, part: Part) -> Result<MutexGuard<'_, State>, Unreadable> {
        let state = self.state();
        match state.unreadable.get(part.name()) {
            None => Ok(state),
            Some(reason) => Err(Unreadable::new(part.name(), reason)),
        }
    }

    /// What was done since the last call.
    pub fn take_work(&self) -> (Work, Vec<Op>) {
        let mut state = self.state();
        (
            std::mem::take(&mut state.work),
            std::mem::take(&mut state.done),
        )
    }
}

impl Kernel for FakeKernel {
    fn read_servers(&mut self) -> Result<BTreeMap<VirtualServerKey, VirtualServer>, Unreadable> {
        let mut state = self.readable(Part::Servers)?;
        state.work.dumps += 1;
        let mut servers = state.snapshot.servers.clone();
        if let Some(key) = state.passed_over.take() {
            servers.remove(&key);
        }
        Ok(servers)
    }

    fn read_sets(&mut self) -> Result<FoundSets, Unreadable> {
        let state = self.readable(Part::Sets)?;
        let found = FoundSets {
            former: if self.has_told_former {
                BTreeMap::new()
            } else {
                state.former.clone()
            },
            members: state.snapshot.sets.clone(),
            sizes: state.snapshot.set_sizes.clone(),
        };
        drop(state);
        self.has_told_former = true;
        Ok(found)
    }

    fn read_addresses(&mut self) -> Result<FoundAddresses, Unreadable> {
        let mut state = self.readable(Part::Addresses)?;
        state.work.address_reads += 1;
        let snapshot = &state.snapshot;
        Ok(FoundAddresses {
            has_link: snapshot.has_link,
            bound: snapshot.bound.clone(),
            bound_otherwise: snapshot.bound_otherwise.clone(),
            interface_addresses: snapshot.interface_addresses.clone(),
        })
    }

    fn read_rules(&mut self) -> Result<FoundRules, Unreadable> {
        let mut state = self.readable(Part::Rules)?;
        state.work.processes += usize::from(state.shim != ShimStyle::Nftables);
        Ok(FoundRules {
            rules: state.snapshot.rules.clone().unwrap_or_default(),
            leftovers: state.snapshot.leftovers.clone().unwrap_or_default(),
        })
    }

    fn glance(&mut self, one: &VirtualServerKey) -> Result<Glance, Unreadable> {
        let mut state = self.readable(Part::Servers)?;
        state.work.glances += 1;
        let servers = &state.snapshot.servers;
        Ok(match state.family {
            IpFamily::V4 => Glance::Count(u32::try_from(servers.len()).unwrap_or(u32::MAX)),
            IpFamily::V6 => Glance::IsThere(servers.contains_key(one)),
        })
    }

    fn load_scheduler(&mut self, name: &str) -> Result<(), String> {
        let mut state = self.state();
        state.work.scheduler_questions += 1;
        let is_there = state.schedulers.contains(name);
        is_there
            .then_some(())
            .ok_or_else(|| format!("the kernel has no scheduler `{name}`"))
    }

    fn apply(&mut self, plan: &Plan) -> Vec<Outcome> {
        let mut state = self.state();
        state.count(plan);
        let mut taken = BTreeSet::new();
        let mut write = |op: &Op| {
            let of_another = matches!(op, Op::AddDestination(key, _) if taken.contains(key));
            if of_another {
                return Outcome::Refused {
                    reason: "its virtual server is another program's".to_owned(),
                    fault: Fault::Node,
                };
            }
            let outcome = state.write(op);
            if let (
                Op::AddServer(key, _),
                Outcome::Refused {
                    fault: Fault::Belief,
                    ..
                },
            ) = (op, &outcome)
            {
                taken.insert(*key);
            }
            outcome
        };
        let outcomes = plan.ops.iter().map(&mut write).collect();
        if std::mem::take(&mut state.lose_acknowledgements) {
            return plan.ops.iter().map(|_| Outcome::Unknown).collect();
        }
        outcomes
    }

    fn connections(
        &mut self,
        keys: &[VirtualServerKey],
    ) -> Result<BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>, Unreadable> {
        let mut state = self.state();
        state.work.looks += keys.len();
        let open = |key: &VirtualServerKey, target| {
            state.connections.get(&(*key, target)).copied().unwrap_or(0)
        };
        let of = |key: &VirtualServerKey| {
            let server = state.snapshot.servers.get(key)?;
            Some((
                *key,
                server
                    .destinations
                    .iter()
                    .map(|real| (real.target, open(key, real.target)))
                    .collect(),
            ))
        };
        Ok(keys.iter().filter_map(of).collect())
    }
}

impl State {
    fn count(&mut self, plan: &Plan) {
        let mut run: Option<(Set, bool, usize)> = None;
        for op in &plan.ops {
            let member = match op {
                Op::AddMember(set, _) => Some((*set, true)),
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
            Op::WriteRules { .. } => self.shim != ShimStyle::Nftables,
            Op::RemoveLeftovers(place, _) => matches!(place, Place::Beside(_) | Place::Other(_)),
            _ => false,
        }
    }

    fn write(&mut self, op: &Op) -> Outcome {
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
                    _ if self.shim == ShimStyle::Nftables => u32::MAX,
                    // A bitmap has room for every port.
                    SetKind::Port => u32::MAX,
                    _ => *size,
                };
                let holds = self.snapshot.set_sizes.entry(*set).or_insert(room);
                *holds = (*holds).max(room);
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
                members.insert(*member);
            }
            Op::RemoveMember(set, member) => {
                // Where there is no set, there is no member of it.
                if let Some(members) = self.snapshot.sets.get_mut(set) {
                    if !fits(*set, member, self.family) {
                        return Err((NO_FIT, Fault::Belief));
                    }
                    members.remove(member);
                }
            }
            Op::WriteRules { wanted, installed } if self.shim == ShimStyle::Nftables => {
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
                    .split("--match-set ")
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
                // The kernel looks for the virtual server first.
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
                // Where there is no virtual server, there is no destination of it.
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
            Op::RemoveLeftovers(place, leftovers) => {
                let installed = self.snapshot.rules.as_ref();
                let there = self.snapshot.leftovers.as_ref();
                let has_rules = there.is_some_and(|there| {
                    there.keys().any(|place| matches!(place, Place::Other(_)))
                });
                if *place == Place::Ipsets && has_rules {
                    return Err(("rules name the sets", Fault::Node));
                }
                if matches!(place, Place::Beside(_))
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
        | (SetKind::AddressPort, Member::AddressPort(address, ..)) => own(address),
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
