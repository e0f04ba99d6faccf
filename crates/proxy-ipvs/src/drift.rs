//! The check for drift while events go on.
//!
//! A dump of 10,000 virtual servers takes the kernel a good part of a second, and to compare it takes this proxy many
//! milliseconds. Unless the kernel's state has become uncertain, no event waits for either:
//!
//! ```text
//!   resync ─▶ reading: a second connection dumps, on a thread of its own ─┐
//!   sync   ─▶ writes what is due, then one piece of the comparison ◀──────┘  until nothing is left
//! ```
//!
//! The dump is older than what has been written since it began. What was touched meanwhile is therefore left out of the
//! comparison, and looked at the next time. The comparison changes nothing: where the kernel differs, it has become uncertain,
//! and is read again and repaired as at the start, by the connection that writes.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::time::{Duration, Instant};

use hashbrown::HashSet;
use netlink_batch::Gone;

use crate::kernel::{KernelError, Snapshot};
use crate::plan::Op;
use crate::server::{VirtualServer, VirtualServerKey};
use crate::sets::{Member, Set};

/// How many entries are compared in one sync, each 16 destinations counting as one more: about two milliseconds.
pub(crate) const PIECE: usize = 4096;

/// When to look first whether the dump is there; then, each time, when it has taken twice as long.
pub(crate) const READING: Duration = Duration::from_millis(20);

/// A dump that a reader is making.
pub(crate) type Dumping =
    Pin<Box<dyn Future<Output = Result<Result<Snapshot, KernelError>, Gone>> + Send>>;

/// A check under way.
pub(crate) struct Drift {
    pub(crate) progress: Progress,
    pub(crate) touched: Touched,
    /// When the dump began.
    pub(crate) began: Instant,
    /// When the next sync is to go on with it.
    pub(crate) due: Instant,
}

/// How far a check has come.
pub(crate) enum Progress {
    Reading(Dumping),
    Comparing(Box<Comparing>),
}

/// What is still to be compared: first what was believed to be there, then what the dump holds beyond that.
pub(crate) struct Comparing {
    pub(crate) snapshot: Snapshot,
    pub(crate) servers: Vec<VirtualServerKey>,
    pub(crate) members: Vec<(Set, Member)>,
    pub(crate) addresses: Vec<IpAddr>,
}

/// What was written since the dump began, or tried.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    pub(crate) servers: HashSet<VirtualServerKey>,
    pub(crate) members: HashSet<(Set, Member)>,
    pub(crate) addresses: HashSet<IpAddr>,
    /// The link or a set.
    pub(crate) foundation: bool,
    /// The rules, or what other modes have left.
    pub(crate) rules: bool,
}

impl Touched {
    pub(crate) fn note(&mut self, op: &Op) {
        match op {
            Op::CreateLink | Op::CreateSet(..) => self.foundation = true,
            Op::AddMember(set, member) | Op::RemoveMember(set, member) => {
                self.members.insert((*set, *member));
            }
            Op::WriteRules { .. } | Op::RemoveLeftovers(..) => self.rules = true,
            Op::BindAddress(address)
            | Op::UnbindAddress(address)
            | Op::UnbindOtherwise(address) => {
                self.addresses.insert(*address);
            }
            Op::AddServer(key, _)
            | Op::SetServer(key, _)
            | Op::RemoveServer(key)
            | Op::AddDestination(key, _)
            | Op::SetDestination(key, _)
            | Op::RemoveDestination(key, _) => {
                self.servers.insert(*key);
            }
        }
    }
}

impl Comparing {
    /// The next virtual server, and what the dump says of it. They come first: whose they are depends on the members and addresses
    /// of the dump.
    pub(crate) fn next_server(&mut self) -> Option<(VirtualServerKey, Option<VirtualServer>)> {
        if let Some(key) = self.servers.pop() {
            return Some((key, self.snapshot.servers.remove(&key)));
        }
        let (key, server) = self.snapshot.servers.pop_first()?;
        Some((key, Some(server)))
    }

    /// The next member, and whether the dump holds it.
    pub(crate) fn next_member(&mut self) -> Option<(Set, Member, bool)> {
        if let Some((set, member)) = self.members.pop() {
            let of = self.snapshot.sets.get_mut(&set);
            return Some((
                set,
                member,
                of.is_some_and(|members| members.remove(&member)),
            ));
        }
        while let Some(mut first) = self.snapshot.sets.first_entry() {
            if let Some(member) = first.get_mut().pop_first() {
                return Some((*first.key(), member, true));
            }
            first.remove();
        }
        None
    }

    /// The next address, and whether the dump holds it.
    pub(crate) fn next_address(&mut self) -> Option<(IpAddr, bool)> {
        match self.addresses.pop() {
            Some(address) => Some((address, self.snapshot.bound.remove(&address))),
            None => Some((self.snapshot.bound.pop_first()?, true)),
        }
    }
}
