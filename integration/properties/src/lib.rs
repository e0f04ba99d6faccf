//! Convergence tests with random event sequences. A sequence may include refused writes, failed
//! reads, lost acknowledgements, foreign changes and restarts, all at any point. README.md and the
//! programs call a sequence a history.
//!
//! - At the end, the kernel must hold the state that a start on an empty kernel creates for the
//!   final objects.
//! - Entries of other programs must be unchanged.
//! - At no time may the daemon's writes take the last endpoint from a Service with a ready
//!   endpoint.
//!
//! ```text
//!   seed ─▶ action::history ─▶ run ─┬─▶ cluster: objects, and the events of their source
//!                                   ├─▶ subject: a mode on its strict fake (modes/)
//!                                   ├─▶ turnstile: its reads and writes of the kernel, one by one
//!                                   └─▶ watch: the endpoints of each frontend, after each step
//!            shrink ◀─ a failure ───┘
//! ```
//!
//! Equal seeds give equal event sequences:
//!
//! - Only one thread runs at any time.
//! - The driver sets the clock.
//! - Each [action](action::Action) contains a random number that selects its details.
//!
//! The only remaining randomness is the order of the daemon's hash tables. The daemon sorts entries
//! if their order affects the order of writes. A campaign runs some sequences twice, and counts the
//! second runs in which the order differs.
//!
//! # Checked properties
//!
//! - After each read or write of the kernel by one of the daemon's threads: the properties of
//!   [`watch`].
//! - Whenever no event and no work is left: the daemon has restored each service address whose
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
