//! Commits a plan to the kernel, and reports the outcome of each unit (a part that succeeds or
//! fails as a whole).
//!
//! The whole plan is one transaction, which the kernel applies completely or not at all. If the
//! kernel refuses the transaction:
//!
//! 1. Usually the kernel names the changes at fault. The executor removes the units of these
//!    changes, and commits all other units.
//! 2. If the kernel names no change, the executor commits halves of the transaction, until it has
//!    isolated the unit at fault.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use nftables_netlink::{Change, Transaction};

use crate::changes::Grouping;
use crate::edits::Edits;
use crate::kernel::{Blame, Kernel, Refusal};
use crate::name::TABLE;
use crate::plan::{Outcomes, Plan, PlanUnit, Removal, StaleObject, Timeouts, UnitOutcome};

/// Largest number of transactions that a plan may use to isolate its refused units.
const MAX_TRANSACTIONS: usize = 64;

impl Plan {
    /// Commits the plan's changes and opens or closes its NodePorts on localhost. Returns the
    /// outcome of each unit.
    pub(crate) fn apply(&self, kernel: &mut dyn Kernel) -> Outcomes {
        let edits = self.edits(kernel);
        let mut executor = Executor {
            plan: self,
            edits,
            kernel,
            left: MAX_TRANSACTIONS,
            outcomes: Outcomes::done(self),
        };
        let partial = executor.edits.iter();
        let partial = partial.filter_map(|(chain, of)| Some((Arc::clone(chain), of.partial?)));
        executor.outcomes.partial = partial.collect();
        if self.writes_table() {
            if self.switches_on_first() {
                executor.switch_on();
            }
            executor.all();
            executor.try_timeouts();
        }
        executor.listen();
        executor.outcomes
    }
}

/// Executor of one plan, with the outcomes so far.
struct Executor<'a> {
    plan: &'a Plan,
    edits: Edits,
    kernel: &'a mut dyn Kernel,
    /// Number of transactions that the plan may still use.
    left: usize,
    outcomes: Outcomes,
}

/// Result of one transaction.
enum CommitResult {
    Done,
    /// The kernel refused the transaction. The map contains the units at fault. The map is empty if
    /// the kernel named no change.
    Refused(BTreeMap<PlanUnit, Blame>, Arc<str>),
    /// The transaction failed for a reason that would also make every further transaction fail.
    Over,
}

/// Returns true for an error number with which the kernel's validation of the table fails. The
/// kernel reports this error for the first invalid change and for each change after it.
fn is_of_validation(blame: &Blame) -> bool {
    let errno = blame.errno;
    matches!(
        errno,
        libc::EOPNOTSUPP | libc::EINVAL | libc::ELOOP | libc::EMLINK
    )
}

/// Keeps only the first of several validation errors. Returns true if there were several.
///
/// The kernel validates the whole table at each change. If a change makes the table invalid, the
/// kernel also refuses each further change. Only the first change is certainly at fault.
///
/// Source: Linux, `net/netfilter/nf_tables_api.c` (`NFT_VALIDATE_DO`).
fn believe_first_of_cascade(blamed: &mut BTreeMap<PlanUnit, Blame>) -> bool {
    let of_validation = blamed.values().filter(|blame| is_of_validation(blame));
    let changes = of_validation.map(|blame| blame.change);
    let (count, first) = changes.fold((0_usize, usize::MAX), |(count, first), change| {
        (count + 1, first.min(change))
    });
    if count > 1 {
        blamed.retain(|_, blame| !is_of_validation(blame) || blame.change == first);
    }
    count > 1
}

impl Executor<'_> {
    fn listen(&mut self) {
        let listeners = self.plan.listeners.iter();
        let listen = |port| self.kernel.listen(port).map_err(Arc::from);
        self.outcomes.listeners = listeners.map(listen).collect();
    }

    /// Activates the dormant table in a separate transaction. Ignores a refusal, because the kernel
    /// then also refuses the next transaction, whose error states the reason.
    fn switch_on(&mut self) {
        let transaction = Transaction {
            family: self.plan.family.into(),
            table: TABLE.into(),
            changes: vec![Change::AddTable(self.plan.base.table())],
        };
        if self.kernel.commit(&transaction).is_ok() {
            self.outcomes.taken += 1;
            self.outcomes.changes += 1;
        }
    }

    fn all(&mut self) {
        let is_stale = |unit: &PlanUnit| matches!(unit, PlanUnit::Stale(_));
        let all: Vec<PlanUnit> = self.plan.units().collect();
        let (mut stale, wanted): (Vec<PlanUnit>, Vec<PlanUnit>) =
            all.iter().partition(|of| is_stale(of));
        if !self.outcomes.partial.is_empty() {
            // Keeps stale objects for now: rules that a later plan deletes may still use them.
            self.set_all(&stale, &UnitOutcome::Later);
            stale.clear();
        }
        let all: Vec<PlanUnit> = wanted.iter().chain(&stale).copied().collect();
        if self.plan.removal == Removal::Together || wanted.is_empty() {
            let CommitResult::Refused(blamed, _) = self.commit(&all, Grouping::ByMap) else {
                return;
            };
            let is_in_use =
                |(unit, blame): (&PlanUnit, &Blame)| is_stale(unit) && blame.errno == libc::EBUSY;
            if blamed.is_empty() || wanted.is_empty() || !blamed.iter().all(is_in_use) {
                return self.isolate([wanted, stale]);
            }
            // An old kernel keeps an object in use until the end of the transaction that deletes
            // the object's users. On such a kernel, a later transaction deletes the stale objects.
            self.outcomes.removal = Removal::After;
        }
        match self.commit(&wanted, Grouping::ByMap) {
            CommitResult::Done => self.isolate([stale]),
            CommitResult::Refused(..) => self.isolate([wanted, stale]),
            CommitResult::Over => self.set_all(&stale, &UnitOutcome::Untried),
        }
    }

    /// Tests once, after a successful write, whether this kernel can change the timeout of an
    /// existing set.
    fn try_timeouts(&mut self) {
        if self.outcomes.timeouts != Timeouts::Unknown || self.outcomes.taken == 0 {
            return;
        }
        // Ignores sets of refused Service ports: their timeouts are unchanged, which shows nothing
        // about the kernel.
        if let Some((name, wanted)) = self.plan.changed_timeout(&self.outcomes.parts)
            && let Ok(Some(seconds)) = self.kernel.timeout(name)
        {
            self.outcomes.timeouts = if seconds == wanted {
                Timeouts::Changed
            } else {
                Timeouts::Kept
            };
        }
    }

    /// Commits `groups` of units in order, and isolates the refused units of each group. Wanted
    /// units must come before stale units.
    fn isolate<const N: usize>(&mut self, groups: [Vec<PlanUnit>; N]) {
        let mut groups = VecDeque::from(groups);
        let mut has_cascaded = false;
        while let Some(mut group) = groups.pop_front() {
            self.keep_guards(&mut group);
            if group.is_empty() {
                continue;
            }
            if self.left == 0 || self.outcomes.general.is_some() {
                self.set_all(&group, &UnitOutcome::Untried);
                continue;
            }
            let CommitResult::Refused(mut blamed, reason) = self.commit(&group, Grouping::ByUnit)
            else {
                continue;
            };
            let is_cascade = believe_first_of_cascade(&mut blamed);
            if let Some(blame) = blamed.get(&PlanUnit::Base) {
                // Commits no other unit, because the kernel would refuse all units without the
                // base.
                self.set_all(&group, &UnitOutcome::Untried);
                self.set(
                    PlanUnit::Base,
                    UnitOutcome::Refused(blame.reason.as_str().into()),
                );
            } else if !blamed.is_empty() {
                for (unit, blame) in &blamed {
                    self.set(*unit, UnitOutcome::Refused(blame.reason.as_str().into()));
                }
                group.retain(|unit| !blamed.contains_key(unit));
                if is_cascade && has_cascaded && group.len() > 1 {
                    // Several units are at fault, but each transaction shows only the first of
                    // them. Transactions with half of the units write the valid units sooner.
                    let other = group.split_off(group.len().div_ceil(2));
                    groups.push_front(other);
                }
                has_cascaded |= is_cascade;
                groups.push_front(group);
            } else if let [alone] = group[..] {
                self.set(alone, UnitOutcome::Refused(reason));
            } else {
                // Splits the group in halves. The base is the first unit, so after repeated splits,
                // a group contains only the base.
                let other = group.split_off(group.len().div_ceil(2));
                groups.push_front(other);
                groups.push_front(group);
            }
        }
    }

    /// Removes stale objects from `group` that may still protect Services, such as chains of
    /// another layout, until all wanted units are written.
    fn keep_guards(&mut self, group: &mut Vec<PlanUnit>) {
        if self.outcomes.has_all_wanted() {
            return;
        }
        let stale = &self.plan.stale;
        let is_guard = |unit: &mut PlanUnit| match *unit {
            PlanUnit::Stale(at) => matches!(stale.get(at), Some(StaleObject::Base(_))),
            PlanUnit::ServicesChain => true,
            PlanUnit::Base | PlanUnit::Part(_) => false,
        };
        let guards: Vec<PlanUnit> = group.extract_if(.., is_guard).collect();
        self.set_all(&guards, &UnitOutcome::Untried);
    }

    fn set_all(&mut self, units: &[PlanUnit], outcome: &UnitOutcome) {
        for unit in units {
            self.set(*unit, outcome.clone());
        }
    }

    fn commit(&mut self, units: &[PlanUnit], grouping: Grouping) -> CommitResult {
        self.left = self.left.saturating_sub(1);
        let changes = self
            .plan
            .changes(units.iter().copied(), grouping, &self.edits);
        let (owners, changes): (Vec<PlanUnit>, Vec<Change>) = changes.into_iter().unzip();
        let transaction = Transaction {
            family: self.plan.family.into(),
            table: TABLE.into(),
            changes,
        };
        let outcomes = &mut self.outcomes;
        match self.kernel.commit(&transaction) {
            Ok(()) => {
                outcomes.taken += 1;
                outcomes.changes += transaction.changes.len();
                CommitResult::Done
            }
            Err(Refusal::General(reason)) => {
                outcomes.refused += 1;
                outcomes.general = Some(reason.into());
                self.set_all(units, &UnitOutcome::Untried);
                CommitResult::Over
            }
            Err(Refusal::Unknown(reason)) => {
                outcomes.refused += 1;
                outcomes.is_doubtful = true;
                outcomes.general = Some(reason.into());
                self.set_all(units, &UnitOutcome::Unknown);
                CommitResult::Over
            }
            Err(Refusal::Refused { reason, changes }) => {
                outcomes.refused += 1;
                let is_of_state = |blame: &Blame| match blame.errno {
                    libc::ENOENT | libc::EEXIST => true,
                    // Linux 5.4 refuses to add a key with this error if the map has another value
                    // for the key.
                    libc::EBUSY => matches!(
                        transaction.changes.get(blame.change),
                        Some(Change::AddElements(..))
                    ),
                    _ => false,
                };
                outcomes.is_doubtful |= changes.iter().any(is_of_state);
                let mut blamed = BTreeMap::new();
                let exists = changes.iter().filter(|blame| blame.errno == libc::EEXIST);
                let mut exists = exists.map(|blame| transaction.changes.get(blame.change));
                let set = exists.find_map(|change| match change {
                    Some(Change::AddSet(set)) if set.timeout.is_some() => Some(&set.name),
                    _ => None,
                });
                // Checks that the set is a set of clients. EEXIST can also mean that the existing
                // set is of another kind, which shows nothing about timeouts.
                if let Some(set) = set
                    && let Ok(Some(_)) = self.kernel.timeout(set)
                {
                    outcomes.timeouts = Timeouts::Kept;
                }
                for blame in changes {
                    if let Some(unit) = owners.get(blame.change) {
                        blamed.entry(*unit).or_insert(blame);
                    }
                }
                CommitResult::Refused(blamed, reason.into())
            }
        }
    }

    fn set(&mut self, unit: PlanUnit, outcome: UnitOutcome) {
        let place = match unit {
            PlanUnit::Base => Some(&mut self.outcomes.base),
            PlanUnit::ServicesChain => Some(&mut self.outcomes.services_chain),
            PlanUnit::Part(at) => self.outcomes.parts.get_mut(at),
            PlanUnit::Stale(at) => self.outcomes.stale.get_mut(at),
        };
        if let Some(place) = place {
            *place = outcome;
        }
    }
}
