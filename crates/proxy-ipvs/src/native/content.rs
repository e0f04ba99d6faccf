//! Chains of the shim's nftables table, and the changes that bring them up to date.

use std::collections::{BTreeMap, BTreeSet};

use nftables_netlink::{
    Activity, BaseChain, Bytes, Chain, Change, Concatenation, Element, Expression, Family, Name,
    Rule, SetRef, Table, text,
};
use proxy::{IpFamily, ServiceAddress};

use super::sets::{FORBIDDEN, address_len, definition_of, is_of, member};
use crate::sets::Set;

/// Content of the shim's nftables table without its sets, as the worker thread for rules writes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Content {
    /// Chains of the table, by name.
    pub(crate) chains: BTreeMap<Name, HeldChain>,
    /// Service addresses to which this node must not open connections.
    pub(crate) forbidden: BTreeSet<ServiceAddress>,
    /// Activity of the table: in a dormant table, packets reach no base chain.
    pub(crate) activity: Activity,
}

/// An nftables chain with its rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeldChain {
    pub(crate) base: Option<BaseChain>,
    pub(crate) rules: Vec<Rule>,
}

/// Name of the shim's table in the families `ip` and `ip6`.
pub(crate) const TABLE: &str = "kube-proxy-ipvs";

/// Comment of the shim's table in the kernel.
const COMMENT: &str = "rules for kube-proxy";

/// Returns the change that creates the table if it is missing.
pub(crate) fn add_table(family: IpFamily) -> Change {
    Change::AddTable(table(family, TABLE))
}

/// Returns the definition of a table of this proxy with this name.
pub(crate) fn table(family: IpFamily, name: &str) -> Table {
    Table {
        family: family.into(),
        name: name.into(),
        activity: Activity::Active,
        comment: Some(COMMENT.into()),
    }
}

impl Content {
    /// Returns true if the table has neither chains nor forbidden addresses. Ignores sets.
    pub(crate) fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.forbidden.is_empty()
    }

    /// Returns the number of rules in all chains.
    pub(crate) fn len(&self) -> usize {
        self.chains.values().map(|chain| chain.rules.len()).sum()
    }

    /// Returns the transaction that turns `installed` into this content. Skips unchanged chains.
    pub(crate) fn changes(&self, installed: &Self, family: IpFamily) -> Vec<Change> {
        let mut changes = vec![add_table(family)];
        // Adds sets first, because rules can name only existing sets. Adding a set again has no
        // effect.
        let named = self.sets_named();
        changes.extend(
            named
                .iter()
                .filter_map(|name| definition_of(name, family))
                .map(Change::AddSet),
        );
        let is_same = |name: &Name| self.chains.get(name) == installed.chains.get(name);
        let goes = |name: &Name, chain: &HeldChain| {
            let wanted = self.chains.get(name);
            wanted.is_none_or(|wanted| wanted.base != chain.base)
        };
        let there = || installed.chains.iter().filter(|(name, _)| !is_same(name));
        let wanted = || self.chains.iter().filter(|(name, _)| !is_same(name));
        changes.extend(there().map(|(name, _)| Change::FlushChain(name.clone())));
        changes.extend(
            there()
                .filter(|(name, chain)| goes(name, chain))
                .map(|(name, _)| Change::DeleteChain(name.clone())),
        );
        changes.extend(wanted().map(|(name, chain)| {
            Change::AddChain(Chain {
                name: name.clone(),
                base: chain.base,
                comment: None,
            })
        }));
        for (name, chain) in wanted() {
            let rules = chain.rules.iter();
            changes.extend(rules.map(|rule| Change::AddRule(name.clone(), rule.clone())));
        }
        changes.extend(self.forbidden_changes(installed));
        changes
    }

    fn forbidden_changes(&self, installed: &Self) -> Vec<Change> {
        let elements = |keys: Vec<&ServiceAddress>| -> Vec<Element> {
            let keys = keys.into_iter();
            keys.map(|key| Element::of_set(forbidden_key(key)))
                .collect()
        };
        let gone = elements(installed.forbidden.difference(&self.forbidden).collect());
        let new = elements(self.forbidden.difference(&installed.forbidden).collect());
        let mut changes = Vec::new();
        if !gone.is_empty() {
            changes.push(Change::DeleteElements(FORBIDDEN.into(), gone));
        }
        if !new.is_empty() {
            changes.push(Change::AddElements(FORBIDDEN.into(), new));
        }
        changes
    }

    /// Returns the names of the sets that rules of this content match.
    pub(crate) fn sets_named(&self) -> BTreeSet<Name> {
        let rules = self.chains.values().flat_map(|chain| &chain.rules);
        rules.flat_map(sets_of).cloned().collect()
    }

    /// Returns the sets that these rules match, but the installed rules do not match.
    pub(crate) fn uncovered(&self, installed: &Self, family: IpFamily) -> BTreeSet<Set> {
        let missing = self.chains.iter().flat_map(|(name, chain)| {
            let there = installed.chains.get(name);
            let there = there.filter(|_| installed.activity == Activity::Active);
            let there = there.filter(|there| there.base == chain.base);
            let there = there.map_or(&[][..], |there| &there.rules);
            chain.rules.iter().filter(|rule| !there.contains(rule))
        });
        let named = missing.flat_map(sets_of);
        named.filter_map(|name| is_of(name, family)).collect()
    }

    /// Describes chains, rules and flags to operators, one object per line.
    pub(crate) fn lines(&self) -> BTreeSet<String> {
        let chains = self.chains.iter().flat_map(|(name, chain)| {
            let declared = format!("chain {name}");
            let rules = chain.rules.iter();
            let rules = rules
                .map(move |rule| format!("{name}: {}", text::rule(family_of(rule), rule, &[])));
            [declared].into_iter().chain(rules)
        });
        let forbidden = self.forbidden.iter();
        let forbidden = forbidden.map(|key| format!("element {key} of set {FORBIDDEN}"));
        let is_dormant = self.activity == Activity::Dormant;
        let dormant = is_dormant.then(|| "flags dormant".to_owned());
        chains.chain(forbidden).chain(dormant).collect()
    }
}

/// Returns the names of the sets that a rule matches.
pub(crate) fn sets_of(rule: &Rule) -> impl Iterator<Item = &Name> {
    rule.expressions.iter().filter_map(|part| match part {
        Expression::Lookup {
            set: SetRef::Named(name),
            ..
        } => Some(name),
        _ => None,
    })
}

/// Returns the IP family for which to print a rule. It matters only for `reject` statements, whose
/// ICMP codes have different names in each family.
fn family_of(rule: &Rule) -> Family {
    let unreachable = Expression::Reject { kind: 0, code: 4 };
    if rule.expressions.contains(&unreachable) {
        Family::Ip6
    } else {
        Family::Ip
    }
}

/// Returns the key of a service address in the set [`FORBIDDEN`].
pub(crate) fn forbidden_key(key: &ServiceAddress) -> Bytes {
    let from_itself = Concatenation::new()
        .address(key.address)
        .address(key.address);
    let to = from_itself.protocol(key.protocol.number()).port(key.port);
    to.into_key()
}

/// Parses a key of the set [`FORBIDDEN`]. Returns `None` if the key cannot belong to this set.
pub(crate) fn forbidden_of(key: &[u8], family: IpFamily) -> Option<ServiceAddress> {
    let address = address_len(family) as usize;
    let (from, rest) = key.split_at_checked(address)?;
    // After the source address, the key is like a member of KUBE-CLUSTER-IP.
    let rest_of = Element::of_set(Bytes::from_slice(rest));
    let (set, to) = member(&Set::ClusterIp.name(family), &rest_of, family)?;
    set.service_address(&to).filter(|_| rest.starts_with(from))
}
