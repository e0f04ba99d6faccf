//! Wanted, actual, pending: one table, one invariant.
//!
//! ```text
//!   claim(owner, entries) ─▶ wanted ─┐
//!                                    ├─ differ? ─▶ pending ─▶ (the caller writes) ─▶ set_actual / fail
//!   observe(dump) ─────────▶ actual ─┘
//! ```
//!
//! After every call, exactly the rows are pending of which the wanted value is not the actual one.
//! Start, change, a failed write and drift are therefore one path: they differ only in what became
//! pending.
//!
//! Several owners may claim one key (two ports of a Service share an address). The claim of the
//! smallest owner is the wanted value, so the outcome of a conflict does not depend on the order of
//! events, and the next owner takes over when the first lets go. The table knows neither a clock
//! (an [`Instant`](std::time::Instant) is passed in) nor the kernel; it never writes.
//!
//! A table also knows since when its oldest row has been pending, so that whoever asks whether all
//! that was asked before some time is there is told in O(1). A row that cannot be written for a
//! reason of its own can be left out of that.

mod look;
mod row;
mod rows;
mod table;

pub use look::Look;
pub use rows::Rows;
pub use table::{Removals, Table};
