//! Redirects by a table of nf\_tables of their own: a map from what is meant to where it goes, for
//! each place from where it comes.
//!
//! ```text
//!   prerouting  ip daddr . meta l4proto . th dport ─▶ @portals    dnat to an address of this node
//!               meta l4proto . th dport            ─▶ @nodeports  where the address is the node's
//!   output      the same in @portals-node, @nodeports-node        dnat to localhost
//! ```
//!
//! What comes from this node's pods is looked up in `@portals-pods` and `@nodeports-pods` before,
//! where pods are told apart. One redirect is one element of each map; nothing else changes with
//! it.

pub(crate) mod held;
pub(crate) mod layout;
mod rules;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use nftables_netlink::{
    Change as Edit, CommitError, Element, Family, Name, Nftables, OwnSockets, Table, Transaction,
};
use proxy::{IpFamily, LocalDetector, Unreadable};

use super::Redirect;
use crate::config::Config;
use crate::held::Held;
use crate::plan::{Aim, Base, Blame, Extent, NodePortsAt, Redirects, Refusal};
use crate::port::Portal;

use layout::{elements, maps, table};

pub(crate) use layout::TABLE;

/// The names of all chains and maps of the table in a family.
pub fn native_names(family: IpFamily) -> BTreeSet<String> {
    let base = Base {
        node_ports: NodePortsAt::Everywhere,
        own_mark: None,
    };
    let chains = rules::chains(family, &base, &LocalDetector::None).into_iter();
    let chains = chains.map(|(chain, _)| chain.name.to_string());
    chains
        .chain(maps(family).map(|map| map.name.to_string()))
        .collect()
}

/// The name of the one that is tried.
const PROBE: &str = "kube-proxy-userspace-probe";

/// Redirects by nf\_tables.
pub(crate) struct NftablesRedirect {
    family: IpFamily,
    nftables: Nftables,
}

impl NftablesRedirect {
    /// For one family.
    ///
    /// # Errors
    ///
    /// The kernel has no nf\_tables, or a right is missing.
    pub(crate) fn open(
        family: IpFamily,
        own: &Arc<OwnSockets>,
    ) -> Result<Self, nftables_netlink::Error> {
        let nftables = own.open()?;
        Ok(Self { family, nftables })
    }
}

impl Redirect for NftablesRedirect {
    fn read(&mut self, config: &Config) -> Result<Held, Unreadable> {
        let whole = self.nftables.read(Family::from(self.family), TABLE);
        let whole =
            whole.map_err(|error| Unreadable::new(crate::kinds::Part::Rules.name(), error))?;
        Ok(held::held(self.family, config, &whole))
    }

    fn write(&mut self, plan: &Redirects) -> Result<(), Refusal> {
        let transaction = Transaction {
            family: self.family.into(),
            table: TABLE.into(),
            changes: edits(self.family, plan),
        };
        let written = self.nftables.commit(&transaction, None);
        written.map(drop).map_err(|error| Refusal {
            blame: match &error {
                // Less at once may be taken.
                CommitError::Refused { .. } | CommitError::TooLarge(_) => Blame::One,
                _ => Blame::None,
            },
            reason: error.to_string(),
        })
    }
}

/// Whether the kernel has nf\_tables. Nothing is tried.
pub fn has_nftables() -> bool {
    Nftables::open().is_ok()
}

/// Tries all that the table of a family may need. Nothing of it is made, and nobody is told.
///
/// # Errors
///
/// The kernel does not take it: it has no nf\_tables, or not all of its parts, or a right is
/// missing.
pub fn probe_nftables(family: IpFamily) -> Result<(), CommitError> {
    let node_ports = [NodePortsAt::Everywhere, NodePortsAt::NotAtLocalhost];
    let detector = match family {
        IpFamily::V4 => IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::LOCALHOST, 31)),
        IpFamily::V6 => IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 127)),
    };
    let of_base = |node_ports| Redirects {
        base: Some(Base {
            node_ports,
            own_mark: Some(1),
        }),
        extent: Extent::Whole,
        detector: LocalDetector::SourceNet(detector),
        ..Redirects::default()
    };
    let edits = node_ports.map(|node_ports| edits(family, &of_base(node_ports)));
    let name: Name = PROBE.into();
    // The same table by another name.
    let edits = edits.into_iter().flatten().map(|edit| match edit {
        Edit::AddTable(table) => Edit::AddTable(Table {
            name: Arc::clone(&name),
            ..table
        }),
        other => other,
    });
    let transaction = Transaction {
        family: family.into(),
        table: Arc::clone(&name),
        changes: edits.collect(),
    };
    Nftables::open()?.check(&transaction)
}

/// What a plan changes.
fn edits(family: IpFamily, plan: &Redirects) -> Vec<Edit> {
    let mut edits = Vec::new();
    if plan.extent == Extent::Whole {
        // Whatever there is, and whether there is any.
        edits.push(Edit::AddTable(table(family)));
        edits.push(Edit::DeleteTable);
        edits.push(Edit::AddTable(table(family)));
        edits.extend(maps(family).map(Edit::AddSet));
    }
    if let Some(base) = &plan.base {
        for (chain, rules) in rules::chains(family, base, &plan.detector) {
            let name: Name = Arc::clone(&chain.name);
            edits.push(Edit::AddChain(chain));
            edits.push(Edit::FlushChain(Arc::clone(&name)));
            let rules = rules.into_iter();
            edits.extend(rules.map(|rule| Edit::AddRule(Arc::clone(&name), rule)));
        }
    }
    let of = |aim: &Option<Aim>, portal: &Portal| {
        let aim = aim.as_ref();
        aim.map_or_else(Vec::new, |aim| elements(family, portal, aim))
    };
    if plan.extent == Extent::Changes {
        let before = plan.changes.iter();
        let before = before.flat_map(|change| of(&change.before, &change.portal));
        edits.extend(by_map(before, Edit::DeleteElements));
    }
    let after = plan.changes.iter();
    let after = after.flat_map(|change| of(&change.after, &change.portal));
    edits.extend(by_map(after, Edit::AddElements));
    edits
}

/// The elements of each map in one edit.
fn by_map(
    elements: impl Iterator<Item = (&'static str, Element)>,
    edit: fn(Name, Vec<Element>) -> Edit,
) -> Vec<Edit> {
    let mut maps: Vec<(&'static str, Vec<Element>)> = Vec::new();
    for (map, element) in elements {
        match maps.iter_mut().find(|(name, _)| *name == map) {
            Some((_, all)) => all.push(element),
            None => maps.push((map, vec![element])),
        }
    }
    let maps = maps.into_iter();
    maps.map(|(map, elements)| edit(map.into(), elements))
        .collect()
}

#[cfg(test)]
mod tests;
