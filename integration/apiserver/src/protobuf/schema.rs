//! Protobuf messages that the fake API server reads or writes. `schema.txt` has one row per field:
//! field number, JSON name and type. A type ends with `?` for a pointer or a map, and with `*` for
//! a list.
//!
//! Numbers and names come from `generated.proto` of
//! `k8s.io/api/{core,discovery,events,networking}/v1` and of
//! `k8s.io/apimachinery/pkg/apis/meta/v1`. The encoding of empty fields follows `types.go` of the
//! same packages: a field that is not a pointer is always on the wire.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::resource::Kind;

const TEXT: &str = include_str!("schema.txt");

/// Fields of a message, ordered by field number. Each has its number, JSON name, presence and type.
pub(crate) type Schema = &'static [(u64, &'static str, Presence, Shape)];

/// Condition for a field to be in an encoded message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Presence {
    /// Always present: its Go type is a plain value. Protobuf encodes even the zero value, which
    /// JSON omits.
    Always,
    /// Present if the object has the field: its Go type is a pointer or a map.
    Set,
    /// Present once per list item: its Go type is a slice.
    Each,
}

/// Type of a protobuf field's value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape {
    Text,
    /// An integer: int32 or int64.
    Number,
    Bool,
    /// A time in whole seconds: `metav1.Time`.
    Time,
    /// A time in microseconds: `metav1.MicroTime`.
    MicroTime,
    IntOrString,
    /// A map from strings to strings, such as labels.
    Texts,
    /// A map from strings to quantities (`resource.Quantity`), such as a Node's capacity.
    Quantities,
    /// Raw JSON: `metav1.FieldsV1`.
    Json,
    Message(Schema),
}

/// Returns the message type that encodes objects of this kind.
pub(crate) fn of(kind: Kind) -> Schema {
    named(kind.resource().kind)
}

/// Returns the message type with this name in `schema.txt`.
pub(super) fn named(name: &str) -> Schema {
    static ALL: LazyLock<HashMap<&str, Schema>> = LazyLock::new(|| {
        let messages = TEXT
            .split("\n\n")
            .filter_map(|message| message.split_once('\n'));
        messages.map(|(name, _)| (name, read(name))).collect()
    });
    ALL.get(name).expect("what is asked for is in the table")
}

/// Parses a message type of `schema.txt` and the types of its fields. Leaks the result, because
/// [`named`] parses the table only once per process.
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
