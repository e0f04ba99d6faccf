//! Settings of the kernel, below /proc/sys and /sys: what they are, and how they are brought to
//! their values. Which ones a mode wants, the mode says; those of connection tracking are here.

pub mod apply;
pub mod conntrack;
pub mod error;
pub mod machine;
pub mod row;
pub mod setting;
pub mod settings;
