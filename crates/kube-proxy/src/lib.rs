//! The node daemon: kube-proxy in IPVS and iptables mode.

mod addresses;
pub mod capabilities;
pub mod check;
pub mod cleanup;
pub mod config;
mod conntrack;
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
pub mod panics;
mod renewal;
mod report;
pub mod run;
mod sysctl;
mod vanished;
pub mod version;
