//! Whether the proxy keeps up: how long each family has had something to bring into the kernel.
//!
//! The loop writes it, the servers that tell others read it. Time is passed in.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use proxy::IpFamily;

/// How many sync periods an update may wait, as upstream.
const PATIENCE_IN_SYNC_PERIODS: u32 = 2;

/// The health of all families.
#[derive(Debug, Default)]
pub struct Health {
    patience: Mutex<Duration>,
    families: Mutex<BTreeMap<IpFamily, Progress>>,
}

/// How far one family has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Since when something has waited to be brought into the kernel; `None`: nothing does.
    pub pending_since: Option<Instant>,
    /// When the last sync was complete; `None`: none was yet.
    pub updated: Option<Instant>,
}

impl Health {
    /// Nothing has begun.
    pub fn new(sync_period: Duration) -> Self {
        let health = Self::default();
        health.set_sync_period(sync_period);
        health
    }

    /// From now on, an update may wait for as many of these.
    pub fn set_sync_period(&self, sync_period: Duration) {
        *self.patience() = sync_period.saturating_mul(PATIENCE_IN_SYNC_PERIODS);
    }

    /// A family has something to do.
    pub fn begin(&self, family: IpFamily, now: Instant) {
        let mut families = self.lock();
        families
            .entry(family)
            .or_default()
            .pending_since
            .get_or_insert(now);
    }

    /// A family has read the kernel and written what was to be written. An object that the kernel refused does not count:
    /// it must not take the node out of service.
    pub fn complete(&self, family: IpFamily, now: Instant) {
        let progress = Progress {
            pending_since: None,
            updated: Some(now),
        };
        self.lock().insert(family, progress);
    }

    /// Where each family stands that has begun.
    pub fn progress(&self) -> BTreeMap<IpFamily, Progress> {
        self.lock().clone()
    }

    /// Whether a family with this progress is healthy.
    pub fn keeps_up(&self, progress: &Progress, now: Instant) -> bool {
        let patience = *self.patience();
        progress
            .pending_since
            .is_none_or(|since| now.saturating_duration_since(since) < patience)
    }

    /// Whether every family is.
    pub fn is_healthy(&self, now: Instant) -> bool {
        self.lock()
            .values()
            .all(|progress| self.keeps_up(progress, now))
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

    #[test]
    fn an_update_that_waits_for_two_sync_periods_is_unhealthy() {
        let health = Health::new(Duration::from_secs(30));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(health.is_healthy(start), "while starting up");
        health.begin(IpFamily::V4, at(0));
        health.begin(IpFamily::V6, at(0));
        health.complete(IpFamily::V6, at(1));
        health.begin(IpFamily::V4, at(50));
        assert!(health.is_healthy(at(59)));
        assert!(!health.is_healthy(at(60)), "the first one counts");
        health.complete(IpFamily::V4, at(61));
        assert!(health.is_healthy(at(1000)), "nothing waits");
        let progress = health.progress();
        assert_eq!(
            progress[&IpFamily::V4],
            Progress {
                pending_since: None,
                updated: Some(at(61))
            }
        );
    }
}
