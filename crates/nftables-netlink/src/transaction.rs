//! Transactions: changes that the kernel commits together.

use crate::expression::Rule;
use crate::object::{Chain, Element, Set, Table};
use crate::value::{Family, Name};

/// Changes to one table. The kernel applies all of them in this order, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// Family of the table.
    pub family: Family,
    /// Name of the table.
    pub table: Name,
    /// Changes, in the order in which the kernel applies them.
    pub changes: Vec<Change>,
}

/// Generation of the ruleset in a network namespace. Each committed transaction of any table
/// increments this number. The number is never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Generation(pub u32);

impl Generation {
    /// Returns the next generation.
    #[must_use]
    pub const fn next(self) -> Self {
        match self.0.checked_add(1) {
            Some(next) => Self(next),
            None => Self(1),
        }
    }
}

/// One change to a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Creates the table with its comment, unless the table exists.
    AddTable(Table),
    /// Deletes the table with its content. The kernel refuses the change (`ENOENT`) if the table
    /// does not exist.
    DeleteTable,
    /// Creates the chain, unless it exists.
    AddChain(Chain),
    /// Deletes all rules of a chain.
    FlushChain(Name),
    /// Deletes a chain with its rules. The kernel refuses the change (`EBUSY`) while a rule or
    /// element refers to the chain.
    DeleteChain(Name),
    /// Creates the set, unless it exists. Since Linux 6.5, an existing set gets the new default
    /// timeout.
    AddSet(Set),
    /// Deletes a set with its elements. The kernel refuses the change (`EBUSY`) while a rule uses
    /// the set.
    DeleteSet(Name),
    /// Deletes all elements of a set.
    FlushSet(Name),
    /// Adds elements to a set. In a map, the kernel refuses an element (`EEXIST`) if the map
    /// already has the element's key with other data.
    AddElements(Name, Vec<Element>),
    /// Deletes elements of a set. The kernel refuses an element that does not exist (`ENOENT`).
    DeleteElements(Name, Vec<Element>),
    /// Creates a named counter, unless it exists. An existing counter continues to count.
    AddCounter(Name),
    /// Deletes a named counter. The kernel refuses the change (`EBUSY`) while a rule uses the
    /// counter.
    DeleteCounter(Name),
    /// Appends a rule to a chain.
    AddRule(Name, Rule),
    /// Inserts a rule before the rule that has this handle.
    InsertRule(Name, u64, Rule),
    /// Deletes the rule that has this handle.
    DeleteRule(Name, u64),
    /// Replaces the rule that has this handle.
    ReplaceRule(Name, u64, Rule),
}
