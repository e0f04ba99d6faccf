//! Changed Services and drift that the engine collects for later reports. Drift is a change that
//! another program made to the mode's entries.

use std::fmt::Display;
use std::hash::Hash;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashSet;
use proxy::{Drift, NamespacedName, Owner, Report};
use reconcile::Table;

/// Longest time for which the engine collects drift (changes by other programs) before it reports
/// them.
const TELL_DRIFT: Duration = Duration::from_secs(5);

/// Capacity above which the engine frees the set of awaited Services once the set is empty.
const MANY: usize = 1_000;

/// Changed Services and drift for the next reports.
#[derive(Debug, Default)]
pub struct ReportDraft {
    /// Services that have changed and are not settled yet.
    awaited: HashSet<NamespacedName>,
    /// Awaited Services that the next call of `settle` checks.
    fresh: Vec<NamespacedName>,
    /// Awaited Services whose entries another program has changed.
    disturbed: HashSet<NamespacedName>,
    /// Awaited Services with at least one write, successful or not, since their last change.
    written: HashSet<NamespacedName>,
    drift: Drift,
    /// Time at which the engine noticed the first change of the collected drift, or `None` if no
    /// drift is collected.
    drifting: Option<Instant>,
}

impl ReportDraft {
    /// Records that a Service has changed, so it may want different entries.
    pub fn changed(&mut self, service: &NamespacedName) {
        if self.awaited.insert(service.clone()) {
            self.fresh.push(service.clone());
        }
    }

    /// Records that the mode has written, or tried to write, entries of the Services in `services`.
    pub fn wrote(&mut self, services: impl IntoIterator<Item = NamespacedName>) {
        for service in services {
            // Skips a repeated Service, because successive Service ports often belong to the same
            // Service.
            if self.fresh.last() == Some(&service) && self.written.contains(&service) {
                continue;
            }
            if self.awaited.contains(&service) {
                self.written.insert(service.clone());
            }
            self.fresh.push(service);
        }
    }

    /// Records that another program has changed entries of the Services in `services`.
    pub fn disturb(&mut self, services: impl IntoIterator<Item = NamespacedName>) {
        for service in services {
            self.awaited.insert(service.clone());
            self.disturbed.insert(service);
        }
    }

    /// Makes the next check cover all awaited Services. A Service whose entries the kernel already
    /// has causes no write, so no write would trigger its check.
    pub fn review(&mut self) {
        self.fresh = self.awaited.iter().cloned().collect();
    }

    /// Reports whether any Service waits for the next call of `settle`.
    pub(crate) fn has_fresh(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// Records that another program has changed the entry `name`, an object of the kind `kind`.
    pub fn drifted(&mut self, now: Instant, kind: &'static str, name: impl FnOnce() -> String) {
        self.drift.add(kind, name);
        self.drifting.get_or_insert(now);
    }

    /// Records that another program has changed entries of a table. Marks the entries' Services as
    /// disturbed.
    pub fn drifted_of<K: Clone + Eq + Hash + Display, V: Clone + Eq>(
        &mut self,
        now: Instant,
        kind: &'static str,
        table: &Table<K, V, Arc<Owner>>,
        keys: Vec<K>,
    ) {
        for key in keys {
            self.drifted(now, kind, || key.to_string());
            let owner = table.owner(&key);
            self.disturb(owner.map(|owner| owner.name.service.clone()));
        }
    }

    /// Calls `note` to add changes by other programs to the collected drift.
    pub fn note_drift(&mut self, now: Instant, note: impl FnOnce(&mut Drift)) {
        note(&mut self.drift);
        self.drifting.get_or_insert(now);
    }

    /// Checks each changed or written Service, and moves the settled ones to the report.
    pub(crate) fn settle(
        &mut self,
        report: &mut Report,
        is_settled: impl Fn(&NamespacedName) -> bool,
    ) {
        for service in mem::take(&mut self.fresh) {
            if self.awaited.contains(&service) && is_settled(&service) {
                self.awaited.remove(&service);
                if self.disturbed.remove(&service) {
                    report.repaired.push(service.clone());
                }
                if self.written.remove(&service) {
                    report.written_for.insert(service.clone());
                }
                report.settled.push(service);
            }
        }
        if self.awaited.is_empty() && self.awaited.capacity() > MANY {
            self.awaited = HashSet::new();
            self.disturbed = HashSet::new();
            self.written = HashSet::new();
        }
    }

    /// Removes and returns the collected drift once it is repaired, or once it is [`TELL_DRIFT`]
    /// old. Returns no drift before that.
    pub(crate) fn take_drift(&mut self, now: Instant, is_repaired: bool) -> Drift {
        let is_late = |since: &mut Instant| {
            is_repaired || now.saturating_duration_since(*since) >= TELL_DRIFT
        };
        if self.drifting.take_if(is_late).is_some() {
            mem::take(&mut self.drift)
        } else {
            Drift::default()
        }
    }
}
