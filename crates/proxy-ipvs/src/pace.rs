//! Limits how often kernel notifications cause a complete comparison with the kernel's state.

use std::time::{Duration, Instant};

/// Minimum time between two comparisons that kernel notifications cause.
const PAUSE: Duration = Duration::from_secs(2);

/// Start of the last comparison, and whether notifications have arrived since then.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    last: Option<Instant>,
    /// True if a notification arrived after the last comparison.
    is_behind: bool,
}

impl Pace {
    /// Records a notification. Returns true if a comparison must begin now. If false, a later
    /// comparison will include the change.
    pub(crate) fn hears(&mut self, now: Instant) -> bool {
        self.is_behind = true;
        self.is_due(now)
    }

    /// Returns true, once, when the comparison for earlier notifications is due.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.is_behind && self.next().is_none_or(|next| next <= now);
        if is_due {
            (self.last, self.is_behind) = (Some(now), false);
        }
        is_due
    }

    /// Returns the time of the next comparison, if one is needed.
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
        // The comparison begins two seconds after the previous comparison, so it includes the
        // change of the last notification.
        assert_eq!(pace.next_due(), Some(at(8_000)));
        assert!(!pace.is_due(at(7_999)) && pace.is_due(at(8_000)));
        assert!(!pace.is_due(at(9_000)) && pace.next_due().is_none());
    }
}
