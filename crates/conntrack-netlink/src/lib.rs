//! The kernel's table of tracked connections over ctnetlink: list flows, and delete exactly the ones seen.
//!
//! ```no_run
//! use conntrack_netlink::{Conntrack, Family, Flow, Protocol};
//!
//! # fn main() -> Result<(), conntrack_netlink::Error> {
//! let mut conntrack = Conntrack::open()?;
//! let table = conntrack.dump(Family::Inet, Protocol::Udp)?;
//! let flows: Vec<Flow> = table.flows().collect::<Result<_, _>>()?;
//! let dns: Vec<Flow> = flows.into_iter().filter(|flow| flow.original.destination.port() == 53).collect();
//! let outcomes = conntrack.delete(&dns)?;
//! # Ok(())
//! # }
//! ```
//!
//! ```text
//!  Conntrack ── dump(family, protocol) ──▶ Table ── flows() ──▶ Flow { original, reply, zone, id, .. }
//!      └─────── delete(&[Flow]) ──▶ Outcome of each
//! ```
//!
//! A flow is deleted by its original tuple, its zones and its [id](Flow::id): if it has ended meanwhile and a new one has its
//! tuple, the new one stays. One batch deletes any number of flows.
//!
//! It speaks of flows of protocols with ports ([`Protocol`]). Not here: creating and changing flows, events,
//! expectations, NAT and time-outs; and flushing: no call deletes what was not named.
//!
//! Protocol: `linux/netfilter/nfnetlink_conntrack.h`, `net/netfilter/nf_conntrack_netlink.c`.

#[cfg(test)]
mod captured;
mod conntrack;
mod error;
mod flow;
mod wire;

pub use conntrack::{Conntrack, Outcome, Table};
pub use error::Error;
pub use flow::{Family, Flow, Protocol, Tuple};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
