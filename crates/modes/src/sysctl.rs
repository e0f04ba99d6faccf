//! Kernel settings below /proc/sys and /sys: the table of settings, and the code that writes them.
//! Each mode defines its settings in its module. This module defines the settings of connection
//! tracking.

pub mod apply;
pub mod conntrack;
pub mod error;
pub mod machine;
pub mod row;
pub mod setting;
pub mod settings;
