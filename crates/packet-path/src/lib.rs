//! What the kernel does with the first packet of a flow, and with the answer to it, by what it holds now.
//!
//! ```text
//!  Question ─▶ walk ──┬─ at each hook, by priority ─▶ Ruleset::walk ─▶ [Branch]   iptables, nft
//!                     ├─ between the hooks ─────────▶ routing, IPVS   ─▶ [Branch]
//!                     └─ at the end ────────────────▶ [Walk], each with its chance, fate and steps
//!                                   │ asks
//!                           trait Kernel: Snapshot (data), or read::Live (the kernel, thing by thing)
//! ```
//!
//! A [`Packet`] is the packet at one moment of its way. A [`Branch`] is one of the ways that it may
//! go: the packet, how likely the way is, what it has met ([`Step`]), and its [`End`] once it has one.
//! Where chance decides, or something is not understood, a branch becomes two.
//!
//! **A kind of rules** is a [`Ruleset`]: it says which base chains it has at a hook, and takes a branch
//! through one of them. What it has to observe is on [`Ruleset::walk`]. The walk brings the base
//! chains of all rulesets into the kernel's order, does what stands between them (connection
//! tracking, IPVS, routing), asks chains of type nat for what is not settled only, and joins what
//! comes to the same.
//!
//! **What the kernel is asked** goes through [`Kernel`], question by question: whether one member is in
//! a set, one virtual server by its key, one route. Nothing is dumped for one packet where one thing
//! can be asked for. The rules of iptables are the exception: the kernel has no question for less
//! than a table, so that those of 50,000 Services in iptables mode are read whole; they are kept as
//! text, and parsed where the packet comes by.
//!
//! **The answer** ([`answer`]) is walked as a packet of its own, from the endpoint to who the endpoint
//! sees: no chain of type nat is asked, and what was translated is translated back. Only the caller can
//! know that it comes by this node at all.
//!
//! Nothing here knows of Kubernetes, and nothing is written.

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
pub use kernel::{AddressType, Kernel, Route, RouteQuestion, Server, SetKey, Unread};
pub use outcome::{Fate, Source, Walk};
pub use packet::{Interface, Packet, Reply, SourceNat, Tracking};
pub use ruleset::{Base, ChainKind, Hook, Ruleset};
pub use snapshot::Snapshot;
pub use walk::{Question, Sender, walk};
pub use xtables::Xtables;
