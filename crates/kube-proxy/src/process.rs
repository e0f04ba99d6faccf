//! Properties of this process: capabilities, descriptors, memory, panics and version. Also runs
//! iptables if called by that name.

pub mod capabilities;
pub mod descriptors;
pub mod iptables;
pub mod memory;
pub mod panics;
pub mod version;
