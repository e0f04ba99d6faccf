//! The node daemon: kube-proxy in IPVS and iptables mode.

mod addresses;
pub mod capabilities;
pub mod check;
pub mod cleanup;
pub mod config;
mod conntrack;
pub mod decode;
pub mod descriptors;
pub mod events;
mod family;
pub mod flags;
pub mod health;
mod health_check;
mod healthz;
mod http_server;
pub mod iptables;
pub mod logging;
pub mod memory;
pub mod metrics;
mod mode;
mod renewal;
mod report;
pub mod run;
pub mod source;
mod sysctl;
mod vanished;
pub mod version;
