//! Predicts what the kernel does with the first packet of a flow and with the reply, from the
//! kernel's current state. This crate does not know Kubernetes, and writes nothing.
//!
//! ```text
//!  Question ─▶ walk ──┬─ at each hook, by priority ─▶ Ruleset::walk ─▶ [Branch]   iptables, nft
//!                     ├─ between the hooks ─────────▶ routing, IPVS   ─▶ [Branch]
//!                     └─ at the end ────────────────▶ [Walk], each with probability, fate, steps
//!                                   │ queries
//!                           trait Kernel: Snapshot (data), or read::LiveKernel (by request)
//! ```
//!
//! **Paths.** A [`Packet`] is the packet at one point of its path. A [`Branch`] is a possible path:
//! the packet, its probability, its steps ([`Step`]), and finally its [`End`]. A random choice, or
//! a rule with unknown outcome, splits a branch.
//!
//! **Rules.** iptables and nft each implement [`Ruleset`]; see [`Ruleset::walk`] for the
//! obligations. A ruleset lists its base chains at a hook, and moves a branch through one of them.
//! The walk:
//!
//! - orders the base chains of all rulesets as the kernel does;
//! - performs the steps between the chains: connection tracking, IPVS, routing;
//! - calls nat chains only until one of them decides the translation;
//! - joins branches with equal results.
//!
//! **Kernel.** [`Kernel`] reads the kernel by single queries, such as for one set member, one
//! virtual server or one route. It makes a dump only if no single query suffices. iptables can only
//! return whole tables, so a table stays text, of which the walk parses only the rules on the path.
//!
//! **Reply.** The reply ([`answer`]) is a separate packet from the endpoint to the client address
//! that the endpoint sees. It passes no nat chain, because connection tracking reverts the
//! translations instead. Only the caller knows whether the reply returns through this node.

mod answer;
mod branch;
mod bridge;
#[doc(hidden)]
pub mod fuzzed;
mod ipvs;
mod kernel;
pub mod nft;
mod outcome;
mod packet;
pub mod read;
mod reply;
mod ruleset;
mod snapshot;
mod walk;
mod xtables;

pub use answer::answer;
pub use branch::{Branch, Counters, Doubt, End, MOST_BRANCHES, Step};
pub use kernel::{AddressType, Kernel, ReadFailure, Route, RouteQuestion, Server, SetKey};
pub use outcome::{Fate, Source, Walk};
pub use packet::{Interface, Packet, Reply, SourceNat, Tracking};
pub use ruleset::{Base, ChainKind, Hook, Ruleset};
pub use snapshot::Snapshot;
pub use walk::{Question, Sender, walk};
pub use xtables::Xtables;
