//! The names of the kernel objects that each mode of kube-proxy creates, as data. With these names,
//! a mode finds and removes other modes' entries. The subcommand `check` and the flag `--cleanup`
//! use the names as well.
//!
//! ```text
//!   a Footprint for each mode ─┬─▶ Finder ◀── iptables-save
//!                              │     └─▶ Leftovers: entries of other modes,
//!                              │           │        without mine and the kubelet's
//!                              │           └─▶ iptables-restore
//!                              └─▶ nft tables
//! ```
//!
//! A mode knows its own footprint, and gets the footprints of all other modes as an argument. So a
//! new mode only adds a footprint, and the code of other modes stays the same. The crate `cleanup`
//! removes all objects that footprints name.

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
