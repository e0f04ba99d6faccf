//! Health of the proxy: each IP family's progress in writing the known objects to the kernel.
//!
//! The daemon's loop records the progress, and the HTTP servers read it. Callers pass the current
//! time.

pub(crate) mod health_check;
pub(crate) mod healthz;
pub(crate) mod pulse;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use proxy::{IpFamily, Standing};

use crate::health::pulse::Pulse;

/// Number of sync periods without progress after which an IP family is unhealthy, as in upstream.
const PATIENCE_IN_SYNC_PERIODS: u32 = 2;

/// Longest time that a started family waits for its mode's other work, such as the removal of an
/// earlier process's entries, before it counts as served. Without this limit, a family with
/// constant changes might never count as served.
const ENDING_PATIENCE: Duration = Duration::from_secs(10);

/// Health of the proxy: the progress of each IP family, and the pulse of the daemon's loop.
#[derive(Debug, Default)]
pub struct Health {
    patience: Mutex<Duration>,
    families: Mutex<BTreeMap<IpFamily, Progress>>,
    /// Pulse of the daemon's loop, which records the progress. A node is healthy only while the
    /// loop is alive.
    pulse: Pulse,
}

/// Progress of one IP family in writing its entries to the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Start of the current period without success: entries are pending, and the kernel accepts
    /// none of them. `None` if no entry is pending, or if the kernel has just accepted an entry.
    pub stuck_since: Option<Instant>,
    /// Time up to which the kernel has all changes that arrived. `None` until the kernel has the
    /// first full set of objects.
    pub updated: Option<Instant>,
    /// Number of entries that differ between the kernel and the desired state.
    pub pending: usize,
    /// Number of pending entries that the kernel refused.
    pub failing: usize,
}

impl Health {
    /// Creates the health state before any IP family has started.
    pub fn new(sync_period: Duration) -> Self {
        let health = Self::default();
        health.set_sync_period(sync_period);
        health
    }

    /// Changes the sync period. An IP family is unhealthy after two sync periods without progress.
    pub fn set_sync_period(&self, sync_period: Duration) {
        *self.patience() = sync_period.saturating_mul(PATIENCE_IN_SYNC_PERIODS);
    }

    /// Records an IP family's progress. `started` is the time at which the family received the
    /// first full set of objects, or `None` before that time.
    ///
    /// Returns true once the kernel has contained this full set. One refused object does not make
    /// the node unhealthy.
    pub fn note(
        &self,
        family: IpFamily,
        standing: &Standing,
        started: Option<Instant>,
        now: Instant,
    ) -> bool {
        let mut families = self.lock();
        let progress = families.entry(family).or_default();
        progress.stuck_since = standing.stuck_since;
        (progress.pending, progress.failing) = (standing.pending, standing.failing);
        let has_ended = |started: &Instant| {
            let since = now.saturating_duration_since(*started);
            progress.updated.is_some() || standing.is_settled || since >= ENDING_PATIENCE
        };
        let done_before =
            started
                .filter(has_ended)
                .and_then(|started| match standing.pending_since {
                    None => Some(now),
                    Some(since) => (since > started).then_some(since),
                });
        progress.updated = progress.updated.max(done_before);
        progress.updated.is_some()
    }

    /// Returns the progress of each IP family that has started.
    pub fn progress(&self) -> BTreeMap<IpFamily, Progress> {
        self.lock().clone()
    }

    /// Reports whether an IP family with this progress is healthy: not stuck for two sync periods.
    pub fn keeps_up(&self, progress: &Progress, now: Instant) -> bool {
        let patience = *self.patience();
        progress
            .stuck_since
            .is_none_or(|since| now.saturating_duration_since(since) < patience)
    }

    /// Reports whether every IP family is healthy and the daemon's loop is alive.
    pub fn is_healthy(&self, now: Instant) -> bool {
        let families = self.progress();
        let mut families = families.values();
        families.all(|progress| self.keeps_up(progress, now)) && self.hung_for(now).is_none()
    }

    /// Returns the time for which the daemon's loop has hung, or `None` if the loop is alive.
    pub fn hung_for(&self, now: Instant) -> Option<Duration> {
        self.pulse.hung_for(now)
    }

    pub(crate) fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    fn patience(&self) -> MutexGuard<'_, Duration> {
        self.patience.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpFamily, Progress>> {
        // A poisoned lock is harmless, because no code panics while it holds the lock.
        self.families.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: IpFamily = IpFamily::V4;

    fn standing(pending: Option<Instant>, stuck: Option<Instant>) -> Standing {
        Standing {
            pending_since: pending,
            stuck_since: stuck,
            is_settled: true,
            ..Standing::default()
        }
    }

    #[test]
    fn an_ip_family_that_is_stuck_for_two_sync_periods_is_unhealthy() {
        let health = Health::new(Duration::from_secs(30));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        // Ends the pulse, because this test runs no loop that could reply.
        health.pulse().end();
        assert!(health.is_healthy(start), "while starting up");
        let note = |pending, stuck, now| {
            let standing = standing(Some(at(pending)), stuck);
            health.note(V4, &standing, Some(at(0)), at(now));
        };
        note(0, Some(at(0)), 0);
        health.note(IpFamily::V6, &standing(None, None), Some(at(0)), at(1));
        note(0, Some(at(0)), 50);
        assert!(health.is_healthy(at(59)));
        assert!(!health.is_healthy(at(60)));
        // The kernel has now accepted some of the pending entries.
        note(0, Some(at(58)), 60);
        assert!(health.is_healthy(at(100)));
        assert!(!health.is_healthy(at(118)));
        health.note(V4, &standing(None, None), Some(at(0)), at(119));
        assert!(health.is_healthy(at(1000)), "nothing waits");
    }

    #[test]
    fn the_updated_time_precedes_pending_changes_and_never_decreases() {
        let health = Health::new(Duration::from_secs(30));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let updated = |pending: Option<u64>, started: Option<u64>, now| {
            let standing = standing(pending.map(at), None);
            health.note(V4, &standing, started.map(at), at(now));
            health.progress()[&V4].updated
        };
        assert_eq!(updated(None, None, 1), None, "nothing was told");
        assert_eq!(updated(Some(2), Some(2), 3), None, "of what was told first");
        assert_eq!(updated(Some(4), Some(2), 5), Some(at(4)));
        assert_eq!(updated(Some(4), Some(2), 6), Some(at(4)));
        assert_eq!(updated(None, Some(2), 7), Some(at(7)));
        // A check finds an entry that has been missing since second 6. The updated time stays at 7.
        assert_eq!(updated(Some(6), Some(2), 8), Some(at(7)));
    }

    #[test]
    fn a_family_counts_as_served_after_a_limited_wait_for_other_work() {
        let start = Instant::now();
        let is_served = |health: &Health, later: Duration, is_settled| {
            let standing = Standing {
                is_settled,
                ..Standing::default()
            };
            health.note(V4, &standing, Some(start), start + later)
        };
        let health = Health::new(Duration::from_secs(30));
        assert!(!is_served(&health, Duration::from_secs(1), false));
        assert!(is_served(&health, Duration::from_secs(1), true));
        assert!(is_served(&health, Duration::from_secs(1), false), "it was");
        let health = Health::new(Duration::from_secs(30));
        assert!(is_served(&health, ENDING_PATIENCE, false));
    }
}
