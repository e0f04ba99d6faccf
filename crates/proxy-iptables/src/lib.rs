//! The iptables mode of kube-proxy. It computes the rules that Services want, reads the kernel's
//! rules, and writes the differences with `iptables-restore`.
//!
//! ```text
//!  ServiceView ─▶ compile ─▶ ServedPort ─▶ Claims ─▶ Tables (wanted │ actual) ─▶ planner ─▶ Plan
//!                                                     ▲    ▲                              │
//!                     iptables-save ─ Saved ─ observe ┘    └ settle ◀ WriteOutcomes ◀ restore ┘
//! ```
//!
//! * [`Iptables`] contains the tables of wanted and actual rules, and implements
//!   [`Scheme`](engine::Scheme).
//! * [`Proxier`], the [`Mode`](proxy::Mode), is an [`Engine`](engine::Engine) with this scheme.
//! * [`Kernel`] has two implementations: the iptables programs, which a separate thread runs, and a
//!   strict fake for tests.
//!
//! All code from `ServiceView` to `Plan` is pure.
//!
//! Chains and rules equal those of upstream's iptables mode. docs/design/iptables-mode.md describes
//! them and their reasons.

mod access;
mod base;
mod chain;
mod claims;
mod config;
mod exchange;
mod execute;
pub mod fake;
#[doc(hidden)]
pub mod fuzzed;
mod kernel;
mod kinds;
mod nfacct;
mod origins;
mod plan;
mod planner;
mod port;
mod probe;
mod proxier;
mod rule_counters;
mod saved;
mod tables;

pub use base::{Base, FOOTPRINT};
pub use chain::{Chain, Hash, Purpose, Shared, Table};
pub use config::Config;
pub use kernel::{IptablesKernel, Kernel, MODULES, Refusal};
pub use kinds::{IptablesKinds, Lane, Part};
pub use nfacct::{Counter, NfacctSocket};
pub use plan::{Plan, PlanStep, WrittenChain};
pub use port::{Content, RuleContext, ServedPort, Slot, compile};
pub use probe::{has_counting_rules, probe, probe_counters};
pub use proxier::{Iptables, Lanes, Proxier};
pub use rule_counters::{CounterReader, PortConnections, ServedAddress};
pub use saved::{Leftovers, Reader, Saved};
