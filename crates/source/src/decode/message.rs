//! Fields of protobuf messages, borrowed from the bytes that they stand in.
//!
//! `prost` reads keys and numbers and skips groups; its derived messages are not used, as they own
//! their texts, which would be a second shape of each kind, and a copy. Here a message is one of
//! the shapes that JSON has too, and is told its fields one by one. (Of the others: `buffa` lends
//! texts as well, but brings a second hashbrown; `quick-protobuf` was last released in 2022;
//! `micropb` copies.)
//!
//! Whatever the bytes are, reading them ends, and takes no more memory than the elements that they
//! hold.

use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use super::wire::Text;

/// What a field holds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value<'a> {
    /// A number or a truth value.
    Varint(u64),
    /// A text, or a message.
    Bytes(&'a [u8]),
    /// What no field is that is read here: a number of fixed size, or a group.
    Other,
}

/// Bytes are not the message that they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    /// They break off, or are no message.
    #[error(transparent)]
    Wire(#[from] prost::DecodeError),
    /// A length goes beyond the end.
    #[error("a length of {0} is beyond the end")]
    Length(u64),
    /// A field is of another type.
    #[error("a field is not {0}")]
    Type(&'static str),
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
    /// It is not in Kubernetes' envelope.
    #[error("it does not begin with k8s\\0, or is compressed again")]
    Envelope,
}

/// A message that is told its fields.
pub(crate) trait Message<'a>: Default {
    /// Takes a field with this number, or leaves it.
    fn take(&mut self, number: u32, value: Value<'a>) -> Result<(), Malformed>;
}

/// Reads a message.
pub(crate) fn read<'a, M: Message<'a>>(bytes: &'a [u8]) -> Result<M, Malformed> {
    let mut message = M::default();
    merge(&mut message, bytes)?;
    Ok(message)
}

/// Reads what can be read of a message before something in it is wrong.
pub(crate) fn read_some<'a, M: Message<'a>>(bytes: &'a [u8]) -> M {
    let mut message = M::default();
    // Whoever asks knows already that something is.
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

/// The next field: its number and what it holds.
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

    /// A text. Go writes those that are empty too, which JSON leaves out: the same.
    pub(crate) fn text(self) -> Result<Text<'a>, Malformed> {
        self.str().map(Text::from)
    }

    /// `int32` and `int64`: either is in 64 bits of two's complement.
    pub(crate) fn number(self) -> Result<i64, Malformed> {
        match self {
            Self::Varint(number) => Ok(number.cast_signed()),
            Self::Bytes(_) | Self::Other => Err(Malformed::Type("a number")),
        }
    }

    pub(crate) fn flag(self) -> Result<bool, Malformed> {
        self.number().map(|number| number != 0)
    }

    /// A message; one that comes in several parts is put together.
    pub(crate) fn merge<M: Message<'a>>(self, into: &mut Option<M>) -> Result<(), Malformed> {
        merge(into.get_or_insert_default(), self.bytes()?)
    }

    /// An element of a list of messages.
    pub(crate) fn push<M: Message<'a>>(self, onto: &mut Option<Vec<M>>) -> Result<(), Malformed> {
        let message = read(self.bytes()?)?;
        onto.get_or_insert_default().push(message);
        Ok(())
    }

    /// An element of a list of texts.
    pub(crate) fn push_text(self, onto: &mut Option<Vec<Text<'a>>>) -> Result<(), Malformed> {
        let text = self.text()?;
        onto.get_or_insert_default().push(text);
        Ok(())
    }
}
