//! Trait of all tables, independent of the types of their entries.

use std::hash::Hash;
use std::time::Instant;

use crate::table::{Removals, Table};

/// Functions of a [`Table`] that are independent of the types of its entries.
pub trait Rows {
    /// Passes the current time to the table. See [`Table::begin`].
    fn begin(&mut self, now: Instant);
    /// Sets whether unwanted entries that still exist count as overdue. See
    /// [`Table::count_removals`].
    fn count_removals(&mut self, removals: Removals);
    /// Returns the number of pending keys. See [`Table::pending_len`].
    fn pending_len(&self) -> usize;
    /// Returns the number of keys that wait for a retry of their last write. See
    /// [`Table::failing_len`].
    fn failing_len(&self) -> usize;
    /// Returns the number of keys whose actual value equals the wanted value. See
    /// [`Table::as_wanted_len`].
    fn as_wanted_len(&self) -> usize;
    /// Returns the time at which the oldest pending row became pending. See
    /// [`Table::pending_since`].
    fn pending_since(&self) -> Option<Instant>;
    /// Returns the time of the next retry after `now`. See [`Table::next_retry`].
    fn next_retry(&self, now: Instant) -> Option<Instant>;
}

impl<K, V, O> Rows for Table<K, V, O>
where
    K: Clone + Eq + Hash,
    V: Clone + Eq,
    O: Clone + Eq + Hash + Ord,
{
    fn begin(&mut self, now: Instant) {
        self.begin(now);
    }

    fn count_removals(&mut self, removals: Removals) {
        self.count_removals(removals);
    }

    fn pending_len(&self) -> usize {
        self.pending_len()
    }

    fn failing_len(&self) -> usize {
        self.failing_len()
    }

    fn as_wanted_len(&self) -> usize {
        self.as_wanted_len()
    }

    fn pending_since(&self) -> Option<Instant> {
        self.pending_since()
    }

    fn next_retry(&self, now: Instant) -> Option<Instant> {
        self.next_retry(now)
    }
}

/// Defines the functions `begin` and `all` for a struct of tables. The arguments name all fields of
/// the struct, or end with `..`. Fields in brackets are tables whose pending entries may count as
/// overdue; `all` returns only these tables.
#[macro_export]
macro_rules! tables {
    ([$($table:ident),+] $($apart:ident)* $(, $rest:tt)?) => {
        /// Passes the current time to all tables.
        pub(crate) fn begin(&mut self, now: ::std::time::Instant) {
            let Self { $($table,)+ $($apart,)* $($rest)? } = self;
            $($table.begin(now);)+
            $($apart.begin(now);)*
        }

        /// Returns the tables whose pending entries may count as overdue.
        pub(crate) fn all(&self) -> impl Iterator<Item = &dyn $crate::Rows> {
            [$(&self.$table as &dyn $crate::Rows),+].into_iter()
        }
    };
}
