//! The names that each mode of kube-proxy uses in the kernel, as data. With these names a mode,
//! `--check` and `--cleanup` find and remove entries of other modes.
//!
//! ```text
//!   a Footprint for each mode ─┬─▶ Finder ◀── iptables-save       removed = other modes' entries,
//!                              │     └─▶ Leftovers                          without mine and the kubelet's
//!                              │           └─▶ iptables-restore
//!                              └─▶ nft tables
//! ```
//!
//! A mode knows its own footprint and receives the footprints of the other modes. A new mode adds a
//! footprint and changes no other mode. The crate `cleanup` removes all entries that footprints
//! name.

mod footprint;
mod leftovers;
pub mod nft;
pub mod origin;
pub mod uses;

pub use footprint::{
    Footprint, Footprints, Link, NFTABLES, OwnSet, Says, ServedBy, VirtualServers, is_kubelets,
    links,
};
pub use leftovers::{Finder, Leftovers, ReferencedChain};
