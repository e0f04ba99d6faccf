//! IPVS mode of kube-proxy: computes the kernel entries that Services want, reads the kernel's
//! state, and plans the writes that turn this state into the wanted one.
//!
//! ```text
//!  ServiceView ─▶ compile ─▶ Fragment ─▶ Claims ─▶ Tables (wanted │ actual) ─▶ planner ─▶ Plan
//!                                                   ▲    ▲                             │
//!                          dump of a part ─ observe ┘    └ booking ◀─ Outcomes ◀─ a lane┘
//! ```
//!
//! - [`Ipvs`] contains the tables and implements [`Scheme`](engine::Scheme).
//! - [`Proxier`] is an [`Engine`](engine::Engine) with this scheme, and implements
//!   [`Mode`](proxy::Mode).
//! - All code before the lanes is pure: it reads no clock and does no I/O.
//! - A lane is a worker thread that accesses the kernel.
//! - [`Kernel`] is implemented by netlink, and by a strict fake for tests.

mod access;
mod balance;
mod booking;
mod claims;
mod clients;
mod compile;
mod compute;
mod config;
mod cover;
mod display;
mod draft;
mod drain;
mod drift;
mod exchange;
pub mod fake;
mod footprint;
mod foreign;
mod former_marks;
#[doc(hidden)]
pub mod fuzzed;
mod kernel;
mod kinds;
mod leftovers;
mod link;
mod mark_addresses;
mod marks;
mod masquerading;
mod native;
mod netlink;
mod observe;
mod pace;
mod part;
mod plan;
mod planner;
mod proxier;
mod ranges;
mod rules;
mod schedulers;
mod server;
mod service_cidrs;
mod sets;
mod shim;
mod slow_start;
mod tables;
mod takeover;

pub use crate::footprint::FOOTPRINT;
pub use balance::ServiceSchedulers;
pub use compile::{Fragment, NodePortAddresses, compile};
pub use config::{Config, MarkBits, Semantics, ShimStyle, VipMode};
pub use iptables::{Backend, Iptables, IptablesError};
pub use kernel::{FoundAddresses, FoundRules, FoundSets, Glance, Kernel, Snapshot};
pub use kinds::IpvsKinds;
pub use leftovers::{LeftoverPlace, Leftovers, beside_the_shim};
pub use mark_addresses::MarkAddresses;
pub use netlink::{
    Carrier, MODULES, NetlinkKernel, OpenError, ProbeError, SetInTheWay, check_ipset, check_marks,
    check_nftables, foresee_scheduler, prepare, probe, probe_nftables, probe_scheduler,
};
pub use part::{Lane, Part};
pub use plan::{Fault, Op, Outcome, Plan};
pub use proxier::{Ipvs, Lanes, Proxier};
pub use ranges::{Networks, RangeSource, Ranges};
pub use rules::{Rules, Table};
pub use server::{Destinations, Properties, RealServer, VirtualServer, VirtualServerKey};
pub use sets::{Member, Set, SetKind};
pub use shim::Shim;
pub use shim::native::names as native_names;
pub use slow_start::Ramp;
