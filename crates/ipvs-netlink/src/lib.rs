//! IPVS over generic netlink: the kernel's layer 4 load balancer, without `ipvsadm`.
//!
//! ```text
//!  Service { ServiceKey, scheduler, flags .. } ─┐
//!  Destination { DestinationKey, weight .. }  ──┴─▶ Family::{new,set,del}_* ─▶ Batch ─┐
//!                                                                                   ▼
//!  ServiceEntry, DestinationEntry (with Statistics), Info, Timeouts ◀──────────── Ipvs
//! ```
//!
//! Writing is split from sending: a [`Family`] turns objects into messages of a
//! [`Batch`](netlink_batch::Batch), any number and any mix, and [`Ipvs::execute`] sends them in
//! few system calls and says what became of each. Reading is a call each.
//!
//! Words are the kernel's: a *service* is a virtual address that is balanced over
//! *destinations*. Not here: connection synchronisation (the `DAEMON` commands) and the
//! connection table, which is in `/proc/net/ip_vs_conn`.
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
pub use status::{BadLine, Status, Table};
pub use tables::Tables;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
