//! Copies an nf_tables table: reads it from a node that the daemon has programmed, and writes it to
//! other nodes, with all or some of its rules.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use lab::Place;
use nftables_netlink::{
    BaseChain, Chain, ChainKind, Change, CtKey, Expression, Family, Hook, Name, Nftables, Policy,
    Register, Rule, Table, TableDump, Transaction, Verdict,
};

/// Name of a table whose rules match no packet. They only make the kernel enable features that they
/// need, such as connection tracking.
const BENCH: &str = "bench";
/// Priority of IPVS in the input hook. IPVS takes its packets there, so chains with a higher
/// priority value never see them.
const IPVS: i32 = 99;

/// An nf_tables table, and the order in which a packet traverses the rules of its base chains.
#[derive(Debug)]
pub(super) struct Pieces {
    whole: TableDump,
    name: Name,
    /// Indices of the base chains' rules that a packet traverses, in order.
    met: Vec<usize>,
}

impl Pieces {
    /// Reads the table `name`. `hooks` are the hooks that a packet traverses, in order.
    pub(super) fn read(place: &Place, name: &str, hooks: &[Hook]) -> Result<Self> {
        let mut nft = open(place)?;
        let whole = nft.read(Family::Ip, name);
        let whole = whole.with_context(|| format!("cannot read the table {name}"))?;
        ensure!(whole.table.is_some(), "there is no table {name}");
        Ok(Self::new(whole, name, hooks))
    }

    fn new(whole: TableDump, name: &str, hooks: &[Hook]) -> Self {
        let place = |base: &BaseChain| {
            let is_met =
                !hooks.contains(&Hook::Input) || base.hook != Hook::Input || base.priority < IPVS;
            let hook = hooks.iter().position(|hook| *hook == base.hook)?;
            is_met.then_some((hook, base.priority))
        };
        let mut chains: Vec<((usize, i32), &Name)> = whole
            .chains
            .iter()
            .filter_map(|chain| Some((place(chain.base.as_ref()?)?, &chain.name)))
            .collect();
        chains.sort();
        let met = chains.into_iter().flat_map(|(_, chain)| {
            let rules = whole.rules.iter().enumerate();
            rules
                .filter(|(_, rule)| rule.chain == *chain)
                .map(|(index, _)| index)
                .collect::<Vec<_>>()
        });
        Self {
            met: met.collect(),
            name: name.into(),
            whole,
        }
    }

    /// Returns the number of base chains' rules that a packet traverses. Excludes rules of called
    /// chains.
    pub(super) fn len(&self) -> usize {
        self.met.len()
    }

    /// Returns the number of base chains' rules that a packet does not traverse.
    pub(super) fn others(&self) -> usize {
        self.base_rules().count().saturating_sub(self.met.len())
    }

    /// Returns a title for a traversed rule: its chain, and its comment or the target of its jump.
    pub(super) fn title(&self, piece: usize) -> String {
        let Some(found) = self.met.get(piece).and_then(|at| self.whole.rules.get(*at)) else {
            return String::new();
        };
        let jumps = found.rule.expressions.iter().find_map(|one| match one {
            Expression::Verdict(Verdict::Jump(to) | Verdict::Goto(to)) => Some(format!("→ {to}")),
            _ => None,
        });
        let comment = found.rule.comment.as_ref().map(ToString::to_string);
        let what = comment.or(jumps).unwrap_or_else(|| {
            let names = found.rule.expressions.iter().map(Expression::name);
            names.collect::<Vec<_>>().join(" ")
        });
        format!("{}: {what}", found.chain)
    }

    /// Returns true if the first `pieces` rules include all rules of nat chains in prerouting, so
    /// that packets reach the Service.
    pub(super) fn translates(&self, pieces: usize) -> bool {
        let is_in_prerouting = |index: &usize| {
            let rule = self.whole.rules.get(*index);
            rule.is_some_and(|rule| {
                self.base(&rule.chain).is_some_and(|base| {
                    base.kind == ChainKind::Nat && base.hook == Hook::Prerouting
                })
            })
        };
        let last = self.met.iter().rposition(is_in_prerouting);
        last.is_some_and(|last| last < pieces)
    }

    /// Writes the table to a node with only the first `pieces` traversed rules, or with all rules
    /// if `None`.
    pub(super) fn write(&self, place: &Place, pieces: Option<usize>) -> Result<()> {
        let with: BTreeSet<usize> = match pieces {
            Some(pieces) => self.met.iter().copied().take(pieces).collect(),
            None => self.base_rules().collect(),
        };
        let of_rule = |index: &usize| self.whole.rules.get(*index);
        let hooked: BTreeSet<&Name> = with
            .iter()
            .filter_map(of_rule)
            .map(|one| &one.chain)
            .collect();
        let mut changes = vec![Change::AddTable(named(&self.name))];
        for chain in &self.whole.chains {
            if chain.base.is_none() || hooked.contains(&chain.name) {
                changes.push(Change::AddChain(chain.clone()));
            }
        }
        for (found, _) in &self.whole.sets {
            changes.push(Change::AddSet(found.set.clone()));
        }
        for (found, elements) in &self.whole.sets {
            if !elements.is_empty() {
                changes.push(Change::AddElements(
                    found.set.name.clone(),
                    elements.clone(),
                ));
            }
        }
        for (index, found) in self.whole.rules.iter().enumerate() {
            if self.base(&found.chain).is_none() || with.contains(&index) {
                changes.push(Change::AddRule(found.chain.clone(), found.rule.clone()));
            }
        }
        commit(place, &self.name, changes)
    }

    fn base(&self, chain: &Name) -> Option<&BaseChain> {
        let found = self.whole.chains.iter().find(|one| one.name == *chain)?;
        found.base.as_ref()
    }

    fn base_rules(&self) -> impl Iterator<Item = usize> {
        let rules = self.whole.rules.iter().enumerate();
        rules
            .filter(|(_, rule)| self.base(&rule.chain).is_some())
            .map(|(index, _)| index)
    }
}

/// Enables connection tracking, by a rule that needs it but matches no packet.
pub(super) fn track(place: &Place) -> Result<()> {
    let unused: Name = "unused".into();
    let state = Expression::Ct {
        key: CtKey::State,
        to: Register::FIRST,
    };
    let rule = Rule {
        expressions: vec![state],
        comment: None,
    };
    let chain = Chain {
        name: unused.clone(),
        base: None,
        comment: None,
    };
    let changes = vec![
        Change::AddTable(named(&BENCH.into())),
        Change::AddChain(chain),
        Change::AddRule(unused, rule),
    ];
    commit(place, BENCH, changes)
}

/// Enables NAT, by a chain of type nat without rules at the last hook of a packet's path.
pub(super) fn translate(place: &Place) -> Result<()> {
    let chain = Chain {
        name: "nat".into(),
        base: Some(BaseChain {
            kind: ChainKind::Nat,
            hook: Hook::Input,
            priority: IPVS + 1,
            policy: Policy::Accept,
        }),
        comment: None,
    };
    let changes = vec![
        Change::AddTable(named(&BENCH.into())),
        Change::AddChain(chain),
    ];
    commit(place, BENCH, changes)
}

fn named(name: &Name) -> Table {
    Table {
        family: Family::Ip,
        name: name.clone(),
        activity: nftables_netlink::Activity::Active,
        comment: None,
    }
}

fn commit(place: &Place, table: &str, changes: Vec<Change>) -> Result<()> {
    let transaction = Transaction {
        family: Family::Ip,
        table: table.into(),
        changes,
    };
    open(place)?
        .commit(&transaction, None)
        .with_context(|| format!("cannot write the table {table}"))?;
    Ok(())
}

fn open(place: &Place) -> Result<Nftables> {
    Ok(place.enter(|| Ok(Nftables::open()))??)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nftables_netlink::KernelRule;

    type Place = (ChainKind, Hook, i32);

    fn whole(chains: &[(&str, Option<Place>)], rules: &[(&str, &str)]) -> TableDump {
        let chain = |(name, base): &(&str, Option<Place>)| Chain {
            name: (*name).into(),
            base: base.map(|(kind, hook, priority)| BaseChain {
                kind,
                hook,
                priority,
                policy: Policy::Accept,
            }),
            comment: None,
        };
        let rule = |(chain, comment): &(&str, &str)| KernelRule {
            handle: 0,
            chain: (*chain).into(),
            rule: Rule {
                expressions: Vec::new(),
                comment: Some((*comment).into()),
            },
        };
        TableDump {
            counters: Vec::new(),
            generation: nftables_netlink::Generation(1),
            table: None,
            chains: chains.iter().map(chain).collect(),
            chain_handles: <_>::default(),
            sets: Vec::new(),
            rules: rules.iter().map(rule).collect(),
        }
    }

    #[test]
    fn table_rules_are_in_the_order_of_a_packets_path() {
        let nat = |hook, priority| Some((ChainKind::Nat, hook, priority));
        let filter = |hook, priority| Some((ChainKind::Filter, hook, priority));
        let chains = [
            ("post", nat(Hook::Postrouting, 99)),
            ("behind", filter(Hook::Input, 101)),
            ("before", filter(Hook::Input, 0)),
            ("pre", nat(Hook::Prerouting, -101)),
            ("led-to", None),
        ];
        let rules = [
            ("post", "a"),
            ("behind", "b"),
            ("before", "c"),
            ("pre", "d"),
            ("pre", "e"),
        ];
        let rules = [&rules[..], &[("led-to", "f")]].concat();
        let hooks = [Hook::Prerouting, Hook::Input, Hook::Postrouting];
        let pieces = Pieces::new(whole(&chains, &rules), "t", &hooks);
        let titles: Vec<String> = (0..pieces.len()).map(|piece| pieces.title(piece)).collect();
        assert_eq!(titles, ["pre: d", "pre: e", "before: c", "post: a"]);
        assert_eq!(pieces.others(), 1);
        let translates: Vec<bool> = (0..=4).map(|pieces_| pieces.translates(pieces_)).collect();
        assert_eq!(translates, [false, false, true, true, true]);
        // A forwarded packet traverses these hooks, and bypasses IPVS.
        let hooks = [Hook::Prerouting, Hook::Forward, Hook::Postrouting];
        assert_eq!(Pieces::new(whole(&chains, &rules), "t", &hooks).len(), 3);
    }
}
