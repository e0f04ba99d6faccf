//! The names that each mode of kube-proxy uses in the kernel, as data. With these names, a mode
//! finds and removes the entries of other modes. The subcommand `check` and the flag `--cleanup`
//! also use these names.
//!
//! ```text
//!   a Footprint for each mode ─┬─▶ Finder ◀── iptables-save
//!                              │     └─▶ Leftovers: entries of other modes,
//!                              │           │        without mine and the kubelet's
//!                              │           └─▶ iptables-restore
//!                              └─▶ nft tables
//! ```
//!
//! A mode has its own footprint, and gets the footprints of all other modes. A new mode only adds a
//! footprint, and no other mode changes. The crate `cleanup` removes all entries that footprints
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
