//! The node daemon: kube-proxy in IPVS mode.

pub mod decode;
pub mod flags;
pub mod logging;
