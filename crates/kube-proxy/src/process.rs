//! This process: its capabilities, descriptors, memory, panics and version, and the iptables
//! programs that it stands in for.

pub mod capabilities;
pub mod descriptors;
pub mod iptables;
pub mod memory;
pub mod panics;
pub mod version;
