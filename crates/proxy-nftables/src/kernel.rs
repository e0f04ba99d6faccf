//! The kernel as this mode sees it: a table that is read, and transactions.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

use nftables_netlink::{Chain, Element, Name, Rule, Set, Table, Transaction};
use proxy::{IpFamily, Unreadable};

use crate::plan::LocalhostPort;

/// What can be read and written, for one IP family. Two implementations: netlink, and a strict fake
/// that refuses what the kernel refuses.
pub trait Kernel: Send + 'static {
    /// What time it is, for what is measured: how long reading takes. A kernel of tests may have a
    /// time of its own.
    fn clock(&self) -> Instant {
        Instant::now()
    }

    /// The family.
    fn family(&self) -> IpFamily;

    /// The addresses of all interfaces of this node, those of localhost included.
    ///
    /// # Errors
    ///
    /// They cannot be read.
    fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, Unreadable>;

    /// Tells all that the table holds, as of one moment: chains before their rules, sets before
    /// their elements. Where there is no table, nothing. It begins anew with each [`Object::Begin`].
    ///
    /// # Errors
    ///
    /// It cannot be read.
    fn table(&mut self, tell: &mut dyn FnMut(Object)) -> Result<(), Unreadable>;

    /// How many seconds clients stay in a set of clients; `None` if there is no such set, or it is of
    /// another kind.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    fn timeout(&mut self, set: &str) -> Result<Option<u32>, Unreadable>;

    /// Returns the rules of a chain with their handles, in their order. Sets in braces may stand by
    /// names.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    fn rules(&mut self, chain: &str) -> Result<Vec<(u64, Rule)>, Unreadable>;

    /// Carries out a transaction, all of it or nothing.
    ///
    /// # Errors
    ///
    /// What was refused, or that nobody knows whether it was carried out.
    fn commit(&mut self, transaction: &Transaction) -> Result<(), Refusal>;

    /// Has a NodePort of TCP served on localhost from now on, or closes it.
    ///
    /// # Errors
    ///
    /// It cannot be opened.
    fn listen(&mut self, port: &LocalhostPort) -> Result<(), String>;
}

/// Something that the table holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// What was told before is of no account: somebody wrote meanwhile.
    Begin,
    /// The table itself.
    Table(Table),
    /// A set or map, without its elements, and its handle. A table numbers sets, chains and rules
    /// in the order in which they are made.
    Set(Set, u64),
    /// A chain, without its rules, and its handle.
    Chain(Chain, u64),
    /// Elements of a set or map.
    Elements(Name, Vec<Element>),
    /// A named counter.
    Counter(Name),
    /// The next rule of a chain.
    Rule(Name, Rule),
}

/// A transaction was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Nothing was done. Where the kernel says for which changes, these: each by its number. None
    /// where it refused the whole.
    Refused {
        /// Why the whole was refused.
        reason: String,
        /// Why single changes were.
        changes: Vec<Blame>,
    },
    /// Nothing was done, nor would be whatever it is: a right is missing, or memory.
    General(String),
    /// Nobody knows what was done.
    Unknown(String),
}

/// A change that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blame {
    /// Its number in the transaction.
    pub change: usize,
    /// The error number (errno(3)).
    pub errno: i32,
    /// What was refused, and why.
    pub reason: String,
}
