//! Computes the next plan of each lane (worker thread) from the tables. Pure: no clock, no I/O.
//!
//! Three lanes write to the kernel in parallel. An entry that needs another lane's entry waits,
//! while its own lane continues with other entries:
//!
//! ```text
//!   services    1. sets ─▶ members ─▶ virtual servers ─▶ destinations
//!               2. destinations ─▶ virtual servers (once their addresses are removed)
//!               3. members (once their virtual servers are removed)
//!   addresses   link ─▶ addresses (once their virtual servers exist) ─▶ removals
//!   rules       the shim (once its sets exist) ─▶ leftovers of other modes
//! ```
//!
//! - The lane `services` takes turns: additions and changes (1), removals (2), and removals of
//!   ownership evidence (3).
//! - A virtual server that already serves does not wait for rules, unless its Service gets an
//!   fwmark virtual server (`--ipvs-semantics=exact`).
//! - A new virtual server waits for the rules that match its packets. Without them, endpoints on
//!   other nodes would reply directly to outside clients, which drop such replies, and source
//!   ranges would not apply.
//! - Virtual servers at cluster IPs mostly need no rules, so they wait only briefly, at the start
//!   ([`Cover`]).
//! - iptables mode's rules match packets before IPVS does, and the shim replaces them. So the
//!   planner writes the shim only after all entries that serve packets.
//! - After a change of `--ipvs-shim` to nftables, the old rules stay until the new sets are filled.
//!   The old rules do not match new virtual servers, which therefore wait for the new rules.
//! - Rules that match a set for the first time wait while the set has obsolete members: members
//!   that drop packets, and marks that the next plan replaces.

mod addresses;
mod budget;
mod make;
mod order;
mod remove;
mod rules;
mod situation;

use std::time::Duration;

use crate::plan::{Op, Plan};
use crate::server::VirtualServerKey;
use crate::tables::Tables;
pub(crate) use addresses::addresses;
pub(crate) use budget::Budget;
use make::make;
use remove::{forget, remove};
pub(crate) use rules::rules;
pub(crate) use situation::Situation;

/// Kind of a plan for virtual servers and sets. The three kinds take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Plan that adds and changes virtual servers, destinations and set members.
    Make,
    /// Plan that removes virtual servers and destinations.
    Break,
    /// Plan that removes set members that proved ownership of removed virtual servers, and then the
    /// sets that only the other value of `--ipvs-semantics` uses.
    Forget,
}

impl Turn {
    /// Returns the kinds of plans in the order in which the planner tries them after `last`, so
    /// that each kind gets its share of the writes.
    pub(crate) fn after(last: Option<Self>) -> [Self; 3] {
        match last {
            None | Some(Self::Forget) => [Self::Make, Self::Break, Self::Forget],
            Some(Self::Make) => [Self::Break, Self::Forget, Self::Make],
            Some(Self::Break) => [Self::Forget, Self::Make, Self::Break],
        }
    }
}

/// State that the planner of virtual servers and sets keeps between two plans.
#[derive(Debug)]
pub(crate) struct Turns {
    /// Budget of each kind of plan, in writes. Removals have their own, because the kernel removes
    /// a destination more slowly than it adds one.
    budgets: [Budget; 3],
    /// Kind of the last plan, or `None` if nothing was left to write.
    last: Option<Turn>,
    /// Virtual server with which the last plan of additions used up its budget, or `None` if it did
    /// not. The next plan of additions begins after it.
    last_server: Option<VirtualServerKey>,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            budgets: [Budget::FIRST; 3],
            last: None,
            last_server: None,
        }
    }
}

/// Room that a plan leaves for a query to the kernel in the same step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlanRoom {
    Some,
    None,
}

impl Turns {
    /// Returns the next plan for virtual servers, destinations and sets. It leaves room for a query
    /// if it adds or changes entries within its budget.
    pub(crate) fn services(
        &mut self,
        tables: &Tables,
        of: &Situation<'_>,
    ) -> Option<(Plan, PlanRoom)> {
        for turn in Turn::after(self.last.take()) {
            let budget = *self.budget(turn);
            let plan = match turn {
                Turn::Make => make(tables, budget, self.last_server, of),
                Turn::Break if of.claims.may_delete => remove(tables, budget, of),
                Turn::Forget if of.claims.may_delete => forget(tables, budget, of),
                Turn::Break | Turn::Forget => Plan::default(),
            };
            if plan.ops.is_empty() {
                continue;
            }
            let is_long = budget.is_used_up(plan.ops.len());
            self.last = Some(turn);
            if turn == Turn::Make {
                let last = plan.ops.last().filter(|_| is_long);
                self.last_server = last.and_then(Op::server).copied();
            }
            let room = if turn == Turn::Make && !is_long {
                PlanRoom::Some
            } else {
                PlanRoom::None
            };
            return Some((plan, room));
        }
        None
    }

    fn budget(&mut self, turn: Turn) -> &mut Budget {
        let [make, remove, forget] = &mut self.budgets;
        match turn {
            Turn::Make => make,
            Turn::Break => remove,
            Turn::Forget => forget,
        }
    }

    /// Adjusts the budget of the last plan's kind to the time that its writes took.
    pub(crate) fn took(&mut self, ops: usize, took: Duration, tables: &Tables) {
        if let Some(turn) = self.last {
            *self.budget(turn) = Budget::after(ops, took, tables.servers.pending_len());
        }
    }
}
