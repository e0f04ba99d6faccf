//! Reconciles wanted entries with actual ones: one table, one invariant.
//!
//! ```text
//!   claim(owner, entries) ─▶ wanted ─┐
//!                                    ├─ differ? ─▶ pending ─▶ (the caller writes) ─▶ set_actual / fail
//!   observe(dump) ─────────▶ actual ─┘
//! ```
//!
//! After every call, a row is pending if and only if its wanted value differs from its actual
//! value. Start, change, failed write and drift are therefore one path: they differ only in the
//! rows that became pending.
//!
//! Several owners may claim one key: two ports of a Service share an address. The smallest owner's
//! claim is the wanted value, so the outcome of a conflict does not depend on the order of events.
//! When that owner releases the key, the next one takes over. The table has no clock (an
//! [`Instant`](std::time::Instant) is passed in) and no access to the kernel; it never writes.
//!
//! A table also knows when its oldest pending row became pending. Callers can so ask in O(1)
//! whether everything requested before some time is in place. A row that cannot be written for a
//! reason of its own can be excused from this.

mod row;
mod rows;
mod schedule;
mod table;

pub use rows::Rows;
pub use schedule::ReadSchedule;
pub use table::{Removals, Table};
