//! A strict fake kernel for tests: it refuses the writes that the real kernel refuses, and a
//! refused write changes nothing.
//!
//! The fake counts started processes and netlink messages. One message can carry many members of
//! one set. The fake handles no packets: the tests in the lab (a test virtual machine) send real
//! packets through IPVS.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proxy::{IpFamily, Target, Unreadable};

mod state;
mod table;

pub use state::{State, Work};
pub use table::NativeTable;

use crate::config::ShimStyle;
use crate::kernel::{FoundAddresses, FoundRules, FoundSets, Glance, Kernel, Snapshot};
use crate::part::Part;
use crate::plan::{Fault, Op, Outcome, Plan};
use crate::rules::Rules;
use crate::server::{VirtualServer, VirtualServerKey};

/// Handle to a fake kernel. All clones share one kernel.
#[derive(Debug)]
pub struct FakeKernel {
    state: Arc<Mutex<State>>,
    /// True once this handle has returned the set members of the former shim.
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
    /// Creates a fake kernel whose node has these addresses and no other entries.
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

    /// Returns the fake's state, which tests may read and change.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the fake's state, or an error if the test has made this part unreadable.
    fn readable(&self, part: Part) -> Result<MutexGuard<'_, State>, Unreadable> {
        let state = self.state();
        match state.unreadable.get(part.name()) {
            None => Ok(state),
            Some(reason) => Err(Unreadable::new(part.name(), reason)),
        }
    }

    /// Returns the fake's work and its successful writes since the last call of this function.
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
            ranges: snapshot.ranges.clone(),
            interface_addresses: snapshot.interface_addresses.clone(),
            networks: snapshot.networks.clone(),
        })
    }

    fn read_rules(&mut self) -> Result<FoundRules, Unreadable> {
        let mut state = self.readable(Part::Rules)?;
        state.work.processes += usize::from(!state.shim.is_native());
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
