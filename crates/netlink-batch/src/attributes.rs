//! Reads netlink attributes (`struct nlattr`). An attribute has a length, a kind, and a payload
//! padded to 4 bytes.
//!
//! The bytes come from the kernel or from other programs, so the parser checks every length, and no
//! input causes a panic. The iterator also returns attributes of unknown kinds, which callers
//! ignore.

use std::str;

use netlink_packet_core::DecodeError;

/// Flag bits in an attribute's kind: `NLA_F_NESTED | NLA_F_NET_BYTEORDER`.
const FLAGS: u16 = 0xc000;
pub(crate) const NESTED: u16 = 0x8000;
pub(crate) const HEADER: usize = 4;

/// Rounds a length up to the alignment of netlink messages and attributes: 4 bytes.
pub(crate) const fn align(len: usize) -> usize {
    len.next_multiple_of(4)
}

/// Error about received bytes that are not valid netlink.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// A message header whose length does not fit the datagram.
    #[error("netlink message of length {length} in {available} received bytes")]
    Message {
        /// Length in the header, or 0 if the header is incomplete.
        length: usize,
        /// Number of bytes left in the datagram.
        available: usize,
    },
    /// An attribute header whose length does not fit the payload.
    #[error("netlink attribute of length {length} in {available} bytes of payload")]
    Attribute {
        /// Length in the header, or 0 if the header is incomplete.
        length: usize,
        /// Number of bytes left in the payload.
        available: usize,
    },
    /// An attribute whose payload is too short or too long for its type.
    #[error("netlink attribute {kind} has {actual} bytes of payload, not {expected}")]
    Size {
        /// Kind of the attribute without flag bits, or 0 for a fixed header of a message.
        kind: u16,
        /// Number of bytes that the attribute's type needs.
        expected: usize,
        /// Number of bytes in the received attribute.
        actual: usize,
    },
    /// A string attribute that is not UTF-8.
    #[error("netlink attribute {kind} is not a UTF-8 string")]
    Text {
        /// Kind of the attribute without flag bits.
        kind: u16,
    },
    /// A required attribute that is missing.
    #[error("netlink attribute {kind} ({name}) is missing")]
    Missing {
        /// Kind of the attribute without flag bits.
        kind: u16,
        /// Name of the attribute in the kernel's header.
        name: &'static str,
    },
    /// An attribute with an invalid value.
    #[error("netlink attribute {kind} ({name}) has the meaningless value {value}")]
    Value {
        /// Kind of the attribute without flag bits.
        kind: u16,
        /// Name of the attribute in the kernel's header.
        name: &'static str,
        /// Invalid value of the attribute.
        value: u64,
    },
    /// Error from a library that could not decode a message.
    #[error("netlink message that cannot be read: {0}")]
    Unreadable(String),
}

impl From<DecodeError> for Malformed {
    fn from(error: DecodeError) -> Self {
        Self::Unreadable(error.to_string())
    }
}

/// Iterator over the attributes of a payload. An invalid length ends it with one `Err`.
///
/// ```
/// # use netlink_batch::Attributes;
/// let payload = [6, 0, 1, 0, 0, 80, 0, 0]; // length 6, kind 1, big-endian 80, padding
/// let port = Attributes::new(&payload).next().unwrap().unwrap();
/// assert_eq!((port.kind, port.be16()), (1, Ok(80)));
/// ```
#[derive(Debug, Clone)]
pub struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// Iterates over `payload`, which must begin with the first attribute. To skip a fixed header,
    /// use [`Attributes::after`].
    pub fn new(payload: &'a [u8]) -> Self {
        Self(payload)
    }

    /// Iterates over the attributes after a fixed header of `header` bytes (`genlmsghdr` 4,
    /// `nfgenmsg` 4, `ifaddrmsg` 8, `ifinfomsg` 16 ...).
    ///
    /// # Errors
    ///
    /// Returns [`Malformed::Size`] if the payload is shorter than the header.
    pub fn after(header: usize, payload: &'a [u8]) -> Result<Self, Malformed> {
        match payload.get(align(header)..) {
            Some(rest) => Ok(Self(rest)),
            None if payload.len() >= header => Ok(Self(&[])),
            None => Err(Malformed::Size {
                kind: 0,
                expected: header,
                actual: payload.len(),
            }),
        }
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.0);
        let Some(&[l0, l1, k0, k1]) = rest.first_chunk() else {
            return Some(Err(Malformed::Attribute {
                length: 0,
                available: rest.len(),
            }));
        };
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let Some(payload) = rest.get(HEADER..length) else {
            return Some(Err(Malformed::Attribute {
                length,
                available: rest.len(),
            }));
        };
        self.0 = rest.get(align(length)..).unwrap_or_default();
        Some(Ok(Attribute {
            kind: u16::from_ne_bytes([k0, k1]) & !FLAGS,
            payload,
        }))
    }
}

/// One attribute. Each method that returns a number fails if the payload does not have the size of
/// this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// Kind of the attribute (`nla_type`) without `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
    pub kind: u16,
    /// Payload of the attribute, without header and padding.
    pub payload: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// Returns the payload if it has exactly `N` bytes.
    ///
    /// # Errors
    ///
    /// Returns [`Malformed::Size`] if the payload has another size.
    pub fn array<const N: usize>(&self) -> Result<[u8; N], Malformed> {
        self.payload.try_into().map_err(|_| Malformed::Size {
            kind: self.kind,
            expected: N,
            actual: self.payload.len(),
        })
    }

    /// Returns the payload as a number of 8 bits.
    ///
    /// # Errors
    ///
    /// Returns [`Malformed::Size`] if the payload has another size.
    pub fn u8(&self) -> Result<u8, Malformed> {
        self.array().map(|[byte]| byte)
    }

    /// Returns the payload as a number of 16 bits in host byte order.
    ///
    /// # Errors
    ///
    /// Returns [`Malformed::Size`] if the payload has another size.
    pub fn u16(&self) -> Result<u16, Malformed> {
        self.array().map(u16::from_ne_bytes)
    }

    /// Returns the payload as a number of 32 bits in host byte order.
    ///
    /// # Errors
    ///
    /// Returns [`Malformed::Size`] if the payload has another size.
    pub fn u32(&self) -> Result<u32, Malformed> {
        self.array().map(u32::from_ne_bytes)
    }

    /// Returns the payload as a number of 64 bits in host byte order.
    ///
    /// # Errors
    ///
    /// Returns [`Malformed::Size`] if the payload has another size.
    pub fn u64(&self) -> Result<u64, Malformed> {
        self.array().map(u64::from_ne_bytes)
    }

    /// Returns the payload as a number of 16 bits in network byte order.
    ///
    /// # Errors
    ///
    /// Returns [`Malformed::Size`] if the payload has another size.
    pub fn be16(&self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    /// Returns the payload as a number of 32 bits in network byte order.
    ///
    /// # Errors
    ///
    /// Returns [`Malformed::Size`] if the payload has another size.
    pub fn be32(&self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    /// Returns the payload as text, up to the first NUL if there is one.
    ///
    /// # Errors
    ///
    /// Returns [`Malformed::Text`] if the text is not UTF-8.
    pub fn string(&self) -> Result<&'a str, Malformed> {
        let text = self
            .payload
            .split(|byte| *byte == 0)
            .next()
            .unwrap_or_default();
        str::from_utf8(text).map_err(|_| Malformed::Text { kind: self.kind })
    }

    /// Returns the attributes in this attribute's payload.
    pub fn nested(&self) -> Attributes<'a> {
        Attributes::new(self.payload)
    }
}
