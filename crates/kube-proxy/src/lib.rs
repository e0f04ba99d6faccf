//! The node daemon: kube-proxy in IPVS mode.

pub mod decode;
pub mod flags;
pub mod logging;
pub mod source;
mod addresses;
mod mode;
mod report;
pub mod run;
mod sysctl;
