//! Kernel settings below /proc/sys and /sys: the table of settings, and the code that writes them.
//! Each mode defines its own settings. The settings of connection tracking are defined here.

pub mod apply;
pub mod conntrack;
pub mod error;
pub mod machine;
pub mod row;
pub mod setting;
pub mod settings;
