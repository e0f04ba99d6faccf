//! The kernel's table of tracked connections over ctnetlink: list flows, and delete exactly the
//! ones seen.
//!
//! ```no_run
//! use conntrack_netlink::{Conntrack, Family, Protocol};
//!
//! # fn main() -> Result<(), conntrack_netlink::Error> {
//! let mut conntrack = Conntrack::open()?;
//! let dns = conntrack.find(Family::Inet, Protocol::Udp, |flow| {
//!     flow.original.destination.port() == 53
//! })?;
//! let outcomes = conntrack.delete(&dns.flows)?;
//! # Ok(())
//! # }
//! ```
//!
//! ```text
//!  Conntrack ── find(family, protocol, |&Flow| bool) ──▶ Found { flows: [Flow], seen }
//!      └─────── delete(&[Flow]) ──▶ Outcome of each
//! ```
//!
//! A flow is deleted by its original tuple, its zones and its [id](Flow::id): if it has ended
//! meanwhile and a new one has its tuple, the new one stays. One batch deletes any number of flows.
//!
//! It speaks of flows of protocols with ports ([`Protocol`]). Not here: creating and changing
//! flows, events, expectations, NAT and time-outs; and flushing: no call deletes what was not
//! named.
//!
//! Protocol: `linux/netfilter/nfnetlink_conntrack.h`, `net/netfilter/nf_conntrack_netlink.c`.

#[cfg(test)]
mod captured;
mod conntrack;
mod error;
mod flow;
#[doc(hidden)]
pub mod fuzzed;
mod wire;

pub use conntrack::{Conntrack, Found, Outcome};
pub use error::Error;
pub use flow::{Family, Flow, Protocol, Tuple};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
