//! Reads a list in JSON, with only one or two objects in memory at a time.
//!
//! The parser handles the text value by value. If the text ends inside a value, this module reads
//! until the text has doubled, and then parses the value again. So even a long value is parsed only
//! a few times.

use std::collections::VecDeque;
use std::mem;

use proxy::Kind;
use serde::Deserialize;
use serde::de::{Error as _, IgnoredAny};
use serde_json::value::RawValue;

use super::super::end::End;
use super::input::Input;
use super::meta::{Meta, is_list_of};
use crate::decode::{DecodedObject, MissingName, Wire, json, with_wire};

/// Minimum number of bytes that the reader buffers before it parses them.
const PIECE: usize = 128 << 10;
/// Maximum length of the buffered text, in bytes. An object may have half of this length. etcd
/// accepts 1.5 MB.
const LONGEST_OBJECT: usize = 64 << 20;
/// Number of bytes that errors quote from the beginning of the response.
const EXCERPT: usize = 60;

/// Reader of a JSON list, object by object.
pub(super) struct JsonList {
    kind: Kind,
    input: Input,
    /// Text read so far, without an incomplete character at its end.
    text: String,
    cut: Vec<u8>,
    /// Number of bytes of `text` that were parsed.
    parsed: usize,
    /// True if the body has ended, so no further text follows.
    is_all: bool,
    /// Beginning of the response, which errors quote.
    excerpt: String,
    place: ParsePosition,
    /// True once the `kind` of the list has been checked.
    is_known: bool,
    /// Objects that arrived before the list's `kind`.
    waiting: VecDeque<Result<DecodedObject, MissingName>>,
    pub(super) meta: Meta,
}

/// Position of the parser in the list's JSON text.
#[derive(Debug, Clone, Copy)]
enum ParsePosition {
    Start,
    FirstKey,
    Key,
    Colon(Field),
    Value(Field),
    AfterValue,
    FirstItem,
    Item,
    AfterItem,
    End,
}

/// Fields of a Kubernetes list object (such as `ServiceList`) that the reader uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Field {
    Kind,
    Metadata,
    Items,
    #[serde(other)]
    Other,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    continue_token: String,
}

/// Result of one parsing step: progress, an object, the list's kind, or the end.
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
enum Step {
    On,
    Object(Result<DecodedObject, MissingName>),
    /// The value of the list's field `kind`.
    Kind(String),
    End,
}

/// Reason why a value cannot be parsed.
enum Stop {
    /// The text ends before the value ends.
    Short,
    Invalid(serde_json::Error),
}

impl From<serde_json::Error> for Stop {
    fn from(error: serde_json::Error) -> Self {
        Self::Invalid(error)
    }
}

impl JsonList {
    pub(super) fn new(kind: Kind, input: Input) -> Self {
        Self {
            kind,
            input,
            text: String::new(),
            cut: Vec::new(),
            parsed: 0,
            is_all: false,
            excerpt: String::new(),
            place: ParsePosition::Start,
            is_known: false,
            waiting: VecDeque::new(),
            meta: Meta::default(),
        }
    }

    /// Returns the next object. Returns `None` at the end of the list.
    pub(super) async fn next(&mut self) -> Result<Option<Result<DecodedObject, MissingName>>, End> {
        loop {
            if self.is_known
                && let Some(object) = self.waiting.pop_front()
            {
                return Ok(Some(object));
            }
            let step = match self.step() {
                Ok(step) => step,
                Err(Stop::Short) => {
                    self.read_on().await?;
                    continue;
                }
                Err(Stop::Invalid(error)) => return Err(self.nonsense(&error)),
            };
            match step {
                Step::On => {}
                Step::Kind(said) => {
                    is_list_of(self.kind, &said)?;
                    self.is_known = true;
                }
                Step::Object(object) if self.is_known => return Ok(Some(object)),
                Step::Object(object) => self.waiting.push_back(object),
                Step::End if self.is_known => return Ok(None),
                Step::End => is_list_of(self.kind, "")?,
            }
        }
    }

    fn nonsense(&self, error: &dyn std::error::Error) -> End {
        End::nonsense(format!("{error} in {:?}", self.excerpt))
    }

    /// Reads until the unparsed text has doubled, or the body ends.
    async fn read_on(&mut self) -> Result<(), End> {
        self.text.drain(..mem::take(&mut self.parsed));
        let wanted = PIECE.max(2 * self.text.len());
        if wanted > LONGEST_OBJECT {
            return Err(End::nonsense(format!(
                "an object of more than {} bytes",
                LONGEST_OBJECT / 2
            )));
        }
        while self.text.len() < wanted {
            let held = self.input.held().await?;
            let count = held.len();
            if count == 0 {
                self.is_all = true;
                break;
            }
            self.cut
                .extend_from_slice(held.get(..PIECE).unwrap_or(held));
            let count = count.min(PIECE);
            self.input.take(count);
            // Checks here that the whole text is UTF-8, because the parser does not check text that
            // it skips.
            let is_cut = match str::from_utf8(&self.cut) {
                Ok(text) => {
                    self.text.push_str(text);
                    self.cut.len()
                }
                Err(error) if error.error_len().is_none() => {
                    let valid = error.valid_up_to();
                    let text = self.cut.get(..valid).unwrap_or_default();
                    self.text.push_str(str::from_utf8(text).unwrap_or_default());
                    valid
                }
                Err(error) => {
                    return Err(self.nonsense(&error));
                }
            };
            self.cut.drain(..is_cut);
            if self.excerpt.is_empty() {
                let end = self.text.floor_char_boundary(EXCERPT);
                let beginning = self.text.get(..end).unwrap_or_default();
                beginning.clone_into(&mut self.excerpt);
            }
        }
        Ok(())
    }

    /// Parses the next token or value of the list.
    fn step(&mut self) -> Result<Step, Stop> {
        let text = self.text.get(self.parsed..).unwrap_or_default();
        let rest = text.trim_ascii_start();
        self.parsed = self.text.len() - rest.len();
        let Some(first) = rest.bytes().next() else {
            return match self.place {
                ParsePosition::End if self.is_all && self.cut.is_empty() => Ok(Step::End),
                _ if self.is_all => Err(serde_json::Error::custom("a list that breaks off").into()),
                _ => Err(Stop::Short),
            };
        };
        let place = match (self.place, first) {
            (ParsePosition::Start, b'{') => ParsePosition::FirstKey,
            (ParsePosition::FirstKey | ParsePosition::AfterValue, b'}') => ParsePosition::End,
            (ParsePosition::Colon(field), b':') => ParsePosition::Value(field),
            (ParsePosition::AfterValue, b',') => ParsePosition::Key,
            (ParsePosition::Value(Field::Items), b'[') => ParsePosition::FirstItem,
            (ParsePosition::FirstItem | ParsePosition::AfterItem, b']') => {
                ParsePosition::AfterValue
            }
            (ParsePosition::AfterItem, b',') => ParsePosition::Item,
            _ => return self.value(),
        };
        self.place = place;
        self.parsed += 1;
        Ok(Step::On)
    }

    /// Parses the key, field value or item at the current position.
    fn value(&mut self) -> Result<Step, Stop> {
        let text = self.text.get(self.parsed..).unwrap_or_default();
        let is_all = self.is_all;
        let (step, length, place) = match self.place {
            ParsePosition::FirstKey | ParsePosition::Key => {
                let (field, length) = parse::<Field>(text, is_all)?;
                (Step::On, length, ParsePosition::Colon(field))
            }
            ParsePosition::Value(Field::Kind) => {
                let (kind, length) = parse::<Option<String>>(text, is_all)?;
                let kind = kind.unwrap_or_default();
                (Step::Kind(kind), length, ParsePosition::AfterValue)
            }
            ParsePosition::Value(Field::Metadata) => {
                let (meta, length) = parse::<Option<ListMeta>>(text, is_all)?;
                let meta = meta.unwrap_or_default();
                let given = |text: String| Some(text).filter(|text| !text.is_empty());
                self.meta = Meta {
                    version: given(meta.resource_version),
                    continue_token: given(meta.continue_token),
                };
                (Step::On, length, ParsePosition::AfterValue)
            }
            ParsePosition::Value(Field::Items) => {
                let ((), length) = parse(text, is_all)?;
                (Step::On, length, ParsePosition::AfterValue)
            }
            ParsePosition::Value(Field::Other) => {
                let (_, length) = parse::<IgnoredAny>(text, is_all)?;
                (Step::On, length, ParsePosition::AfterValue)
            }
            ParsePosition::FirstItem | ParsePosition::Item => {
                let (object, length) = object(self.kind, text, is_all)?;
                (Step::Object(object), length, ParsePosition::AfterItem)
            }
            ParsePosition::Start
            | ParsePosition::Colon(_)
            | ParsePosition::AfterValue
            | ParsePosition::AfterItem
            | ParsePosition::End => {
                return Err(serde_json::Error::custom("this is no list").into());
            }
        };
        self.parsed += length;
        self.place = place;
        Ok(step)
    }
}

/// Parses the object at the beginning of `text`. Returns it with its length in bytes.
fn object(
    kind: Kind,
    text: &str,
    is_all: bool,
) -> Result<(Result<DecodedObject, MissingName>, usize), Stop> {
    fn read<'a, W: Wire<'a>>(
        text: &'a str,
        is_all: bool,
    ) -> Result<(Result<DecodedObject, MissingName>, usize), Stop> {
        let (object, length) = parse::<W>(text, is_all)?;
        Ok((object.decode(), length))
    }

    let read = with_wire!(kind, read(text, is_all));
    if let Err(Stop::Invalid(_)) = read {
        // Finds the end of the object before decoding it. So an invalid object does not affect
        // other objects.
        let (object, length) = parse::<&RawValue>(text, is_all)?;
        return Ok((json::object(kind, object.get()), length));
    }
    read
}

/// Parses the value at the beginning of `text`. Returns it with its length in bytes, or
/// [`Stop::Short`] if more text may follow.
fn parse<'a, T: Deserialize<'a>>(text: &'a str, is_all: bool) -> Result<(T, usize), Stop> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter();
    match values.next() {
        Some(Ok(value)) => match values.byte_offset() {
            length if length < text.len() || is_all => Ok((value, length)),
            _ => Err(Stop::Short),
        },
        Some(Err(error)) if is_all || !error.is_eof() => Err(Stop::Invalid(error)),
        Some(Err(_)) | None => Err(Stop::Short),
    }
}
