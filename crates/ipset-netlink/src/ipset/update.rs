//! Builds messages that add or delete many entries. After the kernel refuses an entry, a further
//! message contains the entries that follow this entry.

use netlink_batch::{Batch, Reply, Writer};

use crate::set::CommandAttributes;
use crate::wire::{NET_BYTEORDER, attr, command, message};
use crate::{Entry, Reason};

/// Maximum number of bytes for the entries in one message.
///
/// An attribute has a length of 16 bits, so the kernel's limit is 64 KiB. Half of this limit is
/// enough for 400 to 1,300 entries. A small message also saves space in the receive buffer, because
/// a refusal repeats the whole message.
const MESSAGE_BYTES: usize = 32 * 1024;

/// Maximum number of entries in one message, by round. Each round sends the entries that follow the
/// refused entries of the previous round. The first round has no limit.
const MESSAGE_ENTRIES: [usize; 4] = [usize::MAX, 64, 8, 1];

/// Entries to add to one set, or to delete from it.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// Name of the set to change.
    pub set: &'a str,
    /// Action on the entries: adding or deleting.
    pub action: Action,
    /// Entries to add or delete.
    pub entries: &'a [Entry],
}

/// Choice between adding and deleting entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Adds the entries. The set may already have some of them.
    Add,
    /// Deletes the entries. The set may lack some of them.
    Delete,
}

/// Outcome of adding or deleting a single entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// After an add, the set has the entry. After a delete, the set does not have it.
    Done,
    /// The kernel refused the entry, or the entry does not fit the set.
    Refused(Reason),
    /// The kernel's reply was lost. A list of the set shows whether the set has the entry.
    Unknown,
}

/// Writes the beginning of a message: `struct nfgenmsg`, the protocol version, and the name of the
/// set.
pub(super) fn preamble(w: &mut Writer<'_>, protocol: u8, name: Option<&str>) {
    const AF_INET: u8 = 2;
    w.bytes(&[AF_INET, 0, 0, 0]);
    w.attr_u8(attr::PROTOCOL, protocol);
    if let Some(name) = name {
        w.attr_str(attr::SETNAME, name);
    }
}

/// Sends the entries of `parts` whose outcome is `Unknown`. Repeats this until the kernel has
/// replied about each entry, or the reply about it is lost.
pub(super) fn write<E>(
    mut parts: Vec<ChangePart<'_>>,
    protocol: u8,
    mut execute: impl FnMut(&Batch) -> Result<Vec<Reply>, E>,
) -> Result<(), E> {
    let mut batch = Batch::new();
    for most in MESSAGE_ENTRIES {
        batch.clear();
        let mut sent = Vec::new();
        for mut part in parts {
            while part.outcomes.contains(&Outcome::Unknown) {
                let count = part.push(&mut batch, protocol, most);
                let (message, rest) = part.split_at(count);
                sent.push(message);
                part = rest;
            }
        }
        if sent.is_empty() {
            break;
        }
        let replies = execute(&batch)?;
        parts = sent
            .into_iter()
            .zip(replies)
            .filter_map(|(part, reply)| part.settle(&reply))
            .collect();
    }
    Ok(())
}

/// All or some entries of a [`Change`], which may need several messages.
pub(super) struct ChangePart<'a> {
    pub(super) change: Change<'a>,
    /// Outcomes, one per entry. Before a message is sent, `Unknown` means that the entry must be
    /// sent.
    pub(super) outcomes: &'a mut [Outcome],
}

impl<'a> ChangePart<'a> {
    /// Appends a message with at most `most` entries from the start of this part. Returns the
    /// number of entries that the message covers, including entries whose outcome is already known.
    /// Entries have line numbers from 1, so that line 0 in a refusal names no entry.
    pub(super) fn push(&self, batch: &mut Batch, protocol: u8, most: usize) -> usize {
        let command = match self.change.action {
            Action::Add => command::ADD,
            Action::Delete => command::DELETE,
        };
        let (mut covered, mut written) = (0, 0);
        batch.push(message(command), 0, |w| {
            preamble(w, protocol, Some(self.change.set));
            w.attr_be32(attr::LINENO | NET_BYTEORDER, 0);
            w.nest(attr::ADT, |w| {
                let full = w.len() + MESSAGE_BYTES;
                for ((entry, outcome), line) in
                    self.change.entries.iter().zip(&*self.outcomes).zip(1..)
                {
                    if written == most || w.len() >= full {
                        break;
                    }
                    covered += 1;
                    if *outcome == Outcome::Unknown {
                        entry.encode(w, line);
                        written += 1;
                    }
                }
            });
        });
        covered
    }

    fn split_at(self, count: usize) -> (ChangePart<'a>, ChangePart<'a>) {
        let (entries, rest) = self.change.entries.split_at(count);
        let (outcomes, rest_outcomes) = self.outcomes.split_at_mut(count);
        let part = ChangePart {
            change: Change {
                entries,
                ..self.change
            },
            outcomes,
        };
        let rest = ChangePart {
            change: Change {
                entries: rest,
                ..self.change
            },
            outcomes: rest_outcomes,
        };
        (part, rest)
    }

    /// Records the reply to the message of this part. If the kernel refused an entry, returns the
    /// entries after it.
    fn settle(self, reply: &Reply) -> Option<ChangePart<'a>> {
        let refusal = match reply {
            Reply::Unknown => return None,
            Reply::Done => {
                self.conclude(Outcome::Done);
                return None;
            }
            Reply::Refused(refusal) => refusal,
        };
        let line = CommandAttributes::decode(&refusal.request)
            .ok()
            .and_then(|attributes| attributes.line);
        // Lines are numbered from 1. A number outside this part names no entry.
        let index = line.and_then(|line| (line as usize).checked_sub(1));
        let refused = index.and_then(|index| self.change.entries.get(index));
        let bitmap = matches!(refused, Some(Entry::Port(_)));
        let outcome = Outcome::Refused(Reason::from_errno(refusal.errno, command::ADD, bitmap));
        let (Some(index), Some(_)) = (index, refused) else {
            self.conclude(outcome);
            return None;
        };
        let (before, from) = self.split_at(index);
        let (refused, behind) = from.split_at(1);
        before.conclude(Outcome::Done);
        refused.conclude(outcome);
        Some(behind)
    }

    /// Sets each outcome that is still `Unknown` to `as_this`.
    fn conclude(self, as_this: Outcome) {
        for outcome in self.outcomes {
            if *outcome == Outcome::Unknown {
                *outcome = as_this;
            }
        }
    }
}
