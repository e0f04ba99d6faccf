//! A netlink socket, and the ways to talk over it: execute a batch, request, dump, held or not.

use std::io;

use netlink_sys::constants::{NETLINK_GENERIC, NETLINK_NETFILTER, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};
use rustix::net::sockopt;

use crate::attributes::Malformed;
use crate::batch::{Batch, Writer};
use crate::error::Error;
use crate::exchange::{Exchange, FIRST_SEQUENCE, WhenInterrupted};
use crate::protocol::Protocol;
use crate::reply::{Answers, Dump, Reply};

/// Socket buffer sizes in bytes. The kernel doubles them, and without `CAP_NET_ADMIN` limits them
/// to `net.core.{r,w}mem_max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffers {
    /// For the kernel's answers. Too small, and answers are lost: [`Reply::Unknown`].
    pub receive: usize,
    /// For what is sent at once.
    pub send: usize,
}

impl Default for Buffers {
    /// 8 MiB to receive, 1 MiB to send.
    fn default() -> Self {
        Self {
            receive: 8 << 20,
            send: 1 << 20,
        }
    }
}

/// A netlink socket. Calls block for as long as the kernel works; it belongs to one thread at a
/// time, and to the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Connection(Exchange<Socket>);

impl Connection {
    /// Opens a connection with buffers large enough for every answer of a send.
    ///
    /// # Errors
    ///
    /// [`Error::Open`]: there is no socket for this protocol.
    pub fn open(protocol: Protocol) -> Result<Self, Error> {
        Self::open_with(protocol, Buffers::default())
    }

    /// Opens a connection with chosen buffer sizes.
    ///
    /// # Errors
    ///
    /// [`Error::Open`]: there is no socket for this protocol, or not with such buffers.
    pub fn open_with(protocol: Protocol, buffers: Buffers) -> Result<Self, Error> {
        let open = || -> io::Result<Socket> {
            let mut socket = Socket::new(match protocol {
                Protocol::Route => NETLINK_ROUTE,
                Protocol::Netfilter => NETLINK_NETFILTER,
                Protocol::Generic => NETLINK_GENERIC,
            })?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            // FORCE needs CAP_NET_ADMIN; the plain option is silently cut to the sysctl's limit.
            sockopt::set_socket_recv_buffer_size_force(&socket, buffers.receive)
                .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, buffers.receive))?;
            sockopt::set_socket_send_buffer_size_force(&socket, buffers.send)
                .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, buffers.send))?;
            // Old kernels lack these. Answers are then larger, or have no text, and are understood.
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

    /// How many messages this has sent, one for each attempt at a dump; counts on from 0 after
    /// `u32::MAX`.
    pub fn sent(&self) -> u32 {
        self.0.sequence.wrapping_sub(FIRST_SEQUENCE)
    }

    /// The number by which the kernel knows this socket: in what it tells others of a change, it says
    /// that this one made it.
    ///
    /// # Errors
    ///
    /// The kernel does not tell.
    pub fn port(&self) -> io::Result<u32> {
        let mut address = SocketAddr::new(0, 0);
        self.0.link.get_address(&mut address)?;
        Ok(address.port_number())
    }

    /// Sends all messages, in sends of at most 128 KiB and 512 messages (a larger message goes
    /// alone), and gives one [`Reply`] per message, by index. An acknowledgement is asked for on
    /// the last message of each send only. A refused message does not stop those after it.
    ///
    /// # Errors
    ///
    /// Sending or receiving failed ([`Error::Io`]), the answers are no netlink
    /// ([`Error::Malformed`]), or a whole send was refused ([`Error::Permission`]). Part of the
    /// batch may have been done: dump and compare.
    pub fn execute(&mut self, batch: &Batch) -> Result<Vec<Reply>, Error> {
        self.0.execute(batch)
    }

    /// Sends all messages in **one** send, whatever their size, as a protocol needs whose messages
    /// are one transaction (nf\_tables). The socket's send buffer grows to that size. What the
    /// messages ask for themselves, and refusals, are the answers: see [`Batch::acknowledge`].
    ///
    /// Nothing is sent where a message is void: it is refused with `EMSGSIZE`.
    ///
    /// # Errors
    ///
    /// As [`Connection::execute`]; what was done then is not known.
    pub fn transact(&mut self, batch: &mut Batch) -> Result<Answers, Error> {
        self.0.transact(batch)
    }

    /// One request that the kernel answers by itself, without a dump; the answering messages.
    /// `NLM_F_REQUEST` and `NLM_F_ACK` are added to `flags`.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] and [`Error::Permission`]: the kernel said no. [`Error::LostReply`]: it
    /// may have said anything. [`Error::Io`] and [`Error::Malformed`]: as [`Connection::execute`].
    pub fn request(
        &mut self,
        kind: u16,
        flags: u16,
        payload: impl Fn(&mut Writer<'_>),
    ) -> Result<Dump, Error> {
        self.0.request(kind, flags, &payload)
    }

    /// A dump: `NLM_F_DUMP` is added to `flags`. When the kernel says that the table changed
    /// meanwhile (`NLM_F_DUMP_INTR`) it is retried from the start, a few times within 0.1 s, then
    /// [`Error::Interrupted`].
    ///
    /// # Errors
    ///
    /// [`Error::Interrupted`]; else as [`Connection::request`].
    pub fn dump(
        &mut self,
        kind: u16,
        flags: u16,
        payload: impl Fn(&mut Writer<'_>),
    ) -> Result<Dump, Error> {
        self.0.dump(kind, flags, &payload)
    }

    /// The same for a table that may be too large to hold: `take` gets kind and payload of each
    /// message as it comes, and keeps in the `T` what is wanted of it. The memory that this takes
    /// besides is that of one datagram, whatever the size of the table.
    ///
    /// Each attempt begins with a new `T`, so that what comes back is of one whole dump.
    ///
    /// # Errors
    ///
    /// As [`Connection::dump`], and that of `take`.
    pub fn dump_into<T: Default>(
        &mut self,
        kind: u16,
        flags: u16,
        payload: impl Fn(&mut Writer<'_>),
        mut take: impl FnMut(&mut T, u16, &[u8]) -> Result<(), Malformed>,
    ) -> Result<T, Error> {
        self.0.dump_into(
            kind,
            flags,
            &payload,
            WhenInterrupted::Retry,
            &mut |all, message| take(all, message.kind, message.payload),
        )
    }

    /// The same, but taken as it is where the kernel says that something changed meanwhile: for who
    /// is told in another way whether it was what he reads. In nf\_tables it may be any table of the
    /// network namespace.
    ///
    /// # Errors
    ///
    /// As [`Connection::request`], and that of `take`.
    pub fn dump_loosely_into<T: Default>(
        &mut self,
        kind: u16,
        flags: u16,
        payload: impl Fn(&mut Writer<'_>),
        mut take: impl FnMut(&mut T, u16, &[u8]) -> Result<(), Malformed>,
    ) -> Result<T, Error> {
        self.0.dump_into(
            kind,
            flags,
            &payload,
            WhenInterrupted::Take,
            &mut |all, message| take(all, message.kind, message.payload),
        )
    }
}
