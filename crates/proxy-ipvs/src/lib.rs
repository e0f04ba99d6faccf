//! The IPVS mode of kube-proxy: what one Service wants, what the kernel holds, and the writes between the two.
//!
//! ```text
//!  ServiceView ─▶ compile ─▶ Fragment ─▶ tables (wanted │ actual) ─▶ Plan ─▶ Kernel::apply ─▶ Outcomes ─┐
//!                                                  ▲    ▲                                             │
//!                          Kernel::dump ─ Snapshot ┘    └─────────────────────────────────────────────┘
//! ```
//!
//! [`Proxier`] holds the tables and is the [`Mode`](proxy::Mode). Everything up to the plan is pure; a [`Kernel`] is netlink on
//! a thread of its own, or the strict fake of the tests.

mod cleanup;
mod compile;
mod config;
mod drain;
mod drift;
pub mod fake;
mod kernel;
mod netlink;
mod plan;
mod proxier;
mod rules;
mod server;
mod sets;

pub use cleanup::{Leftovers, Place};
pub use compile::{Fragment, Owner, compile};
pub use config::{Config, ShimStyle, VipMode};
pub use iptables::{Backend, Iptables, IptablesError};
pub use kernel::{Kernel, KernelError, Snapshot};
pub use netlink::{
    Cleanup, MODULES, NetlinkKernel, OpenError, clean_up, clean_up_beside, foresee_beside, prepare,
};
pub use plan::{Op, Outcome, Plan, Stage};
pub use proxier::Proxier;
pub use rules::{Rules, Shim, Table};
pub use server::{Destinations, Properties, RealServer, VirtualServer, VirtualServerKey};
pub use sets::{Member, Set, SetKind};
