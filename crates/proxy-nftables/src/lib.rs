//! The nftables mode of kube-proxy: the objects that Services want, the objects in the kernel, and
//! the transactions that make both equal.
//!
//! ```text
//!  ServiceView ─▶ compile ─▶ ServedPort ─▶ Claims ─▶ Tables (wanted │ actual) ─▶ planner ─▶ Plan
//!                                                     ▲    ▲                                  │
//!                      the table ─ Snapshot ─ observe ┘    └ settle ◀─ Outcomes ◀─ transaction┘
//! ```
//!
//! [`Nftables`] contains the tables and implements [`Scheme`](engine::Scheme). An
//! [`Engine`](engine::Engine) turns it into a [`Mode`](proxy::Mode), the [`Proxier`]. All code up
//! to the plan is pure. [`Kernel`] has two implementations: netlink, on its own thread, and a
//! strict fake for tests.
//!
//! The table, its sets, maps, chains and rules equal those of upstream's nftables mode.
//! docs/nftables-mode-differences.md lists the exceptions, with reasons.

mod access;
mod base;
mod budget;
mod changes;
mod choice;
mod claims;
mod clients;
mod config;
mod content;
mod describe;
mod edits;
mod execute;
pub mod fake;
#[doc(hidden)]
pub mod fuzzed;
mod kernel;
mod kinds;
mod layout;
mod localhost;
mod name;
mod netlink;
mod origins;
mod pending;
mod plan;
mod planner;
mod port;
mod probe;
mod proxier;
mod refusal;
mod snapshot;
mod tables;
mod unknown_objects;

pub use base::{FOOTPRINT, names};
pub use choice::{Choices, EndpointIndex};
pub use config::{Config, LocalhostNodePorts};
pub use content::Content;
pub use kernel::{Blame, Kernel, Object, Refusal};
pub use kinds::{Lane, NftablesKinds, Part};
pub use layout::{Layout, LayoutSizes};
pub use localhost::{Localhost, LocalhostPorts};
pub use name::{Purpose, TABLE, localhost_counter};
pub use netlink::NetlinkKernel;
pub use plan::{LocalhostPort, Plan};
pub use port::{EmptyPortPolicy, Member, Route, ServedPort, Slot, compile};
pub use probe::{ProbeError, probe};
pub use proxier::{Lanes, Nftables, Proxier};
pub use snapshot::Snapshot;
