//! Limits the number of writes in a plan.

use std::time::Duration;

/// Number of writes that a plan may contain. A plan ends with the virtual server that reaches this
/// number. Without the limit:
///
/// - the first sync of 10,000 Services with 50 endpoints each would need 100 MB for writes,
///   messages and replies
/// - other changes would wait long while the kernel is slow, for example while it searches its
///   trash list of destinations
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget(usize);

impl Budget {
    const MOST: Self = Self(32_768);
    const LEAST: Self = Self(64);
    /// Budget of the first plan, when the kernel's speed is unknown.
    pub(super) const FIRST: Self = Self(256);
    /// Target duration of a plan's writes. Each pending virtual server adds `LOOK`, because the
    /// planner examines all of them for the next plan.
    const TIME: Duration = Duration::from_millis(10);
    const LOOK: Duration = Duration::from_micros(2);

    /// Returns true if this number of writes suffices to measure the kernel's speed.
    pub(crate) fn tells(ops: usize) -> bool {
        ops >= Self::LEAST.0
    }

    /// Returns the budget that keeps a plan within the target duration. The last `ops` writes took
    /// the time `took`, and `pending` virtual servers are pending.
    pub(crate) fn after(ops: usize, took: Duration, pending: usize) -> Self {
        let time = Self::TIME.as_nanos() + Self::LOOK.as_nanos() * pending as u128;
        let fit = time * ops as u128 / took.as_nanos().max(1);
        let fit = usize::try_from(fit).unwrap_or(usize::MAX);
        Self(fit.clamp(Self::LEAST.0, Self::MOST.0))
    }

    pub(crate) fn is_used_up(self, ops: usize) -> bool {
        ops >= self.0
    }

    /// Returns the maximum number of writes of one Service or namespace that may precede other
    /// Services' writes.
    pub(super) fn share(self) -> usize {
        (self.0 / 2).min(2_048)
    }

    /// Returns the number of writes that uses up the budget.
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
        // At 3 µs per write, 3,333 writes take 10 ms.
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
        // With very many pending entries, the planner's search takes no longer than the kernel's
        // writes.
        assert_eq!(
            Budget::after(1_000, Duration::from_millis(50), 20_000),
            Budget(1_000)
        );
        // A few writes do not show the kernel's speed, because an unrelated delay may dominate.
        assert!(!Budget::tells(63) && Budget::tells(64));
    }
}
