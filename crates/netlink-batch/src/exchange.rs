//! Implements the netlink operations: sends the messages of each operation, and interprets the
//! kernel's replies.
//!
//! The kernel side of a connection is synchronous: when `send` returns, the kernel has already
//! queued every reply, or the next part of a dump. So this module never waits. If the queue is
//! empty and a reply is missing, the reply was lost, and the module reports the loss.
//!
//! Each reply has the sequence number of its message, and each send uses new numbers. So a late
//! reply is never mistaken for the reply to a newer message.
//!
//! ```text
//!  Connection ─▶ Exchange<L: Link> ── protocol logic, tested on scripted bytes
//!                    └─▶ Link = netlink_sys::Socket
//! ```

use std::io::{self, ErrorKind};
use std::thread;
use std::time::Duration;

use libc::{EMSGSIZE, ENOBUFS, EPERM, MSG_DONTWAIT, MSG_TRUNC};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP,
};
use netlink_sys::Socket;
use rustix::net::sockopt;

use crate::attributes::{Malformed, align};
use crate::batch::{Batch, Writer};
use crate::error::{Error, Refusal};
use crate::message::{self, Messages};
use crate::protocol::Protocol;
use crate::reply::{Dump, Replies, Reply};

/// Maximum number of messages in one send. Larger sends would not be faster, and would delay other
/// programs: the kernel holds the subsystem's lock for each message. Each refusal takes 832 bytes
/// of the receive buffer.
pub const CHUNK_MESSAGES: usize = 512;
/// Maximum number of bytes in one send, except for a single larger message.
const CHUNK_BYTES: usize = 128 * 1024;
/// Size of the buffer for one datagram, in bytes. The largest datagrams are a refusal that echoes a
/// whole chunk (ipset), and a part of a dump (32 KiB).
const DATAGRAM: usize = 2 * CHUNK_BYTES;
/// First sequence number. The kernel uses 0 for messages that it sends without a request.
pub(crate) const FIRST_SEQUENCE: u32 = 1;
/// Size in bytes that the send buffer needs in addition to the messages, generously estimated.
const SEND_OVERHEAD: usize = 4096;
const DUMP_ATTEMPTS: u32 = 6;
/// Pause before the second attempt of a dump. The pause doubles before each further attempt.
const DUMP_PAUSE: Duration = Duration::from_millis(2);

/// State of one attempt to dump a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt {
    /// True if the kernel reported a concurrent change.
    pub is_interrupted: bool,
    /// True if no further attempt follows.
    pub is_last: bool,
}

/// A function that returns true if the result of an attempt is valid.
type IsValid<'a, T> = dyn Fn(&T, Attempt) -> bool + 'a;

/// Returns true if the kernel reported no concurrent change during an attempt.
pub(crate) fn is_uninterrupted<T>(_: &T, attempt: Attempt) -> bool {
    !attempt.is_interrupted
}

/// A socket to the kernel. Tests use a scripted kernel instead of a socket.
pub(crate) trait Link {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Enlarges the send buffer for a send of `bytes` bytes.
    fn make_room(&mut self, bytes: usize) -> io::Result<()>;
    /// Receives one datagram into the empty `buffer` without waiting, and returns its full length.
    fn receive(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize>;
}

impl Link for Socket {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        Socket::send(self, bytes, 0).map(drop)
    }

    fn make_room(&mut self, bytes: usize) -> io::Result<()> {
        // The kernel needs 32 bytes in addition to the message. The kernel also doubles a requested
        // size, so this code requests half.
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

/// A function that processes each message of a dump.
type ProcessMessage<'a, T> =
    dyn FnMut(&mut T, &message::ReceivedMessage<'_>) -> Result<(), Malformed> + 'a;

/// Appends a message of a dump to `all`.
#[allow(clippy::unnecessary_wraps, reason = "it has the form of what may fail")]
fn keep(all: &mut Dump, message: &message::ReceivedMessage<'_>) -> Result<(), Malformed> {
    all.push(message.raw);
    Ok(())
}

/// Result of one read from the socket's receive queue.
enum QueueRead {
    /// A datagram has arrived. It is in `Exchange::datagram`.
    Datagram,
    /// The kernel has dropped replies (`ENOBUFS`), or a datagram was larger than the buffer.
    Loss,
    /// The queue has no datagram.
    Empty,
}

#[derive(Debug)]
pub(crate) struct Exchange<L> {
    pub(crate) link: L,
    protocol: Protocol,
    /// Sequence number for the next message.
    pub(crate) sequence: u32,
    /// Maximum number of bytes in one send. This number decreases if the socket accepts less.
    chunk_bytes: usize,
    outgoing: Vec<u8>,
    datagram: Vec<u8>,
}

impl<L: Link> Exchange<L> {
    pub(crate) fn new(link: L, protocol: Protocol) -> Self {
        Self {
            link,
            protocol,
            sequence: FIRST_SEQUENCE,
            chunk_bytes: CHUNK_BYTES,
            outgoing: Vec::new(),
            datagram: Vec::with_capacity(DATAGRAM),
        }
    }

    pub(crate) fn execute(&mut self, batch: &Batch) -> Result<Vec<Reply>, Error> {
        let mut replies = Vec::with_capacity(batch.len());
        while replies.len() < batch.len() {
            self.execute_chunk(batch, &mut replies)?;
        }
        Ok(replies)
    }

    /// Sends as many messages as fit into one send, beginning with index `replies.len()`, and
    /// appends their replies. If the socket accepts fewer bytes than expected, appends no reply, so
    /// that the caller tries again.
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
                QueueRead::Empty => break,
                QueueRead::Loss => loss = true,
                QueueRead::Datagram => {
                    for message in Messages::new(&self.datagram) {
                        let message = message?;
                        let index = message.sequence.wrapping_sub(first) as usize;
                        // Ignores replies to earlier sends, and replies whose sequence number no
                        // message of the batch has.
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
        // If the process lacks a privilege, nfnetlink refuses the whole send. Its refusal names the
        // first message.
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

    pub(crate) fn transact(&mut self, batch: &mut Batch) -> Result<Replies, Error> {
        let mut answers = Replies::default();
        let void = batch.void();
        answers
            .refused
            .extend(void.map(|index| (index, overlong())));
        if batch.is_empty() || !answers.refused.is_empty() {
            return Ok(answers);
        }
        let first = self.sequence;
        self.sequence = self.sequence.wrapping_add(as_u32(batch.len()));
        // Ignores a failure: if the buffer cannot grow, the following send fails and reports the
        // error.
        let _ = self.link.make_room(batch.byte_len());
        let bytes = batch.numbered(first);
        while let Err(source) = self.link.send(bytes) {
            if source.kind() != ErrorKind::Interrupted {
                return Err(io_send(source));
            }
        }
        loop {
            match self.receive()? {
                QueueRead::Empty => return Ok(answers),
                QueueRead::Loss => answers.lost = true,
                QueueRead::Datagram => {
                    for message in Messages::new(&self.datagram) {
                        let message = message?;
                        let index = message.sequence.wrapping_sub(first) as usize;
                        if index >= batch.len() {
                            // Ignores a reply to an earlier send.
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

    pub(crate) fn request(
        &mut self,
        kind: u16,
        flags: u16,
        payload: &dyn Fn(&mut Writer<'_>),
    ) -> Result<Dump, Error> {
        let sequence = self.send_one(kind, flags | NLM_F_ACK, payload)?;
        let mut answer = Dump::default();
        self.collect(sequence, &mut answer, &mut keep)?;
        Ok(answer)
    }

    pub(crate) fn dump(
        &mut self,
        kind: u16,
        flags: u16,
        payload: &dyn Fn(&mut Writer<'_>),
    ) -> Result<Dump, Error> {
        self.dump_into(kind, flags, payload, &is_uninterrupted, &mut keep)
    }

    pub(crate) fn dump_into<T: Default>(
        &mut self,
        kind: u16,
        flags: u16,
        payload: &dyn Fn(&mut Writer<'_>),
        is_valid: &IsValid<'_, T>,
        take: &mut ProcessMessage<'_, T>,
    ) -> Result<T, Error> {
        let mut pause = DUMP_PAUSE;
        let mut attempt = 1;
        loop {
            let mut all = T::default();
            // The kernel does not acknowledge dumps. If it handles this request as an ordinary
            // request, the requested acknowledgement marks the end of the reply.
            let sequence = self.send_one(kind, flags | NLM_F_DUMP | NLM_F_ACK, payload)?;
            let is_last = attempt == DUMP_ATTEMPTS;
            let of = |is_interrupted| Attempt {
                is_interrupted,
                is_last,
            };
            let failure = match self.collect(sequence, &mut all, take) {
                Ok(is_interrupted) if is_valid(&all, of(is_interrupted)) => return Ok(all),
                Ok(_) => Error::Interrupted {
                    attempts: DUMP_ATTEMPTS,
                },
                Err(Error::LostReply) => Error::LostReply,
                Err(error) => {
                    // Reads the rest of this dump. Until then, the socket cannot begin another dump
                    // (EBUSY).
                    while !matches!(self.receive()?, QueueRead::Empty) {}
                    return Err(error);
                }
            };
            if is_last {
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

    /// Processes the replies to the message with the sequence number `sequence`, up to the last
    /// reply. Returns true if the kernel has flagged the dump as interrupted. After
    /// [`Error::LostReply`], the queue has no further replies to this message.
    fn collect<T>(
        &mut self,
        sequence: u32,
        all: &mut T,
        take: &mut ProcessMessage<'_, T>,
    ) -> Result<bool, Error> {
        let (mut interrupted, mut loss) = (false, false);
        loop {
            match self.receive()? {
                QueueRead::Empty => return Err(Error::LostReply),
                QueueRead::Loss => loss = true,
                QueueRead::Datagram => {
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

    fn receive(&mut self) -> Result<QueueRead, Error> {
        loop {
            self.datagram.clear();
            return match self.link.receive(&mut self.datagram) {
                Ok(length) if length > self.datagram.len() => {
                    self.datagram.clear();
                    self.datagram.reserve(length);
                    Ok(QueueRead::Loss)
                }
                Ok(_) => Ok(QueueRead::Datagram),
                Err(error) => match (error.kind(), error.raw_os_error()) {
                    (ErrorKind::Interrupted, _) => continue,
                    (ErrorKind::WouldBlock, _) => Ok(QueueRead::Empty),
                    (_, Some(ENOBUFS)) => Ok(QueueRead::Loss),
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

/// Converts a number of messages into a sequence number, which wraps.
#[allow(clippy::cast_possible_truncation, reason = "sequence numbers wrap")]
fn as_u32(count: usize) -> u32 {
    count as u32
}

#[cfg(test)]
mod tests;
