//! A netlink socket, and its operations: batches, requests and dumps.

use std::io;

use netlink_sys::constants::{NETLINK_GENERIC, NETLINK_NETFILTER, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};
use rustix::net::sockopt;

use crate::attributes::Malformed;
use crate::batch::{Batch, Writer};
use crate::error::Error;
use crate::exchange::{Exchange, FIRST_SEQUENCE, is_uninterrupted};
use crate::protocol::Protocol;
use crate::reply::{Dump, Replies, Reply};

/// Sizes of a socket's buffers, in bytes. The kernel doubles these sizes. For a process without
/// `CAP_NET_ADMIN`, the kernel limits them to `net.core.rmem_max` and `net.core.wmem_max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffers {
    /// Size of the buffer for replies. If the buffer is too small, the kernel drops replies
    /// ([`Reply::Unknown`]).
    pub receive: usize,
    /// Size of the buffer for messages to the kernel. One send cannot be larger.
    pub send: usize,
}

impl Default for Buffers {
    /// Returns buffer sizes of 8 MiB for receiving and 1 MiB for sending.
    fn default() -> Self {
        Self {
            receive: 8 << 20,
            send: 1 << 20,
        }
    }
}

/// A netlink socket. Every call blocks while the kernel works. A connection belongs to one thread
/// at a time, and to the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Connection(Exchange<Socket>);

impl Connection {
    /// Opens a connection whose buffers have room for every reply to one send.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Open`] if no socket of this protocol can be opened.
    pub fn open(protocol: Protocol) -> Result<Self, Error> {
        Self::open_with(protocol, Buffers::default())
    }

    /// Opens a connection with the given buffer sizes.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Open`] if the system cannot open a socket of this protocol, or cannot set
    /// the buffer sizes.
    pub fn open_with(protocol: Protocol, buffers: Buffers) -> Result<Self, Error> {
        let open = || -> io::Result<Socket> {
            let mut socket = Socket::new(match protocol {
                Protocol::Route => NETLINK_ROUTE,
                Protocol::Netfilter => NETLINK_NETFILTER,
                Protocol::Generic => NETLINK_GENERIC,
            })?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            // SO_RCVBUFFORCE needs CAP_NET_ADMIN. The fallback SO_RCVBUF does not, but the kernel
            // silently limits its size to net.core.rmem_max.
            sockopt::set_socket_recv_buffer_size_force(&socket, buffers.receive)
                .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, buffers.receive))?;
            sockopt::set_socket_send_buffer_size_force(&socket, buffers.send)
                .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, buffers.send))?;
            // Ignores failures, because old kernels lack these two options. Their replies are
            // larger or have no error text, but this crate can decode such replies.
            let _ = socket.set_cap_ack(true);
            let _ = socket.set_ext_ack(true);
            if protocol == Protocol::Route {
                let _ = socket.set_netlink_get_strict_chk(true);
            }
            Ok(socket)
        };
        match open() {
            Ok(socket) => Ok(Self(Exchange::new(socket, protocol))),
            Err(source) => Err(Error::Open { protocol, source }),
        }
    }

    /// Returns the number of sent messages, including each attempt of a dump. The number wraps to 0
    /// after `u32::MAX`.
    pub fn sent(&self) -> u32 {
        self.0.sequence.wrapping_sub(FIRST_SEQUENCE)
    }

    /// Returns this socket's netlink port number, by which notifications name the author of a
    /// change.
    ///
    /// # Errors
    ///
    /// Fails if the kernel does not reveal the number.
    pub fn port(&self) -> io::Result<u32> {
        let mut address = SocketAddr::new(0, 0);
        self.0.link.get_address(&mut address)?;
        Ok(address.port_number())
    }

    /// Sends all messages. Returns one [`Reply`] per message, by index.
    ///
    /// - A send has at most 128 KiB and 512 messages. A larger message has its own send.
    /// - Only the last message of each send requests an acknowledgement.
    /// - If the kernel refuses a message, the kernel still handles the following messages.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if sending or receiving fails, [`Error::Malformed`] if a reply is
    /// invalid, and [`Error::Permission`] if the kernel refuses a whole send. A part of the batch
    /// may then have taken effect, so the caller should dump and compare.
    pub fn execute(&mut self, batch: &Batch) -> Result<Vec<Reply>, Error> {
        self.0.execute(batch)
    }

    /// Sends all messages in **one** send of any size. In some protocols (nf\_tables), a send is a
    /// transaction. The socket's send buffer grows as needed. The result contains the refusals, and
    /// the replies that the caller has requested with [`Batch::acknowledge`].
    ///
    /// If a message is void, this call sends nothing and refuses that message with `EMSGSIZE`.
    ///
    /// # Errors
    ///
    /// Fails like [`Connection::execute`]. The outcome is then unknown.
    pub fn transact(&mut self, batch: &mut Batch) -> Result<Replies, Error> {
        self.0.transact(batch)
    }

    /// Sends one request that is not a dump. Returns the messages of the reply. Adds
    /// `NLM_F_REQUEST` and `NLM_F_ACK` to `flags`.
    ///
    /// # Errors
    ///
    /// - [`Error::Refused`] or [`Error::Permission`] if the kernel refuses the request.
    /// - [`Error::LostReply`] if the kernel's reply is lost.
    /// - [`Error::Io`] and [`Error::Malformed`] as for [`Connection::execute`].
    pub fn request(
        &mut self,
        kind: u16,
        flags: u16,
        payload: impl Fn(&mut Writer<'_>),
    ) -> Result<Dump, Error> {
        self.0.request(kind, flags, &payload)
    }

    /// Dumps a table. Adds `NLM_F_DUMP` to `flags`. If the kernel reports a concurrent change
    /// (`NLM_F_DUMP_INTR`), or a reply is lost, the call repeats the dump a few times within 0.1 s.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Interrupted`] if the table changes during each attempt. Otherwise, fails
    /// like [`Connection::request`].
    pub fn dump(
        &mut self,
        kind: u16,
        flags: u16,
        payload: impl Fn(&mut Writer<'_>),
    ) -> Result<Dump, Error> {
        self.0.dump(kind, flags, &payload)
    }

    /// Dumps a table that may be too large to buffer. `take` receives the kind and payload of each
    /// message, and stores the parts that it needs in the `T`. The dump itself needs only the
    /// memory of one datagram, for a table of any size.
    ///
    /// Each attempt begins with a new `T`, so the result comes from one complete dump.
    ///
    /// # Errors
    ///
    /// Fails like [`Connection::dump`], or with the error of `take`.
    pub fn dump_into<T: Default>(
        &mut self,
        kind: u16,
        flags: u16,
        payload: impl Fn(&mut Writer<'_>),
        take: impl FnMut(&mut T, u16, &[u8]) -> Result<(), Malformed>,
    ) -> Result<T, Error> {
        self.dump_verified_into(kind, flags, payload, take, |_| true)
    }

    /// Dumps a table whose concurrent changes the kernel does not report. Works like
    /// [`Connection::dump_into`], but also repeats the dump if `is_consistent` returns false for a
    /// result. After the last attempt, returns the result even if `is_consistent` returns false.
    ///
    /// # Errors
    ///
    /// Fails like [`Connection::dump_into`].
    pub fn dump_verified_into<T: Default>(
        &mut self,
        kind: u16,
        flags: u16,
        payload: impl Fn(&mut Writer<'_>),
        mut take: impl FnMut(&mut T, u16, &[u8]) -> Result<(), Malformed>,
        is_consistent: impl Fn(&T) -> bool,
    ) -> Result<T, Error> {
        self.0.dump_into(
            kind,
            flags,
            &payload,
            &|all, attempt| {
                is_uninterrupted(all, attempt) && (attempt.is_last || is_consistent(all))
            },
            &mut |all, message| take(all, message.kind, message.payload),
        )
    }

    /// Dumps like [`Connection::dump_into`], but returns the result even if the kernel reports a
    /// concurrent change. The reported change may be irrelevant: in nf\_tables, for example, it may
    /// concern any table of the network namespace. Callers must detect relevant changes in another
    /// way.
    ///
    /// # Errors
    ///
    /// Fails like [`Connection::request`], or with the error of `take`.
    pub fn dump_loosely_into<T: Default>(
        &mut self,
        kind: u16,
        flags: u16,
        payload: impl Fn(&mut Writer<'_>),
        mut take: impl FnMut(&mut T, u16, &[u8]) -> Result<(), Malformed>,
    ) -> Result<T, Error> {
        self.0
            .dump_into(kind, flags, &payload, &|_, _| true, &mut |all, message| {
                take(all, message.kind, message.payload)
            })
    }
}
