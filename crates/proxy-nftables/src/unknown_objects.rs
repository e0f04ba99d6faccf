//! Recognizes upstream's objects for NodePorts on localhost by their content, under any name:
//!
//! * a chain that uses one of [the counters](crate::name::localhost_counter);
//! * a chain that leads to a recognized chain, directly or through a map;
//! * a map that leads to a recognized chain.
//!
//! An earlier kube-proxy left these objects, and no other program removes them.

use hashbrown::{HashMap, HashSet};
use nftables_netlink::{Element, ElementData, Expression, Name, Rule, SetRef, Verdict};

use crate::name::find_counter;
use kube_rules::nft::COUNTER;

/// Chains and maps in the table whose names this mode does not use.
#[derive(Debug, Default)]
pub(crate) struct UnknownObjects {
    chains: HashMap<Name, Chain>,
    /// Chains to which each map's elements lead.
    maps: HashMap<Name, HashSet<Name>>,
}

#[derive(Debug, Default)]
struct Chain {
    /// True if the chain uses a counter of packets that were rejected on localhost.
    counts: bool,
    leads_to: HashSet<Name>,
    asks: HashSet<Name>,
}

fn target(verdict: &Verdict) -> Option<&Name> {
    match verdict {
        Verdict::Goto(chain) | Verdict::Jump(chain) => Some(chain),
        _ => None,
    }
}

fn targets(elements: &[Element]) -> impl Iterator<Item = Name> {
    let verdicts = elements.iter().filter_map(|element| match &element.data {
        Some(ElementData::Verdict(verdict)) => target(verdict),
        _ => None,
    });
    verdicts.cloned()
}

impl UnknownObjects {
    /// Records elements of a map.
    pub(crate) fn elements(&mut self, map: &Name, elements: &[Element]) {
        let known = self.maps.entry(map.clone()).or_default();
        known.extend(targets(elements));
    }

    /// Records a rule of a chain.
    pub(crate) fn rule(&mut self, chain: &Name, rule: &Rule) {
        let chain = self.chains.entry(chain.clone()).or_default();
        for expression in &rule.expressions {
            match expression {
                Expression::Object { kind, name } => {
                    chain.counts |= *kind == COUNTER && find_counter(name).is_some();
                }
                Expression::Verdict(verdict) => chain.leads_to.extend(target(verdict).cloned()),
                Expression::Lookup {
                    set: SetRef::Named(set),
                    ..
                } => {
                    chain.asks.insert(set.clone());
                }
                Expression::Lookup {
                    set: SetRef::Anonymous(set),
                    ..
                } => chain.leads_to.extend(targets(&set.elements)),
                _ => {}
            }
        }
    }

    /// Returns upstream's chains for NodePorts on localhost, and upstream's maps and sets for them.
    pub(crate) fn of_localhost(&self) -> (HashSet<Name>, HashSet<Name>) {
        let counts = self.chains.iter().filter(|(_, chain)| chain.counts);
        let mut chains: HashSet<Name> = counts.map(|(name, _)| name.clone()).collect();
        let asked = self.chains.values().filter(|chain| chain.counts);
        let asked = asked.flat_map(|chain| &chain.asks);
        let mut sets: HashSet<Name> = asked
            .filter(|set| self.maps.contains_key(*set))
            .cloned()
            .collect();
        loop {
            let found = (chains.len(), sets.len());
            let maps = self.maps.iter();
            let maps = maps.filter(|(_, targets)| !targets.is_disjoint(&chains));
            sets.extend(maps.map(|(name, _)| name.clone()));
            let more = self.chains.iter().filter(|(_, chain)| {
                !chain.leads_to.is_disjoint(&chains) || !chain.asks.is_disjoint(&sets)
            });
            let more: Vec<Name> = more.map(|(name, _)| name.clone()).collect();
            chains.extend(more);
            if found == (chains.len(), sets.len()) {
                return (chains, sets);
            }
        }
    }
}
