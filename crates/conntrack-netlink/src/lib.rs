//! Finds flows in the kernel's connection tracking table over ctnetlink, and deletes exactly these
//! flows.
//!
//! ```no_run
//! use conntrack_netlink::{Conntrack, IpFamily, Protocol};
//!
//! # fn main() -> Result<(), conntrack_netlink::Error> {
//! let mut conntrack = Conntrack::open()?;
//! let dns = conntrack.find(IpFamily::V4, Protocol::Udp, |flow| {
//!     flow.original.destination.port() == 53
//! })?;
//! let outcomes = conntrack.delete(&dns.flows)?;
//! # Ok(())
//! # }
//! ```
//!
//! ```text
//!  Conntrack ── find(family, protocol, |&Flow| bool) ──▶ FoundFlows { flows: [Flow], seen }
//!      └─────── delete(&[Flow]) ──▶ Outcome of each
//! ```
//!
//! A delete request names a flow by its original addresses, its zones and its [id](Flow::id). If
//! the flow has ended and a new flow has the same addresses, the new flow stays. One batch deletes
//! any number of flows.
//!
//! The crate handles flows of protocols with ports ([`Protocol`]). It does not create or change
//! flows, and does not support events, expectations, NAT, timeouts or flushing the whole table.
//!
//! Protocol: `linux/netfilter/nfnetlink_conntrack.h`, `net/netfilter/nf_conntrack_netlink.c`.

mod conntrack;
mod error;
mod flow;
#[doc(hidden)]
pub mod fuzzed;
#[cfg(test)]
mod test_data;
mod wire;

pub use conntrack::{Conntrack, FoundFlows, Outcome};
pub use error::Error;
pub use flow::{Flow, Tuple};
pub use inet::{IpFamily, Protocol};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
