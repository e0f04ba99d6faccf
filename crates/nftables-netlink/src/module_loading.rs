//! Makes the kernel load the modules that a transaction needs, a few at a time.
//!
//! If the kernel lacks a module for a change, it aborts the transaction, loads the module and
//! starts the transaction again. Linux 6.12 then requests again each module that the transaction
//! has requested before (`nf_tables_module_autoload`). The list of requests also contains names
//! without a module, such as `nft-expr-2-nat`. So for n requests, the kernel starts the module
//! loader about n²/2 times.

use std::collections::HashSet;
use std::mem::{Discriminant, discriminant};

use crate::expression::{Expression, Rule};
use crate::nftables::Nftables;
use crate::object::ChainKind;
use crate::transaction::{Change, Transaction};

/// Part of a change for which the kernel may need a module.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Requirement {
    Chain(ChainKind),
    Expression(Discriminant<Expression>),
    Set,
    Counter,
}

fn requirements(change: &Change) -> Vec<Requirement> {
    let of_rule = |rule: &Rule| {
        let expressions = rule.expressions.iter();
        let kinds = expressions.map(|expression| Requirement::Expression(discriminant(expression)));
        kinds.collect()
    };
    match change {
        Change::AddChain(chain) => {
            let kinds = chain.base.iter().map(|base| Requirement::Chain(base.kind));
            kinds.collect()
        }
        Change::AddSet(_) => vec![Requirement::Set],
        Change::AddCounter(_) => vec![Requirement::Counter],
        Change::AddRule(_, rule)
        | Change::InsertRule(_, _, rule)
        | Change::ReplaceRule(_, _, rule) => of_rule(rule),
        _ => Vec::new(),
    }
}

/// Returns the lengths of those prefixes of `changes` whose last change adds a new [`Requirement`].
fn beginnings(changes: &[Change]) -> Vec<usize> {
    let mut known = HashSet::new();
    let lengths = changes.iter().zip(1..).filter_map(|(change, length)| {
        let before = known.len();
        known.extend(requirements(change));
        (known.len() > before).then_some(length)
    });
    lengths.collect()
}

impl Nftables {
    /// Makes the kernel load the modules that a transaction needs, without a commit. The kernel
    /// checks longer and longer prefixes of the transaction, so each check loads only a few
    /// modules. Stops at the first refusal.
    pub(crate) fn load_modules(&mut self, transaction: &Transaction) {
        for length in beginnings(&transaction.changes) {
            let changes = transaction.changes.iter().take(length).cloned();
            let beginning = Transaction {
                family: transaction.family,
                table: transaction.table.clone(),
                changes: changes.collect(),
            };
            // Ignores the error: the caller sends the whole transaction next, gets the same error,
            // and reports it.
            if self.check_whole(&beginning).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::MetaKey;
    use crate::value::Register;

    #[test]
    fn each_beginning_of_a_transaction_ends_with_a_new_kind_of_expression() {
        let mark = Expression::Meta {
            key: MetaKey::Mark,
            to: Register::FIRST,
        };
        let masquerade = Expression::Masquerade { flags: 0 };
        let rule = |expressions: &[&Expression]| {
            let rule = Rule {
                expressions: expressions.iter().copied().cloned().collect(),
                comment: None,
            };
            Change::AddRule("chain".into(), rule)
        };
        let changes = [
            rule(&[&mark]),
            rule(&[&mark]),
            rule(&[&mark, &masquerade]),
            Change::FlushChain("chain".into()),
            rule(&[&masquerade]),
        ];
        assert_eq!(beginnings(&changes), [1, 3]);
    }
}
