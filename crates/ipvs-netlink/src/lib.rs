//! IPVS over generic netlink: the kernel's layer 4 load balancer, without `ipvsadm`.
//!
//! ```text
//!  Service { ServiceKey, scheduler, flags .. } ─┐
//!  Destination { DestinationKey, weight .. }  ──┴─▶ Family::{new,set,del}_* ─▶ Batch ─┐
//!                                                                                   ▼
//!  ServiceEntry, DestinationEntry (with Statistics), Info, Timeouts ◀──────────── Ipvs
//! ```
//!
//! Encoding is separate from sending. A [`Family`] encodes changes as messages of a
//! [`Batch`](netlink_batch::Batch), in any number and mix. [`Ipvs::execute`] sends them in few
//! system calls, and returns one reply per message. Each read is a separate call.
//!
//! A *virtual server* is a virtual address whose connections IPVS balances over *destinations*. The
//! kernel and the types of this crate call it a service. The crate does not support connection
//! synchronisation (the `DAEMON` commands), nor the connection table (`/proc/net/ip_vs_conn`).
//!
//! Source: `include/uapi/linux/ip_vs.h`, `net/netfilter/ipvs/ip_vs_ctl.c`.

mod address;
mod configuration;
mod count;
mod destination;
mod error;
mod family;
#[doc(hidden)]
pub mod fuzzed;
mod ipvs;
mod name;
mod service;
mod statistics;
mod status;
mod tables;
mod uapi;

pub use configuration::{Info, Timeouts};
pub use count::ServiceCounter;
pub use destination::{Destination, DestinationEntry, DestinationKey, Forward, Tunnel};
pub use error::Error;
pub use family::Family;
pub use inet::IpFamily;
pub use ipvs::Ipvs;
pub use name::{BadName, Name};
pub use service::{Flags, Protocol, Service, ServiceEntry, ServiceKey};
pub use statistics::Statistics;
pub use status::{BadLine, GrowingTable, Status};
pub use tables::Tables;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
