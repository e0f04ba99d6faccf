//! Rules that come and go singly in a long chain.
//!
//! The chain that chooses an endpoint has a rule for each endpoint where clients stay with theirs, and
//! each rule names a set. The kernel searches all sets of the table for each rule that is written: to
//! write the chain anew costs the square of its endpoints, 8 s for 10,000 of them. So the rules that
//! are there are read with their handles, and what differs is written.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use nftables_netlink::{Change, Name, Rule};

use crate::kernel::Kernel;
use crate::plan::{Known, Plan};

/// Shorter chains are written anew.
const LONG: u32 = 4;

/// The changes of each chain that is not written anew.
pub(crate) type Edits = BTreeMap<Name, Vec<Change>>;

impl Plan {
    /// Reads the long chains that are there and are to be changed, and compares them. A chain that
    /// cannot be read, or of which most changes, is written anew.
    pub(crate) fn edits(&self, kernel: &mut dyn Kernel) -> Edits {
        let mut edits = Edits::new();
        for part in &self.parts {
            let Some(port) = part.port.as_ref().filter(|port| port.has_affinity()) else {
                continue;
            };
            let long = port.chains_that_name_affinity().into_iter();
            let long = long.filter(|chain| {
                let written = part.chains.get(chain);
                written.is_some_and(|of| of.there == Known::There && of.content.rules > LONG)
            });
            let long: Vec<Name> = long.collect();
            if long.is_empty() || self.replaces_clients(part) {
                continue;
            }
            port.write(
                &self.config,
                &|chain| long.contains(chain),
                &mut |chain, wanted| {
                    if let Ok(there) = kernel.rules(&chain)
                        && let Some(changes) = differences(&chain, &there, &wanted)
                    {
                        edits.insert(chain, changes);
                    }
                },
            );
        }
        edits
    }
}

/// Returns what makes these rules of those that are there; `None` if that is more than to write them
/// anew.
fn differences(chain: &Name, there: &[(u64, Rule)], wanted: &[Rule]) -> Option<Vec<Change>> {
    let places: HashMap<&Rule, usize> = wanted.iter().zip(0..).collect();
    let mut kept: Vec<(usize, u64)> = Vec::new();
    let mut changes = Vec::new();
    for (handle, rule) in there {
        let last = kept.last().map(|(place, _)| *place);
        match places.get(rule) {
            Some(place) if last.is_none_or(|last| last < *place) => kept.push((*place, *handle)),
            _ => changes.push(Change::DeleteRule(Arc::clone(chain), *handle)),
        }
    }
    let mut next = kept.iter().peekable();
    for (place, rule) in wanted.iter().enumerate() {
        match next.peek() {
            Some((of, _)) if *of == place => {
                next.next();
            }
            Some((_, handle)) => {
                let insert = Change::InsertRule(Arc::clone(chain), *handle, rule.clone());
                changes.push(insert);
            }
            None => changes.push(Change::AddRule(Arc::clone(chain), rule.clone())),
        }
    }
    (changes.len() < wanted.len()).then_some(changes)
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

    /// The chain after the changes, as the kernel makes them.
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
        fn they_make_one_chain_of_another(
            there in prop::collection::vec(0..40_u8, 0..30),
            wanted in prop::collection::btree_set(0..40_u8, 0..30),
        ) {
            let there: Vec<(u64, Rule)> = (1..).zip(there.into_iter().map(rule)).collect();
            let wanted: Vec<Rule> = wanted.into_iter().map(rule).collect();
            if let Some(changes) = differences(&"chain".into(), &there, &wanted) {
                prop_assert!(changes.len() < wanted.len());
                prop_assert_eq!(made(&there, changes), wanted);
            }
        }
    }

    #[test]
    fn one_rule_more_or_less_is_one_change() {
        let rules = |numbers: &[u8]| numbers.iter().map(|of| rule(*of)).collect::<Vec<_>>();
        let there: Vec<(u64, Rule)> = (1..).zip(rules(&[1, 2, 3, 4, 9])).collect();
        for (wanted, count) in [
            (&[1, 2, 4, 9][..], 1),
            (&[1, 2, 3, 4, 5, 9], 1),
            (&[0, 1, 2, 4, 8], 4),
        ] {
            let changes = differences(&"chain".into(), &there, &rules(wanted)).unwrap();
            assert_eq!(changes.len(), count, "{changes:?}");
        }
        assert_eq!(differences(&"chain".into(), &there, &rules(&[6, 7])), None);
    }
}
