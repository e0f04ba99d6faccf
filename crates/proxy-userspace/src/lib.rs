//! The userspace mode of kube-proxy: a listening port of this process for each Service port, and
//! redirects of the Service's addresses to it.
//!
//! ```text
//!  ServiceView ─▶ compile ─▶ ServedPort ─▶ Claims ─▶ Tables ─┬─▶ Sockets   ─▶ Relay: endpoints
//!                                                   ▲        └─▶ Redirects ─▶ rules
//!                                   observe, settle ┘
//! ```
//!
//! [`Userspace`] holds the tables; it is a [`Scheme`](engine::Scheme), and [`Proxier`] the
//! [`Mode`](proxy::Mode) that an [`Engine`](engine::Engine) makes of it. Everything up to the plan
//! is pure; a [`Kernel`] is a [`Relay`](relay::Relay) and who redirects packets to it, or the strict
//! fake of the tests. The relay knows nothing of Kubernetes.
//!
//! docs/userspace-mode.md says how packets go, and what the limits of this are.

mod access;
mod claims;
mod config;
mod exchange;
pub mod fake;
#[doc(hidden)]
pub mod fuzzed;
mod held;
mod kernel;
mod kinds;
mod plan;
mod port;
mod probe;
mod proxier;
mod redirect;

mod tables;
mod traffic;

pub use config::Config;
pub use exchange::Found;
pub use held::Held;
pub use kernel::{Kernel, UserspaceKernel};
pub use kinds::{Lane, Part, UserspaceKinds};
pub use plan::{
    Aim, Base, Blame, Change, Extent, NodePortsAt, Outcomes, Plan, Redirects, Refusal, SocketError,
    Sockets, Written,
};
pub use port::{Listener, Portal, Scope, ServedPort, Sources, Way, Ways, compile};
pub use probe::{MODULES, probe};
pub use proxier::{Lanes, Proxier, Userspace};
pub use redirect::iptables::FOOTPRINT;
pub use redirect::nftables::{has_nftables, native_names, probe_nftables};

pub use traffic::{OfListener, Traffic};
