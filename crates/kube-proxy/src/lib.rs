//! The node daemon: kube-proxy with all its modes.

#![warn(clippy::print_stdout, clippy::print_stderr)]

pub mod check;
pub mod config;
pub mod events;
mod family;
#[doc(hidden)]
pub mod fuzzed;
pub mod health;
pub mod logging;
pub mod metrics;
mod node;
pub mod process;
pub mod run;
pub mod serve;
#[cfg(test)]
mod tests;
