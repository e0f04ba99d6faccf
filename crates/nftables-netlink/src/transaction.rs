//! Transactions: changes that the kernel commits together.

use crate::expression::Rule;
use crate::object::{Chain, Element, Set, Table};
use crate::value::{Family, Name};

/// Changes of one table. The kernel makes all of them in this order, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// Family of the table.
    pub family: Family,
    /// Name of the table.
    pub table: Name,
    /// Changes in order.
    pub changes: Vec<Change>,
}

/// Generation of a network namespace's ruleset. Each committed transaction on any table increments
/// it. It is never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Generation(pub u32);

impl Generation {
    /// Returns the generation after one more transaction.
    #[must_use]
    pub const fn next(self) -> Self {
        match self.0.checked_add(1) {
            Some(next) => Self(next),
            None => Self(1),
        }
    }
}

/// One change of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Creates the table with this comment, unless the table exists.
    AddTable(Table),
    /// Deletes the table with its content. The kernel refuses (`ENOENT`) if it does not exist.
    DeleteTable,
    /// Creates the chain, unless it exists.
    AddChain(Chain),
    /// Deletes all rules of a chain.
    FlushChain(Name),
    /// Deletes a chain with its rules. The kernel refuses (`EBUSY`) while the chain is referenced.
    DeleteChain(Name),
    /// Creates the set, unless it exists. An existing set gets the new default timeout (since Linux
    /// 6.5).
    AddSet(Set),
    /// Deletes a set with its elements. The kernel refuses (`EBUSY`) while a rule uses it.
    DeleteSet(Name),
    /// Deletes all elements of a set.
    FlushSet(Name),
    /// Adds elements to a set. The kernel refuses (`EEXIST`) an element of a map that exists with
    /// other data.
    AddElements(Name, Vec<Element>),
    /// Deletes elements of a set. The kernel refuses (`ENOENT`) if an element does not exist.
    DeleteElements(Name, Vec<Element>),
    /// Creates a named counter, unless it exists. An existing counter continues to count.
    AddCounter(Name),
    /// Deletes a named counter. The kernel refuses (`EBUSY`) while a rule uses it.
    DeleteCounter(Name),
    /// Appends a rule to a chain.
    AddRule(Name, Rule),
    /// Inserts a rule before the rule with this handle.
    InsertRule(Name, u64, Rule),
    /// Deletes the rule with this handle.
    DeleteRule(Name, u64),
    /// Replaces the rule with this handle.
    ReplaceRule(Name, u64, Rule),
}
