//! What each mode of kube-proxy leaves in the kernel, as data: by it a mode, `--check` and
//! `--cleanup` find what others have left, and remove it.
//!
//! ```text
//!   a Footprint for each mode ─┬─▶ Finder ◀── iptables-save       what goes = theirs, less mine, less the kubelet's
//!                              │     └─▶ Leftovers ──▶ iptables-restore
//!                              └─▶ nft tables
//! ```
//!
//! A mode knows its own footprint, and is given those of the others: a further mode adds one, and
//! nothing in its siblings. The crate `cleanup` removes all that footprints name.

mod footprint;
mod leftovers;
pub mod nft;
pub mod origin;
pub mod uses;

pub use footprint::{
    Footprint, Footprints, Link, NFTABLES, OwnSet, Says, ServedBy, VirtualServers, is_kubelets,
    links,
};
pub use leftovers::{Finder, Held, Leftovers};
