//! Connection to nf_tables in the kernel: commits one transaction at a time, and reads objects.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use netlink_batch::{Connection, Malformed, Protocol, Refusal, Replies, Writer};

use crate::decode::{self, AnonymousMessages, AnySet, RuleMessage};
use crate::encode::{PreparedTransaction, header};
use crate::error::{CommitError, Error, RefusedChange, is_absence, permission, unless_absent};
use crate::object::{Chain, Element, KernelSet, NamedCounter, Table};
use crate::own_sockets::{OwnSocket, OwnSockets};
use crate::transaction::{Generation, Transaction};
use crate::value::Family;
use crate::wire::{chain, command, elements, message, object, rule, set};

/// Largest number of times that this crate sends a transaction. The kernel may request a restart
/// after each send.
const RESTARTS: u32 = 8;
/// Largest number of attempts to read a set that the kernel is resizing.
const DUMPS: u32 = 8;
/// Pause before the second attempt to read a set. The pause doubles before each further attempt.
const RESIZING: Duration = Duration::from_millis(2);

/// A connection to nf_tables in the network namespace of the thread that opened it.
///
/// Calls block while the kernel works.
#[derive(Debug)]
pub struct Nftables {
    /// Entry of this socket in the list of the program's own sockets, if any. The entry must be
    /// dropped before the socket closes, because the kernel may then assign the socket's port
    /// number to another program.
    pub(crate) own: Option<OwnSocket>,
    pub(crate) connection: Connection,
}

impl OwnSockets {
    /// Opens a socket, and lists it as one of the program's own sockets while it is open.
    /// Subscriptions ignore changes that were made through listed sockets.
    ///
    /// Subscriptions still report these changes in two cases: the kernel refuses the filter, or
    /// does not reveal the socket's port number.
    ///
    /// # Errors
    ///
    /// See [`Nftables::open`].
    pub fn open(self: &Arc<Self>) -> Result<Nftables, Error> {
        let mut opened = Nftables::open()?;
        opened.own = opened.port().ok().map(|port| self.note(port));
        Ok(opened)
    }
}

impl Nftables {
    /// Opens a connection to nf\_tables in the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NoNftables`] if the kernel lacks nf\_tables. Otherwise, returns the error
    /// of the socket.
    pub fn open() -> Result<Self, Error> {
        let mut opened = Self {
            own: None,
            connection: Connection::open(Protocol::Netfilter)?,
        };
        match opened.generation() {
            // nfnetlink replies with one of these errors if it cannot load the module of nf_tables.
            Err(Error::Netlink(netlink_batch::Error::Refused(Refusal {
                errno: libc::EINVAL | libc::EOPNOTSUPP,
                ..
            }))) => Err(Error::NoNftables),
            Err(error) => Err(error),
            Ok(_) => Ok(opened),
        }
    }

    /// Returns the netlink port number of the socket. A [`Subscription`](crate::Subscription) can
    /// ignore changes from this port.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not reveal the number.
    pub fn port(&self) -> io::Result<u32> {
        self.connection.port()
    }

    /// Returns the generation of the ruleset. Every committed transaction changes it. Packets that
    /// count or add elements do not.
    ///
    /// # Errors
    ///
    /// Fails if the socket fails, or if the kernel refuses the request.
    pub fn generation(&mut self) -> Result<Generation, Error> {
        let answer = self
            .connection
            .request(message(command::GET_GENERATION), 0, |w| header(w, 0))?;
        for (kind, payload) in answer.iter() {
            if kind == message(command::NEW_GENERATION) {
                return Ok(decode::generation(payload)?);
            }
        }
        Err(Error::Netlink(netlink_batch::Error::LostReply))
    }

    /// Commits all changes in one transaction, or none of them, and returns the new generation. If
    /// `expected` is set, commits only while the ruleset has that generation.
    ///
    /// # Errors
    ///
    /// See [`CommitError`].
    pub fn commit(
        &mut self,
        transaction: &Transaction,
        expected: Option<Generation>,
    ) -> Result<Generation, CommitError> {
        self.commit_prepared(&mut PreparedTransaction::new(transaction, expected))
    }

    /// Commits an encoded transaction, and returns the new generation.
    ///
    /// # Errors
    ///
    /// See [`CommitError`].
    pub fn commit_prepared(
        &mut self,
        prepared: &mut PreparedTransaction,
    ) -> Result<Generation, CommitError> {
        if prepared.is_empty() {
            let found = self.generation()?;
            return match prepared.expected {
                Some(expected) if expected != found => {
                    Err(CommitError::WrongGeneration { expected, found })
                }
                _ => Ok(found),
            };
        }
        let answers = self.taken(prepared)?;
        let mut echoed = answers.echoed.iter();
        let told = echoed.find(|(kind, _)| *kind == message(command::NEW_GENERATION));
        match told {
            Some((_, payload)) => Ok(decode::generation(payload).map_err(Error::from)?),
            // The kernel did not report the new generation.
            //
            // - If a generation was expected, the new generation is the next number.
            // - Otherwise, queries the kernel. Other transactions may have raised the generation
            //   meanwhile.
            None => match prepared.expected {
                Some(before) => Ok(before.next()),
                None => Ok(self.generation()?),
            },
        }
    }

    /// Makes the kernel check each change without a commit. The kernel loads missing modules, and
    /// then rolls back: it sends no event, and the generation stays the same.
    ///
    /// Like `nft --check` on Linux 6.18, this function does not detect errors that concern the
    /// whole transaction, such as a loop of jumps.
    ///
    /// # Errors
    ///
    /// See [`Nftables::commit`]. No change takes effect.
    pub fn check(&mut self, transaction: &Transaction) -> Result<(), CommitError> {
        self.load_modules(transaction);
        self.check_whole(transaction)
    }

    /// Checks a transaction like [`Nftables::check`], but does not load the modules in small steps
    /// first.
    pub(crate) fn check_whole(&mut self, transaction: &Transaction) -> Result<(), CommitError> {
        let mut prepared = PreparedTransaction::without_end(transaction, None);
        if prepared.is_empty() {
            return Ok(());
        }
        self.taken(&mut prepared).map(drop)
    }

    /// Sends a transaction, and returns the kernel's replies. Sends it again if the kernel requests
    /// a restart, up to `RESTARTS` times in total.
    fn taken(&mut self, prepared: &mut PreparedTransaction) -> Result<Replies, CommitError> {
        let mut restarts = 0;
        loop {
            let answers = match self.connection.transact(&mut prepared.batch) {
                Err(netlink_batch::Error::Io { doing, source }) if is_too_large(doing, &source) => {
                    return Err(CommitError::TooLarge(source));
                }
                answers => answers?,
            };
            if answers.refused.is_empty() {
                if !answers.acknowledged.contains(&prepared.last()) {
                    return Err(CommitError::Unknown);
                }
                return Ok(answers);
            }
            let whole = answers.refused.iter().find(|(index, _)| *index == 0);
            if let Some((_, refusal)) = whole
                && matches!(refusal.errno, libc::EAGAIN | ERESTART | libc::EINTR)
            {
                if let Some(expected) = prepared.expected {
                    let found = self.generation()?;
                    if found != expected {
                        return Err(CommitError::WrongGeneration { expected, found });
                    }
                }
                restarts += 1;
                if restarts < RESTARTS {
                    continue;
                }
            }
            return Err(refused(prepared, answers.refused, answers.lost));
        }
    }

    /// Returns the tables of one family, or of all families if `family` is `None`.
    ///
    /// # Errors
    ///
    /// Fails if the socket fails, or if the kernel refuses the request.
    pub fn tables(&mut self, family: Option<Family>) -> Result<Vec<Table>, Error> {
        let number = family.map_or(0, |family| family as u8);
        Ok(self.connection.dump_into(
            message(command::GET_TABLE),
            0,
            |w| header(w, number),
            |all: &mut Vec<Table>, _, payload| {
                all.extend(decode::table(payload)?);
                Ok(())
            },
        )?)
    }

    /// Returns the chains of a table, or none if the table does not exist.
    ///
    /// # Errors
    ///
    /// Fails if the socket fails, or if the kernel refuses the request.
    pub fn chains(&mut self, family: Family, table: &str) -> Result<Vec<Chain>, Error> {
        let found = self.numbered_chains(family, table)?.into_iter();
        Ok(found.map(|(_, chain)| chain).collect())
    }

    /// Returns the chains of a table, each with its handle.
    pub(crate) fn numbered_chains(
        &mut self,
        family: Family,
        table: &str,
    ) -> Result<Vec<(u64, Chain)>, Error> {
        Ok(self.connection.dump_into(
            message(command::GET_CHAIN),
            0,
            |w| {
                header(w, family as u8);
                w.attr_str(chain::TABLE, table);
            },
            |all: &mut Vec<(u64, Chain)>, _, payload| {
                if decode::family(payload) == Some(family)
                    && let Some(chain) = decode::chain_of(table, payload)?
                {
                    all.push((decode::handle_of_chain(payload)?, chain));
                }
                Ok(())
            },
        )?)
    }

    /// Returns the named sets and maps of a table without their elements, or none if the table does
    /// not exist.
    ///
    /// # Errors
    ///
    /// Fails if the socket fails, or if the kernel refuses the request.
    pub fn sets(&mut self, family: Family, table: &str) -> Result<Vec<KernelSet>, Error> {
        Ok(self.all_sets(family, table, AllowedChanges::None)?.0)
    }

    /// Returns the named counters of a table with their current counts, or none if the table does
    /// not exist.
    ///
    /// # Errors
    ///
    /// Fails if the socket fails, or if the kernel refuses the request.
    pub fn counters(&mut self, family: Family, table: &str) -> Result<Vec<NamedCounter>, Error> {
        self.counters_of(family, table, AllowedChanges::None)
    }

    pub(crate) fn counters_of(
        &mut self,
        family: Family,
        table: &str,
        meanwhile: AllowedChanges,
    ) -> Result<Vec<NamedCounter>, Error> {
        let found = self.dump(
            command::GET_OBJECT,
            meanwhile,
            |w| {
                header(w, family as u8);
                w.attr_str(object::TABLE, table);
            },
            |all: &mut Vec<NamedCounter>, _, payload| {
                if decode::family(payload) == Some(family) {
                    all.extend(decode::counter_of(table, payload)?);
                }
                Ok(())
            },
        );
        Ok(unless_absent(found)?.unwrap_or_default())
    }

    /// Returns the elements of a set. In a set of intervals, the elements include the markers that
    /// end an interval.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Resizing`] if the kernel resizes the set during each attempt. Otherwise,
    /// returns the error of the socket or of the kernel, such as `ENOENT` for a missing set.
    pub fn elements(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
    ) -> Result<Vec<Element>, Error> {
        self.elements_of(family, table, set, AllowedChanges::None)
    }

    /// Reads the elements of a set. Repeats the read if the kernel resized the set during the read.
    ///
    /// After many elements were added or removed, the kernel's hash table (`rhashtable`) resizes
    /// for a while. The generation stays the same, so the kernel does not mark the dump as
    /// interrupted.
    ///
    /// A resize changes the order of elements. But before each datagram, the dump skips as many
    /// elements as it has already sent (`nf_tables_dump_set`). For each element that the dump
    /// misses, another element appears twice. So this function repeats a dump that has a duplicate.
    ///
    /// One case stays undetected, in a window of milliseconds: a commit or its rollback removes
    /// elements while the kernel writes the first datagram. The new generation then already
    /// applies, so the dump counts the removed elements as sent. Before the next datagram, the dump
    /// skips by this count, and so may miss as many elements as were removed.
    pub(crate) fn elements_of(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        meanwhile: AllowedChanges,
    ) -> Result<Vec<Element>, Error> {
        let found = until_distinct(|| {
            self.dump(
                command::GET_ELEMENTS,
                meanwhile,
                |w| {
                    header(w, family as u8);
                    w.attr_str(elements::TABLE, table);
                    w.attr_str(elements::SET, set);
                },
                |all: &mut Vec<Element>, _, payload| decode::elements(payload, all),
            )
        })?;
        found.ok_or_else(|| Error::Resizing {
            table: table.to_owned(),
            set: set.to_owned(),
            attempts: DUMPS,
        })
    }

    /// Requests a dump with the command `of`, and passes each message of the reply to `take`.
    fn dump<T: Default>(
        &mut self,
        of: u16,
        meanwhile: AllowedChanges,
        payload: impl Fn(&mut Writer<'_>),
        take: impl FnMut(&mut T, u16, &[u8]) -> Result<(), Malformed>,
    ) -> Result<T, Error> {
        let (kind, connection) = (message(of), &mut self.connection);
        Ok(match meanwhile {
            AllowedChanges::None => connection.dump_into(kind, 0, payload, take),
            AllowedChanges::OtherTables => connection.dump_loosely_into(kind, 0, payload, take),
        }?)
    }

    /// Returns the sets of a table, named and anonymous, without their elements.
    pub(crate) fn all_sets(
        &mut self,
        family: Family,
        table: &str,
        meanwhile: AllowedChanges,
    ) -> Result<(Vec<KernelSet>, AnonymousMessages), Error> {
        let found = self.dump(
            command::GET_SET,
            meanwhile,
            |w| {
                header(w, family as u8);
                w.attr_str(set::TABLE, table);
            },
            |all: &mut (Vec<KernelSet>, AnonymousMessages), _, payload| {
                if decode::family(payload) == Some(family) {
                    match decode::set_of(table, payload)? {
                        Some(AnySet::Named(set)) => all.0.push(set),
                        Some(AnySet::Anonymous(name, set)) => {
                            all.1.insert(name, set);
                        }
                        None => {}
                    }
                }
                Ok(())
            },
        );
        Ok(unless_absent(found)?.unwrap_or_default())
    }

    /// Returns the rules of a table or of one chain. The rules refer to anonymous sets by name.
    pub(crate) fn rule_messages(
        &mut self,
        family: Family,
        table: &str,
        chain: Option<&str>,
        meanwhile: AllowedChanges,
    ) -> Result<Vec<RuleMessage>, Error> {
        self.dump(
            command::GET_RULE,
            meanwhile,
            |w: &mut Writer<'_>| {
                header(w, family as u8);
                w.attr_str(rule::TABLE, table);
                if let Some(chain) = chain {
                    w.attr_str(rule::CHAIN, chain);
                }
            },
            |all: &mut Vec<RuleMessage>, _, payload| {
                if decode::family(payload) == Some(family) {
                    let found = decode::rule_of(table, payload)?;
                    all.extend(
                        found.filter(|found| chain.is_none_or(|chain| *found.chain == *chain)),
                    );
                }
                Ok(())
            },
        )
    }
}

/// Repeats `read` until no element appears twice. Returns `None` if every attempt has a duplicate.
fn until_distinct<E>(
    mut read: impl FnMut() -> Result<Vec<Element>, E>,
) -> Result<Option<Vec<Element>>, E> {
    let mut pause = RESIZING;
    for attempt in 1..=DUMPS {
        let found = read()?;
        if are_distinct(&found) {
            return Ok(Some(found));
        }
        if attempt < DUMPS {
            thread::sleep(pause);
            pause *= 2;
        }
    }
    Ok(None)
}

fn are_distinct(elements: &[Element]) -> bool {
    let mut seen = HashSet::with_capacity(elements.len());
    elements.iter().all(|element| seen.insert(element))
}

/// Error number `ERESTART`, which is internal to the kernel. No C library defines it.
const ERESTART: i32 = 85;

/// Returns true if the send failed because the transaction is too large. The kernel has then
/// processed no message of the transaction.
fn is_too_large(doing: &str, source: &io::Error) -> bool {
    let errno = source.raw_os_error();
    doing == "send" && matches!(errno, Some(libc::EMSGSIZE | libc::ENOBUFS | libc::ENOMEM))
}

/// Returns true if the kernel refused the transaction as a whole. In this case, the kernel sends a
/// single refusal, which names the first change. The reason is one of these:
///
/// - The kernel fails after it has accepted each change.
/// - The kernel lacks memory.
fn is_of_all(all: &[(usize, Refusal)]) -> bool {
    let is_state = |errno| matches!(errno, libc::ENOENT | libc::EEXIST | libc::EBUSY);
    matches!(all, [(1, refusal)] if refusal.message.is_none() && !is_state(refusal.errno))
}

fn refused(prepared: &PreparedTransaction, all: Vec<(usize, Refusal)>, more: bool) -> CommitError {
    let is_of_all = is_of_all(&all);
    let mut refused = Vec::with_capacity(all.len());
    let mut whole = None;
    for (index, refusal) in all {
        match (index, refusal.errno) {
            (0, libc::EPERM) => return permission().into(),
            (0, errno) if is_absence(errno) => return Error::NoNftables.into(),
            _ => {}
        }
        match prepared.change_of(index) {
            Some(change) if !is_of_all => refused.push(RefusedChange { change, refusal }),
            _ => whole = Some(refusal),
        }
    }
    match whole {
        Some(refusal) if refused.is_empty() => CommitError::Whole(refusal),
        _ => CommitError::Refused { refused, more },
    }
}

/// Changes that the caller tolerates during a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AllowedChanges {
    /// No change is allowed in the namespace. After a change, the dump starts over.
    None,
    /// Changes to other tables are allowed. The caller itself detects changes to its own table.
    OtherTables,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transaction::Change;
    use crate::value::Bytes;

    fn told(all: &[(usize, i32)]) -> CommitError {
        let transaction = Transaction {
            family: Family::Ip,
            table: "t".into(),
            changes: vec![
                Change::FlushChain("a".into()),
                Change::FlushChain("b".into()),
            ],
        };
        let refusal = |errno| Refusal {
            errno,
            message: None,
            request: Vec::new(),
        };
        let all = all.iter().map(|(index, errno)| (*index, refusal(*errno)));
        refused(
            &PreparedTransaction::new(&transaction, None),
            all.collect(),
            false,
        )
    }

    #[test]
    fn a_dump_with_a_duplicate_element_is_repeated() {
        let element = |number: u8| Element::of_set(Bytes::from_slice(&[number]));
        let end = Element {
            ends_interval: true,
            ..element(1)
        };
        let whole = vec![element(1), element(2), end.clone()];
        let torn = vec![element(1), end, element(2), element(1)];
        let read = |torn_reads: u32| {
            let mut reads = 0;
            let found = until_distinct(|| {
                reads += 1;
                let is_torn = reads <= torn_reads;
                Ok::<_, ()>(if is_torn { torn.clone() } else { whole.clone() })
            });
            (found, reads)
        };
        assert_eq!(read(0), (Ok(Some(whole.clone())), 1));
        assert_eq!(read(2), (Ok(Some(whole.clone())), 3));
        assert_eq!(read(DUMPS), (Ok(None), DUMPS));
        assert_eq!(until_distinct(|| Ok::<_, ()>(Vec::new())), Ok(Some(vec![])));
        let refused: Result<_, &str> = until_distinct(|| Err("no such set"));
        assert_eq!(refused, Err("no such set"));
    }

    #[test]
    fn a_refusal_of_the_first_change_may_concern_the_whole_transaction() {
        for errno in [libc::ENOMEM, libc::EINVAL, libc::EOPNOTSUPP] {
            let told = told(&[(1, errno)]);
            assert!(
                matches!(&told, CommitError::Whole(refusal) if refusal.errno == errno),
                "{told:?}"
            );
        }
        let blamed = |told: CommitError| match told {
            CommitError::Refused { refused, .. } => refused.iter().map(|of| of.change).collect(),
            _ => Vec::new(),
        };
        assert_eq!(blamed(told(&[(1, libc::ENOENT)])), [0]);
        assert_eq!(blamed(told(&[(2, libc::EINVAL)])), [1]);
        assert_eq!(
            blamed(told(&[(1, libc::EINVAL), (2, libc::EINVAL)])),
            [0, 1]
        );
    }
}
