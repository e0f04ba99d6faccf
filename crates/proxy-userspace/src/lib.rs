//! The userspace mode of kube-proxy. This process opens listening ports for each Service port, and
//! rules redirect packets to these ports.
//!
//! ```text
//!  ServiceView ─▶ compile ─▶ ServedPort ─▶ Claims ─▶ Tables ─┬─▶ Sockets   ─▶ Relay: endpoints
//!                                                   ▲        └─▶ Redirects ─▶ rules
//!                                   observe, settle ┘
//! ```
//!
//! * [`Userspace`] contains the tables and implements [`Scheme`](engine::Scheme).
//! * [`Proxier`], the [`Mode`](proxy::Mode), is an [`Engine`](engine::Engine) with this scheme.
//! * [`Kernel`] has two implementations: a [`Relay`](relay::Relay) with rules that redirect packets
//!   to it, and a strict fake for tests.
//!
//! All code up to the plan is pure: it makes no system calls. The relay does not know Kubernetes.
//!
//! docs/userspace-mode.md describes the path of packets, and the limits of this mode.

mod access;
mod claims;
mod config;
pub mod fake;
#[doc(hidden)]
pub mod fuzzed;
mod kernel;
mod kinds;
mod part_state;
mod plan;
mod port;
mod probe;
mod proxier;
mod redirect;

mod tables;
mod traffic;

pub use config::Config;
pub use kernel::{Kernel, UserspaceKernel};
pub use kinds::{Lane, Part, UserspaceKinds};
pub use part_state::{PartState, RedirectState};
pub use plan::{
    Base, Change, Extent, NodePortsAt, Outcomes, Plan, RedirectOutcomes, RedirectTarget, Redirects,
    Refusal, RefusalMeaning, SocketError, Sockets,
};
pub use port::{
    Listener, ListenerKind, ListenerKinds, Portal, Scope, ServedPort, Sources, compile,
};
pub use probe::{MODULES, probe};
pub use proxier::{Lanes, Proxier, Userspace};
pub use redirect::iptables::FOOTPRINT;
pub use redirect::nftables::{has_nftables, native_names, probe_nftables};

pub use traffic::{ListenerTraffic, Traffic};
