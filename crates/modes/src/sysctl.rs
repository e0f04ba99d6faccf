//! Kernel settings below /proc/sys and /sys: a type for tables of settings, and the code that
//! writes them. The module of each mode defines the mode's settings. This module defines those of
//! connection tracking.

pub mod apply;
pub mod conntrack;
pub mod error;
pub mod machine;
pub mod row;
pub mod setting;
pub mod settings;
