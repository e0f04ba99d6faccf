//! Properties of this process: capabilities, descriptors, memory, panics and version. Also runs
//! iptables programs under their names.

pub mod capabilities;
pub mod descriptors;
pub mod iptables;
pub mod memory;
pub mod panics;
pub mod version;
