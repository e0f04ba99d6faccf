//! `--ipvs-shim=nftables`: rules and sets in this proxy's own nftables table, for nodes without
//! iptables and ipset. This module contains only data. The module [`netlink`](crate::netlink)
//! writes the table to the kernel.
//!
//! ```text
//!   table ip kube-proxy-ipvs
//!     sets     KUBE-CLUSTER-IP, …: with the names of the ipsets (`sets`)
//!     chains   nat-prerouting, …: with the verdicts of the iptables shims (`shim::native`)
//! ```
//!
//! One worker thread writes the sets together with the virtual servers. Another worker thread
//! writes the chains.

mod content;
mod sets;

pub(crate) use content::{
    Content, HeldChain, TABLE, add_table, forbidden_key, forbidden_of, sets_of,
};
pub(crate) use sets::{
    FORBIDDEN, SetElement, definition, definition_of, is_of, member, place, prefix_set,
};

/// Name of the table with which the daemon tests whether the kernel supports the shim. The daemon
/// never commits the transaction that contains this table.
pub(crate) const PROBE: &str = "kube-proxy-ipvs-probe";
