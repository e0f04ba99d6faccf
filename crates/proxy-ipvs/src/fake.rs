//! A strict fake kernel for tests: it refuses what the kernel refuses, and then changes nothing.
//!
//! It also counts what the real one would cost: netlink messages (many members of one set in one message) and processes. It
//! knows nothing of packets: what IPVS does with them is proved in the lab.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proxy::{IpFamily, Target};

use crate::cleanup::Place;
use crate::kernel::{Kernel, KernelError, Snapshot};
use crate::plan::{Op, Outcome, Plan};
use crate::rules::Rules;
use crate::server::{RealServer, VirtualServer, VirtualServerKey};
use crate::sets::{Member, Set, SetKind};

/// How many members fit into one message to the kernel.
const MEMBERS_PER_MESSAGE: usize = 1600;

/// What the fake has been asked to do since it was last looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Netlink messages that write.
    pub messages: usize,
    /// Processes started: `iptables-restore` and `iptables-save`.
    pub processes: usize,
    /// Times that everything was read.
    pub dumps: usize,
    /// Virtual servers whose connections were read.
    pub looks: usize,
}

/// What the fake kernel holds.
#[derive(Debug)]
pub struct State {
    /// The family it serves.
    pub family: IpFamily,
    /// Everything that a dump shows.
    pub snapshot: Snapshot,
    /// The schedulers it has.
    pub schedulers: BTreeSet<&'static str>,
    /// Open connections of destinations.
    pub connections: BTreeMap<(VirtualServerKey, Target), u32>,
    /// Writes to refuse (by their text), with the kernel's reason.
    pub refusals: BTreeMap<String, String>,
    /// Lose the acknowledgements of the next plan, which is carried out all the same.
    pub lose_acknowledgements: bool,
    /// Refuse to be read, with this reason.
    pub unreadable: Option<String>,
    /// Every write that was carried out, in order.
    pub done: Vec<Op>,
    /// What it cost.
    pub work: Work,
}

/// A handle on a fake kernel; clones share it.
#[derive(Debug, Clone)]
pub struct FakeKernel(Arc<Mutex<State>>);

impl FakeKernel {
    /// An empty kernel with the node addresses given.
    pub fn new(family: IpFamily, addresses: &[IpAddr]) -> Self {
        Self(Arc::new(Mutex::new(State {
            family,
            snapshot: Snapshot {
                interface_addresses: addresses.iter().copied().collect(),
                rules: Some(Rules::default()),
                leftovers: Some(BTreeMap::new()),
                ..Snapshot::default()
            },
            schedulers: ["rr", "wrr", "lc", "wlc", "sh", "mh"].into(),
            connections: BTreeMap::new(),
            refusals: BTreeMap::new(),
            lose_acknowledgements: false,
            unreadable: None,
            done: Vec::new(),
            work: Work::default(),
        })))
    }

    /// The state, to look at or to damage.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn dump(&mut self, with_rules: bool) -> Result<Snapshot, KernelError> {
        let mut state = self.state();
        if let Some(reason) = &state.unreadable {
            return Err(KernelError {
                what: "the virtual servers",
                reason: reason.clone(),
            });
        }
        state.work.dumps += 1;
        state.work.processes += usize::from(with_rules);
        let mut snapshot = state.snapshot.clone();
        if !with_rules {
            snapshot.rules = None;
            snapshot.leftovers = None;
        }
        Ok(snapshot)
    }

    fn apply(&mut self, plan: &Plan) -> Vec<Outcome> {
        let mut state = self.state();
        state.count(plan);
        let outcomes = plan.ops.iter().map(|op| state.write(op)).collect();
        if std::mem::take(&mut state.lose_acknowledgements) {
            return plan.ops.iter().map(|_| Outcome::Unknown).collect();
        }
        outcomes
    }

    fn connections(
        &mut self,
        keys: &[VirtualServerKey],
    ) -> Result<BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>, KernelError> {
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
                    if matches!(op, Op::WriteRules { .. } | Op::RemoveLeftovers(..)) {
                        self.work.processes += 1;
                    } else {
                        self.work.messages += 1;
                    }
                    None
                }
            };
        }
    }

    fn write(&mut self, op: &Op) -> Outcome {
        if let Some(reason) = self.refusals.get(&op.to_string()) {
            return Outcome::Refused {
                reason: reason.clone(),
                is_surprise: false,
            };
        }
        match self.try_write(op) {
            Ok(()) => {
                self.done.push(op.clone());
                Outcome::Done
            }
            Err((reason, is_surprise)) => Outcome::Refused {
                reason: reason.to_owned(),
                is_surprise,
            },
        }
    }

    fn try_write(&mut self, op: &Op) -> Result<(), (&'static str, bool)> {
        let own = |address: &IpAddr| IpFamily::of(*address) == self.family;
        match op {
            Op::CreateLink => self.snapshot.has_link = true,
            Op::CreateSet(set, size) => {
                self.snapshot.sets.entry(*set).or_default();
                let holds = self.snapshot.set_sizes.entry(*set).or_insert(*size);
                *holds = (*holds).max(*size);
            }
            Op::AddMember(set, member) => {
                if !fits(*set, member, self.family) {
                    return Err(("the member does not fit the set's type or family", false));
                }
                let size = self.snapshot.set_sizes.get(set).copied().unwrap_or(0) as usize;
                let members = self
                    .snapshot
                    .sets
                    .get_mut(set)
                    .ok_or(("no such set", true))?;
                if members.len() >= size && !members.contains(member) {
                    return Err(("the set is full", false));
                }
                members.insert(*member);
            }
            Op::RemoveMember(set, member) => {
                self.snapshot
                    .sets
                    .get_mut(set)
                    .ok_or(("no such set", true))?
                    .remove(member);
            }
            Op::WriteRules { wanted, .. } => {
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
                    return Err(("a rule matches a set that does not exist", false));
                }
                self.snapshot.rules = Some((**wanted).clone());
            }
            Op::AddServer(key, properties) => {
                if !own(&key.address) {
                    return Err(("address of another family", false));
                }
                if !self.schedulers.contains(&*properties.scheduler) {
                    return Err(("no such scheduler", false));
                }
                if self.snapshot.servers.contains_key(key) {
                    return Err(("exists", true));
                }
                let server = VirtualServer {
                    properties: properties.clone(),
                    destinations: [].into(),
                };
                self.snapshot.servers.insert(*key, server);
            }
            Op::SetServer(key, properties) => {
                if !self.schedulers.contains(&*properties.scheduler) {
                    return Err(("no such scheduler", false));
                }
                self.server(key)?.properties = properties.clone();
            }
            Op::RemoveServer(key) => {
                self.snapshot.servers.remove(key);
                self.connections.retain(|(of, _), _| of != key);
            }
            Op::AddDestination(key, real) => {
                if !own(&real.target.ip) {
                    return Err(("destination of another family", false));
                }
                let server = self.server(key)?;
                if server.destination(real.target).is_some() {
                    return Err(("exists", true));
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
                    .ok_or(("no such destination", true))?;
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
                let server = self.server(key)?;
                server.destinations = server
                    .destinations
                    .iter()
                    .filter(|real| real.target != *target)
                    .collect();
                self.connections.remove(&(*key, *target));
            }
            Op::BindAddress(address) => {
                if !own(address) {
                    return Err(("address of another family", false));
                }
                if !self.snapshot.has_link {
                    return Err(("no such device", true));
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
                if matches!(place, Place::Beside(_))
                    && installed.is_some_and(|installed| leftovers.serve(installed))
                {
                    return Err(("a rule leads into a chain that is to go", false));
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
    ) -> Result<&mut VirtualServer, (&'static str, bool)> {
        self.snapshot
            .servers
            .get_mut(key)
            .ok_or(("no such virtual server", true))
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
