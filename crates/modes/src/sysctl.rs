//! Kernel settings below /proc/sys and /sys: the rows, and how they get their values. Each mode
//! names its own settings; those of connection tracking are here.

pub mod apply;
pub mod conntrack;
pub mod error;
pub mod machine;
pub mod row;
pub mod setting;
pub mod settings;
