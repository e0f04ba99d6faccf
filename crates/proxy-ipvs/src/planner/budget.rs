//! Limit on the number of writes in a plan.

use std::time::Duration;

/// Number of writes that one plan may contain. A plan ends with the virtual server that exhausts
/// the budget. Without this limit:
///
/// - The first sync of 10,000 Services with 50 endpoints would need 100 MB for writes, messages and
///   replies.
/// - Other changes would wait long while the kernel is slow, for example while it searches its
///   trash list of destinations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget(usize);

impl Budget {
    const MOST: Self = Self(32_768);
    const LEAST: Self = Self(64);
    /// Budget of the first plan, before the kernel's speed is known.
    pub(super) const FIRST: Self = Self(256);
    /// Target duration of a plan's writes. Each pending virtual server adds `LOOK` to this
    /// duration, because the next plan must examine all pending virtual servers.
    const TIME: Duration = Duration::from_millis(10);
    const LOOK: Duration = Duration::from_micros(2);

    /// Returns true if this number of writes is enough to measure the kernel's speed.
    pub(crate) fn tells(ops: usize) -> bool {
        ops >= Self::LEAST.0
    }

    /// Returns the budget that keeps a plan within the target duration, at the speed of the last
    /// `ops` writes.
    pub(crate) fn after(ops: usize, took: Duration, pending: usize) -> Self {
        let time = Self::TIME.as_nanos() + Self::LOOK.as_nanos() * pending as u128;
        let fit = time * ops as u128 / took.as_nanos().max(1);
        let fit = usize::try_from(fit).unwrap_or(usize::MAX);
        Self(fit.clamp(Self::LEAST.0, Self::MOST.0))
    }

    pub(crate) fn is_used_up(self, ops: usize) -> bool {
        ops >= self.0
    }

    /// Returns the share of one Service or namespace: the maximum number of its writes that may
    /// precede the writes of other Services.
    pub(super) fn share(self) -> usize {
        (self.0 / 2).min(2_048)
    }

    /// Returns the number of writes that exhaust the budget.
    pub(super) fn limit(self) -> usize {
        self.0
    }

    /// Returns the number of writes that the budget still allows.
    pub(super) fn left(self, ops: usize) -> usize {
        self.0.saturating_sub(ops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_plan_follows_the_kernels_speed() {
        let most = Budget::MOST;
        assert!(!most.is_used_up(32_767) && most.is_used_up(32_768));
        // At 3 µs per write, 10 ms suffice for 3,333 writes.
        let fast = Budget::after(1_000, Duration::from_millis(3), 0);
        assert_eq!(fast, Budget(3_333));
        assert_eq!(
            Budget::after(1_000, Duration::from_millis(100), 0),
            Budget(100)
        );
        assert_eq!(Budget::after(1_000, Duration::from_mins(1), 0), Budget(64));
        assert_eq!(Budget::after(1_000, Duration::ZERO, 0), most);
        assert_eq!(
            Budget::after(64, Duration::from_micros(640), 0),
            Budget(1_000)
        );
        // With very many pending entries, the planner's search takes at most as long as the
        // kernel's writes.
        assert_eq!(
            Budget::after(1_000, Duration::from_millis(50), 20_000),
            Budget(1_000)
        );
        // A few writes do not show the kernel's speed, because an unrelated delay may dominate.
        assert!(!Budget::tells(63) && Budget::tells(64));
    }
}
