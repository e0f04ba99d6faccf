//! Reads fields of protobuf messages, without copying their texts.
//!
//! `prost` reads keys and numbers, and skips groups. This module does not use `prost`'s derived
//! messages, which copy every text and would need a second type for each kind. Instead, each kind
//! has one wire type for JSON and protobuf, which is read field by field.
//!
//! Other crates do not fit:
//!
//! - `buffa` borrows texts, but needs a second version of hashbrown.
//! - `quick-protobuf` was last released in 2022.
//! - `micropb` copies texts.
//!
//! For any input, the decoder terminates, and allocates memory only for elements of the input.

use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use super::wire::Text;

/// Value of a field in a protobuf message.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value<'a> {
    /// A number or a boolean.
    Varint(u64),
    /// Bytes of a text or of a nested message.
    Bytes(&'a [u8]),
    /// A number of fixed size, or a group. No field that the proxy reads has such a value.
    Other,
}

/// Error of decoding a protobuf message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    /// The bytes end too early, or are not a message.
    #[error(transparent)]
    Wire(#[from] prost::DecodeError),
    /// The length of a field exceeds the rest of the message.
    #[error("a length of {0} is beyond the end")]
    Length(u64),
    /// A field does not have the type that the message defines.
    #[error("a field is not {0}")]
    Type(&'static str),
    /// A text field is not valid UTF-8.
    #[error("a text is not UTF-8")]
    Text,
    /// The message is not in Kubernetes' envelope (`k8s\0` and `Unknown`).
    #[error("it does not begin with k8s\\0, or is compressed again")]
    Envelope,
}

/// A type that is decoded from a protobuf message, field by field.
pub(crate) trait Message<'a>: Default {
    /// Stores `value` in the field with this number. Ignores numbers of fields that the proxy does
    /// not read.
    fn take(&mut self, number: u32, value: Value<'a>) -> Result<(), Malformed>;
}

/// Decodes a protobuf message. Fails at the first invalid field.
pub(crate) fn read<'a, M: Message<'a>>(bytes: &'a [u8]) -> Result<M, Malformed> {
    let mut message = M::default();
    merge(&mut message, bytes)?;
    Ok(message)
}

/// Decodes a message up to its first error. Returns the fields before the error.
pub(crate) fn read_some<'a, M: Message<'a>>(bytes: &'a [u8]) -> M {
    let mut message = M::default();
    // Ignores the error, because the caller has already detected it.
    let _ = merge(&mut message, bytes);
    message
}

fn merge<'a, M: Message<'a>>(message: &mut M, mut bytes: &'a [u8]) -> Result<(), Malformed> {
    while !bytes.is_empty() {
        let (number, value) = field(&mut bytes)?;
        message.take(number, value)?;
    }
    Ok(())
}

/// Reads the next field, and returns its number and value.
fn field<'a>(bytes: &mut &'a [u8]) -> Result<(u32, Value<'a>), Malformed> {
    let (number, wire_type) = decode_key(bytes)?;
    let value = match wire_type {
        WireType::Varint => Value::Varint(decode_varint(bytes)?),
        WireType::LengthDelimited => {
            let length = decode_varint(bytes)?;
            let split = usize::try_from(length).ok();
            let split = split.and_then(|length| bytes.split_at_checked(length));
            let (content, _) = split.ok_or(Malformed::Length(length))?;
            bytes.advance(content.len());
            Value::Bytes(content)
        }
        WireType::SixtyFourBit
        | WireType::ThirtyTwoBit
        | WireType::StartGroup
        | WireType::EndGroup => {
            skip_field(wire_type, number, bytes, DecodeContext::default())?;
            Value::Other
        }
    };
    Ok((number, value))
}

impl<'a> Value<'a> {
    pub(crate) fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Varint(_) | Self::Other => Err(Malformed::Type("a text or message")),
        }
    }

    pub(crate) fn str(self) -> Result<&'a str, Malformed> {
        str::from_utf8(self.bytes()?).map_err(|_| Malformed::Text)
    }

    /// Returns the value as text. An empty text in protobuf means the same as a missing text in
    /// JSON.
    pub(crate) fn text(self) -> Result<Text<'a>, Malformed> {
        self.str().map(Text::from)
    }

    /// Returns the value as an integer. Protobuf encodes `int32` and `int64` as 64 bits of two's
    /// complement.
    pub(crate) fn number(self) -> Result<i64, Malformed> {
        match self {
            Self::Varint(number) => Ok(number.cast_signed()),
            Self::Bytes(_) | Self::Other => Err(Malformed::Type("a number")),
        }
    }

    pub(crate) fn flag(self) -> Result<bool, Malformed> {
        self.number().map(|number| number != 0)
    }

    /// Merges this value into a nested message. In protobuf, a nested message may arrive in several
    /// parts.
    pub(crate) fn merge<M: Message<'a>>(self, into: &mut Option<M>) -> Result<(), Malformed> {
        merge(into.get_or_insert_default(), self.bytes()?)
    }

    /// Decodes this value as a message, and appends it to a repeated field.
    pub(crate) fn push<M: Message<'a>>(self, onto: &mut Option<Vec<M>>) -> Result<(), Malformed> {
        let message = read(self.bytes()?)?;
        onto.get_or_insert_default().push(message);
        Ok(())
    }

    /// Appends this value as text to a repeated field.
    pub(crate) fn push_text(self, onto: &mut Option<Vec<Text<'a>>>) -> Result<(), Malformed> {
        let text = self.text()?;
        onto.get_or_insert_default().push(text);
        Ok(())
    }
}
