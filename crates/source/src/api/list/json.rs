//! A list in JSON, of which no more is held than an object or two.
//!
//! What has come is parsed value by value, and where a value breaks off, once more when further
//! text has come. The text grows to twice its length then, so that nothing is parsed many times.

use std::collections::VecDeque;
use std::mem;

use proxy::Kind;
use serde::Deserialize;
use serde::de::{Error as _, IgnoredAny};
use serde_json::value::RawValue;

use super::super::end::End;
use super::input::Input;
use super::meta::{Meta, is_list_of};
use crate::decode::{Decoded, Unnamed, Wire, json, wire};

/// How much text is parsed at once, at least.
const PIECE: usize = 128 << 10;
/// Longer objects are not Kubernetes': etcd takes 1.5 MB.
const LONGEST_OBJECT: usize = 64 << 20;
/// How much of a text that is nonsense is shown.
const EXCERPT: usize = 60;

/// Reads such a list object by object.
pub(super) struct JsonList {
    kind: Kind,
    input: Input,
    /// What was read, but for the end of a character whose rest is still to come.
    text: String,
    cut: Vec<u8>,
    /// How much of the text has been parsed.
    parsed: usize,
    /// There is no more text than this.
    is_all: bool,
    /// The beginning, to recognise it by.
    excerpt: String,
    place: Place,
    /// Whether the list was found to be of `kind`.
    is_known: bool,
    /// Objects that came before it was.
    waiting: VecDeque<Result<Decoded, Unnamed>>,
    pub(super) meta: Meta,
}

/// Where parsing is.
#[derive(Debug, Clone, Copy)]
enum Place {
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

/// The fields of a list.
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

/// What a step has come to.
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
enum Step {
    /// Further text is needed.
    Short,
    On,
    Object(Result<Decoded, Unnamed>),
    /// The `kind` of the list.
    Kind(String),
    End,
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
            place: Place::Start,
            is_known: false,
            waiting: VecDeque::new(),
            meta: Meta::default(),
        }
    }

    /// The next object; none at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Result<Decoded, Unnamed>>, End> {
        loop {
            if self.is_known
                && let Some(object) = self.waiting.pop_front()
            {
                return Ok(Some(object));
            }
            match self.step().map_err(|error| self.nonsense(&error))? {
                Step::Short => self.read_on().await?,
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

    /// Reads until there is twice the text that could not be parsed, or no more.
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
            // Once, as a whole: texts that are skipped are not looked at again.
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

    /// Parses a little further.
    fn step(&mut self) -> serde_json::Result<Step> {
        let text = self.text.get(self.parsed..).unwrap_or_default();
        let rest = text.trim_ascii_start();
        self.parsed = self.text.len() - rest.len();
        let Some(first) = rest.bytes().next() else {
            return match self.place {
                Place::End if self.is_all && self.cut.is_empty() => Ok(Step::End),
                _ if self.is_all => Err(serde_json::Error::custom("a list that breaks off")),
                _ => Ok(Step::Short),
            };
        };
        let place = match (self.place, first) {
            (Place::Start, b'{') => Place::FirstKey,
            (Place::FirstKey | Place::AfterValue, b'}') => Place::End,
            (Place::Colon(field), b':') => Place::Value(field),
            (Place::AfterValue, b',') => Place::Key,
            (Place::Value(Field::Items), b'[') => Place::FirstItem,
            (Place::FirstItem | Place::AfterItem, b']') => Place::AfterValue,
            (Place::AfterItem, b',') => Place::Item,
            _ => return self.value(),
        };
        self.place = place;
        self.parsed += 1;
        Ok(Step::On)
    }

    /// Parses a value, where there should be one.
    fn value(&mut self) -> serde_json::Result<Step> {
        let text = self.text.get(self.parsed..).unwrap_or_default();
        let is_all = self.is_all;
        let (step, length, place) = match self.place {
            Place::FirstKey | Place::Key => {
                let Some((field, length)) = parse::<Field>(text, is_all)? else {
                    return Ok(Step::Short);
                };
                (Step::On, length, Place::Colon(field))
            }
            Place::Value(Field::Kind) => {
                let Some((kind, length)) = parse::<Option<String>>(text, is_all)? else {
                    return Ok(Step::Short);
                };
                (
                    Step::Kind(kind.unwrap_or_default()),
                    length,
                    Place::AfterValue,
                )
            }
            Place::Value(Field::Metadata) => {
                let Some((meta, length)) = parse::<Option<ListMeta>>(text, is_all)? else {
                    return Ok(Step::Short);
                };
                let meta = meta.unwrap_or_default();
                let given = |text: String| Some(text).filter(|text| !text.is_empty());
                self.meta = Meta {
                    version: given(meta.resource_version),
                    continue_token: given(meta.continue_token),
                };
                (Step::On, length, Place::AfterValue)
            }
            Place::Value(Field::Items) => {
                let Some(((), length)) = parse::<()>(text, is_all)? else {
                    return Ok(Step::Short);
                };
                (Step::On, length, Place::AfterValue)
            }
            Place::Value(Field::Other) => {
                let Some((_, length)) = parse::<IgnoredAny>(text, is_all)? else {
                    return Ok(Step::Short);
                };
                (Step::On, length, Place::AfterValue)
            }
            Place::FirstItem | Place::Item => {
                let Some((object, length)) = object(self.kind, text, is_all)? else {
                    return Ok(Step::Short);
                };
                (Step::Object(object), length, Place::AfterItem)
            }
            Place::Start | Place::Colon(_) | Place::AfterValue | Place::AfterItem | Place::End => {
                return Err(serde_json::Error::custom("this is no list"));
            }
        };
        self.parsed += length;
        self.place = place;
        Ok(step)
    }
}

/// An object, and how long it is; none if it breaks off.
fn object(
    kind: Kind,
    text: &str,
    is_all: bool,
) -> serde_json::Result<Option<(Result<Decoded, Unnamed>, usize)>> {
    fn read<'a, W: Wire<'a>>(
        text: &'a str,
        is_all: bool,
    ) -> serde_json::Result<Option<(Result<Decoded, Unnamed>, usize)>> {
        let parsed = parse::<W>(text, is_all)?;
        Ok(parsed.map(|(object, length)| (object.decode(), length)))
    }

    let read = match kind {
        Kind::Service => read::<wire::Service<'_>>(text, is_all),
        Kind::EndpointSlice => read::<wire::EndpointSlice<'_>>(text, is_all),
        Kind::Node => read::<wire::Node<'_>>(text, is_all),
        Kind::ServiceCidr => read::<wire::ServiceCidr<'_>>(text, is_all),
    };
    read.or_else(|_| {
        // It costs no other: where it ends can still be found.
        let parsed = parse::<&RawValue>(text, is_all)?;
        Ok(parsed.map(|(object, length)| (json::object(kind, object.get()), length)))
    })
}

/// The value that a text begins with, and how long it is; none if it breaks off, or may.
fn parse<'a, T: Deserialize<'a>>(
    text: &'a str,
    is_all: bool,
) -> serde_json::Result<Option<(T, usize)>> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter();
    match values.next() {
        Some(Ok(value)) => {
            let length = values.byte_offset();
            Ok((length < text.len() || is_all).then_some((value, length)))
        }
        Some(Err(error)) if is_all || !error.is_eof() => Err(error),
        Some(Err(_)) | None => Ok(None),
    }
}
