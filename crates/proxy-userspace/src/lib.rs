//! The userspace mode of kube-proxy: a listening port of this process for each Service port, and
//! redirects of the Service's addresses to it.
//!
//! ```text
//!  ServiceView ─▶ compile ─▶ ServedPort ─▶ Claims ─▶ Tables ─┬─▶ Sockets   ─▶ Relay: endpoints
//!                                                   ▲        └─▶ Redirects ─▶ rules
//!                                   observe, settle ┘
//! ```
//!
//! [`Userspace`] contains the tables and is a [`Scheme`](engine::Scheme). [`Proxier`] is the
//! [`Engine`](engine::Engine) of this scheme, and so a [`Mode`](proxy::Mode). All code up to the
//! plan is pure. A [`Kernel`] is a [`Relay`](relay::Relay) with rules that redirect packets to it,
//! or the strict fake of the tests. The relay does not know Kubernetes.
//!
//! docs/userspace-mode.md describes the path of packets and the limits of this mode.

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
    Base, Blame, Change, Extent, NodePortsAt, Outcomes, Plan, RedirectOutcomes, RedirectTarget,
    Redirects, Refusal, SocketError, Sockets,
};
pub use port::{
    Listener, ListenerKind, ListenerKinds, Portal, Scope, ServedPort, Sources, compile,
};
pub use probe::{MODULES, probe};
pub use proxier::{Lanes, Proxier, Userspace};
pub use redirect::iptables::FOOTPRINT;
pub use redirect::nftables::{has_nftables, native_names, probe_nftables};

pub use traffic::{ListenerTraffic, Traffic};
