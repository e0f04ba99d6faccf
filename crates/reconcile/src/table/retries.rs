//! Delays before failed writes are tried again.

use std::hash::Hash;
use std::time::{Duration, Instant};

use super::Table;

/// Delay before the first retry of a failed write. The delay doubles with each further failure.
pub(super) const FIRST_RETRY: Duration = Duration::from_millis(500);
/// Longest delay before a retry of a failed write.
pub(super) const LAST_RETRY: Duration = Duration::from_secs(30);

/// Delay of one key whose last write failed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retry {
    failures: u32,
    pub(super) due: Instant,
    /// True if the next dump of the kernel's entries ends the delay, because the outcome of the
    /// write is unknown.
    pub(super) is_until_observed: bool,
}

impl<K, V, O> Table<K, V, O>
where
    K: Clone + Eq + Hash,
    V: Clone + Eq,
    O: Clone + Eq + Hash + Ord,
{
    /// Records a failed write. The key stays pending, and is due again after a delay that doubles
    /// with each failure.
    pub fn fail(&mut self, key: &K, now: Instant) {
        self.put_off(key, now, false);
        self.count_in(key);
    }

    /// Records a write that failed for a reason that concerns only this key.
    /// [`pending_since`](Self::pending_since) ignores the key until its wanted value changes.
    pub fn excuse(&mut self, key: &K, now: Instant) {
        self.put_off(key, now, false);
        if let Some(row) = self.rows.get_mut(key) {
            let since = std::mem::take(&mut row.since);
            self.count_out(since);
        }
    }

    /// Records a write with an unknown outcome. The key is due again after the next
    /// [observation](Self::observe), at the latest after the delay of a failed write.
    pub fn doubt(&mut self, key: &K, now: Instant) {
        self.put_off(key, now, true);
    }

    fn put_off(&mut self, key: &K, now: Instant, is_until_observed: bool) {
        if !self.is_pending(key) {
            return;
        }
        let retry = self.retries.entry(key.clone()).or_insert(Retry {
            failures: 0,
            due: now,
            is_until_observed,
        });
        retry.is_until_observed = is_until_observed;
        let delay = FIRST_RETRY
            .saturating_mul(1 << retry.failures.min(16))
            .min(LAST_RETRY);
        retry.failures = retry.failures.saturating_add(1);
        retry.due = now + delay;
    }

    /// Makes all failed writes due now, because the reason of the failures may be gone. If a write
    /// fails again, its delay continues to grow.
    pub fn retry_now(&mut self, now: Instant) {
        for retry in self.retries.values_mut() {
            retry.due = retry.due.min(now);
        }
    }

    /// Returns the earliest time after `now` at which a key is due for a retry.
    pub fn next_retry(&self, now: Instant) -> Option<Instant> {
        let times = self.retries.values().map(|retry| retry.due);
        times.filter(|due| *due > now).min()
    }
}
