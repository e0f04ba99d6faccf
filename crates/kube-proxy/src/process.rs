//! Properties of this process: capabilities, descriptors, memory, panics and version. Also runs
//! iptables, or a command with its log in a file, if called by those names.

pub mod capabilities;
pub mod descriptors;
pub mod iptables;
pub mod log_runner;
pub mod memory;
pub mod panics;
pub mod version;
