//! `--ipvs-shim=nftables`: rules and sets in one table of nftables of ours, for kernels and nodes
//! that have neither iptables nor ipset. Data; [`netlink`](crate::netlink) carries it to the
//! kernel.
//!
//! ```text
//!   table ip kube-proxy-ipvs
//!     sets     KUBE-CLUSTER-IP, …: named as the ipsets, by the lane of services      (sets)
//!     chains   nat-prerouting, …: the same verdicts as the iptables shims' rules, by the lane of rules (shim)
//! ```

use std::collections::BTreeSet;

use proxy::IpFamily;

use crate::sets::Set;

mod content;
mod sets;
mod shim;
mod words;

pub(crate) use content::{Content, HeldChain, add_table, forbidden_key, forbidden_of, sets_of};
pub(crate) use sets::{FORBIDDEN, Place, definition, definition_of, is_of, member, place};
pub(crate) use shim::everything;

/// The table, in the families `ip` and `ip6`.
pub(crate) const TABLE: &str = "kube-proxy-ipvs";

/// The names of all chains and sets of a family that the table may hold; but the sets of source
/// ranges, which are as many as prefixes have lengths.
pub fn names(family: IpFamily) -> BTreeSet<String> {
    let chains = everything(family).chains.into_keys();
    let chains = chains.map(|name| name.to_string());
    let sets = Set::all().filter_map(|set| definition(set, family));
    let sets = sets.map(|set| set.name.to_string());
    chains.chain(sets).chain([FORBIDDEN.to_owned()]).collect()
}

/// The table that asks the kernel whether it can carry the shim. It never comes to be.
pub(crate) const PROBE: &str = "kube-proxy-ipvs-probe";
