//! Wanted, actual, pending: one table, one invariant.
