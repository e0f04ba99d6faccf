//! Whether the proxy keeps up: how far each family has come in bringing what was told into the
//! kernel.
//!
//! The loop writes it, the servers that tell others read it. Time is passed in.

pub(crate) mod health_check;
pub(crate) mod healthz;
pub(crate) mod pulse;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use proxy::{IpFamily, Standing};

use crate::health::pulse::Pulse;

/// For how many sync periods nothing that is pending may get into the kernel, as upstream.
const PATIENCE_IN_SYNC_PERIODS: u32 = 2;

/// How long after its start a family that has all in the kernel may still have something to end
/// there, such as what an earlier run has left, before it counts as served. Where changes come
/// without end, something always goes on.
const ENDING_PATIENCE: Duration = Duration::from_secs(10);

/// The health of all families.
#[derive(Debug, Default)]
pub struct Health {
    patience: Mutex<Duration>,
    families: Mutex<BTreeMap<IpFamily, Progress>>,
    /// The loop's, which writes this: what it wrote last counts only while it comes round.
    pulse: Pulse,
}

/// How far one family has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Since when something is pending of which nothing can be written; `None`: there is progress,
    /// or nothing to do.
    pub stuck_since: Option<Instant>,
    /// All that was asked before this is in the kernel; `None`: what was known at the start is not
    /// yet.
    pub updated: Option<Instant>,
    /// Entries that are not in the kernel as they are to be.
    pub pending: usize,
    /// How many of these it refused.
    pub failing: usize,
}

impl Health {
    /// Nothing has begun.
    pub fn new(sync_period: Duration) -> Self {
        let health = Self::default();
        health.set_sync_period(sync_period);
        health
    }

    /// From now on, nothing may be written for as many of these.
    pub fn set_sync_period(&self, sync_period: Duration) {
        *self.patience() = sync_period.saturating_mul(PATIENCE_IN_SYNC_PERIODS);
    }

    /// Takes in how far a family has come. `started` is when it was first told all that was known;
    /// `None`: it has not been yet.
    ///
    /// True if all that was known then is in the kernel, or has been. An object that the kernel
    /// refuses for a reason of its own does not count: it must not take the node out of service.
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

    /// Where each family stands that has begun.
    pub fn progress(&self) -> BTreeMap<IpFamily, Progress> {
        self.lock().clone()
    }

    /// Whether a family with this progress is healthy.
    pub fn keeps_up(&self, progress: &Progress, now: Instant) -> bool {
        let patience = *self.patience();
        progress
            .stuck_since
            .is_none_or(|since| now.saturating_duration_since(since) < patience)
    }

    /// Whether every family is, and the loop is not hung.
    pub fn is_healthy(&self, now: Instant) -> bool {
        let families = self.progress();
        let mut families = families.values();
        families.all(|progress| self.keeps_up(progress, now)) && self.hung_for(now).is_none()
    }

    /// How long the loop has been hung; `None` if it is alive.
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
        // No one holds it across anything that can panic.
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
    fn a_family_that_is_stuck_for_two_sync_periods_is_unhealthy() {
        let health = Health::new(Duration::from_secs(30));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        // No loop is asked here.
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
        // Something of it was written.
        note(0, Some(at(58)), 60);
        assert!(health.is_healthy(at(100)));
        assert!(!health.is_healthy(at(118)));
        health.note(V4, &standing(None, None), Some(at(0)), at(119));
        assert!(health.is_healthy(at(1000)), "nothing waits");
    }

    #[test]
    fn what_was_asked_later_does_not_hide_how_far_it_has_come() {
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
        // It is found missing, and was asked long ago.
        assert_eq!(updated(Some(6), Some(2), 8), Some(at(7)));
    }

    #[test]
    fn what_is_to_end_is_awaited_at_the_start_though_not_for_ever() {
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
