//! Properties of this process: capabilities, descriptors, memory, panics and version. Under other
//! names, the program is iptables, or runs a command with its log in a file.

pub mod capabilities;
pub mod descriptors;
pub mod iptables;
pub mod log_runner;
pub mod memory;
pub mod panics;
pub mod version;
