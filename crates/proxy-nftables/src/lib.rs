//! The nftables mode of kube-proxy. It computes the objects that Services want, reads the kernel's
//! objects, and writes the differences in transactions.
//!
//! ```text
//!  ServiceView ─▶ compile ─▶ ServedPort ─▶ Claims ─▶ Tables (wanted │ actual) ─▶ planner ─▶ Plan
//!                                                     ▲    ▲                                  │
//!                      the table ─ Snapshot ─ observe ┘    └ settle ◀─ Outcomes ◀─ transaction┘
//! ```
//!
//! * [`Nftables`] contains the tables of wanted and actual objects, and implements
//!   [`Scheme`](engine::Scheme).
//! * [`Proxier`], the [`Mode`](proxy::Mode), is an [`Engine`](engine::Engine) with this scheme.
//! * [`Kernel`] has two implementations: netlink, on its own thread, and a strict fake for tests.
//!
//! All code from `ServiceView` to `Plan` is pure: it makes no system calls.
//!
//! The nf_tables table and its sets, maps, chains and rules equal those of upstream's nftables
//! mode, with a few exceptions. docs/nftables-mode-differences.md lists these exceptions with their
//! reasons.

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
