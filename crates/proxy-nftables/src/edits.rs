//! Changes single rules of long chains instead of rewriting the chains as a whole.
//!
//! With session affinity, the chain that chooses an endpoint has one rule for each endpoint. Each
//! of these rules uses its own set. To write one such rule, the kernel searches all sets of the
//! table. So the cost of writing the whole chain grows with the square of the number of endpoints:
//! 8 s for 10,000.
//!
//! This module reads a chain's current rules with their handles, and writes only the differences.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use nftables_netlink::{Chain, Change, Name, Rule};

use crate::content::Content;
use crate::kernel::Kernel;
use crate::plan::{ChainState, Plan};

/// Number of wanted rules up to which a changed chain is always rewritten as a whole.
const LONG: u32 = 4;

/// Largest number of rules of one chain that a transaction writes. Between two transactions for a
/// long chain, the mode can write other Services.
pub(crate) const MANY_RULES: usize = 250;

/// Changes to the rules of one chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edit {
    pub(crate) changes: Vec<Change>,
    /// Digest of the chain's rules after the changes. `None` if the chain then has all wanted
    /// rules.
    pub(crate) partial: Option<Content>,
}

/// Changes to single rules of long chains, by the chain's name.
pub(crate) type Edits = BTreeMap<Name, Edit>;

impl Plan {
    /// Reads each existing long chain that the plan changes, and compares its rules with the wanted
    /// rules. A chain is missing from the result, and is rewritten as a whole, if it cannot be read
    /// or most of its rules change.
    pub(crate) fn edits(&self, kernel: &mut dyn Kernel) -> Edits {
        let mut edits = Edits::new();
        for part in &self.parts {
            let Some(port) = part.port.as_ref().filter(|port| port.has_affinity()) else {
                continue;
            };
            let long = port.chains_that_name_affinity().into_iter();
            let long = long.filter(|chain| {
                part.chains.get(chain).is_some_and(|of| match of.there {
                    ChainState::Present => of.content.rules > LONG,
                    // Creates the new chain in several transactions. A later plan writes the
                    // elements that lead packets to this chain, once it is complete.
                    ChainState::Absent => {
                        part.slots.is_empty() && of.content.rules as usize > MANY_RULES
                    }
                    ChainState::Unknown => false,
                })
            });
            let long: Vec<Name> = long.collect();
            if long.is_empty() || self.replaces_clients(part) {
                continue;
            }
            port.write(
                &self.config,
                &|chain| long.contains(chain),
                &mut |chain, wanted| {
                    let is_new = part
                        .chains
                        .get(&chain)
                        .is_some_and(|of| of.there == ChainState::Absent);
                    let edit = if is_new {
                        Some(beginning(&chain, &wanted))
                    } else {
                        let there = kernel.rules(&chain).ok();
                        there.and_then(|there| differences(&chain, &there, &wanted))
                    };
                    edits.extend(edit.map(|edit| (chain, edit)));
                },
            );
        }
        edits
    }
}

/// Returns the changes that create a chain with its first rules, while no element leads packets to
/// it.
fn beginning(chain: &Name, wanted: &[Rule]) -> Edit {
    let first = wanted.get(..MANY_RULES).unwrap_or(wanted);
    let new = Change::AddChain(Chain {
        name: Arc::clone(chain),
        base: None,
        comment: None,
    });
    let rules = first.iter().cloned();
    let rules = rules.map(|rule| Change::AddRule(Arc::clone(chain), rule));
    Edit {
        changes: [new].into_iter().chain(rules).collect(),
        partial: (first.len() < wanted.len()).then(|| Content::of(first)),
    }
}

/// Returns the changes that turn a chain's current rules into the wanted rules, or `None` if
/// rewriting the chain costs less. If very many rules are new, adds only some of them now, and
/// deletes no rule yet. The last rule changes in the last transaction, because it gives new clients
/// an endpoint.
fn differences(chain: &Name, there: &[(u64, Rule)], wanted: &[Rule]) -> Option<Edit> {
    let places: HashMap<&Rule, usize> = wanted.iter().zip(0..).collect();
    let mut kept: Vec<(usize, u64)> = Vec::new();
    let mut gone: Vec<u64> = Vec::new();
    // Handle of the first unwanted rule after the last kept rule. While no rule is deleted yet, new
    // rules at the chain's end are inserted before this unwanted rule.
    let mut behind = None;
    for (handle, rule) in there {
        let last = kept.last().map(|(place, _)| *place);
        match places.get(rule) {
            Some(place) if last.is_none_or(|last| last < *place) => {
                kept.push((*place, *handle));
                behind = None;
            }
            _ => {
                gone.push(*handle);
                behind = behind.or(Some(*handle));
            }
        }
    }
    let new = wanted.len() - kept.len();
    let is_partial = new > MANY_RULES;
    if !is_partial && gone.len() + new >= wanted.len() {
        return None;
    }
    let delete = |handle| Change::DeleteRule(Arc::clone(chain), handle);
    let mut changes: Vec<Change> = if is_partial {
        Vec::new()
    } else {
        gone.into_iter().map(delete).collect()
    };
    let behind = behind.filter(|_| is_partial);
    let mut next = kept.iter().peekable();
    for (place, rule) in wanted.iter().enumerate() {
        if is_partial && changes.len() == MANY_RULES {
            break;
        }
        let before = match next.peek() {
            Some((of, _)) if *of == place => {
                next.next();
                continue;
            }
            Some((_, handle)) => Some(*handle),
            None => behind,
        };
        changes.push(match before {
            Some(handle) => Change::InsertRule(Arc::clone(chain), handle, rule.clone()),
            None => Change::AddRule(Arc::clone(chain), rule.clone()),
        });
    }
    let partial = is_partial.then(|| {
        let new = changes.iter().filter_map(|change| match change {
            Change::InsertRule(_, _, rule) | Change::AddRule(_, rule) => Some(rule),
            _ => None,
        });
        // Digests the rules in arbitrary order: the digest of an unfinished chain only has to
        // differ from the digest of the wanted rules.
        Content::of(there.iter().map(|(_, rule)| rule).chain(new))
    });
    Some(Edit { changes, partial })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule(number: u8) -> Rule {
        Rule {
            expressions: Vec::new(),
            comment: Some(number.to_string().into()),
        }
    }

    /// Returns the rules that a chain with the rules `there` has after `changes`.
    fn made(there: &[(u64, Rule)], changes: Vec<Change>) -> Vec<Rule> {
        let mut rules = there.to_vec();
        let mut new = 1_000;
        for change in changes {
            let place = |handle: u64, rules: &[(u64, Rule)]| {
                rules
                    .iter()
                    .position(|(of, _)| *of == handle)
                    .expect("a handle")
            };
            new += 1;
            match change {
                Change::DeleteRule(_, handle) => {
                    rules.remove(place(handle, &rules));
                }
                Change::InsertRule(_, before, rule) => {
                    rules.insert(place(before, &rules), (new, rule));
                }
                Change::AddRule(_, rule) => rules.push((new, rule)),
                other => panic!("{other:?}"),
            }
        }
        rules.into_iter().map(|(_, rule)| rule).collect()
    }

    proptest! {
        #[test]
        fn edits_turn_any_chain_into_any_other_chain(
            there in prop::collection::vec(0..40_u8, 0..30),
            wanted in prop::collection::btree_set(0..40_u8, 0..30),
        ) {
            let there: Vec<(u64, Rule)> = (1..).zip(there.into_iter().map(rule)).collect();
            let wanted: Vec<Rule> = wanted.into_iter().map(rule).collect();
            if let Some(edit) = differences(&"chain".into(), &there, &wanted) {
                prop_assert!(edit.changes.len() < wanted.len());
                prop_assert_eq!(edit.partial, None);
                prop_assert_eq!(made(&there, edit.changes), wanted);
            }
        }
    }

    #[test]
    fn an_added_or_removed_rule_costs_one_change() {
        let rules = |numbers: &[u8]| numbers.iter().map(|of| rule(*of)).collect::<Vec<_>>();
        let there: Vec<(u64, Rule)> = (1..).zip(rules(&[1, 2, 3, 4, 9])).collect();
        for (wanted, count) in [
            (&[1, 2, 4, 9][..], 1),
            (&[1, 2, 3, 4, 5, 9], 1),
            (&[0, 1, 2, 4, 8], 4),
        ] {
            let edit = differences(&"chain".into(), &there, &rules(wanted)).unwrap();
            assert_eq!(edit.changes.len(), count, "{edit:?}");
        }
        assert_eq!(differences(&"chain".into(), &there, &rules(&[6, 7])), None);
    }
}
