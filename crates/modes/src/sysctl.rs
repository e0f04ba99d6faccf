//! Kernel settings below /proc/sys and /sys: a type for tables of settings, the code that writes
//! them, and the settings of connection tracking. The module of each mode defines the settings of
//! that mode.

pub mod apply;
pub mod conntrack;
pub mod error;
pub mod machine;
pub mod row;
pub mod setting;
pub mod settings;
