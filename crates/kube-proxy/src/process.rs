//! Properties of this process: capabilities, descriptors, memory, panics and version.
//!
//! Called by another name, this program acts as iptables, or as `go-runner`, which runs a command
//! with its log in a file.

pub mod capabilities;
pub mod descriptors;
pub mod iptables;
pub mod log_runner;
pub mod memory;
pub mod panics;
pub mod version;
