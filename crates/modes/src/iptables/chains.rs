//! Compares chains in the output of `iptables-save` with the chains that `iptables-restore` would
//! write.

use std::collections::{HashMap, HashSet};

use iptables::Line;
use proxy::{EntryChange, IpFamily};
use proxy_iptables::WrittenChain;

use crate::preview::{Action, Change};

/// Rules of each chain. The key is the chain's table and name.
#[derive(Debug, Default)]
pub(super) struct Chains(HashMap<(String, String), Vec<String>>);

impl Chains {
    /// Parses the output of `iptables-save`.
    pub(super) fn of(saved: &str) -> Self {
        let mut chains = Self::default();
        let mut table = String::new();
        for line in saved.lines() {
            if let Some(Line::Table(name)) = Line::parse(line) {
                name.clone_into(&mut table);
            } else if let Some(Line::Chain(name)) = Line::parse(line) {
                let place = (table.clone(), name.to_owned());
                chains.0.entry(place).or_default();
            } else if let Some(rule) = line.strip_prefix("-A ") {
                let name = rule.split(' ').next().unwrap_or_default();
                let place = (table.clone(), name.to_owned());
                chains
                    .0
                    .entry(place)
                    .or_default()
                    .push(line.trim_end().to_owned());
            }
        }
        chains
    }

    /// Returns the difference that a write of `chain` makes: each rule that it adds or removes.
    pub(super) fn change(&self, of: IpFamily, chain: WrittenChain, line: String) -> Change {
        let WrittenChain {
            table,
            name,
            rules: wanted,
            owner,
        } = chain;
        let there = self.0.get(&(table.name().to_owned(), name.clone()));
        let entry = EntryChange {
            entry: format!("chain {name} of table {table}"),
            owner,
            ..EntryChange::default()
        };
        let mut change = Change::of_entry(of, "rules", "rules", entry, line);
        let none = Vec::new();
        let found = there.unwrap_or(&none);
        let (is, is_to_be) = (set(found), set(&wanted));
        let gone = found
            .iter()
            .filter(|rule| !is_to_be.contains(rule.as_str()));
        change.rules.extend(gone.map(|rule| format!("- {rule}")));
        let new = wanted.iter().filter(|rule| !is.contains(rule.as_str()));
        change.rules.extend(new.map(|rule| format!("+ {rule}")));
        if there.is_some() {
            change.action = Action::Change;
            if change.rules.is_empty() {
                let is_same = *found == wanted;
                let what = if is_same {
                    "~ the same rules, written with others"
                } else {
                    "~ its rules in another order"
                };
                change.rules.push(what.to_owned());
            }
        }
        change
    }
}

fn set(rules: &[String]) -> HashSet<&str> {
    rules.iter().map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use iptables::Table;

    use super::*;

    const SAVED: &str = "*nat\n:KUBE-SVC-A - [0:0]\n:KUBE-EMPTY - [0:0]\n-A KUBE-SVC-A -j ONE\n\
                         -A KUBE-SVC-A -j TWO\nCOMMIT\n*filter\n:KUBE-SVC-A - [0:0]\nCOMMIT\n";

    fn change(name: &str, rules: &[&str]) -> (Action, Vec<String>) {
        let chain = WrittenChain {
            table: Table::Nat,
            name: name.to_owned(),
            rules: rules.iter().map(|rule| (*rule).to_owned()).collect(),
            owner: None,
        };
        let change = Chains::of(SAVED).change(IpFamily::V4, chain, "write".to_owned());
        assert_eq!(change.entry, format!("chain {name} of table nat"));
        (change.action, change.rules)
    }

    #[test]
    fn a_changed_chain_is_reported_with_each_different_rule() {
        let told = |lines: &[&str]| {
            lines
                .iter()
                .map(|line| (*line).to_owned())
                .collect::<Vec<_>>()
        };
        let (one, two) = ("-A KUBE-SVC-A -j ONE", "-A KUBE-SVC-A -j TWO");
        let three = "-A KUBE-SVC-A -j THREE";
        let other = ["- -A KUBE-SVC-A -j ONE", "+ -A KUBE-SVC-A -j THREE"];
        assert_eq!(
            change("KUBE-SVC-A", &[two, three]),
            (Action::Change, told(&other))
        );
        let turned = (Action::Change, told(&["~ its rules in another order"]));
        assert_eq!(change("KUBE-SVC-A", &[two, one]), turned);
        let same = (
            Action::Change,
            told(&["~ the same rules, written with others"]),
        );
        assert_eq!(change("KUBE-SVC-A", &[one, two]), same);
        assert_eq!(change("KUBE-EMPTY", &[]), same);
        assert_eq!(change("KUBE-NEW", &[]), (Action::Add, Vec::new()));
    }
}
