//! `--ipvs-shim=nftables`: the shim's rules and sets in an nftables table of this proxy, for nodes
//! without iptables and ipset. This module only computes them; [`netlink`](crate::netlink) writes
//! them to the kernel.
//!
//! ```text
//!   table ip kube-proxy-ipvs
//!     sets     KUBE-CLUSTER-IP, …: with the names of the ipsets (`sets`)
//!     chains   nat-prerouting, …: with the verdicts of the iptables shims (`shim::native`)
//! ```
//!
//! One worker thread writes the sets and the virtual servers, another writes the chains.

mod content;
mod sets;

pub(crate) use content::{
    Content, HeldChain, TABLE, add_table, forbidden_key, forbidden_of, sets_of,
};
pub(crate) use sets::{
    FORBIDDEN, SetElement, definition, definition_of, is_of, member, place, prefix_set,
};

/// Name of the table with which the daemon tests whether the kernel supports the shim. No
/// transaction with this table is ever committed.
pub(crate) const PROBE: &str = "kube-proxy-ipvs-probe";
