//! The header `struct nlmsghdr`, and the three messages of netlink itself: error, done, no-op.

use netlink_packet_core::{NLM_F_ACK_TLVS, NLM_F_CAPPED};

use crate::attributes::{Attributes, Malformed, align};
use crate::error::Refusal;

pub(crate) const HEADER: usize = 16;
const FLAGS_AT: usize = 6;
const SEQUENCE_AT: usize = 8;
/// Attribute that contains the kernel's explanation of an error (`NLMSGERR_ATTR_MSG`).
const ERROR_TEXT: u16 = 1;

/// Returns an `nlmsghdr` with length 0 and sequence number 0. The caller fills in both later.
pub(crate) fn header(kind: u16, flags: u16) -> [u8; HEADER] {
    let ([k0, k1], [f0, f1]) = (kind.to_ne_bytes(), flags.to_ne_bytes());
    [0, 0, 0, 0, k0, k1, f0, f1, 0, 0, 0, 0, 0, 0, 0, 0]
}

/// Overwrites bytes with `value`, beginning at position `at`.
pub(crate) fn patch(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

pub(crate) fn set_sequence(bytes: &mut [u8], message: usize, sequence: u32) {
    patch(bytes, message + SEQUENCE_AT, &sequence.to_ne_bytes());
}

pub(crate) fn set_flags(bytes: &mut [u8], message: usize, flags: u16) {
    patch(bytes, message + FLAGS_AT, &flags.to_ne_bytes());
}

/// A message that the kernel sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReceivedMessage<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    pub(crate) payload: &'a [u8],
    /// Bytes of the message's header and payload, without padding.
    pub(crate) raw: &'a [u8],
}

impl ReceivedMessage<'_> {
    /// Decodes an `NLMSG_ERROR`: an error number, and optionally the request's payload and a text.
    /// Returns `None` for an acknowledgement.
    pub(crate) fn refusal(&self) -> Result<Option<Refusal>, Malformed> {
        let Some((code, echo)) = self.payload.split_first_chunk() else {
            return Err(short(4, self.payload));
        };
        let code = i32::from_ne_bytes(*code);
        if code == 0 {
            return Ok(None);
        }
        let Some(&[l0, l1, l2, l3, ..]) = echo.first_chunk::<HEADER>() else {
            return Err(short(4 + HEADER, self.payload));
        };
        let echoed = match self.flags & NLM_F_CAPPED {
            0 => u32::from_ne_bytes([l0, l1, l2, l3]) as usize,
            _ => HEADER,
        };
        let Some(request) = echo.get(HEADER..echoed) else {
            return Err(Malformed::Message {
                length: echoed,
                available: echo.len(),
            });
        };
        let extended = echo.get(align(echoed)..).unwrap_or_default();
        Ok(Some(Refusal {
            errno: code.saturating_neg(),
            message: self.text(extended),
            request: request.to_vec(),
        }))
    }

    /// Decodes an `NLMSG_DONE`. Returns the error that ended the dump, if any.
    pub(crate) fn dump_refusal(&self) -> Option<Refusal> {
        let (code, extended) = self.payload.split_first_chunk()?;
        let code = i32::from_ne_bytes(*code);
        (code < 0).then(|| Refusal {
            errno: code.saturating_neg(),
            message: self.text(extended),
            request: Vec::new(),
        })
    }

    fn text(&self, extended: &[u8]) -> Option<String> {
        (self.flags & NLM_F_ACK_TLVS != 0)
            .then(|| {
                Attributes::new(extended)
                    .flatten()
                    .find(|attr| attr.kind == ERROR_TEXT)
            })?
            .and_then(|attr| attr.string().ok().map(str::to_owned))
    }
}

fn short(expected: usize, payload: &[u8]) -> Malformed {
    Malformed::Size {
        kind: 0,
        expected,
        actual: payload.len(),
    }
}

/// Iterator over the messages of a datagram. An invalid length ends the iteration with one `Err`.
#[derive(Debug, Clone)]
pub(crate) struct Messages<'a>(&'a [u8]);

impl<'a> Messages<'a> {
    pub(crate) fn new(datagram: &'a [u8]) -> Self {
        Self(datagram)
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<ReceivedMessage<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.0);
        let Some(&[l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, ..]) =
            rest.first_chunk::<HEADER>()
        else {
            return Some(Err(Malformed::Message {
                length: 0,
                available: rest.len(),
            }));
        };
        let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let (Some(raw), Some(payload)) = (rest.get(..length), rest.get(HEADER..length)) else {
            return Some(Err(Malformed::Message {
                length,
                available: rest.len(),
            }));
        };
        self.0 = rest.get(align(length)..).unwrap_or_default();
        Some(Ok(ReceivedMessage {
            kind: u16::from_ne_bytes([k0, k1]),
            flags: u16::from_ne_bytes([f0, f1]),
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            payload,
            raw,
        }))
    }
}
