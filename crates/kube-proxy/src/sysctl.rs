//! Settings of the kernel, below /proc/sys and /sys: what they are, and how they are brought to
//! their values. Which ones a mode wants, the mode says; those of connection tracking are here.

pub(crate) mod apply;
pub(crate) mod conntrack;
pub(crate) mod error;
pub(crate) mod machine;
pub(crate) mod row;
pub(crate) mod setting;
pub mod settings;
