//! The shim's nftables table in the fake kernel, which applies or refuses a transaction as a whole.

use std::collections::{BTreeMap, BTreeSet};

use nftables_netlink::{Chain, Change, Element, Expression, Name, Rule, SetRef, Verdict};
use proxy::IpFamily;

use crate::native::{
    Content, FORBIDDEN, HeldChain, TABLE, definition_of, forbidden_key, forbidden_of, is_of, place,
};
use crate::rules::Rules;
use crate::sets::{Member, Set};

/// The shim's nftables table, with its sets and chains, as the kernel stores it.
#[derive(Debug)]
pub struct NativeTable {
    /// Name of the nftables table.
    pub name: &'static str,
    /// Sets and maps of the table, each with its elements.
    pub sets: Vec<(nftables_netlink::Set, Vec<Element>)>,
    /// Chains of the table, each with its rules in order.
    pub chains: Vec<(Chain, Vec<Rule>)>,
}

impl NativeTable {
    /// Builds the table that `--ipvs-shim=nftables` writes for these rules and sets.
    pub fn of(rules: &Rules, sets: &BTreeMap<Set, BTreeSet<Member>>, family: IpFamily) -> Self {
        let content = rules.native();
        let mut elements: BTreeMap<Name, Vec<Element>> = BTreeMap::new();
        for name in content.sets_named() {
            elements.entry(name).or_default();
        }
        for (set, members) in sets {
            for member in members {
                let at = place(*set, member, family);
                let of_set = elements.entry(at.set).or_default();
                of_set.push(at.element);
            }
        }
        for key in &content.forbidden {
            let of_set = elements.entry(FORBIDDEN.into()).or_default();
            of_set.push(Element::of_set(forbidden_key(key)));
        }
        let sets = elements
            .into_iter()
            .filter_map(|(name, elements)| Some((definition_of(&name, family)?, elements)));
        let chains = content.chains.iter().map(|(name, held)| {
            let chain = Chain {
                name: name.clone(),
                base: held.base,
                comment: None,
            };
            (chain, held.rules.clone())
        });
        Self {
            name: TABLE,
            sets: sets.collect(),
            chains: chains.collect(),
        }
    }
}

/// Returns the content of the table after a transaction on the content `there`.
pub(super) fn apply(
    there: &Content,
    changes: &[Change],
    sets: &BTreeSet<Set>,
    family: IpFamily,
) -> Result<Content, &'static str> {
    let mut content = there.clone();
    let mut made: BTreeSet<Name> = BTreeSet::new();
    for change in changes {
        match change {
            Change::AddTable(_) => {}
            Change::AddSet(set) => {
                if definition_of(&set.name, family).as_ref() != Some(set) {
                    return Err("no set of the shim is like this");
                }
                made.insert(set.name.clone());
            }
            Change::FlushChain(name) => {
                let chain = content.chains.get_mut(name);
                chain.ok_or("no such chain to flush")?.rules.clear();
            }
            Change::DeleteChain(name) => {
                let gone = content.chains.remove(name);
                if !gone.ok_or("no such chain to delete")?.rules.is_empty() {
                    return Err("a chain goes with its rules still in it");
                }
            }
            Change::AddChain(chain) => {
                let held = HeldChain {
                    base: chain.base,
                    rules: Vec::new(),
                };
                let held = content.chains.entry(chain.name.clone()).or_insert(held);
                if held.base != chain.base {
                    return Err("a chain cannot change its hook");
                }
            }
            Change::AddRule(name, rule) => {
                for expression in &rule.expressions {
                    match expression {
                        Expression::Lookup {
                            set: SetRef::Named(set),
                            ..
                        } if !made.contains(set)
                            && is_of(set, family).is_none_or(|set| !sets.contains(&set)) =>
                        {
                            return Err("a rule looks into a set that is not there");
                        }
                        Expression::Verdict(Verdict::Jump(to) | Verdict::Goto(to))
                            if !content.chains.contains_key(to) =>
                        {
                            return Err("a rule leads to a chain that is not there");
                        }
                        _ => {}
                    }
                }
                let chain = content.chains.get_mut(name).ok_or("no such chain")?;
                chain.rules.push(rule.clone());
            }
            Change::AddElements(name, elements) | Change::DeleteElements(name, elements)
                if **name == *FORBIDDEN =>
            {
                for element in elements {
                    let key = forbidden_of(&element.key, family).ok_or("no such key")?;
                    if matches!(change, Change::AddElements(..)) {
                        content.forbidden.insert(key);
                    } else if !content.forbidden.remove(&key) {
                        return Err("no such element");
                    }
                }
            }
            _ => return Err("the lane of rules does not do this"),
        }
    }
    let chains = content.chains.values().flat_map(|chain| &chain.rules);
    let targets = chains.flat_map(|rule| &rule.expressions);
    let leads_nowhere = |part: &Expression| match part {
        Expression::Verdict(Verdict::Jump(to) | Verdict::Goto(to)) => {
            !content.chains.contains_key(to)
        }
        _ => false,
    };
    if targets.clone().any(leads_nowhere) {
        return Err("a rule leads to a chain that is gone");
    }
    Ok(content)
}
