//! Reconciles wanted entries with actual entries: one table, one invariant.
//!
//! ```text
//!   claim(owner, entries) ─▶ wanted ─┐
//!                                    ├─ differ? ─▶ pending ─▶ (caller writes) ─▶ set_actual / fail
//!   observe(dump) ─────────▶ actual ─┘
//! ```
//!
//! After every call, a row is pending if and only if its wanted value differs from its actual
//! value. So a start, a change, a failed write and drift all take the same path. The cases differ
//! only in which rows become pending.
//!
//! Several owners may claim one key: for example, two ports of a Service that share an address. The
//! claim of the smallest owner (in `Ord`) is wanted, so the order of events does not decide a
//! conflict. When this owner releases the key, the next owner's claim is wanted.
//!
//! A table has no clock: the caller passes an [`Instant`](std::time::Instant). A table never
//! writes, because it has no access to the kernel.
//!
//! A table also stores the time at which its oldest pending row became pending. So a caller can
//! check in O(1) whether all entries that were requested before some time exist. The check ignores
//! an excused row, whose write fails for a reason that concerns only this row.

mod row;
mod rows;
mod schedule;
mod table;

pub use rows::Rows;
pub use schedule::ReadSchedule;
pub use table::{Removals, Table};
