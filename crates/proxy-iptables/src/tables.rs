//! Tables of this mode: the wanted, actual and pending rules.
//!
//! The wanted rules may change while the kernel executes a plan. So after a write, the tables
//! record the rules in the plan, not the rules that are wanted now.

use std::sync::Arc;
use std::time::Instant;

use proxy::{Failure, Owner, Report, ServicePortName};
use reconcile::{Removals, Table as Entries};

use crate::base::Base;
use crate::chain::{Chain, Shared};
use crate::plan::{Plan, PortWrites, WriteOutcome, WriteOutcomes};
use crate::port::{Content, Slot};
use crate::saved::Leftovers;

/// Record of the wanted and actual rules of one IP family, with one table for each kind of entry.
/// These tables are not tables of iptables.
#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) base: Entries<(), Arc<Base>, ()>,
    pub(crate) slots: Entries<Slot, Arc<str>, Arc<Owner>>,
    pub(crate) chains: Entries<Chain, Content, Arc<Owner>>,
    /// Shared chains that the mode must write as a whole. In the kernel, a rule of such a chain is
    /// at a wrong position, or has no address and port.
    pub(crate) disordered: Entries<Shared, (), ()>,
    /// Leftovers of other modes. These entries never delay a Service.
    pub(crate) leftovers: Entries<(), Leftovers, ()>,
}

impl Tables {
    reconcile::tables!([base, slots, chains, disordered, leftovers]);

    /// Creates the record without wanted and actual rules.
    pub(crate) fn new(now: Instant) -> Self {
        let mut tables = Self::default();
        tables.begin(now);
        tables.leftovers.count_removals(Removals::Excused);
        tables
    }

    /// Sets whether unwanted rules of Services count as overdue. Unwanted rules do not count while
    /// the mode must not remove them.
    pub(crate) fn count_removals(&mut self, removals: Removals) {
        self.slots.count_removals(removals);
        self.chains.count_removals(removals);
    }

    /// Reports whether the kernel has all base rules, and no disordered shared chain.
    pub(crate) fn has_base(&self) -> bool {
        self.base.pending_len() == 0 && self.disordered.pending_len() == 0
    }

    /// Reports whether the kernel has every rule that an owner claims.
    pub(crate) fn has_all_of(&self, owner: &Arc<Owner>) -> bool {
        let mut slots = self.slots.keys_of(owner).iter();
        let mut chains = self.chains.keys_of(owner).iter();
        slots.all(|slot| !self.slots.is_pending(slot))
            && chains.all(|chain| !self.chains.is_pending(chain))
    }

    /// Reports whether the kernel has all wanted rules and no unwanted ones, so that this mode
    /// serves all Services.
    pub(crate) fn serve_all(&self) -> bool {
        self.has_base() && self.slots.pending_len() == 0 && self.chains.pending_len() == 0
    }

    /// Records that no part of a plan was written. The mode retries all parts with back-off.
    pub(crate) fn fail_all(&mut self, plan: &Plan, now: Instant) {
        self.fail_base(plan, now);
        for part in &plan.parts {
            self.fail_part(part, now);
        }
        for chain in &plan.stale {
            self.chains.fail(chain, now);
        }
        if !plan.leftovers.is_empty() {
            self.leftovers.fail(&(), now);
        }
    }

    /// Records the outcome of each part of a plan, and adds failures to the report.
    pub(crate) fn settle(
        &mut self,
        plan: &Plan,
        outcomes: &WriteOutcomes,
        now: Instant,
        report: &mut Report,
    ) {
        if plan.has_base() {
            match &outcomes.base {
                WriteOutcome::Done => {
                    if let Some(wanted) = &plan.wanted {
                        self.base.set_actual(&(), Some(Arc::clone(wanted)));
                    }
                    for whole in &plan.whole {
                        self.disordered.set_actual(&whole.chain, None);
                    }
                }
                outcome => {
                    let what = "write the iptables rules that all Services need";
                    report.failures.extend(failure(what, None, outcome));
                    self.fail_base(plan, now);
                }
            }
        }
        for (part, outcome) in plan.parts.iter().zip(&outcomes.parts) {
            match outcome {
                WriteOutcome::Done => {
                    for (chain, content) in &part.chains {
                        self.chains.set_actual(chain, Some(*content));
                    }
                    for change in &part.slots {
                        let slot = &change.slot;
                        self.slots.set_actual(slot, change.after.clone());
                        if change.after.is_none() && slot.chain.table() == iptables::Table::Nat {
                            report.withdraw(slot.address, slot.protocol, slot.port);
                        }
                    }
                }
                // The cause is this change alone, because the kernel accepted other restores.
                // Reports the change, and excuses its entries from health.
                WriteOutcome::Refused(_) => {
                    let owner = part.owner.as_ref().map(|owner| owner.name.clone());
                    let failure = failure("write iptables rules", owner, outcome);
                    report.failures.extend(failure);
                    self.excuse_part(part, now);
                }
                WriteOutcome::Untried => self.fail_part(part, now),
            }
        }
        for (chain, outcome) in plan.stale.iter().zip(&outcomes.stale) {
            if *outcome == WriteOutcome::Done {
                self.chains.set_actual(chain, None);
                continue;
            }
            let what = format!("remove iptables chain {chain}");
            report.failures.extend(failure(&what, None, outcome));
            if matches!(outcome, WriteOutcome::Refused(_)) {
                // The kernel refuses to delete the chain, because another program's rule jumps to
                // it. No Service depends on the deletion.
                self.chains.excuse(chain, now);
            } else {
                self.chains.fail(chain, now);
            }
        }
        if !plan.leftovers.is_empty() {
            if outcomes.leftovers == WriteOutcome::Done {
                self.leftovers.set_actual(&(), None);
            } else {
                let what = "remove the iptables rules that IPVS mode has left";
                let failure = failure(what, None, &outcomes.leftovers);
                report.failures.extend(failure);
                self.leftovers.fail(&(), now);
            }
        }
    }

    fn fail_base(&mut self, plan: &Plan, now: Instant) {
        if plan.wanted.is_some() {
            self.base.fail(&(), now);
        }
        for whole in &plan.whole {
            self.disordered.fail(&whole.chain, now);
        }
    }

    fn fail_part(&mut self, part: &PortWrites, now: Instant) {
        for chain in part.chains.keys() {
            self.chains.fail(chain, now);
        }
        for change in &part.slots {
            self.slots.fail(&change.slot, now);
        }
    }

    fn excuse_part(&mut self, part: &PortWrites, now: Instant) {
        for chain in part.chains.keys() {
            self.chains.excuse(chain, now);
        }
        for change in &part.slots {
            self.slots.excuse(&change.slot, now);
        }
    }
}

/// Returns the failure to report for a refusal, or `None` for any other outcome.
fn failure(
    object: &str,
    owner: Option<ServicePortName>,
    outcome: &WriteOutcome,
) -> Option<Failure> {
    let WriteOutcome::Refused(reason) = outcome else {
        return None;
    };
    Some(Failure {
        object: object.to_owned(),
        owner,
        reason: reason.to_string(),
    })
}
