//! Sends ipset commands to the kernel, and interprets the replies.
//!
//! A message can add or delete many entries. The kernel processes these entries in order, stops at
//! the first entry that it refuses, and reports this entry's line number. This crate then sends the
//! remaining entries in a smaller message. So even if a full set refuses thousands of entries, this
//! crate does not send thousands of large messages.

mod update;

use std::collections::HashMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use netlink_batch::{Connection, Dump, NLM_F_EXCL, Protocol, Refusal, Writer};

use crate::set::CommandAttributes;
use crate::wire::{LIST_HEADER, MAX_NAME, NET_BYTEORDER, attr, command, errno, message};
use crate::{Definition, Entry, Error, Family, Header, Key, Reason, Set, SetType};
use update::{ChangePart, preamble, write};

pub use update::{Action, Change, Outcome};

/// Newest protocol version that this crate supports. [`PROTOCOL_MIN`] is the oldest version.
const PROTOCOL: u8 = 7;
const PROTOCOL_MIN: u8 = 6;

/// A connection to ipset in the kernel, for the network namespace of the thread that called
/// [`open`](Self::open).
///
/// Every call blocks while the kernel works.
#[derive(Debug)]
pub struct Ipset {
    connection: Connection,
    protocol: u8,
    /// Types of the sets that this connection has seen, so that an update needs no query. If
    /// another program replaces a set with one of a different type, a refused entry or a list
    /// reveals the new type.
    types: HashMap<String, EntryType>,
}

/// Type of a set, with its address family if it has one. `None` if this crate does not support the
/// type.
type EntryType = Option<(SetType, Option<Family>)>;

impl Ipset {
    /// Opens a connection to the kernel, and agrees with it on a protocol version.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoIpset`] or [`Error::Version`]. Also fails if the socket fails.
    pub fn open() -> Result<Ipset, Error> {
        let mut connection =
            Connection::open(Protocol::Netfilter).map_err(|error| match error {
                // The kernel has not loaded nfnetlink, so it has no ipset either.
                netlink_batch::Error::Open { source, .. }
                    if source.raw_os_error() == Some(errno::EPROTONOSUPPORT) =>
                {
                    Error::NoIpset
                }
                error => Error::Netlink(error),
            })?;
        let answer = connection.request(message(command::PROTOCOL), 0, |w| {
            preamble(w, PROTOCOL, None);
        });
        let answer = answer.map_err(|error| match error {
            // nfnetlink returns EINVAL if the kernel cannot load ipset.
            netlink_batch::Error::Refused(Refusal {
                errno: errno::EINVAL,
                ..
            }) => Error::NoIpset,
            error => Error::Netlink(error),
        })?;
        let attributes = only_message(&answer, command::PROTOCOL)?;
        let Some(max) = attributes.protocol else {
            return Err(Error::Answer {
                action: action(command::PROTOCOL),
                fault: "no version",
            });
        };
        let protocol = max.min(PROTOCOL);
        let min = attributes.protocol_min.unwrap_or(max);
        if protocol < min.max(PROTOCOL_MIN) {
            return Err(Error::Version { min, max });
        }
        Ok(Ipset {
            connection,
            protocol,
            types: HashMap::new(),
        })
    }

    /// Returns the protocol version in use: 7, or 6 with a kernel before 4.20.
    pub fn protocol(&self) -> u8 {
        self.protocol
    }

    /// Returns the number of messages that this connection has sent. The number wraps to 0 after
    /// `u32::MAX`.
    pub fn sent(&self) -> u32 {
        self.connection.sent()
    }

    /// Creates an empty set. If a set with this name exists and [`Header::matches`] the definition,
    /// keeps that set with its entries.
    ///
    /// Returns true if this call has created the set.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Mismatch`] if the existing set has a different type, family, maxelem, port
    /// range or option. Returns [`Error::NoType`], [`Error::Revision`], [`Error::NoMarks`] or
    /// [`Error::Name`] for a definition that the kernel cannot create. Also fails if the kernel
    /// refuses.
    pub fn create(&mut self, name: &str, wanted: &Definition) -> Result<bool, Error> {
        valid_name(name)?;
        let revision = self.revision(wanted)?;
        let encode = |w: &mut Writer<'_>| wanted.encode(w, revision);
        // Without NLM_F_EXCL, creation also succeeds if a set of the other IP family has this name.
        match self.command(command::CREATE, NLM_F_EXCL, name, encode) {
            Err(Error::Refused {
                reason: Reason::NameTaken,
                ..
            }) => {}
            result => {
                result?;
                let made = (wanted.set_type(), wanted.family());
                self.types.insert(name.to_owned(), Some(made));
                return Ok(true);
            }
        }
        let exists = self.header(name)?;
        if exists.matches(wanted) {
            Ok(false)
        } else {
            Err(Error::Mismatch {
                exists: Box::new(exists),
                wanted: *wanted,
            })
        }
    }

    /// Checks that the kernel supports the type and the options of a definition. Creates no set.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoType`], [`Error::Revision`] or [`Error::NoMarks`]. Also fails if the
    /// socket fails.
    pub fn check(&mut self, wanted: &Definition) -> Result<(), Error> {
        self.revision(wanted).map(drop)
    }

    /// Removes a set. Fails with [`Reason::InUse`] if a rule or another set refers to the set.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Refused`] with [`Reason::NoSuchSet`] or [`Reason::InUse`].
    pub fn destroy(&mut self, name: &str) -> Result<(), Error> {
        self.types.remove(name);
        // With NLM_F_EXCL, every kernel reports an error if the set is missing. Without this flag,
        // newer kernels report success.
        self.command(command::DESTROY, NLM_F_EXCL, name, |_| {})
    }

    /// Removes a set like [`destroy`](Self::destroy), but retries for up to `patience` while a rule
    /// refers to the set. iptables' nft backend releases a set only some time after its rules for
    /// the set are removed. Returns false if the set did not exist.
    ///
    /// # Errors
    ///
    /// Fails if the set still exists. The error has the reason.
    pub fn destroy_released(&mut self, name: &str, patience: Duration) -> Result<bool, Error> {
        const PAUSE: Duration = Duration::from_millis(20);
        let deadline = Instant::now() + patience;
        loop {
            match self.destroy(name) {
                Err(Error::Refused {
                    reason: Reason::NoSuchSet,
                    ..
                }) => return Ok(false),
                Err(Error::Refused {
                    reason: Reason::InUse,
                    ..
                }) if Instant::now() < deadline => sleep(PAUSE),
                destroyed => return destroyed.map(|()| true),
            }
        }
    }

    /// Removes all entries of a set.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Refused`] with [`Reason::NoSuchSet`].
    pub fn flush(&mut self, name: &str) -> Result<(), Error> {
        self.command(command::FLUSH, 0, name, |_| {})
    }

    /// Renames a set. Fails if the new name is taken, or a rule or another set refers to the set.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Refused`] with [`Reason::NoSuchSet`], [`Reason::NameTaken`] or
    /// [`Reason::InUse`].
    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), Error> {
        valid_name(to)?;
        self.types.remove(from);
        self.types.remove(to);
        self.command(command::RENAME, 0, from, |w| w.attr_str(attr::SETNAME2, to))
    }

    /// Exchanges the entries of two sets atomically. Both sets must have the same type and family.
    /// A rule that refers to one of the sets then uses the entries that the other set had.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Refused`] with [`Reason::NoSuchSet`] or [`Reason::TypeMismatch`].
    pub fn swap(&mut self, one: &str, other: &str) -> Result<(), Error> {
        valid_name(other)?;
        self.command(command::SWAP, 0, one, |w| w.attr_str(attr::SETNAME2, other))
    }

    /// Adds entries to a set. Succeeds for entries that the set already has. Returns one
    /// [`Outcome`] for each entry, in order.
    ///
    /// See [`Ipset::update`].
    ///
    /// # Errors
    ///
    /// See [`Ipset::update`].
    pub fn add(&mut self, set: &str, entries: &[Entry]) -> Result<Vec<Outcome>, Error> {
        self.update(&[Change {
            set,
            action: Action::Add,
            entries,
        }])
        .map(|mut outcomes| outcomes.pop().unwrap_or_default())
    }

    /// Deletes entries from a set. Succeeds for entries that the set does not have. Returns one
    /// [`Outcome`] for each entry, in order.
    ///
    /// See [`Ipset::update`].
    ///
    /// # Errors
    ///
    /// See [`Ipset::update`].
    pub fn delete(&mut self, set: &str, entries: &[Entry]) -> Result<Vec<Outcome>, Error> {
        self.update(&[Change {
            set,
            action: Action::Delete,
            entries,
        }])
        .map(|mut outcomes| outcomes.pop().unwrap_or_default())
    }

    /// Adds and deletes entries of any number of sets, in the order of `changes`, with as few sends
    /// as possible.
    ///
    /// Returns the [`Outcome`] of each entry of each change. A set that is missing or has a
    /// different type or family affects only the outcomes of its own entries. A refused entry
    /// affects only its own outcome. However, the call may then write later entries of the same
    /// message after entries of the following changes.
    ///
    /// If this connection has not stored the type of a set yet, the call first queries the type. It
    /// repeats this query after a refusal, because another program may have replaced the set. Only
    /// a refusal or a list reveals such a replacement.
    ///
    /// # Errors
    ///
    /// Fails if the socket fails. The kernel may then have made any part of the changes.
    pub fn update(&mut self, changes: &[Change<'_>]) -> Result<Vec<Vec<Outcome>>, Error> {
        let mut outcomes = Vec::with_capacity(changes.len());
        let mut assumed = Vec::with_capacity(changes.len());
        for change in changes {
            assumed.push(self.types.get(change.set).copied());
            outcomes.push(self.expected(change)?);
        }
        self.write(changes, &mut outcomes)?;
        let mut is_again = false;
        for ((change, outcomes), assumed) in changes.iter().zip(&mut outcomes).zip(assumed) {
            let is_refused = |outcome: &Outcome| matches!(outcome, Outcome::Refused(_));
            if let Some(assumed) = assumed
                && outcomes.iter().any(is_refused)
            {
                is_again |= self.expect_again(change, assumed, outcomes)?;
            }
        }
        if is_again {
            self.write(changes, &mut outcomes)?;
        }
        Ok(outcomes)
    }

    /// Sends the entries whose outcome is still `Unknown`, and records their outcomes.
    fn write(
        &mut self,
        changes: &[Change<'_>],
        outcomes: &mut [Vec<Outcome>],
    ) -> Result<(), Error> {
        let parts = changes
            .iter()
            .zip(outcomes)
            .map(|(change, outcomes)| ChangePart {
                change: *change,
                outcomes,
            });
        write(parts.collect(), self.protocol, |batch| {
            self.connection.execute(batch)
        })?;
        Ok(())
    }

    /// Returns all sets of the network namespace, with their entries.
    ///
    /// # Errors
    ///
    /// Fails if the socket fails, the kernel refuses, or a reply is malformed.
    pub fn list_all(&mut self) -> Result<Vec<Set>, Error> {
        self.dump(None, false)
    }

    /// Returns one set with its entries.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Refused`] with [`Reason::NoSuchSet`]. Otherwise, see [`Ipset::list_all`].
    pub fn list(&mut self, name: &str) -> Result<Set, Error> {
        only_set(self.dump(Some(name), false)?)
    }

    /// Returns all sets of the network namespace, without their entries.
    ///
    /// # Errors
    ///
    /// See [`Ipset::list_all`].
    pub fn headers(&mut self) -> Result<Vec<Header>, Error> {
        Ok(self
            .dump(None, true)?
            .into_iter()
            .map(|set| set.header)
            .collect())
    }

    /// Returns one set without its entries.
    ///
    /// # Errors
    ///
    /// See [`Ipset::list`].
    pub fn header(&mut self, name: &str) -> Result<Header, Error> {
        only_set(self.dump(Some(name), true)?).map(|set| set.header)
    }

    /// Returns the kernel's name for the type of a set, such as `hash:ip,port`. Costs one query,
    /// even for a large set.
    ///
    /// # Errors
    ///
    /// See [`Ipset::list`].
    pub fn type_name(&mut self, name: &str) -> Result<String, Error> {
        let answer = self.ask(command::HEADER, 0, name, |_| {})?;
        let attributes = only_message(&answer, command::HEADER)?;
        Ok(attributes.type_name.unwrap_or_default().to_owned())
    }

    /// Returns true if a set has an entry that matches a key. The set may have any type whose
    /// entries consist of addresses, networks and ports. The kernel looks the key up as it does for
    /// a packet, without listing the set. A key that lacks a part of the type matches no entry.
    ///
    /// # Errors
    ///
    /// See [`Ipset::list`].
    pub fn test(&mut self, name: &str, key: &Key) -> Result<bool, Error> {
        valid_name(name)?;
        let protocol = self.protocol;
        let answer = self.connection.request(message(command::TEST), 0, |w| {
            preamble(w, protocol, Some(name));
            key.encode(w);
        });
        match answer {
            Ok(_) => Ok(true),
            Err(netlink_batch::Error::Refused(Refusal {
                errno: errno::EXIST,
                ..
            })) => Ok(false),
            Err(error) => Err(refused(error, command::TEST, name)),
        }
    }

    /// Returns the outcomes that are known before any message is sent. An entry that does not fit
    /// its set is refused here, because the kernel would add only the parts that it understands.
    /// All other outcomes are `Unknown`.
    fn expected(&mut self, change: &Change<'_>) -> Result<Vec<Outcome>, Error> {
        let refused = |reason| Ok(vec![Outcome::Refused(reason); change.entries.len()]);
        if change.entries.is_empty() {
            return Ok(Vec::new());
        }
        let set = match self.types.get(change.set) {
            Some(known) => *known,
            None => match self.ask_type(change.set) {
                Ok(set) => set,
                Err(Error::Refused { reason, .. }) => return refused(reason),
                Err(Error::Name { .. }) => return refused(Reason::InvalidName),
                Err(error) => return Err(error),
            },
        };
        let Some((set_type, family)) = set else {
            return refused(Reason::TypeMismatch);
        };
        let outcome = |entry: &Entry| {
            if entry.fits(set_type, family) {
                Outcome::Unknown
            } else {
                Outcome::Refused(Reason::TypeMismatch)
            }
        };
        Ok(change.entries.iter().map(outcome).collect())
    }

    /// Queries the type of a set again after the kernel refused an entry, because the stored type
    /// may be outdated. Refuses entries that do not fit the new type. Returns true if any entry
    /// must be sent again, and sets the outcome of such an entry to `Unknown`.
    fn expect_again(
        &mut self,
        change: &Change<'_>,
        assumed: EntryType,
        outcomes: &mut [Outcome],
    ) -> Result<bool, Error> {
        self.types.remove(change.set);
        let fresh = self.expected(change)?;
        let is_another = self.types.get(change.set) != Some(&assumed);
        let mut is_again = false;
        for (outcome, fresh) in outcomes.iter_mut().zip(fresh) {
            *outcome = match (*outcome, fresh) {
                (_, Outcome::Refused(reason)) => Outcome::Refused(reason),
                (Outcome::Refused(reason), _) if is_another || reason == Reason::NoSuchSet => {
                    is_again = true;
                    Outcome::Unknown
                }
                (outcome, _) => outcome,
            };
        }
        Ok(is_again)
    }

    /// Queries the type of a set, and stores it for later calls.
    fn ask_type(&mut self, set: &str) -> Result<EntryType, Error> {
        let answer = self.ask(command::HEADER, 0, set, |_| {})?;
        let found = only_message(&answer, command::HEADER)?.set_type();
        self.types.insert(set.to_owned(), found);
        Ok(found)
    }

    /// Returns the newest revision of the set type that the kernel and this crate both support.
    fn revision(&mut self, wanted: &Definition) -> Result<u8, Error> {
        let set_type = wanted.set_type();
        let protocol = self.protocol;
        let answer = self.connection.request(message(command::TYPE), 0, |w| {
            preamble(w, protocol, None);
            wanted.encode_type(w);
        });
        let answer = answer.map_err(|error| match error {
            netlink_batch::Error::Refused(Refusal {
                errno: errno::ENOENT | errno::FIND_TYPE,
                ..
            }) => Error::NoType {
                type_name: set_type.name(),
                module: set_type.module(),
            },
            error => Error::Netlink(error),
        })?;
        let attributes = only_message(&answer, command::TYPE)?;
        let Some(max) = attributes.revision else {
            return Err(Error::Answer {
                action: action(command::TYPE),
                fault: "no revision",
            });
        };
        let min = attributes.protocol_min.unwrap_or(max);
        wanted.revision_between(min, max)
    }

    fn dump(&mut self, name: Option<&str>, headers: bool) -> Result<Vec<Set>, Error> {
        name.map_or(Ok(()), valid_name)?;
        let protocol = self.protocol;
        let dump = self.connection.dump(message(command::LIST), 0, |w| {
            preamble(w, protocol, name);
            if headers {
                w.attr_be32(attr::FLAGS | NET_BYTEORDER, LIST_HEADER);
            }
        });
        let dump = dump.map_err(|error| refused(error, command::LIST, name.unwrap_or("(any)")))?;
        let sets = Set::decode_list(dump.iter().map(|(_, payload)| payload))?;
        if let (Some(name), Some(set)) = (name, sets.first()) {
            let found = set.header.definition;
            let found = found.map(|there| (there.set_type(), there.family()));
            self.types.insert(name.to_owned(), found);
        }
        Ok(sets)
    }

    /// Sends a command about one set to the kernel. Ignores the content of the reply.
    fn command(
        &mut self,
        number: u16,
        flags: u16,
        name: &str,
        rest: impl Fn(&mut Writer<'_>),
    ) -> Result<(), Error> {
        self.ask(number, flags, name, rest).map(drop)
    }

    /// Sends a command about one set to the kernel. Returns the reply.
    fn ask(
        &mut self,
        number: u16,
        flags: u16,
        name: &str,
        rest: impl Fn(&mut Writer<'_>),
    ) -> Result<Dump, Error> {
        valid_name(name)?;
        let protocol = self.protocol;
        let answer = self.connection.request(message(number), flags, |w| {
            preamble(w, protocol, Some(name));
            rest(w);
        });
        answer.map_err(|error| refused(error, number, name))
    }
}

fn valid_name(name: &str) -> Result<(), Error> {
    let fault = match name {
        "" => "it is empty",
        _ if name.len() > MAX_NAME => "it is longer than 31 bytes",
        _ if name.contains('\0') => "it holds a NUL",
        _ => return Ok(()),
    };
    Err(Error::Name {
        name: name.to_owned(),
        fault,
    })
}

fn only_message(answer: &Dump, number: u16) -> Result<CommandAttributes<'_>, Error> {
    match answer.iter().next() {
        Some((_, payload)) => Ok(CommandAttributes::decode(payload)?),
        None => Err(Error::Answer {
            action: action(number),
            fault: "it is empty",
        }),
    }
}

fn only_set(sets: Vec<Set>) -> Result<Set, Error> {
    sets.into_iter().next().ok_or(Error::Answer {
        action: action(command::LIST),
        fault: "it is empty",
    })
}

/// Converts a netlink error into the error of a command about one set.
fn refused(error: netlink_batch::Error, number: u16, name: &str) -> Error {
    let (action, name) = (action(number), name.to_owned());
    match error {
        netlink_batch::Error::Refused(refusal) => {
            // Reads type-specific error numbers as errors of a bitmap: of all commands that end
            // here, only CREATE of a bitmap returns such a number.
            let reason = Reason::from_errno(refusal.errno, number, true);
            Error::Refused {
                action,
                name,
                reason,
            }
        }
        // If the reply to a read is lost, the caller can repeat the read.
        netlink_batch::Error::LostReply if !is_read(number) => Error::Unknown { action, name },
        error => Error::Netlink(error),
    }
}

fn is_read(command: u16) -> bool {
    matches!(command, command::LIST | command::HEADER | command::TEST)
}

/// Returns the verb for a command in error messages. The message continues with "set" and its name.
fn action(number: u16) -> &'static str {
    match number {
        command::CREATE => "create",
        command::DESTROY => "destroy",
        command::FLUSH => "flush",
        command::RENAME => "rename",
        command::SWAP => "swap",
        command::LIST => "list",
        command::HEADER | command::TEST => "look up",
        command::TYPE => "look up the type of",
        _ => "agree on a protocol for",
    }
}

#[cfg(test)]
mod tests;
