//! Subscribes to ruleset changes (`NFNLGRP_NFTABLES`).
//!
//! The kernel reports each changed object. At the end of a transaction, the kernel reports the new
//! generation and the author of the transaction. A reconciler needs only the name of the changed
//! table, because it then reads the whole table.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use netlink_batch::{Malformed, Message};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_NETFILTER;
use socket2::{SockFilter, SockRef};

use crate::decode::{attributes, family, first, name};
use crate::transaction::Generation;
use crate::value::{Family, Name};
use crate::wire::{SUBSYSTEM, TABLE_OF_ANY, command, generation, message};

/// Multicast group of ruleset changes (`NFNLGRP_NFTABLES`).
const GROUP: u32 = 7;

/// Event that a subscription receives from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A table was created or deleted, or an object of it changed.
    Touched {
        /// Family of the changed table.
        family: Family,
        /// Name of the changed table.
        table: Name,
    },
    /// A transaction ended. All events since the end of the previous transaction belong to this
    /// transaction.
    Committed {
        /// Generation of the ruleset after the transaction.
        generation: Generation,
        /// Thread that committed the transaction, or `None` if the kernel does not report it. The
        /// number is valid in the initial PID namespace, so a process in a container cannot compare
        /// it with its own process number.
        process: Option<u32>,
        /// Name of the process, at most 15 bytes, or `None` if the kernel does not report it.
        process_name: Option<Arc<str>>,
    },
    /// The subscription lost messages (`ENOBUFS`), or cannot read a message. Any table may have
    /// changed.
    Lost,
}

/// A subscription to ruleset changes, in the network namespace of the thread that opened it. A read
/// never blocks: the caller waits until the descriptor is readable.
///
/// The kernel writes a message about each object of each transaction. These messages take no
/// measurable time, but 3,000 Services cause 750 datagrams, which fill the receive buffer. Two
/// functions avoid this:
///
/// * [`Subscription::leave_out`] filters out the changes by the program itself.
/// * [`Subscription::pause`] is for programs that may not set a filter.
#[derive(Debug)]
pub struct Subscription(Socket);

impl Subscription {
    /// Subscribes to ruleset changes, with a receive buffer of `room` bytes or of the kernel's
    /// maximum size. A buffer above `net.core.rmem_max` needs `CAP_NET_ADMIN`.
    ///
    /// # Errors
    ///
    /// Fails if the kernel lacks the netlink family or the multicast group.
    pub fn open(room: usize) -> io::Result<Self> {
        netlink_batch::subscribe(NETLINK_NETFILTER, &[GROUP], room).map(Self)
    }

    /// Makes the kernel omit changes from sockets with these netlink port numbers
    /// ([`Nftables::port`](crate::Nftables::port)), at most 250 numbers. This list replaces the
    /// previous list.
    ///
    /// # Errors
    ///
    /// Fails if the kernel refuses the filter, for example because of a seccomp profile. The
    /// subscription then reports these changes, too.
    pub fn leave_out(&self, ports: &[u32]) -> io::Result<()> {
        let filter = not_of(ports).ok_or(io::ErrorKind::InvalidInput)?;
        SockRef::from(&self.0).attach_filter(&filter)
    }

    /// Leaves the multicast group, so that transactions have no extra cost.
    ///
    /// A paused program can still detect changes by other programs. It commits each transaction
    /// with the generation of its previous transaction as the expected generation. If another
    /// program commits a transaction in between, the next transaction fails.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not remove the membership.
    pub fn pause(&mut self) -> io::Result<()> {
        self.0.drop_membership(GROUP)
    }

    /// Joins the multicast group again after [`Subscription::pause`].
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not add the membership.
    pub fn resume(&mut self) -> io::Result<()> {
        self.0.add_membership(GROUP)
    }

    /// Returns the events of the next datagram. Each table appears once.
    ///
    /// # Errors
    ///
    /// Returns `WouldBlock` if no datagram is waiting. After any other error, the subscription
    /// cannot receive further events.
    pub fn receive(&self) -> io::Result<Vec<Event>> {
        match self.0.recv_from_full() {
            Ok((datagram, _)) => Ok(events(&datagram)),
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(vec![Event::Lost]),
            Err(error) => Err(error),
        }
    }
}

impl AsRawFd for Subscription {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Builds a filter (classic BPF, linux/filter.h) that drops messages about changes from these
/// netlink ports. Returns `None` if there are more ports than a BPF jump can skip.
///
/// All messages of a datagram belong to one transaction, and contain the port of its author
/// (`struct nlmsghdr`, offset 12). BPF loads words in big-endian order.
fn not_of(ports: &[u32]) -> Option<Vec<SockFilter>> {
    const LOAD_WORD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let mut filter = vec![SockFilter::new(LOAD_WORD, 0, 0, 12)];
    for (number, port) in ports.iter().enumerate() {
        // If the author's port equals `port`, jumps to the last instruction, which drops the
        // message. The jump skips the remaining comparisons and the instruction that accepts the
        // message.
        let to_drop = u8::try_from(ports.len() - number).ok()?;
        filter.push(SockFilter::new(JUMP_IF_EQUAL, to_drop, 0, port.to_be()));
    }
    filter.push(SockFilter::new(RETURN, 0, 0, u32::MAX));
    filter.push(SockFilter::new(RETURN, 0, 0, 0));
    Some(filter)
}

/// Returns the events of a datagram.
pub(crate) fn events(datagram: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    for message in netlink_batch::messages(datagram) {
        // Counts an unreadable message as a loss of messages, because it may report any change.
        let event = message.and_then(event).unwrap_or(Some(Event::Lost));
        if let Some(event) = event
            && !events.contains(&event)
        {
            events.push(event);
        }
    }
    events
}

fn event(of: Message<'_>) -> Result<Option<Event>, Malformed> {
    if of.kind >> 8 != SUBSYSTEM {
        return Ok(None);
    }
    if of.kind == message(command::NEW_GENERATION) {
        return committed(of.payload).map(Some);
    }
    // Skips tables of unknown families, because no user of this crate has such tables.
    let Some(family) = family(of.payload) else {
        return Ok(None);
    };
    let Some(table) = first(attributes(of.payload)?, TABLE_OF_ANY)? else {
        return Ok(None);
    };
    let table = name(&table)?;
    Ok(Some(Event::Touched { family, table }))
}

fn committed(payload: &[u8]) -> Result<Event, Malformed> {
    let (mut process, mut process_name) = (None, None);
    for attribute in attributes(payload)? {
        let attribute = attribute?;
        match attribute.kind {
            generation::PROCESS => process = Some(attribute.be32()?),
            generation::PROCESS_NAME => process_name = attribute.string().ok().map(Arc::from),
            _ => {}
        }
    }
    Ok(Event::Committed {
        generation: crate::decode::generation(payload)?,
        process,
        process_name,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encode::header;

    /// Kind and payload of an attribute.
    type Attribute<'a> = (u16, &'a [u8]);

    fn datagram(messages: &[(u16, &[Attribute<'_>])]) -> Vec<u8> {
        let mut datagram = Vec::new();
        for (command, attributes) in messages {
            let mut batch = netlink_batch::Batch::new();
            batch.push(message(*command), 0, |w| {
                header(w, 2);
                for (kind, payload) in *attributes {
                    w.attr(*kind, payload);
                }
            });
            let found = batch.get(0).unwrap();
            let len = u32::try_from(found.payload.len() + 16).unwrap();
            datagram.extend(len.to_ne_bytes());
            datagram.extend(found.kind.to_ne_bytes());
            datagram.extend([0; 10]);
            datagram.extend(found.payload);
        }
        datagram
    }

    #[test]
    fn the_events_of_a_datagram_name_each_table_once_and_the_process() {
        let all = datagram(&[
            (command::NEW_CHAIN, &[(1, b"t\0"), (3, b"c\0")]),
            (command::NEW_RULE, &[(1, b"t\0"), (2, b"c\0")]),
            (command::DELETE_ELEMENTS, &[(1, b"u\0")]),
            (
                command::NEW_GENERATION,
                &[(1, &[0, 0, 0, 7]), (2, &[0, 0, 1, 0]), (3, b"nft\0")],
            ),
        ]);
        let touched = |table: &str| Event::Touched {
            family: Family::Ip,
            table: table.into(),
        };
        assert_eq!(
            events(&all),
            [
                touched("t"),
                touched("u"),
                Event::Committed {
                    generation: Generation(7),
                    process: Some(256),
                    process_name: Some("nft".into()),
                },
            ]
        );
    }

    #[test]
    fn an_unreadable_notification_counts_as_lost_events() {
        assert_eq!(events(b"nonsense"), [Event::Lost]);
        let no_number = datagram(&[(command::NEW_GENERATION, &[])]);
        assert_eq!(events(&no_number), [Event::Lost]);
        // A message with this number from another subsystem reports no event of nf_tables.
        let mut other = datagram(&[(command::NEW_GENERATION, &[])]);
        other[5] = 1;
        assert_eq!(events(&other), []);
    }

    proptest! {
        #[test]
        fn arbitrary_datagrams_never_panic_the_event_decoder(datagram in proptest::collection::vec(any::<u8>(), 0..128)) {
            let _ = events(&datagram);
        }

        #[test]
        fn damaged_datagrams_never_panic_the_event_decoder(at in 0_usize..200, to in any::<u8>()) {
            let mut datagram = datagram(&[
                (command::NEW_CHAIN, &[(1, b"t\0"), (3, b"c\0")]),
                (command::NEW_GENERATION, &[(1, &[0, 0, 0, 7]), (3, b"nft\0")]),
            ]);
            let at = at % datagram.len();
            datagram[at] = to;
            let _ = events(&datagram);
        }
    }
}
