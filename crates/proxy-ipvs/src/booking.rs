//! Booking: records in the tables which writes of a plan the kernel has accepted and refused.
//!
//! The wanted entries can change while a worker thread writes a plan. So booking records the value
//! that the worker thread has written, not the value that is wanted now.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashSet;
use proxy::{Failure, Fate, IpFamily, NamespacedName, Owner, ServicePortName, Writes};
use reconcile::Table;
use smallvec::SmallVec;

use crate::draft::Draft;
use crate::part::Part;
use crate::plan::{Fault, Op, Outcome, Plan};
use crate::ranges::RangeSource;
use crate::server::VirtualServerKey;
use crate::tables::Tables;

/// Reason for the refusal of a virtual server if another program has a virtual server with the same
/// key.
const LEFT_ALONE: &str = "another program has made a virtual server there, which is left alone, so that the Service is not \
     served there; remove it (ipvsadm -D), or take the address out of the Service";

/// Summary of a plan's outcomes: counts, failures, and the parts of the kernel's state to read
/// again.
#[derive(Debug)]
pub(crate) struct Booking {
    family: IpFamily,
    /// Number of writes with each outcome.
    pub(crate) writes: Writes,
    /// Writes that the kernel refused, each with the reason.
    pub(crate) failures: Vec<Failure>,
    /// Number of failed attempts to write rules or to remove leftovers.
    pub(crate) failed_restores: usize,
    /// Parts of the kernel's state that the worker threads must read again, because their content
    /// is unknown or differs from the tables.
    pub(crate) doubted: SmallVec<[Part; 2]>,
    /// Services that own an entry which the plan wrote or tried to write.
    pub(crate) touched: HashSet<NamespacedName>,
    /// Virtual servers from which the kernel refused to remove a destination.
    pub(crate) kept: SmallVec<[VirtualServerKey; 1]>,
    /// Schedulers that the kernel lacks, each with the reason that the kernel gave.
    pub(crate) lacking: BTreeMap<Arc<str>, String>,
}

impl Tables {
    /// Records the outcomes of a plan in the tables, and returns a summary.
    pub(crate) fn settle(
        &mut self,
        family: IpFamily,
        plan: &Plan,
        outcomes: Vec<Outcome>,
        now: Instant,
    ) -> Booking {
        let mut booked = Booking::new(family);
        let mut outcomes = outcomes.into_iter();
        let of_one = |one: &Op, next: &Op| {
            let key = one.server();
            key.is_some() && key == next.server()
        };
        // Handles consecutive writes to one virtual server together.
        for run in plan.ops.chunk_by(of_one) {
            match run.first().and_then(Op::server) {
                Some(key) => self.settle_server(key, run, &mut outcomes, now, &mut booked),
                None => {
                    for (op, outcome) in run.iter().zip(&mut outcomes) {
                        let owners = self.services_of(op);
                        booked.touched.extend(owners);
                        self.settle_one(op, outcome, now, &mut booked);
                    }
                }
            }
        }
        booked
    }

    /// Records the outcomes of consecutive writes to one virtual server.
    fn settle_server(
        &mut self,
        key: &VirtualServerKey,
        run: &[Op],
        outcomes: &mut impl Iterator<Item = Outcome>,
        now: Instant,
        booked: &mut Booking,
    ) {
        let actual = self.servers.actual(key);
        let mut draft = actual.map(|actual| Draft::of(actual, run.len()));
        let mut fault = None;
        let (mut is_unknown, mut is_refused) = (false, false);
        for (op, outcome) in run.iter().zip(outcomes) {
            match outcome {
                Outcome::Done => {
                    booked.writes.add(op.subject(), Fate::Done, 1);
                    Draft::apply(&mut draft, op, run.len());
                    if matches!(op, Op::AddServer(..)) {
                        // The write succeeded, so no other program has a virtual server with this
                        // key any more.
                        self.foreign.remove(key);
                    }
                }
                Outcome::Unknown => {
                    booked.writes.add(op.subject(), Fate::Unknown, 1);
                    is_unknown = true;
                    // The reply was lost, so the kernel may have lowered the weight. Records the
                    // lower weight: while the proxy removes other destinations, this one must not
                    // count as serving with its old weight.
                    if let Op::SetDestination(_, real) = op
                        && let Some(there) = actual.and_then(|it| it.destination(real.target))
                        && real.weight < there.weight
                    {
                        Draft::apply(&mut draft, op, run.len());
                    }
                }
                // After refusing a virtual server, the kernel also refuses its destinations.
                // Reports only the first of these refusals.
                Outcome::Refused { .. } if is_refused => {}
                Outcome::Refused { reason, fault: of } => {
                    let (reason, of) = if of == Fault::Belief && self.foreign.is_known_at(key) {
                        (LEFT_ALONE.to_owned(), Fault::Entry)
                    } else {
                        (reason, of)
                    };
                    booked.writes.add(op.subject(), Fate::Refused, 1);
                    is_refused = matches!(op, Op::AddServer(..));
                    if matches!(op, Op::RemoveDestination(..)) {
                        booked.kept.push(*key);
                    }
                    if of == Fault::Scheduler
                        && let Op::AddServer(_, with) | Op::SetServer(_, with) = op
                    {
                        let name = Arc::clone(&with.scheduler);
                        booked.lacking.insert(name, reason.clone());
                    }
                    if fault.is_none() {
                        booked.fail(op, self.owner_of(op), reason);
                    }
                    fault = Some(fault.map_or(of, |fault| worse(fault, of)));
                }
            }
        }
        self.servers.set_actual(key, draft.map(Draft::into_server));
        let owners = self.servers.owners(key);
        booked
            .touched
            .extend(owners.map(|owner| owner.name.service.clone()));
        if is_unknown {
            booked.doubt(Part::Servers);
            self.uncertain.insert(*key);
            self.servers.doubt(key, now);
        }
        match fault {
            None => {}
            Some(Fault::Entry) => self.servers.excuse(key, now),
            Some(Fault::Node | Fault::Scheduler) => self.servers.fail(key, now),
            Some(Fault::Belief) => {
                booked.doubt(Part::Servers);
                self.servers.doubt(key, now);
            }
        }
    }

    fn settle_one(&mut self, op: &Op, outcome: Outcome, now: Instant, booked: &mut Booking) {
        let fault = match outcome {
            Outcome::Done => {
                booked.writes.add(op.subject(), Fate::Done, 1);
                self.set_done(op);
                return;
            }
            Outcome::Unknown => {
                booked.writes.add(op.subject(), Fate::Unknown, 1);
                Fault::Belief
            }
            Outcome::Refused { reason, fault } => {
                booked.writes.add(op.subject(), Fate::Refused, 1);
                booked.fail(op, self.owner_of(op), reason);
                fault
            }
        };
        booked.failed_restores += usize::from(matches!(
            op,
            Op::WriteRules { .. } | Op::RemoveLeftovers(..)
        ));
        if fault == Fault::Belief {
            booked.doubt(op.part());
        }
        self.put_off(op, fault, now);
        if matches!(op, Op::WriteRules { .. }) {
            // After a refused `iptables-restore` or transaction, the kernel's rules are unknown,
            // and a set that they match may be missing. The worker threads read rules and sets
            // before the next attempt.
            booked.doubt(Part::Rules);
            booked.doubt(Part::Sets);
        }
    }

    /// Records that a write has taken effect in the kernel.
    fn set_done(&mut self, op: &Op) {
        match op {
            Op::CreateLink => self.link.set_actual(&(), Some(())),
            Op::CreateSet(set, size) => {
                let there = self.sets.actual(set).copied().unwrap_or(0);
                self.sets.set_actual(set, Some(there.max(*size)));
            }
            Op::RemoveSet(set) => self.sets.set_actual(set, None),
            Op::AddMember(set, member) => self.members_mut(*set).set_actual(member, Some(())),
            Op::RemoveMember(set, member) => self.members_mut(*set).set_actual(member, None),
            Op::ReplaceMember(set, former, member) => {
                self.members_mut(*set).set_actual(former, None);
                self.members_mut(*set).set_actual(member, Some(()));
            }
            Op::WriteRules { wanted, .. } => self.rules.set_actual(&(), Some(Arc::clone(wanted))),
            Op::RemoveLeftovers(place, _) => self.leftovers.set_actual(place, None),
            Op::BindAddress(address) => self.addresses.set_actual(address, Some(())),
            Op::UnbindAddress(address) => self.addresses.set_actual(address, None),
            Op::UnbindOtherwise(address) => self.bound_otherwise.set_actual(address, None),
            Op::BindRange(net) => self.ranges.set_actual(net, Some(RangeSource::Current)),
            Op::UnbindRange(net) => self.ranges.set_actual(net, None),
            // `settle_server` has already recorded writes to virtual servers.
            Op::AddServer(..)
            | Op::SetServer(..)
            | Op::RemoveServer(..)
            | Op::AddDestination(..)
            | Op::SetDestination(..)
            | Op::RemoveDestination(..) => {}
        }
    }

    /// Schedules a retry of a write that the kernel refused or whose reply was lost.
    fn put_off(&mut self, op: &Op, fault: Fault, now: Instant) {
        match op {
            Op::CreateLink => put_off(&mut self.link, &(), AffectedServices::All, fault, now),
            Op::CreateSet(set, _) => {
                put_off(&mut self.sets, set, AffectedServices::All, fault, now);
            }
            Op::RemoveSet(set) => {
                put_off(&mut self.sets, set, AffectedServices::Nobody, fault, now);
            }
            Op::AddMember(set, member) | Op::RemoveMember(set, member) => {
                put_off(
                    self.members_mut(*set),
                    member,
                    AffectedServices::Owners,
                    fault,
                    now,
                );
            }
            Op::ReplaceMember(set, former, member) => {
                let table = self.members_mut(*set);
                put_off(table, former, AffectedServices::Owners, fault, now);
                put_off(table, member, AffectedServices::Owners, fault, now);
            }
            Op::WriteRules { .. } => {
                put_off(&mut self.rules, &(), AffectedServices::All, fault, now);
            }
            Op::RemoveLeftovers(place, _) => {
                put_off(
                    &mut self.leftovers,
                    place,
                    AffectedServices::Nobody,
                    fault,
                    now,
                );
            }
            Op::BindAddress(address) | Op::UnbindAddress(address) => {
                put_off(
                    &mut self.addresses,
                    address,
                    AffectedServices::Owners,
                    fault,
                    now,
                );
            }
            Op::UnbindOtherwise(address) => {
                put_off(
                    &mut self.bound_otherwise,
                    address,
                    AffectedServices::Owners,
                    fault,
                    now,
                );
            }
            Op::BindRange(net) | Op::UnbindRange(net) => {
                put_off(&mut self.ranges, net, AffectedServices::All, fault, now);
            }
            // `settle_server` has already scheduled retries for virtual servers.
            Op::AddServer(..)
            | Op::SetServer(..)
            | Op::RemoveServer(..)
            | Op::AddDestination(..)
            | Op::SetDestination(..)
            | Op::RemoveDestination(..) => {}
        }
    }

    fn owner_of(&self, op: &Op) -> Option<ServicePortName> {
        let owner = match op {
            Op::AddMember(set, member) | Op::ReplaceMember(set, _, member) => {
                self.members(*set).owner(member)
            }
            Op::BindAddress(address) => self.addresses.owner(address),
            _ => self.servers.owner(op.server()?),
        };
        owner.map(|owner| owner.name.clone())
    }

    /// Returns the Services that want the written entry. Returns none for a virtual server, because
    /// `settle_server` records its Services.
    fn services_of(&self, op: &Op) -> SmallVec<[NamespacedName; 1]> {
        let service = |owner: &Arc<Owner>| owner.name.service.clone();
        match op {
            Op::AddMember(set, member) | Op::ReplaceMember(set, _, member) => {
                self.members(*set).owners(member).map(service).collect()
            }
            Op::BindAddress(address) => self.addresses.owners(address).map(service).collect(),
            _ => SmallVec::new(),
        }
    }
}

/// Services that suffer if the write of an entry fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AffectedServices {
    /// All Services: without this entry, the node serves no Service.
    All,
    /// Only the Services that own the entry.
    Owners,
    /// No Service: the write would only have removed a set or leftovers.
    Nobody,
}

fn put_off<K, V, O>(
    table: &mut Table<K, V, O>,
    key: &K,
    wanted: AffectedServices,
    fault: Fault,
    now: Instant,
) where
    K: Clone + Eq + Hash,
    V: Clone + Eq,
    O: Clone + Eq + Hash + Ord,
{
    match (fault, wanted) {
        (Fault::Belief, _) => table.doubt(key, now),
        (Fault::Entry, AffectedServices::Owners) | (_, AffectedServices::Nobody) => {
            table.excuse(key, now);
        }
        (Fault::Entry, AffectedServices::All) | (Fault::Node | Fault::Scheduler, _) => {
            table.fail(key, now);
        }
    }
}

impl Booking {
    fn new(family: IpFamily) -> Self {
        Self {
            family,
            writes: Writes::default(),
            failures: Vec::new(),
            failed_restores: 0,
            doubted: SmallVec::new(),
            touched: HashSet::new(),
            kept: SmallVec::new(),
            lacking: BTreeMap::new(),
        }
    }

    fn fail(&mut self, op: &Op, owner: Option<ServicePortName>, reason: String) {
        self.failures.push(Failure {
            object: op.words(self.family),
            owner,
            reason,
        });
    }

    fn doubt(&mut self, part: Part) {
        if !self.doubted.contains(&part) {
            self.doubted.push(part);
        }
    }
}

/// Returns the more severe fault. From most to least severe: a table that differs from the kernel,
/// a fault of the node or of a scheduler, a fault of one entry.
fn worse(one: Fault, other: Fault) -> Fault {
    let rank = |fault: Fault| match fault {
        Fault::Entry => 0,
        Fault::Node | Fault::Scheduler => 1,
        Fault::Belief => 2,
    };
    if rank(one) >= rank(other) { one } else { other }
}
