//! Manages [ipset](https://ipset.netfilter.org) sets over nfnetlink, without a C library or `ipset`
//! processes. Sends many entries in one message.
//!
//! ```no_run
//! use ipset_netlink::{Definition, Entry, Family, IpProtocol, Ipset, Outcome, SetType};
//!
//! # fn main() -> Result<(), ipset_netlink::Error> {
//! let mut ipset = Ipset::open()?;
//! ipset.create("web", &Definition::new(SetType::HashIpPort, Family::Inet))?;
//! let entry = Entry::IpPort { ip: [10, 0, 0, 1].into(), protocol: IpProtocol::TCP, port: 80 };
//! assert_eq!(ipset.add("web", &[entry])?, [Outcome::Done]);
//! assert_eq!(ipset.list("web")?.entries, [entry]);
//! # Ok(())
//! # }
//! ```
//!
//! ```text
//!  Ipset ── create, destroy, flush, rename, swap ──▶ Definition { SetType, Family, size }
//!    │
//!    ├───── add, delete, update ──▶ Change { set, Action, [Entry] } ──▶ Outcome of each entry
//!    │
//!    ├───── list, headers ◀── Set { Header, [Entry] }
//!    │
//!    └───── type_name, test ── Key ──▶ true if a set of any type has a matching entry
//! ```
//!
//! As with `ipset -exist`, adding an existing entry succeeds, and deleting a missing entry
//! succeeds.
//!
//! The crate supports the hash and bitmap types of [`SetType`], but not timeouts, counters and
//! comments of entries. Entries of `hash:ip,port` may have a [`Mark`]. For sets of other types, the
//! crate lists only the header.
//!
//! The crate does not load kernel modules. The kernel itself loads the module of a set type if the
//! module is installed.
//!
//! Protocol: `linux/netfilter/ipset/ip_set.h`, versions 6 (Linux 2.6.39) and 7 (Linux 4.20).

mod entry;
mod error;
#[doc(hidden)]
pub mod fuzzed;
mod ipset;
mod set;
#[cfg(test)]
mod test_data;
mod wire;

pub use entry::{Entry, IpProtocol, Key, Mark, ParseError};
pub use error::{Error, Reason};
pub use ipset::{Action, Change, Ipset, Outcome};
pub use set::{Definition, Family, Header, Set, SetType};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
