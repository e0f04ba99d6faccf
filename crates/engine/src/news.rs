//! What is to be told of Services, and of what somebody else has changed.

use std::fmt::Display;
use std::hash::Hash;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashSet;
use proxy::{Drift, NamespacedName, Owner, Report};
use reconcile::Table;

/// How long what somebody else has changed is gathered, if it takes long to be repaired, until it
/// is told.
const TELL_DRIFT: Duration = Duration::from_secs(5);

/// So many Services that are awaited are many: room for them is given back.
const MANY: usize = 1_000;

/// What is to be told with the next report.
#[derive(Debug, Default)]
pub struct News {
    /// Services that changed, and are not settled yet.
    awaited: HashSet<NamespacedName>,
    /// Those of them that have to be looked at.
    fresh: Vec<NamespacedName>,
    /// Those of them of which somebody else had changed something.
    disturbed: HashSet<NamespacedName>,
    /// Those of them of which something was written, or tried, since they changed.
    written: HashSet<NamespacedName>,
    drift: Drift,
    /// Since when there is any.
    drifting: Option<Instant>,
}

impl News {
    /// A Service wants something else, perhaps.
    pub fn changed(&mut self, service: &NamespacedName) {
        if self.awaited.insert(service.clone()) {
            self.fresh.push(service.clone());
        }
    }

    /// Something of these Services was written, or tried.
    pub fn wrote(&mut self, services: impl IntoIterator<Item = NamespacedName>) {
        for service in services {
            // A Service with many ports is named by each of them, one after the other.
            if self.fresh.last() == Some(&service) && self.written.contains(&service) {
                continue;
            }
            if self.awaited.contains(&service) {
                self.written.insert(service.clone());
            }
            self.fresh.push(service);
        }
    }

    /// Somebody else has changed something of these Services.
    pub fn disturb(&mut self, services: impl IntoIterator<Item = NamespacedName>) {
        for service in services {
            self.awaited.insert(service.clone());
            self.disturbed.insert(service);
        }
    }

    /// What Services wait for may be there without having been written for them.
    pub fn review(&mut self) {
        self.fresh = self.awaited.iter().cloned().collect();
    }

    /// Whether there are Services to be looked at.
    pub(crate) fn has_fresh(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// Somebody else has changed an entry of this kind.
    pub fn drifted(&mut self, now: Instant, kind: &'static str, name: impl FnOnce() -> String) {
        self.drift.add(kind, name);
        self.drifting.get_or_insert(now);
    }

    /// Notes entries of a table that somebody else has changed, with the Services that they belong to.
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

    /// The same for as many entries as `note` tells.
    pub fn note_drift(&mut self, now: Instant, note: impl FnOnce(&mut Drift)) {
        note(&mut self.drift);
        self.drifting.get_or_insert(now);
    }

    /// Looks which of the Services that changed, or wrote something, are settled by now.
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

    /// What has drifted, once it is repaired, or takes long.
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
