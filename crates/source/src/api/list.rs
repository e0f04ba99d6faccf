//! Reads a list object by object while it arrives, because a whole list may have hundreds of
//! megabytes.
//!
//! An object that cannot be decoded does not affect other objects.

mod input;
mod json;
mod meta;
mod protobuf;

use proxy::Kind;

use super::end::End;
use super::request::{Format, ResponseStream};
use crate::decode::{DecodedObject, MissingName};
use input::Input;
use json::JsonList;
pub(super) use meta::Meta;
use protobuf::ProtobufList;

/// Reader of a list response in JSON or protobuf, object by object.
pub(super) struct List(Form);

enum Form {
    Json(Box<JsonList>),
    Protobuf(Box<ProtobufList>),
}

impl List {
    /// Creates a reader of a response that lists objects of `kind`.
    pub(super) fn new(kind: Kind, answer: ResponseStream) -> Self {
        let input = Input::new(answer.body);
        Self(match answer.format {
            Format::Json => Form::Json(Box::new(JsonList::new(kind, input))),
            Format::Protobuf => Form::Protobuf(Box::new(ProtobufList::new(kind, input))),
        })
    }

    /// Returns the next object, or `None` at the end. The outer result is an error if the whole
    /// list cannot be read. The inner result is an error if this object has no name.
    pub(super) async fn next(&mut self) -> Result<Option<Result<DecodedObject, MissingName>>, End> {
        match &mut self.0 {
            Form::Json(list) => list.next().await,
            Form::Protobuf(list) => list.next().await,
        }
    }

    /// Returns the part of the list's metadata that has arrived.
    pub(super) fn meta(&self) -> &Meta {
        match &self.0 {
            Form::Json(list) => &list.meta,
            Form::Protobuf(list) => &list.meta,
        }
    }
}

#[cfg(test)]
mod tests;
