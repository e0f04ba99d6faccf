//! The socket, and the ways to talk over it: execute a batch, request, dump, held or not.
//!
//! A connection's kernel side is synchronous: when `send` returns, every answer (for a dump, its
//! next part) is already queued. So nothing here ever waits: what an empty queue has not
//! delivered was lost, and is said to be. Answers carry the sequence number of their message;
//! each send takes new numbers, so an answer that was left over cannot be taken for a later one.
//!
//! ```text
//!  Connection ─▶ Exchange<L: Link> ── protocol logic, is tested on scripted bytes
//!                    └─▶ Link = netlink_sys::Socket
//! ```

use std::io::{self, ErrorKind};
use std::thread;
use std::time::Duration;

use libc::{EMSGSIZE, ENOBUFS, EPERM, MSG_DONTWAIT, MSG_TRUNC};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP,
};
use netlink_sys::constants::{NETLINK_GENERIC, NETLINK_NETFILTER, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};
use rustix::net::sockopt;

use crate::attributes::{Malformed, align};
use crate::batch::{Batch, Writer};
use crate::error::{Error, Refusal};
use crate::message::{self, Messages};
use crate::protocol::Protocol;

/// Most messages of one send. Each refusal costs 832 bytes of receive buffer and each
/// message holds its subsystem's lock, so more would not be faster, only harder on others.
pub const CHUNK_MESSAGES: usize = 512;
/// Most bytes of one send.
const CHUNK_BYTES: usize = 128 * 1024;
/// One datagram: a refusal that echoes a whole chunk (ipset does), or a part of a dump (32 KiB).
const DATAGRAM: usize = 2 * CHUNK_BYTES;
/// 0 is of messages that the kernel sends unasked.
const FIRST_SEQUENCE: u32 = 1;
/// What the kernel wants in a send buffer beyond the bytes of one send, amply.
const SEND_OVERHEAD: usize = 4096;
const DUMP_ATTEMPTS: u32 = 6;
/// Before the second attempt; doubled before each further one.
const DUMP_PAUSE: Duration = Duration::from_millis(2);

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

/// What became of one message of a [`Batch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The kernel did it.
    Done,
    /// The kernel did not do it, and says why.
    Refused(Refusal),
    /// The acknowledgement was lost (`ENOBUFS`): the kernel may or may not have done it. Dump and
    /// compare.
    Unknown,
}

impl Reply {
    /// The error number of a refusal.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused(refusal) => Some(refusal.errno),
            Self::Done | Self::Unknown => None,
        }
    }
}

/// What the kernel said to a batch that went in one send ([`Connection::transact`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answers {
    /// The refused messages, by index, in the kernel's order.
    pub refused: Vec<(usize, Refusal)>,
    /// The messages that were acknowledged as done, by index.
    pub acknowledged: Vec<usize>,
    /// What the kernel sent besides, as with `NLM_F_ECHO`.
    pub echoed: Dump,
    /// Answers were lost (`ENOBUFS`): there are more than these.
    pub lost: bool,
}

/// Received messages in one buffer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dump {
    bytes: Vec<u8>,
    len: usize,
}

impl Dump {
    /// Number of messages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no messages.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Kind (`nlmsg_type`) and payload (fixed header and attributes) of each message.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &[u8])> {
        Messages::new(&self.bytes)
            .flatten()
            .map(|message| (message.kind, message.payload))
    }

    fn push(&mut self, message: &[u8]) {
        self.bytes.extend_from_slice(message);
        self.bytes.resize(align(self.bytes.len()), 0);
        self.len += 1;
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

/// What is done with a dump during which something changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WhenInterrupted {
    Retry,
    Take,
}

/// The kernel's end of a socket.
trait Link {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Makes room for a send of so many bytes.
    fn make_room(&mut self, bytes: usize) -> io::Result<()>;
    /// Takes one datagram into the empty `buffer`, without waiting; gives its true length.
    fn receive(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize>;
}

impl Link for Socket {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        Socket::send(self, bytes, 0).map(drop)
    }

    fn make_room(&mut self, bytes: usize) -> io::Result<()> {
        // The kernel takes what is smaller than its buffer by 32 bytes, and doubles what is asked.
        let room = sockopt::socket_send_buffer_size(&*self)?;
        if room < bytes + SEND_OVERHEAD {
            let wanted = (bytes + SEND_OVERHEAD).div_ceil(2);
            sockopt::set_socket_send_buffer_size_force(&*self, wanted)
                .or_else(|_| sockopt::set_socket_send_buffer_size(&*self, wanted))?;
        }
        Ok(())
    }

    fn receive(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        self.recv(buffer, MSG_DONTWAIT | MSG_TRUNC)
    }
}

/// What is done with each message of a dump.
type Take<'a, T> = dyn FnMut(&mut T, &message::Received<'_>) -> Result<(), Malformed> + 'a;

/// It is held.
#[allow(clippy::unnecessary_wraps, reason = "it has the form of what may fail")]
fn hold(all: &mut Dump, message: &message::Received<'_>) -> Result<(), Malformed> {
    all.push(message.raw);
    Ok(())
}

/// One step of emptying the receive queue.
enum Received {
    /// A datagram is in `Exchange::datagram`.
    Datagram,
    /// Answers were lost (`ENOBUFS`, or a datagram larger than ever seen).
    Loss,
    /// Nothing is left.
    Empty,
}

#[derive(Debug)]
struct Exchange<L> {
    link: L,
    protocol: Protocol,
    /// Of the next message.
    sequence: u32,
    /// Bytes that one send may have; falls when the socket takes less.
    chunk_bytes: usize,
    outgoing: Vec<u8>,
    datagram: Vec<u8>,
}

impl<L: Link> Exchange<L> {
    fn new(link: L, protocol: Protocol) -> Self {
        Self {
            link,
            protocol,
            sequence: FIRST_SEQUENCE,
            chunk_bytes: CHUNK_BYTES,
            outgoing: Vec::new(),
            datagram: Vec::with_capacity(DATAGRAM),
        }
    }

    fn execute(&mut self, batch: &Batch) -> Result<Vec<Reply>, Error> {
        let mut replies = Vec::with_capacity(batch.len());
        while replies.len() < batch.len() {
            self.execute_chunk(batch, &mut replies)?;
        }
        Ok(replies)
    }

    /// Sends the messages from `replies.len()` on that fit one send, and adds their replies; adds
    /// none if the socket takes less at once than was believed.
    fn execute_chunk(&mut self, batch: &Batch, replies: &mut Vec<Reply>) -> Result<(), Error> {
        let first = self.sequence;
        self.outgoing.clear();
        let mut known: Vec<Option<Reply>> = Vec::with_capacity(CHUNK_MESSAGES);
        let mut last = None;
        let mut sent = 0_usize;
        while let Some(message) = batch.raw(replies.len() + known.len()) {
            let full =
                sent == CHUNK_MESSAGES || self.outgoing.len() + message.len() > self.chunk_bytes;
            if full && sent > 0 {
                break;
            }
            if message.is_empty() {
                known.push(Some(Reply::Refused(overlong())));
                continue;
            }
            let at = self.outgoing.len();
            self.outgoing.extend_from_slice(message);
            self.outgoing.resize(align(self.outgoing.len()), 0);
            message::set_sequence(
                &mut self.outgoing,
                at,
                self.sequence.wrapping_add(as_u32(known.len())),
            );
            last = Some((known.len(), at));
            sent += 1;
            known.push(None);
        }
        self.sequence = self.sequence.wrapping_add(as_u32(known.len()));

        let Some((last, at)) = last else {
            replies.extend(known.into_iter().flatten());
            return Ok(());
        };
        let asked = batch
            .get(replies.len() + last)
            .map_or(NLM_F_REQUEST, |message| message.flags);
        message::set_flags(&mut self.outgoing, at, asked | NLM_F_ACK);
        match self.send() {
            Err(error) if error.raw_os_error() == Some(EMSGSIZE) && sent > 1 => {
                self.chunk_bytes = self.outgoing.len() / 2;
                return Ok(());
            }
            Err(error) if error.raw_os_error() == Some(EMSGSIZE) => {
                replies.extend(known.into_iter().map(|reply| {
                    reply.unwrap_or_else(|| {
                        Reply::Refused(too_long("the message exceeds the socket's send buffer"))
                    })
                }));
                return Ok(());
            }
            sent => sent.map_err(|source| Error::Io {
                doing: "send",
                source,
            })?,
        }

        let (mut acknowledged, mut loss) = (false, false);
        while !acknowledged {
            match self.receive()? {
                Received::Empty => break,
                Received::Loss => loss = true,
                Received::Datagram => {
                    for message in Messages::new(&self.datagram) {
                        let message = message?;
                        let index = message.sequence.wrapping_sub(first) as usize;
                        // An earlier send's answer, or data that a batch does not ask for.
                        let Some(reply) = known.get_mut(index) else {
                            continue;
                        };
                        if message.kind != NLMSG_ERROR {
                            continue;
                        }
                        acknowledged |= index == last;
                        *reply = Some(message.refusal()?.map_or(Reply::Done, Reply::Refused));
                    }
                }
            }
        }
        // nfnetlink refuses an unprivileged send as a whole, on its first message.
        if !acknowledged
            && known
                .first()
                .and_then(Option::as_ref)
                .and_then(Reply::errno)
                == Some(EPERM)
        {
            return Err(Error::Permission {
                protocol: self.protocol,
            });
        }
        let silence = if acknowledged && !loss {
            Reply::Done
        } else {
            Reply::Unknown
        };
        replies.extend(
            known
                .into_iter()
                .map(|reply| reply.unwrap_or_else(|| silence.clone())),
        );
        Ok(())
    }

    fn transact(&mut self, batch: &mut Batch) -> Result<Answers, Error> {
        let mut answers = Answers::default();
        let void = batch.void();
        answers
            .refused
            .extend(void.map(|index| (index, overlong())));
        if batch.is_empty() || !answers.refused.is_empty() {
            return Ok(answers);
        }
        let first = self.sequence;
        self.sequence = self.sequence.wrapping_add(as_u32(batch.len()));
        // Where this cannot be, the send says so.
        let _ = self.link.make_room(batch.byte_len());
        let bytes = batch.numbered(first);
        while let Err(source) = self.link.send(bytes) {
            if source.kind() != ErrorKind::Interrupted {
                return Err(io_send(source));
            }
        }
        loop {
            match self.receive()? {
                Received::Empty => return Ok(answers),
                Received::Loss => answers.lost = true,
                Received::Datagram => {
                    for message in Messages::new(&self.datagram) {
                        let message = message?;
                        let index = message.sequence.wrapping_sub(first) as usize;
                        if index >= batch.len() {
                            // An earlier send's.
                            continue;
                        }
                        if message.kind != NLMSG_ERROR {
                            answers.echoed.push(message.raw);
                            continue;
                        }
                        match message.refusal()? {
                            Some(refusal) => answers.refused.push((index, refusal)),
                            None => answers.acknowledged.push(index),
                        }
                    }
                }
            }
        }
    }

    fn request(
        &mut self,
        kind: u16,
        flags: u16,
        payload: &dyn Fn(&mut Writer<'_>),
    ) -> Result<Dump, Error> {
        let sequence = self.send_one(kind, flags | NLM_F_ACK, payload)?;
        let mut answer = Dump::default();
        self.collect(sequence, &mut answer, &mut hold)?;
        Ok(answer)
    }

    fn dump(
        &mut self,
        kind: u16,
        flags: u16,
        payload: &dyn Fn(&mut Writer<'_>),
    ) -> Result<Dump, Error> {
        self.dump_into(kind, flags, payload, WhenInterrupted::Retry, &mut hold)
    }

    fn dump_into<T: Default>(
        &mut self,
        kind: u16,
        flags: u16,
        payload: &dyn Fn(&mut Writer<'_>),
        when_interrupted: WhenInterrupted,
        take: &mut Take<'_, T>,
    ) -> Result<T, Error> {
        let mut pause = DUMP_PAUSE;
        let mut attempt = 1;
        loop {
            let mut all = T::default();
            // A dump is not acknowledged; asking makes a request end that is, against all
            // expectation, not a dump.
            let sequence = self.send_one(kind, flags | NLM_F_DUMP | NLM_F_ACK, payload)?;
            let failure = match self.collect(sequence, &mut all, take) {
                Ok(is_interrupted)
                    if !is_interrupted || when_interrupted == WhenInterrupted::Take =>
                {
                    return Ok(all);
                }
                Ok(_) => Error::Interrupted {
                    attempts: DUMP_ATTEMPTS,
                },
                Err(Error::LostReply) => Error::LostReply,
                Err(error) => {
                    // While a dump is unfinished the socket can begin no other (EBUSY).
                    while !matches!(self.receive()?, Received::Empty) {}
                    return Err(error);
                }
            };
            if attempt == DUMP_ATTEMPTS {
                return Err(failure);
            }
            thread::sleep(pause);
            pause *= 2;
            attempt += 1;
        }
    }

    fn send_one(
        &mut self,
        kind: u16,
        flags: u16,
        payload: &dyn Fn(&mut Writer<'_>),
    ) -> Result<u32, Error> {
        let mut batch = Batch::new();
        batch.push(kind, flags, payload);
        let sequence = self.sequence;
        self.sequence = self.sequence.wrapping_add(1);
        self.outgoing.clear();
        self.outgoing
            .extend_from_slice(batch.raw(0).unwrap_or_default());
        if self.outgoing.is_empty() {
            return Err(io_send(io::Error::from_raw_os_error(EMSGSIZE)));
        }
        message::set_sequence(&mut self.outgoing, 0, sequence);
        self.send().map_err(io_send)?;
        Ok(sequence)
    }

    /// Takes the answers to `sequence` up to their end, and says whether the kernel flagged them as
    /// an interrupted dump. What is left of them after an `Err` of [`Error::LostReply`] is nothing.
    fn collect<T>(
        &mut self,
        sequence: u32,
        all: &mut T,
        take: &mut Take<'_, T>,
    ) -> Result<bool, Error> {
        let (mut interrupted, mut loss) = (false, false);
        loop {
            match self.receive()? {
                Received::Empty => return Err(Error::LostReply),
                Received::Loss => loss = true,
                Received::Datagram => {
                    for message in Messages::new(&self.datagram) {
                        let message = message?;
                        if message.sequence != sequence {
                            continue;
                        }
                        interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
                        let end = match message.kind {
                            NLMSG_ERROR => message.refusal()?,
                            NLMSG_DONE => message.dump_refusal(),
                            NLMSG_NOOP => continue,
                            _ => {
                                take(all, &message)?;
                                continue;
                            }
                        };
                        return match end {
                            Some(refusal) if refusal.errno == EPERM => Err(Error::Permission {
                                protocol: self.protocol,
                            }),
                            Some(refusal) => Err(Error::Refused(refusal)),
                            None if loss => Err(Error::LostReply),
                            None => Ok(interrupted),
                        };
                    }
                }
            }
        }
    }

    fn send(&mut self) -> io::Result<()> {
        loop {
            match self.link.send(&self.outgoing) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    fn receive(&mut self) -> Result<Received, Error> {
        loop {
            self.datagram.clear();
            return match self.link.receive(&mut self.datagram) {
                Ok(length) if length > self.datagram.len() => {
                    self.datagram.clear();
                    self.datagram.reserve(length);
                    Ok(Received::Loss)
                }
                Ok(_) => Ok(Received::Datagram),
                Err(error) => match (error.kind(), error.raw_os_error()) {
                    (ErrorKind::Interrupted, _) => continue,
                    (ErrorKind::WouldBlock, _) => Ok(Received::Empty),
                    (_, Some(ENOBUFS)) => Ok(Received::Loss),
                    _ => Err(Error::Io {
                        doing: "receive",
                        source: error,
                    }),
                },
            };
        }
    }
}

fn io_send(source: io::Error) -> Error {
    Error::Io {
        doing: "send",
        source,
    }
}

fn too_long(why: &str) -> Refusal {
    Refusal {
        errno: EMSGSIZE,
        message: Some(why.to_owned()),
        request: Vec::new(),
    }
}

fn overlong() -> Refusal {
    too_long("an attribute is longer than 65,535 bytes")
}

/// Of a count of messages in memory; sequence numbers wrap.
#[allow(clippy::cast_possible_truncation, reason = "sequence numbers wrap")]
fn as_u32(count: usize) -> u32 {
    count as u32
}

#[cfg(test)]
mod tests;
