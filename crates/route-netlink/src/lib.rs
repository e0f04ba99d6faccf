//! Links, addresses and local routes over rtnetlink, and what the kernel tells of them.
//!
//! ```text
//!  Address, LocalRoute ── push_new, push_del ──▶ Batch ──▶ Rtnetlink::execute ──▶ Reply of each
//!  Link ◀─────────────── Rtnetlink::{link, create_dummy, set_link_state, ..}, by its name
//!  Address, LocalRoute ◀─ Rtnetlink::{addresses, local_routes}
//!  Lookup ── Rtnetlink::way ──▶ Way, or why there is none: one question to the kernel's routing
//!  Event of these ◀────── Subscription::receive
//! ```
//!
//! As in the sibling crates, writing is split from sending: any number and any mix of messages goes
//! into a [`Batch`], and [`Rtnetlink::execute`] sends them in few system calls.
//!
//! Messages are those of `netlink-packet-route`, which costs a bulk write less than the kernel's
//! own time varies (examples/encode_cost.rs). Of what the kernel sends, the fixed header and the
//! attributes that are used are read, one by one: parsed as a whole, a message is lost with any
//! attribute that the library cannot read, such as an address on a link whose name is no UTF-8.
//!
//! Not `rtnetlink` 0.24, which was tried. Its subscription tells an overflow
//! (`NetlinkPayload::Overrun`), but passes over a message that it cannot parse, with a line for the
//! `log` crate alone: the end of a link went untold in a trial. Its single requests are async: they
//! take a tokio runtime on threads that have none, and 27 µs where [`Rtnetlink::link`] takes 3 µs.
//! It has no batches that say what became of each message. It would add `netlink-proto` and `nix`.
//!
//! Not here: what a link is for, and which addresses are whose.
//!
//! Source: `include/uapi/linux/rtnetlink.h`, `if_link.h`, `if_addr.h`; rtnetlink(7).

mod address;
#[doc(hidden)]
pub mod fuzzed;
mod link;
mod lookup;
mod message;
mod route;
mod rtnetlink;
mod subscription;

use std::collections::BTreeSet;
use std::net::IpAddr;

use inet::IpFamily;
use netlink_packet_route::AddressFamily;

pub use address::Address;
pub use link::{AddressGeneration, Link, LinkState};
pub use lookup::{Lookup, NoWay, Way};
pub use netlink_batch::{Batch, Error, Refusal, Reply};
pub use route::LocalRoute;
pub use rtnetlink::Rtnetlink;
pub use subscription::{Event, Subscription};

/// The addresses of all links but these of the network namespace of the calling thread, by a
/// connection of their own: one that failed is not used again.
///
/// # Errors
///
/// As [`Rtnetlink::open`], [`Rtnetlink::link`] and [`Rtnetlink::addresses`].
pub fn all_addresses(family: IpFamily, but: &[&str]) -> Result<BTreeSet<IpAddr>, Error> {
    let mut rtnetlink = Rtnetlink::open()?;
    let links: Result<Vec<_>, Error> = but.iter().map(|name| rtnetlink.link(name)).collect();
    let links: Vec<u32> = links?
        .into_iter()
        .flatten()
        .map(|link| link.index)
        .collect();
    let all = rtnetlink.addresses(family.into())?.into_iter();
    let all = all.filter(|held| !links.contains(&held.link));
    Ok(all.map(|held| held.address).collect())
}

/// An IP version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// `AF_INET`, IPv4.
    Inet,
    /// `AF_INET6`, IPv6.
    Inet6,
}

impl From<IpFamily> for Family {
    fn from(family: IpFamily) -> Self {
        match family {
            IpFamily::V4 => Self::Inet,
            IpFamily::V6 => Self::Inet6,
        }
    }
}

impl Family {
    /// That of an address.
    pub fn of(address: IpAddr) -> Self {
        IpFamily::of(address).into()
    }

    /// The prefix length that leaves one address.
    pub fn full_prefix(self) -> u8 {
        match self {
            Self::Inet => 32,
            Self::Inet6 => 128,
        }
    }

    fn number(self) -> AddressFamily {
        match self {
            Self::Inet => AddressFamily::Inet,
            Self::Inet6 => AddressFamily::Inet6,
        }
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
