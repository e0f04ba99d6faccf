//! Encodes netlink messages. A [`Batch`] is one buffer of complete messages, which one or more
//! sends transmit.
//!
//! The writer encodes a message in one pass: it fills in each length after the content.
//!
//! An attribute of more than 65,535 bytes cannot be encoded, and makes its message void. The
//! connection does not send a void message, and reports it as refused with `EMSGSIZE`. Other
//! messages are not affected.

use std::fmt;
use std::ops::Range;

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST};

use crate::attributes::{self, Malformed, NESTED, align};
use crate::message::{self, Messages};

/// A buffer of messages that are sent together. A send gives the messages their sequence numbers.
/// Callers refer to a message by its index.
#[derive(Default, Clone)]
pub struct Batch {
    bytes: Vec<u8>,
    /// Position in `bytes` at which each message ends. A void message (with an attribute of more
    /// than 65,535 bytes) has no bytes.
    ends: Vec<usize>,
}

/// A message of a [`Batch`] or of a received datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// Message type (`nlmsg_type`).
    pub kind: u16,
    /// Message flags (`nlmsg_flags`).
    pub flags: u16,
    /// Bytes after the `nlmsghdr`: fixed header and attributes.
    pub payload: &'a [u8],
}

/// Returns the messages of a datagram that the kernel sent without a request, for example to a
/// multicast group. An invalid length ends the iteration with one `Err`.
pub fn messages(datagram: &[u8]) -> impl Iterator<Item = Result<Message<'_>, Malformed>> {
    Messages::new(datagram).map(|message| {
        message.map(|message| Message {
            kind: message.kind,
            flags: message.flags,
            payload: message.payload,
        })
    })
}

impl Batch {
    /// Creates an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of messages in the batch.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns true if the batch has no messages.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Removes all messages, but keeps the allocated memory for reuse.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Returns the length of all messages in bytes, including headers.
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends a message: an `nlmsghdr` and the output of `payload`. Adds `NLM_F_REQUEST` to
    /// `flags`. Returns the index of the message.
    pub fn push(&mut self, kind: u16, flags: u16, payload: impl FnOnce(&mut Writer<'_>)) -> usize {
        let start = self.bytes.len();
        self.bytes
            .extend_from_slice(&message::header(kind, flags | NLM_F_REQUEST));
        let mut writer = Writer {
            bytes: &mut self.bytes,
            start,
            overlong: false,
        };
        payload(&mut writer);
        let (len, overlong) = (writer.len(), writer.overlong);
        match u32::try_from(len) {
            Ok(len) if !overlong => message::patch(&mut self.bytes, start, &len.to_ne_bytes()),
            _ => self.bytes.truncate(start),
        }
        self.ends.push(self.bytes.len());
        self.ends.len() - 1
    }

    /// Returns the message at `index`. Returns `None` if no message has this index, or if the
    /// message is void (one of its attributes exceeds 65,535 bytes).
    pub fn get(&self, index: usize) -> Option<Message<'_>> {
        messages(self.raw(index)?).next()?.ok()
    }

    /// Makes the message at `index` request an acknowledgement.
    pub fn acknowledge(&mut self, index: usize) {
        self.add_flags(index, NLM_F_ACK);
    }

    /// Adds `flags` to the message at `index`, if it exists.
    pub fn add_flags(&mut self, index: usize, flags: u16) {
        if let (Some(message), Some(at)) = (self.get(index), self.start(index)) {
            let flags = message.flags | flags;
            message::set_flags(&mut self.bytes, at, flags);
        }
    }

    /// Writes sequence numbers into the messages, beginning with `first`, and returns all bytes. A
    /// void message has no bytes, but takes a sequence number.
    pub(crate) fn numbered(&mut self, first: u32) -> &[u8] {
        let mut at = 0;
        let mut sequence = first;
        for end in &self.ends {
            if *end > at {
                message::set_sequence(&mut self.bytes, at, sequence);
            }
            sequence = sequence.wrapping_add(1);
            at = *end;
        }
        &self.bytes
    }

    /// Returns the indices of void messages, in which an attribute exceeds 65,535 bytes.
    pub(crate) fn void(&self) -> impl Iterator<Item = usize> {
        (0..self.len()).filter(|index| self.raw(*index).is_some_and(<[u8]>::is_empty))
    }

    /// Returns the bytes of one message. A void message has no bytes.
    pub(crate) fn raw(&self, index: usize) -> Option<&[u8]> {
        self.bytes.get(Range {
            start: self.start(index)?,
            end: *self.ends.get(index)?,
        })
    }

    /// Returns the position in `bytes` at which a message begins.
    fn start(&self, index: usize) -> Option<usize> {
        match index.checked_sub(1) {
            Some(before) => self.ends.get(before).copied(),
            None => Some(0),
        }
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries((0..self.len()).map(|index| self.get(index)))
            .finish()
    }
}

/// Writer of one message's payload. It fills in the lengths of attributes, and pads attributes to a
/// multiple of 4 bytes.
pub struct Writer<'a> {
    bytes: &'a mut Vec<u8>,
    start: usize,
    overlong: bool,
}

impl fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Writer<'_> {
    /// Writes raw bytes, padded to a multiple of 4, such as a family's fixed header (`genlmsghdr`,
    /// `nfgenmsg`, `ifaddrmsg` ...).
    pub fn bytes(&mut self, raw: &[u8]) {
        self.bytes.extend_from_slice(raw);
        self.pad();
    }

    /// Appends zeroed bytes, padded to a multiple of 4, and returns them. The caller encodes its
    /// message into these bytes.
    pub fn zeroed(&mut self, len: usize) -> &mut [u8] {
        let at = self.bytes.len();
        self.bytes.resize(at + align(len), 0);
        self.bytes.get_mut(at..at + len).unwrap_or_default()
    }

    /// Writes an attribute of the kind `kind` with the payload `payload`.
    pub fn attr(&mut self, kind: u16, payload: &[u8]) {
        self.attribute(kind, |writer| writer.bytes.extend_from_slice(payload));
    }

    /// Writes an attribute of one byte.
    pub fn attr_u8(&mut self, kind: u16, value: u8) {
        self.attr(kind, &[value]);
    }

    /// Writes an attribute of 16 bits in host byte order.
    pub fn attr_u16(&mut self, kind: u16, value: u16) {
        self.attr(kind, &value.to_ne_bytes());
    }

    /// Writes an attribute of 32 bits in host byte order.
    pub fn attr_u32(&mut self, kind: u16, value: u32) {
        self.attr(kind, &value.to_ne_bytes());
    }

    /// Writes an attribute of 64 bits in host byte order.
    pub fn attr_u64(&mut self, kind: u16, value: u64) {
        self.attr(kind, &value.to_ne_bytes());
    }

    /// Writes an attribute of 16 bits in network byte order. If the family needs
    /// `NLA_F_NET_BYTEORDER`, the caller adds it to `kind`.
    pub fn attr_be16(&mut self, kind: u16, value: u16) {
        self.attr(kind, &value.to_be_bytes());
    }

    /// Writes an attribute of 32 bits in network byte order, like [`Writer::attr_be16`].
    pub fn attr_be32(&mut self, kind: u16, value: u32) {
        self.attr(kind, &value.to_be_bytes());
    }

    /// Writes an attribute with a text and a terminating NUL. The text should contain no other NUL.
    pub fn attr_str(&mut self, kind: u16, text: &str) {
        self.attribute(kind, |writer| {
            writer.bytes.extend_from_slice(text.as_bytes());
            writer.bytes.push(0);
        });
    }

    /// Writes an attribute that contains other attributes, with `NLA_F_NESTED` set.
    pub fn nest(&mut self, kind: u16, inner: impl FnOnce(&mut Writer<'_>)) {
        self.attribute(kind | NESTED, |writer| {
            let mut nested = Writer {
                bytes: &mut *writer.bytes,
                start: writer.start,
                overlong: false,
            };
            inner(&mut nested);
            writer.overlong |= nested.overlong;
        });
    }

    /// Returns the number of bytes in this message so far, including its 16-byte header. A caller
    /// that nests many entries must stop before 65,535 bytes, because the length of an attribute is
    /// a `u16`.
    #[allow(clippy::len_without_is_empty, reason = "a message is never empty")]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    fn attribute(&mut self, kind: u16, payload: impl FnOnce(&mut Self)) {
        let at = self.bytes.len();
        let [k0, k1] = kind.to_ne_bytes();
        self.bytes.extend_from_slice(&[0, 0, k0, k1]);
        payload(self);
        match u16::try_from(self.bytes.len() - at) {
            Ok(len) => message::patch(self.bytes, at, &len.to_ne_bytes()),
            Err(_) => self.overlong = true,
        }
        self.pad();
    }

    fn pad(&mut self) {
        let len = self.start + align(self.len());
        self.bytes.resize(len, 0);
    }
}

const _: () = assert!(message::HEADER.is_multiple_of(4) && attributes::HEADER == 4);
