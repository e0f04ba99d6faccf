//! Limits how often notifications from the kernel cause a comparison of the whole nftables table.

use std::time::{Duration, Instant};

/// Shortest time between two comparisons that notifications cause.
const PAUSE: Duration = Duration::from_secs(2);

/// Time of the last comparison, and whether notifications have arrived since.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    last: Option<Instant>,
    /// True if a notification has arrived since the last comparison.
    is_behind: bool,
}

impl Pace {
    /// Records a notification. Returns true if a comparison must begin now; otherwise, a later one
    /// covers the change.
    pub(crate) fn hears(&mut self, now: Instant) -> bool {
        self.is_behind = true;
        self.is_due(now)
    }

    /// Returns true, once, when the comparison for postponed notifications is due.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.is_behind && self.next().is_none_or(|next| next <= now);
        if is_due {
            (self.last, self.is_behind) = (Some(now), false);
        }
        is_due
    }

    /// Returns the time of the postponed comparison, if any.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.next().filter(|_| self.is_behind)
    }

    fn next(&self) -> Option<Instant> {
        Some(self.last? + PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_notifications_cause_few_comparisons() {
        let mut pace = Pace::default();
        let began = Instant::now();
        let at = |millis| began + Duration::from_millis(millis);
        assert!(pace.hears(at(0)));
        assert_eq!((pace.is_due(at(5_000)), pace.next_due()), (false, None));
        assert!(pace.hears(at(6_000)));
        assert!(!pace.hears(at(6_001)) && !pace.hears(at(7_999)));
        // The comparison begins two seconds after the previous one, and covers the last
        // notification.
        assert_eq!(pace.next_due(), Some(at(8_000)));
        assert!(!pace.is_due(at(7_999)) && pace.is_due(at(8_000)));
        assert!(!pace.is_due(at(9_000)) && pace.next_due().is_none());
    }
}
