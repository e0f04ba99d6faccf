//! The IPVS mode of kube-proxy: what one Service wants, what the kernel holds, and the writes between the two.
//!
//! ```text
//!  ServiceView ─▶ compile ─▶ Fragment ─▶ tables (wanted │ actual) ─▶ planner ─▶ Plan ─▶ a lane: Kernel::apply ─▶ Outcomes ─┐
//!                                                ▲    ▲                                                                 │
//!          a part is read: Kernel::read_… ─ Found┘    └─────────────────────────────────────────────────────────────────┘
//! ```
//!
//! [`Proxier`] holds the tables and is the [`Mode`](proxy::Mode). Everything up to the plan is pure; a [`Kernel`] is netlink on
//! a thread of its own, or the strict fake of the tests.

mod claims;
mod compile;
mod config;
mod drain;
mod drift;
pub mod fake;
mod footprint;
mod kernel;
mod leftovers;
mod netlink;
mod plan;
mod planner;
mod proxier;
mod rules;
mod server;
mod sets;
mod tables;

pub use crate::footprint::FOOTPRINT;
pub use compile::{Fragment, NodePortAddresses, compile};
pub use config::{Config, ShimStyle, VipMode};
pub use iptables::{Backend, Iptables, IptablesError};
pub use kernel::{
    FoundAddresses, FoundRules, FoundSets, Glance, Kernel, KernelError, Part, Snapshot,
};
pub use leftovers::{Leftovers, Place, beside_the_shim};
pub use netlink::{
    MODULES, NetlinkKernel, OpenError, ProbeError, foresee_scheduler, prepare, probe,
    probe_scheduler,
};
pub use plan::{Fault, Op, Outcome, Plan};
pub use proxier::{Lanes, Proxier};
pub use rules::{Rules, Shim, Table};
pub use server::{Destinations, Properties, RealServer, VirtualServer, VirtualServerKey};
pub use sets::{Member, Set, SetKind};
