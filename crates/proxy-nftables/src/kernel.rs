//! The kernel interface of nftables mode: reads of its table, and transactions.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

use nftables_netlink::{Chain, Element, Name, Rule, Set, Table, Transaction};
use proxy::{IpFamily, Unreadable};

use crate::plan::LocalhostPort;

/// Kernel operations for one IP family. There are two implementations: netlink, and a strict fake
/// that refuses the same transactions as the kernel.
pub trait Kernel: Send + 'static {
    /// Returns the current time, which measures, for example, the duration of a read. The fake
    /// kernel may have its own clock.
    fn clock(&self) -> Instant {
        Instant::now()
    }

    /// Returns the IP family of the table.
    fn family(&self) -> IpFamily;

    /// Returns the addresses of all interfaces of this node, including loopback addresses.
    ///
    /// # Errors
    ///
    /// The addresses cannot be read.
    fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, Unreadable>;

    /// Passes all objects of the table to `tell`, as one consistent snapshot. A chain precedes its
    /// rules, and a set precedes its elements. Passes no object if the table does not exist.
    /// [`Object::Begin`] means that the read starts over.
    ///
    /// # Errors
    ///
    /// The table cannot be read.
    fn table(&mut self, tell: &mut dyn FnMut(Object)) -> Result<(), Unreadable>;

    /// Returns the timeout in seconds of a set of session affinity clients. Returns `None` if the
    /// set does not exist or is of another kind.
    ///
    /// # Errors
    ///
    /// The set cannot be read.
    fn timeout(&mut self, set: &str) -> Result<Option<u32>, Unreadable>;

    /// Returns the rules of a chain in order, with their handles. Rules may refer to anonymous sets
    /// by name.
    ///
    /// # Errors
    ///
    /// The chain cannot be read.
    fn rules(&mut self, chain: &str) -> Result<Vec<(u64, Rule)>, Unreadable>;

    /// Commits all changes of a transaction, or none.
    ///
    /// # Errors
    ///
    /// Returns the refused changes, or an unknown outcome.
    fn commit(&mut self, transaction: &Transaction) -> Result<(), Refusal>;

    /// Opens or changes the relay's port for a TCP NodePort on localhost, or closes it.
    ///
    /// # Errors
    ///
    /// The port cannot be opened.
    fn listen(&mut self, port: &LocalhostPort) -> Result<(), String>;
}

/// An object of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// The read starts over, because another program has written meanwhile. The caller must discard
    /// all earlier objects.
    Begin,
    /// The table itself, without its objects.
    Table(Table),
    /// A set or map without its elements, and its handle. The kernel numbers the sets, chains and
    /// rules of a table in the order of their creation.
    Set(Set, u64),
    /// A chain without its rules, and its handle.
    Chain(Chain, u64),
    /// Some elements of a set or map.
    Elements(Name, Vec<Element>),
    /// A named counter, by its name.
    Counter(Name),
    /// The next rule of a chain.
    Rule(Name, Rule),
}

/// Reason why a transaction was not committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The kernel refused the transaction, and no object changed.
    Refused {
        /// Error for the transaction as a whole.
        reason: String,
        /// Refused changes. Empty if the kernel named none.
        changes: Vec<Blame>,
    },
    /// Nothing changed. The kernel would refuse every other transaction, too, because this process
    /// lacks a privilege or the kernel lacks memory.
    General(String),
    /// The outcome is unknown, because the kernel's reply was lost.
    Unknown(String),
}

/// A change that the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blame {
    /// Index of the change in the transaction.
    pub change: usize,
    /// The kernel's error number (errno(3)).
    pub errno: i32,
    /// Description of the change, with the error.
    pub reason: String,
}
