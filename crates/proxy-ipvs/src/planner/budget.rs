//! Limits the length of a plan.

use std::time::Duration;

/// How many writes a plan has: it ends at the virtual server with which it has as many, and has no
/// more of any one; another plan follows. At 10,000 Services with 50 endpoints each, the first sync
/// would otherwise hold 100 MB of writes, messages and answers at once; and where the kernel is
/// slow, as while it searches its trash of destinations, whatever changes meanwhile would wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget(usize);

impl Budget {
    const MOST: Self = Self(32_768);
    const LEAST: Self = Self(64);
    /// The first one, while nobody knows how fast the kernel is.
    pub(super) const FIRST: Self = Self(256);
    /// About as long as a plan may take, and how much longer for each virtual server that is pending:
    /// the next plan looks at all of them.
    const TIME: Duration = Duration::from_millis(10);
    const LOOK: Duration = Duration::from_micros(2);

    /// Whether so many writes say something of how fast the kernel is.
    pub(crate) fn tells(ops: usize) -> bool {
        ops >= Self::LEAST.0
    }

    /// As many as fit into the time, as long as the last `ops` have taken.
    pub(crate) fn after(ops: usize, took: Duration, pending: usize) -> Self {
        let time = Self::TIME.as_nanos() + Self::LOOK.as_nanos() * pending as u128;
        let fit = time * ops as u128 / took.as_nanos().max(1);
        let fit = usize::try_from(fit).unwrap_or(usize::MAX);
        Self(fit.clamp(Self::LEAST.0, Self::MOST.0))
    }

    pub(crate) fn is_used_up(self, ops: usize) -> bool {
        ops >= self.0
    }

    /// With more writes than this in one plan, a Service or a namespace comes after the others: they do
    /// not wait for it.
    pub(super) fn share(self) -> usize {
        (self.0 / 2).min(2_048)
    }

    /// How many more.
    pub(super) fn left(self, ops: usize) -> usize {
        self.0.saturating_sub(ops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_as_long_as_the_kernel_is_fast() {
        let most = Budget::MOST;
        assert!(!most.is_used_up(32_767) && most.is_used_up(32_768));
        // 3 microseconds each, and one millisecond.
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
        // Where very many are pending, to look at them does not take longer than to write.
        assert_eq!(
            Budget::after(1_000, Duration::from_millis(50), 20_000),
            Budget(1_000)
        );
        // One that was held up says little.
        assert!(!Budget::tells(63) && Budget::tells(64));
    }
}
