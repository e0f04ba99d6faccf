//! The calls: one transaction at a time, and reading what is there.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use netlink_batch::{Answers, Connection, Malformed, Protocol, Refusal, Writer};

use crate::decode::{self, Anonymous, AnySet, RuleMessage};
use crate::encode::{Prepared, header};
use crate::error::{CommitError, Error, RefusedChange, is_absence, permission};
use crate::object::{Chain, Element, FoundSet, NamedCounter, Table};
use crate::own::{OwnSocket, OwnSockets};
use crate::transaction::{Generation, Transaction};
use crate::value::Family;
use crate::wire::{chain, command, elements, message, object, rule, set};

/// How often the kernel may say that it has to begin anew.
const RESTARTS: u32 = 8;
/// How often the elements of a set are read whose table is being resized.
const DUMPS: u32 = 8;
/// Before the second time; doubled before each further one.
const RESIZING: Duration = Duration::from_millis(2);

/// The kernel's tables, in the network namespace of the thread that opened it.
///
/// Calls block for as long as the kernel works.
#[derive(Debug)]
pub struct Nftables {
    /// What it does is not told to its own program. It is dropped first: once the socket is closed, its
    /// number may be another program's.
    pub(crate) own: Option<OwnSocket>,
    pub(crate) connection: Connection,
}

impl OwnSockets {
    /// Opens a socket that is one of them for as long as it is open. Where the kernel takes no
    /// filter, or does not tell the socket's number, what it changes is told.
    ///
    /// # Errors
    ///
    /// As [`Nftables::open`].
    pub fn open(self: &Arc<Self>) -> Result<Nftables, Error> {
        let mut opened = Nftables::open()?;
        opened.own = opened.port().ok().map(|port| self.note(port));
        Ok(opened)
    }
}

impl Nftables {
    /// Opens a connection.
    ///
    /// # Errors
    ///
    /// [`Error::NoNftables`], or the socket's.
    pub fn open() -> Result<Self, Error> {
        let mut opened = Self {
            own: None,
            connection: Connection::open(Protocol::Netfilter)?,
        };
        match opened.generation() {
            // What nfnetlink says of a subsystem that it cannot load.
            Err(Error::Netlink(netlink_batch::Error::Refused(Refusal {
                errno: libc::EINVAL | libc::EOPNOTSUPP,
                ..
            }))) => Err(Error::NoNftables),
            Err(error) => Err(error),
            Ok(_) => Ok(opened),
        }
    }

    /// The number of its socket, by which a [`Subscription`](crate::Subscription) can leave out what
    /// this one changes.
    ///
    /// # Errors
    ///
    /// The kernel does not tell.
    pub fn port(&self) -> io::Result<u32> {
        self.connection.port()
    }

    /// The number of the ruleset: where it is as before, nothing has changed.
    ///
    /// # Errors
    ///
    /// The socket's, or the kernel's refusal.
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

    /// Makes all changes at once, or none; the generation of the ruleset with them. With an
    /// expected generation only where the ruleset is of that one.
    ///
    /// # Errors
    ///
    /// See [`CommitError`].
    pub fn commit(
        &mut self,
        transaction: &Transaction,
        expected: Option<Generation>,
    ) -> Result<Generation, CommitError> {
        self.commit_prepared(&mut Prepared::new(transaction, expected))
    }

    /// The same of messages that are written already.
    ///
    /// # Errors
    ///
    /// See [`CommitError`].
    pub fn commit_prepared(&mut self, prepared: &mut Prepared) -> Result<Generation, CommitError> {
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
            // It did not tell. What was expected says it; else another may follow already.
            None => match prepared.expected {
                Some(before) => Ok(before.next()),
                None => Ok(self.generation()?),
            },
        }
    }

    /// Whether the kernel takes each of these changes: it looks at them as in a transaction, loads
    /// the modules that they need, and lets all of it go. Nobody is told, and the generation is as
    /// before. What is wrong with all of it together (chains that jump in a circle) is not seen, as
    /// it is not by `nft --check` on Linux 6.18.
    ///
    /// # Errors
    ///
    /// As [`Nftables::commit`]; nothing was done.
    pub fn check(&mut self, transaction: &Transaction) -> Result<(), CommitError> {
        let mut prepared = Prepared::without_end(transaction, None);
        if prepared.is_empty() {
            return Ok(());
        }
        self.taken(&mut prepared).map(drop)
    }

    /// Sends it until nothing of it is refused but because the kernel has to begin anew.
    fn taken(&mut self, prepared: &mut Prepared) -> Result<Answers, CommitError> {
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

    /// The tables of a family, or of all.
    ///
    /// # Errors
    ///
    /// The socket's, or the kernel's refusal.
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

    /// The chains of a table; none where there is no such table.
    ///
    /// # Errors
    ///
    /// The socket's, or the kernel's refusal.
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

    /// The named sets and maps of a table, without their elements; none where there is no such
    /// table.
    ///
    /// # Errors
    ///
    /// The socket's, or the kernel's refusal.
    pub fn sets(&mut self, family: Family, table: &str) -> Result<Vec<FoundSet>, Error> {
        Ok(self.all_sets(family, table, Meanwhile::Nothing)?.0)
    }

    /// Returns the named counters of a table, as they count now; none where there is no such table.
    ///
    /// # Errors
    ///
    /// The socket's, or the kernel's refusal.
    pub fn counters(&mut self, family: Family, table: &str) -> Result<Vec<NamedCounter>, Error> {
        self.counters_of(family, table, Meanwhile::Nothing)
    }

    pub(crate) fn counters_of(
        &mut self,
        family: Family,
        table: &str,
        meanwhile: Meanwhile,
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
        match found {
            Err(Error::Netlink(netlink_batch::Error::Refused(Refusal {
                errno: libc::ENOENT,
                ..
            }))) => Ok(Vec::new()),
            found => found,
        }
    }

    /// The elements of a set. In a set of intervals: as the kernel keeps them, the markers that end
    /// them among them.
    ///
    /// # Errors
    ///
    /// [`Error::Resizing`] if the kernel resizes it at each attempt; the socket's, or the kernel's
    /// refusal: `ENOENT` where there is no such set.
    pub fn elements(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
    ) -> Result<Vec<Element>, Error> {
        self.elements_of(family, table, set, Meanwhile::Nothing)
    }

    /// The elements of a set.
    ///
    /// A hash table that grows or shrinks on its own (`rhashtable`), as it does for a while after many
    /// elements came or went, changes no generation, so the kernel flags no such dump. But it goes on
    /// after each datagram by how many elements it has told (`nf_tables_dump_set`), in what is
    /// another order by then: for each that it leaves out it tells another one twice. So a dump with
    /// an element twice is read again.
    ///
    /// What is not noticed: it counts also elements that a commit, or a refused one, is just taking
    /// away (`nf_tables_commit`, which begins the new generation before it does so). A dump
    /// whose first datagram is written in these milliseconds may leave out as many.
    pub(crate) fn elements_of(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        meanwhile: Meanwhile,
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

    /// A dump.
    fn dump<T: Default>(
        &mut self,
        of: u16,
        meanwhile: Meanwhile,
        payload: impl Fn(&mut Writer<'_>),
        take: impl FnMut(&mut T, u16, &[u8]) -> Result<(), Malformed>,
    ) -> Result<T, Error> {
        let (kind, connection) = (message(of), &mut self.connection);
        Ok(match meanwhile {
            Meanwhile::Nothing => connection.dump_into(kind, 0, payload, take),
            Meanwhile::OtherTables => connection.dump_loosely_into(kind, 0, payload, take),
        }?)
    }

    /// The named sets of a table, and the others without their elements.
    pub(crate) fn all_sets(
        &mut self,
        family: Family,
        table: &str,
        meanwhile: Meanwhile,
    ) -> Result<(Vec<FoundSet>, Anonymous), Error> {
        let found = self.dump(
            command::GET_SET,
            meanwhile,
            |w| {
                header(w, family as u8);
                w.attr_str(set::TABLE, table);
            },
            |all: &mut (Vec<FoundSet>, Anonymous), _, payload| {
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
        match found {
            Err(Error::Netlink(netlink_batch::Error::Refused(Refusal {
                errno: libc::ENOENT,
                ..
            }))) => Ok(<_>::default()),
            found => found,
        }
    }

    /// Rules as they come.
    pub(crate) fn rule_messages(
        &mut self,
        family: Family,
        table: &str,
        chain: Option<&str>,
        meanwhile: Meanwhile,
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

/// Reads until no element is told twice; `None` if one is each time.
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

/// That of the kernel alone, which no C library has.
const ERESTART: i32 = 85;

/// Whether sending failed before the kernel looked at what was sent.
fn is_too_large(doing: &str, source: &io::Error) -> bool {
    let errno = source.raw_os_error();
    doing == "send" && matches!(errno, Some(libc::EMSGSIZE | libc::ENOBUFS | libc::ENOMEM))
}

/// Whether the kernel says this of the transaction, though it says it of its first change: so it
/// does of what fails when all changes were taken, and where memory is short.
fn is_of_all(all: &[(usize, Refusal)]) -> bool {
    let is_state = |errno| matches!(errno, libc::ENOENT | libc::EEXIST | libc::EBUSY);
    matches!(all, [(1, refusal)] if refusal.message.is_none() && !is_state(refusal.errno))
}

fn refused(prepared: &Prepared, all: Vec<(usize, Refusal)>, more: bool) -> CommitError {
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

/// What may change while a dump is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meanwhile {
    /// Nothing in the namespace: else it is read again.
    Nothing,
    /// Other tables: whoever reads listens for changes of this one.
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
        refused(&Prepared::new(&transaction, None), all.collect(), false)
    }

    #[test]
    fn what_tells_an_element_twice_is_read_again() {
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
    fn what_is_said_of_the_first_change_alone_may_be_of_all() {
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
