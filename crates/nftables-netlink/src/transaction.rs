//! What is to change, all of it or nothing.

use crate::expression::Rule;
use crate::object::{Chain, Element, Set, Table};
use crate::value::{Family, Name};

/// Changes of one table that the kernel makes all at once, in this order, or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// The family of the table.
    pub family: Family,
    /// The table.
    pub table: Name,
    /// What is done.
    pub changes: Vec<Change>,
}

/// The number of the ruleset of a network namespace, of all its tables: each transaction that is
/// made raises it by one, whoever makes it. It is never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Generation(pub u32);

impl Generation {
    /// That after one more transaction.
    #[must_use]
    pub const fn next(self) -> Self {
        match self.0.checked_add(1) {
            Some(next) => Self(next),
            None => Self(1),
        }
    }
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The table is there afterwards, with this comment if it is new.
    AddTable(Table),
    /// The table goes with all that it holds. The kernel refuses (`ENOENT`) where there is none.
    DeleteTable,
    /// The chain is there afterwards.
    AddChain(Chain),
    /// All rules of a chain go.
    FlushChain(Name),
    /// A chain goes with its rules. Refused (`EBUSY`) while something refers to it.
    DeleteChain(Name),
    /// The set is there afterwards. Where it is, its default timeout is as given afterwards
    /// (Linux 6.5; before, it stays).
    AddSet(Set),
    /// A set goes with its elements. Refused (`EBUSY`) while a rule names it.
    DeleteSet(Name),
    /// All elements of a set go.
    FlushSet(Name),
    /// The elements are in the set afterwards. Refused (`EEXIST`) where a map leads elsewhere.
    AddElements(Name, Vec<Element>),
    /// The elements are not in the set afterwards. Refused (`ENOENT`) where one is not there.
    DeleteElements(Name, Vec<Element>),
    /// The named counter is there afterwards. Where it is, it goes on counting.
    AddCounter(Name),
    /// A named counter goes. Refused (`EBUSY`) while a rule names it.
    DeleteCounter(Name),
    /// A rule at the end of a chain.
    AddRule(Name, Rule),
    /// A rule in front of the one with this handle.
    InsertRule(Name, u64, Rule),
    /// A rule, by its handle, goes.
    DeleteRule(Name, u64),
    /// A rule stands where that one stood.
    ReplaceRule(Name, u64, Rule),
}
