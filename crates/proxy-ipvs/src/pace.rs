//! How often all is compared because the kernel has told of a change.

use std::time::{Duration, Instant};

/// Between two comparisons of this kind: one reads all that there is.
const PAUSE: Duration = Duration::from_secs(2);

/// When it was last asked for.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    last: Option<Instant>,
    /// Something was told since.
    is_behind: bool,
}

impl Pace {
    /// Something is told: whether all is to be compared at once. Else it is a little later.
    pub(crate) fn hears(&mut self, now: Instant) -> bool {
        self.is_behind = true;
        self.is_due(now)
    }

    /// Whether all is to be compared now, because of what was told before.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.is_behind && self.next().is_none_or(|next| next <= now);
        if is_due {
            (self.last, self.is_behind) = (Some(now), false);
        }
        is_due
    }

    /// When it is.
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
    fn what_is_told_very_often_is_looked_at_now_and_then() {
        let mut pace = Pace::default();
        let began = Instant::now();
        let at = |millis| began + Duration::from_millis(millis);
        assert!(pace.hears(at(0)));
        assert_eq!((pace.is_due(at(5_000)), pace.next_due()), (false, None));
        assert!(pace.hears(at(6_000)));
        assert!(!pace.hears(at(6_001)) && !pace.hears(at(7_999)));
        // The last one counts, too.
        assert_eq!(pace.next_due(), Some(at(8_000)));
        assert!(!pace.is_due(at(7_999)) && pace.is_due(at(8_000)));
        assert!(!pace.is_due(at(9_000)) && pace.next_due().is_none());
    }
}
