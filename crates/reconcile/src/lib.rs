//! Reconciles wanted entries with actual ones: one table, one invariant.
//!
//! ```text
//!   claim(owner, entries) ─▶ wanted ─┐
//!                                    ├─ differ? ─▶ pending ─▶ (the caller writes) ─▶ set_actual / fail
//!   observe(dump) ─────────▶ actual ─┘
//! ```
//!
//! After every call, a row is pending if and only if its wanted value differs from its actual
//! value. Start, change, failed write and drift therefore use one path. They differ only in the
//! rows that became pending.
//!
//! Several owners may claim one key, such as two ports of a Service that share an address. The
//! smallest owner's claim is the wanted value, so the outcome of a conflict does not depend on the
//! order of events. When that owner releases the key, the next owner takes over. The table has no
//! clock (the caller passes an [`Instant`](std::time::Instant)) and no access to the kernel, so it
//! never writes.
//!
//! A table also stores when its oldest pending row became pending. So callers can check in O(1)
//! whether everything requested before a time is in place. A row whose write fails for a reason
//! that concerns only this row can be excused from this age.

mod row;
mod rows;
mod schedule;
mod table;

pub use rows::Rows;
pub use schedule::ReadSchedule;
pub use table::{Removals, Table};
