//! Helpers for end-to-end tests of the daemon in the lab.
//!
//! A test runs the real `kube-proxy` on a node, which is a network namespace. The test sends real
//! packets, and reads the kernel's state with an operator's tools (`ipvsadm`, `ipset`,
//! `iptables-save`, `ip`). A test reads the daemon's log only to check a log message.
//!
//! ```text
//!   outside ──┬── node1 (kube-proxy) ── cni0 ── near, client
//!   172.35.0.9│   172.35.0.100                  10.244.1.10, .99
//!             └── node2 ─────────────── cni0 ── far
//!                 172.35.0.101                  10.244.2.10
//! ```
//!
//! All nodes, pods and hosts also have IPv6 addresses (see `cluster.rs`). The external host routes
//! Service addresses through node1. The daemon reads objects from the cluster's manifest directory,
//! or from the API server fixture on the external host.

mod api;
mod asking;
mod cluster;
mod echo;
mod faults;
pub mod hostile;
mod kernel;
mod modules;
mod object;
mod pages;
mod programs;
mod story;
mod terminal;
mod traffic;

pub use api::{ApiServer, InvalidApiServer};
pub use asking::{ask, ask_json};
pub use cluster::{Cluster, SOON, at, kube_proxy, with_backend};
pub use echo::{ping, request_timestamp};
pub use faults::{Fault, Faults};
pub use kernel::{VirtualServer, VirtualServers, members, virtual_servers};
pub use modules::{Modprobe, is_module};
pub use object::{Port, Service, sctp, tcp, udp};
pub use pages::{HEALTH, METRICS, get, health, metric, programmed};
pub use programs::Programs;
pub use story::{Outcome, Story, tell};
pub use terminal::Terminal;
pub use traffic::{ANY_STALL, FIRST_TRY, Tally, ports, tally, under_traffic};
