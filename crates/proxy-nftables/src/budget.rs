//! Limits the size of a transaction so that the kernel commits it in about 30 ms.

use std::time::Duration;

/// Allowed size of a transaction, in thousandths of the largest size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget(usize);

impl Budget {
    /// Budget of the largest transactions. The mode uses it until it has written every Service
    /// once, because no other change waits during that time.
    pub(crate) const WHOLE: Self = Self(1_000);
    /// Smallest budget. In upstream's layout, the kernel scans all elements of verdict maps for
    /// each transaction. With a smaller budget, the kernel would spend most of its time on these
    /// scans.
    pub(crate) const LEAST: Self = Self(125);
    /// Target duration of a transaction. It is short, because changes to other Services wait until
    /// the transaction ends.
    const TIME: Duration = Duration::from_millis(30);

    /// Returns the number of entries that this budget allows in a transaction, at least 1, if a
    /// transaction of the largest size has `most` entries.
    pub(crate) fn of(self, most: usize) -> usize {
        (most * self.0 / Self::WHOLE.0).max(1)
    }

    /// Returns the budget that `size` entries use, if a transaction of the largest size has `most`
    /// entries.
    pub(crate) fn share(size: usize, most: usize) -> Self {
        Self((size * Self::WHOLE.0).div_ceil(most))
    }

    /// Returns the larger of two budgets.
    pub(crate) fn max(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }

    /// Returns the budget of the next transaction, after a transaction that used the budget `size`
    /// and took the time `took`. Ignores small transactions, because their duration shows little
    /// about the kernel's speed.
    #[must_use]
    pub(crate) fn after(self, size: Self, took: Duration) -> Self {
        if size.0 * 2 < Self::LEAST.0 {
            return self;
        }
        let fit = Self::TIME.as_nanos() * size.0 as u128 / took.as_nanos().max(1);
        let fit = usize::try_from(fit).unwrap_or(usize::MAX);
        Self(fit.clamp(Self::LEAST.0, Self::WHOLE.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_transaction_follows_the_kernels_speed() {
        let (least, whole) = (Budget::LEAST, Budget::WHOLE);
        assert_eq!(least.of(1_000), 125);
        assert_eq!(least.of(4), 1);
        assert_eq!(
            Budget::share(500, 1_000).max(Budget::share(1, 1_000)),
            Budget(500)
        );
        let after = |size, took| least.after(Budget(size), Duration::from_millis(took));
        assert_eq!(after(125, 15), Budget(250));
        assert_eq!(after(1_000, 60), Budget(500));
        assert_eq!(after(1_000, 10_000), least);
        assert_eq!(after(1_000, 0), whole);
        // The duration of a small transaction does not change the budget, because the kernel's scan
        // takes most of this time.
        assert_eq!(after(10, 90), least);
    }
}
