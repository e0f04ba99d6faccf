//! What the kernel tells of changed rulesets (`NFNLGRP_NFTABLES`).
//!
//! It tells of each object, and at the end of a transaction of its generation and its maker. What
//! matters to a reconciler is which table was touched; what it finds there it has to read anyway.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use netlink_batch::{Malformed, Message};
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use rustix::net::sockopt;
use socket2::{SockFilter, SockRef};

use crate::decode::{attributes, family, name};
use crate::transaction::Generation;
use crate::value::{Family, Name};
use crate::wire::{SUBSYSTEM, TABLE_OF_ANY, command, generation, message};

/// `NFNLGRP_NFTABLES`.
const GROUP: u32 = 7;

/// What is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Something of this table was changed, or it was made or deleted.
    Touched {
        /// The family of the table.
        family: Family,
        /// The table.
        table: Name,
    },
    /// That was all of a transaction: what was told since the one before belongs to it.
    Committed {
        /// The generation that it made.
        generation: Generation,
        /// The thread that made it, as the initial process namespace numbers it: in a container it
        /// cannot be compared with one's own. `None` if it is not said.
        process: Option<u32>,
        /// The process's name, 15 bytes at most.
        process_name: Option<Arc<str>>,
    },
    /// Messages were lost (`ENOBUFS`), or cannot be understood: anything may have changed.
    Lost,
}

/// A subscription to changes of rulesets in the network namespace of the thread that opened it. It
/// never blocks: wait until its descriptor is readable.
///
/// While anyone is subscribed the kernel writes a message for each object of each transaction. The
/// time that this takes cannot be seen beside that of a transaction of 3,000 Services, but it fills
/// the room with 750 datagrams: [`Subscription::leave_out`] keeps those of one's own out of it.
/// [`Subscription::pause`] is for who cannot have a filter.
#[derive(Debug)]
pub struct Subscription(Socket);

impl Subscription {
    /// Subscribes, with so many bytes of room for messages that wait to be read, or as many as may
    /// be: beyond `net.core.rmem_max` it takes `CAP_NET_ADMIN`.
    ///
    /// # Errors
    ///
    /// There is no such socket, or no such group.
    pub fn open(room: usize) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.set_non_blocking(true)?;
        // With less room more is lost, which is told.
        let _ = sockopt::set_socket_recv_buffer_size_force(&socket, room)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, room));
        socket.bind(&SocketAddr::new(0, 0))?;
        socket.add_membership(GROUP)?;
        Ok(Self(socket))
    }

    /// Has the kernel leave out, from now on, what these sockets change
    /// ([`Nftables::port`](crate::Nftables::port)), instead of what others did before: 250 at most.
    ///
    /// # Errors
    ///
    /// The kernel takes no filter (a seccomp profile, say): it is told.
    pub fn leave_out(&self, ports: &[u32]) -> io::Result<()> {
        let filter = not_of(ports).ok_or(io::ErrorKind::InvalidInput)?;
        SockRef::from(&self.0).attach_filter(&filter)
    }

    /// Hears nothing from now on, and so costs a transaction nothing. What others do meanwhile is
    /// seen by the generation: one's own transactions, each with the generation that is expected,
    /// and the next generation after the last of them, leave no room for another.
    ///
    /// # Errors
    ///
    /// The kernel does not let it go.
    pub fn pause(&mut self) -> io::Result<()> {
        self.0.drop_membership(GROUP)
    }

    /// Hears again, what is changed from now on.
    ///
    /// # Errors
    ///
    /// The kernel does not take it back.
    pub fn resume(&mut self) -> io::Result<()> {
        self.0.add_membership(GROUP)
    }

    /// The next of what was told: what came in one datagram, each table once.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is nothing. After any other nothing more can be told.
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

/// A filter (classic BPF, linux/filter.h) that drops what these ports made. A datagram holds
/// messages of one transaction, each with its maker's port in the header (`struct nlmsghdr`, at 12).
/// What is loaded counts as big endian. `None` of more than a jump gets across.
fn not_of(ports: &[u32]) -> Option<Vec<SockFilter>> {
    const LOAD_WORD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let mut filter = vec![SockFilter::new(LOAD_WORD, 0, 0, 12)];
    for (number, port) in ports.iter().enumerate() {
        // Across the others, and what lets through.
        let to_drop = u8::try_from(ports.len() - number).ok()?;
        filter.push(SockFilter::new(JUMP_IF_EQUAL, to_drop, 0, port.to_be()));
    }
    filter.push(SockFilter::new(RETURN, 0, 0, u32::MAX));
    filter.push(SockFilter::new(RETURN, 0, 0, 0));
    Some(filter)
}

/// What the messages in a datagram tell.
pub(crate) fn events(datagram: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    for message in netlink_batch::messages(datagram) {
        // What cannot be read may be anything.
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
    // A table of a family that this crate does not know is nobody's who uses it.
    let Some(family) = family(of.payload) else {
        return Ok(None);
    };
    for attribute in attributes(of.payload)? {
        let attribute = attribute?;
        if attribute.kind == TABLE_OF_ANY {
            let table = name(&attribute)?;
            return Ok(Some(Event::Touched { family, table }));
        }
    }
    Ok(None)
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

    /// Kind and payload.
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
    fn a_table_is_told_once_and_then_who_touched_it() {
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
    fn what_cannot_be_read_may_be_anything() {
        assert_eq!(events(b"nonsense"), [Event::Lost]);
        let no_number = datagram(&[(command::NEW_GENERATION, &[])]);
        assert_eq!(events(&no_number), [Event::Lost]);
        // Another subsystem's.
        let mut other = datagram(&[(command::NEW_GENERATION, &[])]);
        other[5] = 1;
        assert_eq!(events(&other), []);
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(datagram in proptest::collection::vec(any::<u8>(), 0..128)) {
            let _ = events(&datagram);
        }

        #[test]
        fn changed_bytes_never_panic(at in 0_usize..200, to in any::<u8>()) {
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
