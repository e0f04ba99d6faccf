//! Reads and writes links, addresses and local routes over rtnetlink, and receives the kernel's
//! notifications about them.
//!
//! ```text
//!  Address, LocalRoute ── push_new, push_del ──▶ Batch ──▶ Rtnetlink::execute ──▶ a Reply for each
//!  Link ◀─────────────── Rtnetlink::{link, create_dummy, set_link_state, ..}, by its name
//!  Address, LocalRoute, MainRoute ◀─ Rtnetlink::{addresses, local_routes, main_routes}
//!  Lookup ── Rtnetlink::way ──▶ PacketRoute, or the reason why the kernel has no route
//!  Event ◀────────────── Subscription::receive
//!  KernelRoutes::wait: until new IPv6 addresses have their routes
//! ```
//!
//! As in the sibling crates, encoding is separate from sending. A [`Batch`] takes any number and
//! mix of messages, and [`Rtnetlink::execute`] sends them in few system calls.
//!
//! The message types are those of `netlink-packet-route`. In a bulk write, encoding them costs less
//! than the variation of the kernel's own time (examples/encode_cost.rs).
//!
//! From the kernel's messages, this crate parses only the header and the used attributes, one by
//! one. The library would reject a whole message if it could not parse one attribute, such as a
//! link's name that is not UTF-8.
//!
//! `rtnetlink` 0.24 does not fit, as a trial showed:
//!
//! - Its subscription reports an overflow (`NetlinkPayload::Overrun`). But the subscription skips a
//!   message that it cannot parse, and reports this only to the `log` crate. In the trial, the
//!   subscription missed the deletion of a link.
//! - Its requests are async, so threads without a tokio runtime would need a runtime. A request
//!   takes 27 µs, compared with 3 µs for [`Rtnetlink::link`].
//! - Its API has no batches with a result for each message.
//! - It would add `netlink-proto` and `nix`.
//!
//! This crate does not know the purpose of a link, or the owner of an address.
//!
//! Source: `include/uapi/linux/rtnetlink.h`, `if_link.h`, `if_addr.h`; rtnetlink(7).

mod address;
#[doc(hidden)]
pub mod fuzzed;
mod kernel_routes;
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
pub use kernel_routes::KernelRoutes;
pub use link::{AddressGeneration, Link, LinkState};
pub use lookup::{Lookup, PacketRoute, RouteRefusal, outward_source};
pub use netlink_batch::{Batch, Error, Refusal, Reply};
pub use route::{LocalRoute, MainRoute};
pub use rtnetlink::Rtnetlink;
pub use subscription::{Event, Subscription};

/// Returns the addresses of all links except the links named in `but`, in the calling thread's
/// network namespace. Opens a new connection in each call, because a failed connection cannot be
/// used again.
///
/// # Errors
///
/// Fails like [`Rtnetlink::open`], [`Rtnetlink::link`] and [`Rtnetlink::addresses`].
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

/// An address family of rtnetlink: IPv4 or IPv6.
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
    /// Returns the family of an address.
    pub fn of(address: IpAddr) -> Self {
        IpFamily::of(address).into()
    }

    /// Returns the prefix length of a single address: 32 or 128.
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
