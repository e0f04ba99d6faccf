//! Drift check: compares the kernel with the tables, while the proxier continues to handle events.
//!
//! With 10,000 virtual servers, the kernel's dump takes a large part of a second, and the
//! comparison many milliseconds. Events wait for neither:
//!
//! ```text
//!   check ─▶ dump by the read-only lane ─▶ comparison in steps ─▶ recorded differences ─▶ repair
//! ```
//!
//! Writes continue during the dump, so the dump may lack entries that they add. The comparison
//! treats an entry that a plan writes in one of three ways:
//!
//! - **Written since the dump began**: the comparison skips the entry until the next check.
//! - **Refused**: the comparison includes the entry, because the refused write changed nothing.
//!   Otherwise constant retries would hide drift.
//! - **Still being written**: the comparison skips the entry. If the kernel then refuses the write,
//!   another check follows.
//!
//! For the link, the node's addresses and the sizes of sets, the check only finds out whether
//! anything differs. If so, the lane that writes this part reads it again.

mod compare;
mod tell;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use hashbrown::HashSet;
use proxy::Unreadable;

use crate::exchange::Dump;
use crate::kernel::Glance;
use crate::kinds::State;
use crate::part::Part;
use crate::plan::{Op, Outcome, Plan};
use crate::server::VirtualServerKey;
use crate::tables::Tables;
use compare::{Comparison, WrittenEntries};
pub(crate) use tell::{tell_address, tell_member, tell_server};

/// State of the drift check, and of glances, the cheap checks between two drift checks.
#[derive(Default)]
pub(crate) struct Drifts {
    check: Option<RunningCheck>,
    /// True if a check is requested. It starts once the running check ends.
    is_asked: bool,
    /// Virtual servers that differed from the tables while a plan was writing them. The next check
    /// compares them again.
    passed_over: HashSet<VirtualServerKey>,
    glances: Glances,
}

/// State of a running drift check.
enum RunningCheck {
    /// A worker thread is dumping the kernel. The value holds the entries that plans have written
    /// since the dump began.
    Reading(WrittenEntries),
    /// The dump is complete, and its comparison with the tables is running.
    Comparison(Box<Comparison>),
}

/// State of the glances. A glance is a cheap query that detects the removal of all virtual servers,
/// because the kernel sends no notification about `ipvsadm -C`.
#[derive(Default)]
struct Glances {
    period: Option<Duration>,
    next: Option<Instant>,
    /// Expected number of virtual servers in the kernel. `None` if it is unknown, or if the kernel
    /// does not report the number.
    count: Option<u32>,
}

impl Drifts {
    /// Creates the state before the first check. `glance_period` is the interval between glances;
    /// `None` disables them.
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

    /// Requests a drift check. If a check is running, the requested one follows.
    pub(crate) fn ask(&mut self) {
        self.is_asked = true;
    }

    /// Begins the requested check, unless one is running. Returns true if the caller must dump the
    /// kernel.
    pub(crate) fn begin(&mut self) -> bool {
        if !self.is_asked || self.check.is_some() {
            return false;
        }
        self.is_asked = false;
        self.check = Some(RunningCheck::Reading(WrittenEntries::default()));
        true
    }

    /// Abandons the running check, because the tables have changed, and requests another.
    pub(crate) fn abort(&mut self) {
        self.is_asked |= self.check.take().is_some();
    }

    /// Records the entries that a plan may have written since the dump began.
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

    /// Excludes an address from the running check, because the kernel sent a notification about it.
    pub(crate) fn note_address(&mut self, address: IpAddr) {
        if let Some(check) = &mut self.check {
            check.touched().note_address(address);
        }
    }

    /// Takes the complete dump, and begins to compare it with the tables.
    pub(crate) fn take_dump(&mut self, dump: Dump, tables: &Tables, state: &mut State) {
        let Dump {
            servers,
            sets,
            addresses,
        } = dump;
        let servers = known(state, Part::Servers, servers);
        let sets = known(state, Part::Sets, sets);
        let addresses = known(state, Part::Addresses, addresses);
        if let Some(RunningCheck::Reading(mut touched)) = self.check.take() {
            let in_flight = WrittenEntries::in_flight(state);
            touched.link |= in_flight.link;
            touched.sets |= in_flight.sets;
            let comparing = Comparison::new(servers, sets, addresses, touched, tables, state);
            self.check = Some(RunningCheck::Comparison(Box::new(comparing)));
        }
    }

    /// Compares the next entries of the dump: reports drift, and copies the kernel's state to the
    /// tables. Returns the virtual servers that differ from the tables.
    pub(crate) fn compare(
        &mut self,
        tables: &mut Tables,
        state: &mut State,
    ) -> Vec<VirtualServerKey> {
        let is_read = |check: &mut RunningCheck| matches!(check, RunningCheck::Comparison(_));
        let Some(RunningCheck::Comparison(mut comparing)) = self.check.take_if(is_read) else {
            return Vec::new();
        };
        let found = comparing.piece(tables, &WrittenEntries::in_flight(state));
        self.passed_over.extend(found.passed_over);
        if found.has_lost_servers {
            // The kernel dumps virtual servers by position, so it skips one if another is removed
            // during the dump. A missing virtual server may still exist. So a worker thread reads
            // all of them again when no write is in progress.
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
            self.check = Some(RunningCheck::Comparison(comparing));
        }
        changed
    }

    // ---- glances ----

    /// Stores the number of virtual servers in the kernel, including other programs', for
    /// comparison with the next glance.
    pub(crate) fn count(&mut self, found: usize) {
        self.glances.count = u32::try_from(found).ok();
    }

    /// Adjusts the expected number of virtual servers by those that a plan has added and removed.
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

    /// Returns the virtual server that a glance queries, if a glance is due.
    pub(crate) fn glance_due(&mut self, tables: &Tables, now: Instant) -> Option<VirtualServerKey> {
        let glances = &mut self.glances;
        if glances.next.is_none_or(|at| at > now) {
            return None;
        }
        glances.next = glances.period.map(|period| now + period);
        tables.servers.iter_actual().next().map(|(one, _)| *one)
    }

    /// Handles the kernel's response to a glance. If virtual servers have appeared or disappeared,
    /// requests a drift check.
    pub(crate) fn take_glance(&mut self, glance: &Result<Glance, Unreadable>) {
        let is_as_believed = match glance {
            Ok(Glance::Count(count)) => {
                let before = self.glances.count.replace(*count);
                before.is_none_or(|before| before == *count)
            }
            Ok(Glance::IsThere(is_there)) => *is_there,
            // An error is no sign of drift. The next check reports it.
            Err(_) => true,
        };
        if !is_as_believed {
            self.ask();
        }
    }

    /// Returns the time of the next comparison step or of the next glance.
    pub(crate) fn next_due(&self, tables: &Tables, now: Instant) -> Option<Instant> {
        if matches!(self.check, Some(RunningCheck::Comparison(_))) {
            return Some(now);
        }
        let has_servers = tables.servers.iter_actual().next().is_some();
        // A glance that is already due needs no timer: it waits for a worker thread, which wakes
        // the daemon's loop when it is free.
        self.glances.next.filter(|at| has_servers && *at > now)
    }
}

impl RunningCheck {
    fn touched(&mut self) -> &mut WrittenEntries {
        match self {
            Self::Reading(touched) => touched,
            Self::Comparison(comparing) => &mut comparing.touched,
        }
    }
}

/// Returns one part of the dump. Returns `None` if this part was unreadable, or if the tables do
/// not know the part yet. Records in `state` whether the part was readable.
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
