//! Tests proxy modes with random event sequences (called *histories* in README.md and by the
//! programs): events, refused writes, failed reads, lost replies, changes by other programs, and
//! restarts.
//!
//! - At the end of an event sequence, the kernel must have the state that a start on an empty
//!   kernel creates for the final objects.
//! - Entries of other programs must be unchanged.
//! - The daemon's writes must never take the last endpoint from a Service with a ready endpoint.
//!
//! ```text
//!   seed ─▶ action::history ─▶ run ─┬─▶ cluster: objects, and the events of their source
//!                                   ├─▶ subject: a mode on its strict fake (modes/)
//!                                   ├─▶ turnstile: its reads and writes of the kernel, one by one
//!                                   └─▶ watch: the endpoints of each frontend, after each step
//!            shrink ◀─ a failure ───┘
//! ```
//!
//! A seed always gives the same sequence:
//!
//! - Only one thread runs at any time.
//! - The driver sets the clock.
//! - Each [action](action::Action) contains a random number that selects its details.
//!
//! Only the order of the daemon's hash tables is random. The daemon sorts entries where their order
//! affects the order of writes. A campaign runs some event sequences twice, and counts those whose
//! second run differs.
//!
//! # Checked properties
//!
//! - After each step (one read or write of the kernel by a worker thread): the properties of
//!   [`watch`].
//! - Whenever neither an event nor work is left: the daemon has restored each service address whose
//!   removal the kernel has reported.
//! - At the end, after all faults, all events and two checks, the test compares the state with the
//!   state after a start on an empty kernel, with the same objects and node addresses:
//!   - The daemon's entries are equal, and entries of other programs are unchanged.
//!   - No more entries are pending than after that start.
//!   - Each address and port has the same endpoints.
//!
//! README.md describes how to run the tests, the defects that they found, and the kinds of defects
//! that they detect.

pub mod action;
pub mod campaign;
pub mod cluster;
pub mod modes;
mod packets;
pub mod real;
pub mod regressions;
pub mod run;
pub mod shrink;
pub mod stepped_threads;
pub mod subject;
pub mod verdict;
pub mod watch;
