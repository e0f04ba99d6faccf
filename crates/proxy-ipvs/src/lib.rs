//! The IPVS mode of kube-proxy: what one Service wants, what the kernel holds, and the writes
//! between the two.
//!
//! ```text
//!  ServiceView ─▶ compile ─▶ Fragment ─▶ Claims ─▶ Tables (wanted │ actual) ─▶ planner ─▶ Plan
//!                                                   ▲    ▲                             │
//!                          a part was read: observe ┘    └ booking ◀─ Outcomes ◀─ a lane┘
//! ```
//!
//! [`Ipvs`] holds the tables; it is a [`Scheme`](engine::Scheme), and [`Proxier`] the
//! [`Mode`](proxy::Mode) that an [`Engine`](engine::Engine) makes of it. Everything up to the plan
//! is pure; a [`Kernel`] is netlink on a thread of its own, or the strict fake of the tests.

mod access;
mod booking;
mod claims;
mod compile;
mod compute;
mod config;
mod cover;
mod draft;
mod drain;
mod drift;
mod exchange;
pub mod fake;
mod footprint;
mod foreign;
#[doc(hidden)]
pub mod fuzzed;
mod kernel;
mod kinds;
mod leftovers;
mod link;
mod masquerading;
mod native;
mod netlink;
mod observe;
mod pace;
mod part;
mod plan;
mod planner;
mod proxier;
mod rules;
mod schedulers;
mod server;
mod sets;
mod shim;
mod shown;
mod tables;
mod takeover;

pub use crate::footprint::FOOTPRINT;
pub use compile::{Fragment, NodePortAddresses, compile};
pub use config::{Config, ShimStyle, VipMode};
pub use iptables::{Backend, Iptables, IptablesError};
pub use kernel::{FoundAddresses, FoundRules, FoundSets, Glance, Kernel, Snapshot};
pub use kinds::IpvsKinds;
pub use leftovers::{Leftovers, Place, beside_the_shim};
pub use netlink::{
    Carrier, MODULES, NetlinkKernel, OpenError, ProbeError, SetInTheWay, check_ipset,
    check_nftables, foresee_scheduler, prepare, probe, probe_nftables, probe_scheduler,
};
pub use part::{Lane, Part};
pub use plan::{Fault, Op, Outcome, Plan};
pub use proxier::{Ipvs, Lanes, Proxier};
pub use rules::{Rules, Table};
pub use server::{Destinations, Properties, RealServer, VirtualServer, VirtualServerKey};
pub use sets::{Member, Set, SetKind};
pub use shim::Shim;
pub use shim::native::names as native_names;
