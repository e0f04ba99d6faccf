//! A list, read object by object as it comes: a whole one may be hundreds of megabytes.
//!
//! An object that does not decode costs no other.

mod input;
mod json;
mod meta;
mod protobuf;

use proxy::Kind;

use super::end::End;
use super::request::{Answer, Format};
use crate::decode::{Decoded, Unnamed};
use input::Input;
use json::JsonList;
pub(super) use meta::Meta;
use protobuf::ProtobufList;

/// A list that is being read.
pub(super) struct List(Form);

enum Form {
    Json(Box<JsonList>),
    Protobuf(Box<ProtobufList>),
}

impl List {
    /// Of objects of this kind.
    pub(super) fn new(kind: Kind, answer: Answer) -> Self {
        let input = Input::new(answer.body);
        Self(match answer.format {
            Format::Json => Form::Json(Box::new(JsonList::new(kind, input))),
            Format::Protobuf => Form::Protobuf(Box::new(ProtobufList::new(kind, input))),
        })
    }

    /// The next object; none at the end. The error is about the list; what is wrong with an object
    /// stays with it.
    pub(super) async fn next(&mut self) -> Result<Option<Result<Decoded, Unnamed>>, End> {
        match &mut self.0 {
            Form::Json(list) => list.next().await,
            Form::Protobuf(list) => list.next().await,
        }
    }

    /// What the list says of itself, as far as that has come.
    pub(super) fn meta(&self) -> &Meta {
        match &self.0 {
            Form::Json(list) => &list.meta,
            Form::Protobuf(list) => &list.meta,
        }
    }
}

#[cfg(test)]
mod tests;
