//! Our table of nftables in the fake kernel: a transaction is made whole, or refused.

use std::collections::BTreeSet;

use nftables_netlink::{Change, Expression, Name, SetRef, Verdict};
use proxy::IpFamily;

use crate::native::{Content, FORBIDDEN, HeldChain, definition_of, forbidden_of, is_of};
use crate::sets::Set;

/// What the table holds after a transaction.
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
