//! The node daemon: kube-proxy in IPVS and iptables mode.

mod addresses;
pub mod capabilities;
pub mod check;
pub mod cleanup;
pub mod command_line;
pub mod config;
mod conntrack;
pub mod descriptors;
pub mod events;
mod external_addresses;
mod family;
pub mod follow;
#[doc(hidden)]
pub mod fuzzed;
mod gather;
pub mod health;
mod health_check;
mod healthz;
pub mod iptables;
mod kernel_settings;
pub mod logging;
pub mod memory;
pub mod metrics;
mod one_family;
pub mod options;
pub mod panics;
mod pulse;
mod report;
pub mod run;
pub mod serve;
mod story;
#[cfg(test)]
mod tests;
mod vanished;
pub mod version;
