//! Convergence tests with random event sequences. A sequence may include rejected writes, failed
//! reads, lost acknowledgements, foreign changes and restarts, all at any point. At the end, the
//! kernel must hold the state that a start on an empty kernel creates for the final objects.
//! Foreign entries must be unchanged. At no time may our writes take the last endpoint from a
//! Service with a ready endpoint.
//!
//! ```text
//!   seed ─▶ action::history ─▶ run ─┬─▶ cluster: objects, what a source tells of them
//!                                   ├─▶ subject: a mode on its strict fake (modes/)
//!                                   ├─▶ turnstile: its kernel threads, piece by piece
//!                                   └─▶ watch: who is served, after each piece
//!            shrink ◀─ a failure ───┘
//! ```
//!
//! The same seed is the same history: one thread runs at any moment, the clock is an
//! `Instant` that the driver passes on, and what happens in detail follows from the number that each
//! [action](action::Action) bears. What is left is the order of hash tables in the product; where it
//! mattered for the order of writes, the product puts it in order, and a campaign counts the rest.
//!
//! # What is held
//!
//! - After each piece that a kernel thread does: [`watch`].
//! - Wherever nothing is left to be heard or done: a service address that somebody took away, as the
//!   kernel has told, is back.
//! - In the end, when faults are over, all is told and two checks have passed: all that is ours is
//!   what a start on an empty kernel makes of the same objects on a node with the same addresses;
//!   what others have is as they left it; no more is pending than is after that start; and each
//!   address and port is served by the same endpoints.
//!
//! README.md says how it is run, what it has found, and which flaws it catches.

pub mod action;
pub mod campaign;
pub mod cluster;
pub mod modes;
mod packets;
pub mod real;
pub mod regressions;
pub mod run;
pub mod shrink;
pub mod subject;
pub mod turnstile;
pub mod verdict;
pub mod watch;
