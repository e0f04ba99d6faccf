//! Reads a list in protobuf: `k8s\0`, and then `Unknown { 1: TypeMeta, 2: raw = List { 1: ListMeta,
//! 2: item, 2: item, … } }`.

use prost::encoding::{WireType, decode_varint};
use proxy::Kind;

use super::super::end::End;
use super::input::Input;
use super::meta::{Meta, is_list_of};
use crate::decode::message::{self, Malformed, Message, Value};
use crate::decode::protobuf::{self, MAGIC, TypeMeta};
use crate::decode::{DecodedObject, MissingName};

/// Maximum length of an object, in bytes. etcd accepts 1.5 MB in this encoding.
const LONGEST_OBJECT: u64 = 16 << 20;
/// Length of the longest varint, in bytes.
const LONGEST_VARINT: usize = 10;

/// Reader of a protobuf list, object by object.
pub(super) struct ProtobufList {
    kind: Kind,
    input: Input,
    /// Number of bytes of the body that were read so far.
    position: u64,
    place: ReadPosition,
    /// True once the reader has checked the list's `kind`.
    is_known: bool,
    /// Bytes of an object that has not arrived completely.
    buffer: Vec<u8>,
    pub(super) meta: Meta,
}

/// Position of the reader in the list's message.
#[derive(Debug, Clone, Copy)]
enum ReadPosition {
    Magic,
    /// Position inside `Unknown`, before its field `raw`.
    Before,
    /// Position inside `raw`, which ends at this byte position.
    Within(u64),
    Behind,
}

impl<'a> Message<'a> for Meta {
    fn take(&mut self, number: u32, value: Value<'a>) -> Result<(), Malformed> {
        let text =
            || Ok::<_, Malformed>(Some(value.str()?.to_owned()).filter(|text| !text.is_empty()));
        match number {
            2 => self.version = text()?,
            3 => self.continue_token = text()?,
            _ => {}
        }
        Ok(())
    }
}

fn breaks_off() -> End {
    End::nonsense("a list that breaks off")
}

fn wrong(error: &Malformed) -> End {
    End::nonsense(format!("a list that does not decode: {error}"))
}

impl ProtobufList {
    pub(super) fn new(kind: Kind, input: Input) -> Self {
        Self {
            kind,
            input,
            position: 0,
            place: ReadPosition::Magic,
            is_known: false,
            buffer: Vec::new(),
            meta: Meta::default(),
        }
    }

    /// Returns the next object. Returns `None` at the end of the list.
    pub(super) async fn next(&mut self) -> Result<Option<Result<DecodedObject, MissingName>>, End> {
        loop {
            match self.place {
                ReadPosition::Magic => {
                    let is_magic = self.with(4, |bytes| bytes == MAGIC).await?;
                    if !is_magic {
                        return Err(wrong(&Malformed::Envelope));
                    }
                    self.place = ReadPosition::Before;
                }
                ReadPosition::Before => self.before().await?,
                ReadPosition::Within(end) if self.position >= end => {
                    if self.position > end {
                        return Err(wrong(&Malformed::Length(end)));
                    }
                    self.place = ReadPosition::Behind;
                }
                ReadPosition::Within(end) => {
                    let (number, wire_type) = self.key().await?;
                    if wire_type != WireType::LengthDelimited {
                        self.skip(wire_type).await?;
                        continue;
                    }
                    let length = self.varint().await?;
                    if length > end.saturating_sub(self.position) {
                        return Err(wrong(&Malformed::Length(length)));
                    }
                    let kind = self.kind;
                    match number {
                        1 => {
                            let meta = self.with(length, |bytes| message::read(bytes)).await?;
                            self.meta = meta.map_err(|error| wrong(&error))?;
                        }
                        2 => {
                            let item = |bytes: &[u8]| protobuf::item(kind, bytes);
                            return self.with(length, item).await.map(Some);
                        }
                        _ => self.pass(length).await?,
                    }
                }
                // Reads the body to its end, so that the gzip decoder verifies the checksum.
                // Ignores the remaining bytes.
                ReadPosition::Behind => {
                    let count = self.input.held().await?.len();
                    if count == 0 {
                        return Ok(None);
                    }
                    self.input.take(count);
                }
            }
        }
    }

    /// Reads the next field of the envelope (`Unknown`).
    async fn before(&mut self) -> Result<(), End> {
        let (number, wire_type) = self.key().await?;
        if wire_type != WireType::LengthDelimited {
            return self.skip(wire_type).await;
        }
        let length = self.varint().await?;
        match number {
            1 => {
                let kind = self.kind;
                let is_known = self.with(length, |bytes| {
                    let meta: TypeMeta<'_> = message::read(bytes).map_err(|error| wrong(&error))?;
                    is_list_of(kind, meta.kind)
                });
                is_known.await??;
                self.is_known = true;
            }
            2 if !self.is_known => is_list_of(self.kind, "")?,
            2 => self.place = ReadPosition::Within(self.position.saturating_add(length)),
            3 if length > 0 => return Err(wrong(&Malformed::Envelope)),
            _ => self.pass(length).await?,
        }
        Ok(())
    }

    /// Reads `length` bytes, and parses them with `read`.
    async fn with<T>(&mut self, length: u64, read: impl FnOnce(&[u8]) -> T) -> Result<T, End> {
        let length = match usize::try_from(length) {
            Ok(bytes) if length <= LONGEST_OBJECT => bytes,
            _ => {
                return Err(End::nonsense(format!(
                    "an object of {length} bytes, more than {LONGEST_OBJECT}"
                )));
            }
        };
        self.position = self.position.saturating_add(length as u64);
        if let Some(whole) = self.input.held().await?.get(..length) {
            let read = read(whole);
            self.input.take(length);
            return Ok(read);
        }
        // Grows the buffer as bytes arrive, because the length in the message may be wrong.
        self.buffer.clear();
        loop {
            let piece = self.input.held().await?;
            let missing = length - self.buffer.len();
            let piece = piece.get(..missing).unwrap_or(piece);
            let count = piece.len();
            self.buffer.extend_from_slice(piece);
            self.input.take(count);
            if self.buffer.len() == length {
                return Ok(read(&self.buffer));
            }
            if count == 0 {
                return Err(breaks_off());
            }
        }
    }

    async fn key(&mut self) -> Result<(u32, WireType), End> {
        let key = self.varint().await?;
        let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0);
        let wire_type = WireType::try_from(key & 7).map_err(|error| wrong(&error.into()))?;
        let number = number.ok_or_else(|| wrong(&Malformed::Type("a field")))?;
        Ok((number, wire_type))
    }

    async fn varint(&mut self) -> Result<u64, End> {
        let mut read = [0; LONGEST_VARINT];
        for slot in &mut read {
            *slot = *self.input.held().await?.first().ok_or_else(breaks_off)?;
            self.input.take(1);
            self.position = self.position.saturating_add(1);
            if *slot < 0x80 {
                return decode_varint(&mut &read[..]).map_err(|error| wrong(&error.into()));
            }
        }
        Err(wrong(&Malformed::Type("a number")))
    }

    /// Skips the value of a numeric field. Fails for every other wire type.
    async fn skip(&mut self, wire_type: WireType) -> Result<(), End> {
        match wire_type {
            WireType::Varint => self.varint().await.map(drop),
            WireType::SixtyFourBit => self.pass(8).await,
            WireType::ThirtyTwoBit => self.pass(4).await,
            WireType::LengthDelimited | WireType::StartGroup | WireType::EndGroup => {
                Err(wrong(&Malformed::Type("a field")))
            }
        }
    }

    /// Skips `length` bytes.
    async fn pass(&mut self, mut length: u64) -> Result<(), End> {
        self.position = self.position.saturating_add(length);
        while length > 0 {
            let held = self.input.held().await?.len();
            if held == 0 {
                return Err(breaks_off());
            }
            let count = usize::try_from(length).map_or(held, |length| length.min(held));
            self.input.take(count);
            length -= count as u64;
        }
        Ok(())
    }
}
