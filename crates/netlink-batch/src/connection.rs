//! A netlink socket and its operations: batch, request and dump.

use std::io;

use netlink_sys::constants::{NETLINK_GENERIC, NETLINK_NETFILTER, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};
use rustix::net::sockopt;

use crate::attributes::Malformed;
use crate::batch::{Batch, Writer};
use crate::error::Error;
use crate::exchange::{Exchange, FIRST_SEQUENCE, WhenInterrupted};
use crate::protocol::Protocol;
use crate::reply::{Dump, Replies, Reply};

/// Sizes of the socket buffers in bytes. The kernel doubles these sizes. Without `CAP_NET_ADMIN`,
/// it limits them to `net.core.{r,w}mem_max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffers {
    /// Buffer for the kernel's replies. If it is too small, replies are lost ([`Reply::Unknown`]).
    pub receive: usize,
    /// Buffer for one send.
    pub send: usize,
}

impl Default for Buffers {
    /// Returns 8 MiB for receiving and 1 MiB for sending.
    fn default() -> Self {
        Self {
            receive: 8 << 20,
            send: 1 << 20,
        }
    }
}

/// A netlink socket. Calls block while the kernel works. A connection belongs to one thread at a
/// time, and to the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Connection(Exchange<Socket>);

impl Connection {
    /// Opens a connection with buffers large enough for every reply to one send.
    ///
    /// # Errors
    ///
    /// [`Error::Open`] if no socket of this protocol can be opened.
    pub fn open(protocol: Protocol) -> Result<Self, Error> {
        Self::open_with(protocol, Buffers::default())
    }

    /// Opens a connection with chosen buffer sizes.
    ///
    /// # Errors
    ///
    /// [`Error::Open`] if no socket of this protocol can be opened, or not with these buffers.
    pub fn open_with(protocol: Protocol, buffers: Buffers) -> Result<Self, Error> {
        let open = || -> io::Result<Socket> {
            let mut socket = Socket::new(match protocol {
                Protocol::Route => NETLINK_ROUTE,
                Protocol::Netfilter => NETLINK_NETFILTER,
                Protocol::Generic => NETLINK_GENERIC,
            })?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            // SO_RCVBUFFORCE needs CAP_NET_ADMIN. The plain option is silently limited by the
            // sysctl.
            sockopt::set_socket_recv_buffer_size_force(&socket, buffers.receive)
                .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, buffers.receive))?;
            sockopt::set_socket_send_buffer_size_force(&socket, buffers.send)
                .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, buffers.send))?;
            // Old kernels lack these two options. Their replies are larger or have no error text,
            // but can still be decoded.
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

    /// Returns the number of messages sent. Every attempt at a dump counts. The number wraps to 0
    /// after `u32::MAX`.
    pub fn sent(&self) -> u32 {
        self.0.sequence.wrapping_sub(FIRST_SEQUENCE)
    }

    /// Returns the port number by which the kernel identifies this socket as the author of a
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

    /// Sends all messages and returns one [`Reply`] per message, by index. A send has at most 128
    /// KiB and 512 messages, and a larger message is sent alone. Only the last message of each send
    /// requests an acknowledgement. A refused message does not stop the following ones.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if sending or receiving failed, [`Error::Malformed`] if a reply is invalid,
    /// [`Error::Permission`] if a whole send was refused. Part of the batch may have taken effect:
    /// dump and compare.
    pub fn execute(&mut self, batch: &Batch) -> Result<Vec<Reply>, Error> {
        self.0.execute(batch)
    }

    /// Sends all messages in **one** send of any size. In some protocols (nf\_tables), a send is a
    /// transaction. The socket's send buffer grows as needed. The result has refusals, and the
    /// replies that messages request with [`Batch::acknowledge`].
    ///
    /// If a message is void, nothing is sent and that message is refused with `EMSGSIZE`.
    ///
    /// # Errors
    ///
    /// As [`Connection::execute`]; the outcome is then unknown.
    pub fn transact(&mut self, batch: &mut Batch) -> Result<Replies, Error> {
        self.0.transact(batch)
    }

    /// Sends one request that is not a dump, and returns the messages of the reply. Adds
    /// `NLM_F_REQUEST` and `NLM_F_ACK` to `flags`.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] and [`Error::Permission`] if the kernel refused, [`Error::LostReply`] if
    /// its reply was lost, [`Error::Io`] and [`Error::Malformed`] as for [`Connection::execute`].
    pub fn request(
        &mut self,
        kind: u16,
        flags: u16,
        payload: impl Fn(&mut Writer<'_>),
    ) -> Result<Dump, Error> {
        self.0.request(kind, flags, &payload)
    }

    /// Dumps a table. Adds `NLM_F_DUMP` to `flags`. If the kernel reports a concurrent change
    /// (`NLM_F_DUMP_INTR`), or a reply is lost, the dump is repeated a few times within 0.1 s.
    ///
    /// # Errors
    ///
    /// [`Error::Interrupted`] if the table changed during each attempt; otherwise as
    /// [`Connection::request`].
    pub fn dump(
        &mut self,
        kind: u16,
        flags: u16,
        payload: impl Fn(&mut Writer<'_>),
    ) -> Result<Dump, Error> {
        self.0.dump(kind, flags, &payload)
    }

    /// Dumps a table that may be too large to buffer. `take` receives kind and payload of each
    /// message and stores the needed parts in the `T`. For a table of any size, the dump itself
    /// needs only the memory of one datagram.
    ///
    /// Each attempt begins with a new `T`, so the result belongs to one complete dump.
    ///
    /// # Errors
    ///
    /// As [`Connection::dump`], or the error of `take`.
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

    /// Dumps like [`Connection::dump_into`], but keeps the result if the kernel reports a
    /// concurrent change. Callers must detect relevant changes in another way. In nf\_tables, the
    /// change may concern any table of the network namespace.
    ///
    /// # Errors
    ///
    /// As [`Connection::request`], or the error of `take`.
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
