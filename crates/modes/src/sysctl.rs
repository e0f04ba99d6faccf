//! Kernel settings (sysctls) below /proc/sys and /sys: their type, the code that writes them, and
//! those of connection tracking. The module of each mode defines the mode's own settings.

pub mod apply;
pub mod conntrack;
pub mod error;
pub mod machine;
pub mod row;
pub mod setting;
pub mod settings;
