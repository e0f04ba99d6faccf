//! The kernel interface of nftables mode: it reads the mode's table, and commits transactions.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

use nftables_netlink::{Chain, Element, Name, Rule, Set, Table, Transaction};
use proxy::{IpFamily, Unreadable};

use crate::plan::LocalhostPort;

/// Kernel operations of nftables mode for one IP family. There are two implementations: netlink,
/// and a strict fake that refuses the same transactions as the kernel.
pub trait Kernel: Send + 'static {
    /// Returns the current time, for example to measure the duration of a read. The fake kernel may
    /// have its own clock.
    fn clock(&self) -> Instant {
        Instant::now()
    }

    /// Returns the IP family of the table.
    fn family(&self) -> IpFamily;

    /// Returns the addresses of all interfaces of this node, including loopback addresses.
    ///
    /// # Errors
    ///
    /// Fails if the addresses cannot be read.
    fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, Unreadable>;

    /// Passes all objects of the table to `tell`, as one consistent snapshot. A chain precedes its
    /// rules, and a set precedes its elements. Passes no object if the table does not exist.
    /// [`Object::Begin`] means that the read starts again from the beginning.
    ///
    /// # Errors
    ///
    /// Fails if the table cannot be read.
    fn table(&mut self, tell: &mut dyn FnMut(Object)) -> Result<(), Unreadable>;

    /// Returns the timeout of a set of session affinity clients, in seconds. Returns `None` if the
    /// set does not exist or has another kind.
    ///
    /// # Errors
    ///
    /// Fails if the set cannot be read.
    fn timeout(&mut self, set: &str) -> Result<Option<u32>, Unreadable>;

    /// Returns the rules of a chain in order, with their handles. A rule may contain the name of an
    /// anonymous set instead of the set's elements.
    ///
    /// # Errors
    ///
    /// Fails if the chain cannot be read.
    fn rules(&mut self, chain: &str) -> Result<Vec<(u64, Rule)>, Unreadable>;

    /// Commits a transaction: the kernel applies all of its changes, or none.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses changes, or if the outcome is unknown.
    fn commit(&mut self, transaction: &Transaction) -> Result<(), Refusal>;

    /// Opens, updates or closes the port at which a relay serves a TCP NodePort on localhost.
    ///
    /// # Errors
    ///
    /// Fails if the port cannot be opened.
    fn listen(&mut self, port: &LocalhostPort) -> Result<(), String>;
}

/// Object of the table that a read passes to its caller, or [`Begin`](Self::Begin).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// The read starts again, because another program changed the table during the read. The caller
    /// must discard all earlier objects.
    Begin,
    /// The table itself, without its objects.
    Table(Table),
    /// A set or map without its elements, and its handle. Handles show the order of creation: the
    /// kernel numbers the sets, chains and rules of a table together.
    Set(Set, u64),
    /// A chain without its rules, and its handle.
    Chain(Chain, u64),
    /// Some elements of the set or map with this name.
    Elements(Name, Vec<Element>),
    /// A named counter.
    Counter(Name),
    /// The next rule of the chain with this name.
    Rule(Name, Rule),
}

/// Error of a transaction: the kernel refused it, or its outcome is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The kernel refused the transaction, and no object changed.
    Refused {
        /// The kernel's error for the whole transaction.
        reason: String,
        /// Changes that the kernel refused. Empty if the kernel named no change.
        changes: Vec<Blame>,
    },
    /// The kernel applied no change, and would refuse every other transaction as well: this process
    /// lacks a privilege, or the kernel lacks memory.
    General(String),
    /// The outcome of the transaction is unknown, because the kernel's reply was lost.
    Unknown(String),
}

/// A change that the kernel refused, with its error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blame {
    /// Index of the refused change in the transaction.
    pub change: usize,
    /// The kernel's error number for the change (errno(3)).
    pub errno: i32,
    /// Description of the change, and the kernel's error.
    pub reason: String,
}
