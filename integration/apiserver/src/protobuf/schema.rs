//! The messages of the API, as far as they are read or written here: one row for each field
//! of `schema.txt`: its number, its name in JSON, what it holds, `?` for a pointer or a map, `*` for a list.
//!
//! Numbers and names: `generated.proto` of `k8s.io/api/{core,discovery,events,networking}/v1` and
//! of `k8s.io/apimachinery/pkg/apis/meta/v1`. What is written of an empty field: `types.go` there,
//! as a field that is no pointer is always on the wire.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::resource::Kind;

const TEXT: &str = include_str!("schema.txt");

/// The fields of a message: number on the wire, name in JSON, presence, content; by number.
pub(crate) type Schema = &'static [(u64, &'static str, Presence, Shape)];

/// When a field is on the wire.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Presence {
    /// Always: Go has a plain value, and writes its zero. JSON leaves that out.
    Always,
    /// If the field is set: Go has a pointer or a map.
    Set,
    /// For each item.
    Each,
}

/// Type of a field.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape {
    Text,
    /// int32 and int64.
    Number,
    Bool,
    /// `metav1.Time`: whole seconds.
    Time,
    /// `metav1.MicroTime`
    MicroTime,
    IntOrString,
    /// A map of strings.
    Texts,
    /// A map of `resource.Quantity`.
    Quantities,
    /// `metav1.FieldsV1`: JSON as it is.
    Json,
    Message(Schema),
}

/// The message that an object of this kind is.
pub(crate) fn of(kind: Kind) -> Schema {
    named(kind.resource().kind)
}

/// A message, by its name.
pub(super) fn named(name: &str) -> Schema {
    static ALL: LazyLock<HashMap<&str, Schema>> = LazyLock::new(|| {
        let messages = TEXT
            .split("\n\n")
            .filter_map(|message| message.split_once('\n'));
        messages.map(|(name, _)| (name, read(name))).collect()
    });
    ALL.get(name).expect("what is asked for is in the table")
}

/// Reads a message of the table, and those that it holds. It is read once, and kept for good.
fn read(name: &str) -> Schema {
    let mut messages = TEXT
        .split("\n\n")
        .filter_map(|message| message.split_once('\n'));
    let (_, rows) = messages
        .find(|(found, _)| *found == name)
        .expect("a message that another one holds is in the table");
    let field = |row: &'static str| {
        let [number, name, holds] = *row.split(' ').collect::<Vec<_>>().as_slice() else {
            return None;
        };
        let (holds, presence) = match (holds.strip_suffix('?'), holds.strip_suffix('*')) {
            (Some(holds), _) => (holds, Presence::Set),
            (_, Some(holds)) => (holds, Presence::Each),
            (None, None) => (holds, Presence::Always),
        };
        let shape = match holds {
            "text" => Shape::Text,
            "number" => Shape::Number,
            "bool" => Shape::Bool,
            "time" => Shape::Time,
            "micro-time" => Shape::MicroTime,
            "int-or-string" => Shape::IntOrString,
            "texts" => Shape::Texts,
            "quantities" => Shape::Quantities,
            "json" => Shape::Json,
            message => Shape::Message(read(message)),
        };
        Some((number.parse().ok()?, name, presence, shape))
    };
    let fields = rows
        .lines()
        .map(|row| field(row).expect("a row has three words"));
    Box::leak(fields.collect())
}
