//! Properties of this process: capabilities, descriptors, memory, panics and version.
//!
//! Called as `iptables`, this program runs the host's iptables. Called as `go-runner`, it runs a
//! command with its log in a file.

pub mod capabilities;
pub(crate) mod daemons;
pub mod descriptors;
pub mod iptables;
pub mod log_runner;
pub mod memory;
pub mod panics;
pub mod version;
