//! The size of one transaction.

use std::time::Duration;

/// The part of the largest transaction that the next one may be, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget(usize);

impl Budget {
    /// The largest transaction. Before anybody is served, nobody waits for it.
    pub(crate) const WHOLE: Self = Self(1_000);
    /// The smallest one. In upstream's layout the kernel looks at all elements of verdict maps for each
    /// transaction, so that smaller ones would mostly be that.
    pub(crate) const LEAST: Self = Self(125);
    /// About as long as a transaction may take. A change of another Service waits for one, and
    /// comes with the next.
    const TIME: Duration = Duration::from_millis(30);

    /// Returns the part of a size. It is at least 1.
    pub(crate) fn of(self, most: usize) -> usize {
        (most * self.0 / Self::WHOLE.0).max(1)
    }

    /// Returns the part that `size` is of the largest one, which is `most`.
    pub(crate) fn share(size: usize, most: usize) -> Self {
        Self((size * Self::WHOLE.0).div_ceil(most))
    }

    /// Returns the larger one.
    pub(crate) fn max(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }

    /// Follows how long a transaction of this size has taken. A small one says little.
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
    fn a_transaction_is_as_large_as_the_kernel_is_fast() {
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
        // Few changes take as long as the kernel's own looks.
        assert_eq!(after(10, 90), least);
    }
}
