//! Properties of this process: capabilities, descriptors, memory, panics and version.
//!
//! If a user calls the program by another name, it acts as iptables, or runs a command with its log
//! in a file.

pub mod capabilities;
pub mod descriptors;
pub mod iptables;
pub mod log_runner;
pub mod memory;
pub mod panics;
pub mod version;
