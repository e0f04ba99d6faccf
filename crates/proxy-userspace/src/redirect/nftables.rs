//! Redirects in an nf\_tables table. Its maps lead from destinations to listening ports. Each
//! origin of packets has its own maps.
//!
//! ```text
//!   prerouting  ip daddr . meta l4proto . th dport ─▶ @portals    dnat to an address of this node
//!               meta l4proto . th dport            ─▶ @nodeports  where the address is the node's
//!   output      the same in @portals-node, @nodeports-node        dnat to localhost
//! ```
//!
//! If a detector recognizes packets from pods, rules first look these packets up in `@portals-pods`
//! and `@nodeports-pods`. A redirect is one element in the map of each origin, so a changed
//! redirect changes only these elements.

pub(crate) mod layout;
pub(crate) mod read;
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
use crate::part_state::RedirectState;
use crate::plan::{Base, Extent, NodePortsAt, RedirectTarget, Redirects, Refusal, RefusalMeaning};
use crate::port::Portal;

use layout::{elements, maps, table};

pub(crate) use layout::TABLE;

/// Returns the names of all chains and maps in the table of an IP family.
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

/// Name of the table in transactions that test the kernel's features.
const PROBE: &str = "kube-proxy-userspace-probe";

/// Access to redirects in an nf\_tables table, for one IP family.
pub(crate) struct NftablesRedirect {
    family: IpFamily,
    nftables: Nftables,
}

impl NftablesRedirect {
    /// Opens nf\_tables for the redirects of one IP family.
    ///
    /// # Errors
    ///
    /// Fails if the kernel lacks nf\_tables, or if the process lacks a privilege.
    pub(crate) fn open(
        family: IpFamily,
        own: &Arc<OwnSockets>,
    ) -> Result<Self, nftables_netlink::Error> {
        let nftables = own.open()?;
        Ok(Self { family, nftables })
    }
}

impl Redirect for NftablesRedirect {
    fn read(&mut self, config: &Config) -> Result<RedirectState, Unreadable> {
        let whole = self.nftables.read(Family::from(self.family), TABLE);
        let whole =
            whole.map_err(|error| Unreadable::new(crate::kinds::Part::Rules.name(), error))?;
        Ok(read::parse(self.family, config, &whole))
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
                // One of the changes is invalid, or the transaction is too large. In both cases, a
                // smaller transaction may succeed.
                CommitError::Refused { .. } | CommitError::TooLarge(_) => RefusalMeaning::One,
                _ => RefusalMeaning::None,
            },
            reason: error.to_string(),
        })
    }
}

/// True if the kernel has nf\_tables. Sends no transaction.
pub fn has_nftables() -> bool {
    Nftables::open().is_ok()
}

/// Tests every feature that the table of an IP family may need. The kernel rolls back all changes,
/// and sends no notification.
///
/// # Errors
///
/// Fails if the kernel lacks nf\_tables or one of its features, or if the process lacks a
/// privilege.
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
    // Replaces the table's name in the edits with the name of the test table.
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

/// Converts a plan to the changes of one nf\_tables transaction.
fn edits(family: IpFamily, plan: &Redirects) -> Vec<Edit> {
    let mut edits = Vec::new();
    if plan.extent == Extent::Whole {
        // Creates an empty table: adds the table, in case it is missing, deletes it and adds it
        // again.
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
    let of = |aim: &Option<RedirectTarget>, portal: &Portal| {
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

/// Groups elements by map, into one edit for each map.
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
