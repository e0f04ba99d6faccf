//! Events in Kubernetes' protobuf envelope.
//!
//! A client-go program that is set to protobuf *sends* it, whatever it accepts in return, and the only objects that a
//! kube-proxy creates are Events; so these, and no other kind, are read. The rest of the traffic is JSON.
//!
//! Field numbers: `generated.proto` of `k8s.io/api/{core,events}/v1` and `k8s.io/apimachinery/pkg/{runtime,apis/meta/v1}`.

use serde_json::{Map, Value};

use crate::resource::Kind;
use crate::time;

/// The bytes are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub(crate) enum Error {
    #[error("does not begin with the magic number k8s\\0")]
    Magic,
    #[error("is protobuf that breaks off or contradicts itself")]
    Wire,
    #[error("a string is not UTF-8")]
    Text,
    #[error("has a contentEncoding, and none is offered")]
    Encoding,
}

/// What a field of a message is.
#[derive(Clone, Copy)]
enum Shape {
    Text,
    Number,
    Time,
    MicroTime,
    /// A map of strings.
    Map,
    Message(Schema),
}

type Schema = &'static [(u64, &'static str, Shape)];

use Shape::{Map as Texts, Message, MicroTime, Number, Text, Time};

const META: Schema = &[
    (1, "name", Text),
    (2, "generateName", Text),
    (3, "namespace", Text),
    (5, "uid", Text),
    (6, "resourceVersion", Text),
    (8, "creationTimestamp", Time),
    (11, "labels", Texts),
    (12, "annotations", Texts),
];

const REFERENCE: Schema = &[
    (1, "kind", Text),
    (2, "namespace", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "resourceVersion", Text),
    (7, "fieldPath", Text),
];

const SOURCE: Schema = &[(1, "component", Text), (2, "host", Text)];

const SERIES: Schema = &[(1, "count", Number), (2, "lastObservedTime", MicroTime)];

const EVENT: Schema = &[
    (1, "metadata", Message(META)),
    (2, "eventTime", MicroTime),
    (3, "series", Message(SERIES)),
    (4, "reportingController", Text),
    (5, "reportingInstance", Text),
    (6, "action", Text),
    (7, "reason", Text),
    (8, "regarding", Message(REFERENCE)),
    (9, "related", Message(REFERENCE)),
    (10, "note", Text),
    (11, "type", Text),
    (12, "deprecatedSource", Message(SOURCE)),
    (13, "deprecatedFirstTimestamp", Time),
    (14, "deprecatedLastTimestamp", Time),
    (15, "deprecatedCount", Number),
];

const CORE_EVENT: Schema = &[
    (1, "metadata", Message(META)),
    (2, "involvedObject", Message(REFERENCE)),
    (3, "reason", Text),
    (4, "message", Text),
    (5, "source", Message(SOURCE)),
    (6, "firstTimestamp", Time),
    (7, "lastTimestamp", Time),
    (8, "count", Number),
    (9, "type", Text),
    (10, "eventTime", MicroTime),
    (11, "series", Message(SERIES)),
    (12, "action", Text),
    (13, "related", Message(REFERENCE)),
    (14, "reportingComponent", Text),
    (15, "reportingInstance", Text),
];

/// The Event that a request's body holds, as the JSON that the client would have sent otherwise.
pub(crate) fn event(kind: Kind, body: &[u8]) -> Result<Value, Error> {
    let envelope = body.strip_prefix(b"k8s\0").ok_or(Error::Magic)?;
    let mut raw: &[u8] = &[];
    for field in Fields(envelope) {
        match field? {
            (2, Wire::Bytes(bytes)) => raw = bytes,
            (3, Wire::Bytes(encoding)) if !encoding.is_empty() => return Err(Error::Encoding),
            _ => {}
        }
    }
    message(
        if kind == Kind::Event {
            EVENT
        } else {
            CORE_EVENT
        },
        raw,
    )
    .map(Value::Object)
}

fn message(schema: Schema, bytes: &[u8]) -> Result<Map<String, Value>, Error> {
    let mut fields = Map::new();
    for field in Fields(bytes) {
        let (number, wire) = field?;
        let Some((_, name, shape)) = schema.iter().find(|(known, ..)| *known == number) else {
            continue;
        };
        let value: Value = match (shape, wire) {
            // Go writes zero values too; JSON leaves them out.
            (Number, Wire::Varint(0)) | (_, Wire::Bytes([])) => continue,
            // int32 and int64 are two's complement in 64 bits.
            (Number, Wire::Varint(number)) => number.cast_signed().into(),
            (Text, Wire::Bytes(bytes)) => text(bytes)?.into(),
            (Time, Wire::Bytes(bytes)) => time::seconds(timestamp(bytes)?.0).into(),
            (MicroTime, Wire::Bytes(bytes)) => {
                let (seconds, nanos) = timestamp(bytes)?;
                time::micros(seconds, nanos).into()
            }
            (Message(schema), Wire::Bytes(bytes)) => message(schema, bytes)?.into(),
            (Texts, Wire::Bytes(bytes)) => {
                let mut pair = message(&[(1, "key", Text), (2, "value", Text)], bytes)?;
                let value = pair.remove("value").unwrap_or_else(|| "".into());
                let mut map = fields
                    .remove(*name)
                    .unwrap_or_else(|| Value::Object(Map::new()));
                if let (Value::Object(map), Some(Value::String(key))) =
                    (&mut map, pair.remove("key"))
                {
                    map.insert(key, value);
                }
                map
            }
            _ => return Err(Error::Wire),
        };
        fields.insert((*name).into(), value);
    }
    Ok(fields)
}

/// Seconds since 1970 and nanoseconds.
fn timestamp(bytes: &[u8]) -> Result<(i64, i32), Error> {
    let (mut seconds, mut nanos) = (0, 0);
    for field in Fields(bytes) {
        match field? {
            (1, Wire::Varint(number)) => seconds = number.cast_signed(),
            (2, Wire::Varint(number)) => nanos = i32::try_from(number).unwrap_or(0),
            _ => {}
        }
    }
    Ok((seconds, nanos))
}

fn text(bytes: &[u8]) -> Result<&str, Error> {
    std::str::from_utf8(bytes).map_err(|_| Error::Text)
}

enum Wire<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// A fixed-size number; no field that is read here is one.
    Fixed,
}

/// The fields of a message, by number, in the order of the bytes; ends after an error.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Wire<'a>), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or(Error::Wire))
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u64, Wire<'a>)> {
        let tag = self.varint()?;
        let wire = match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => self.take(8).map(|_| Wire::Fixed)?,
            2 => {
                let length = self.varint()?;
                Wire::Bytes(self.take(usize::try_from(length).ok()?)?)
            }
            5 => self.take(4).map(|_| Wire::Fixed)?,
            _ => return None,
        };
        Some((tag >> 3, wire))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn bytes(number: u8, content: &[u8]) -> Vec<u8> {
        [
            &[number << 3 | 2, u8::try_from(content.len()).unwrap()],
            content,
        ]
        .concat()
    }

    fn envelope(raw: &[u8]) -> Vec<u8> {
        let types = [bytes(1, b"events.k8s.io/v1"), bytes(2, b"Event")].concat();
        [
            b"k8s\0".to_vec(),
            bytes(1, &types),
            bytes(2, raw),
            bytes(3, b""),
            bytes(4, b""),
        ]
        .concat()
    }

    #[test]
    fn an_event() {
        let meta = [
            bytes(1, b"node1.1"),
            bytes(3, b"default"),
            vec![7 << 3, 0],
            bytes(8, b""),
            bytes(11, &[bytes(1, b"a"), bytes(2, b"b")].concat()),
            bytes(11, &[bytes(1, b"c"), bytes(2, b"")].concat()),
        ]
        .concat();
        // 2000-02-29T00:00:00.001234Z
        let when = [8, 0x80, 0x98, 0xec, 0xc5, 0x03, 0x10, 0x87, 0xad, 0x4b];
        let raw = [
            bytes(1, &meta),
            bytes(2, &when),
            bytes(7, b"Starting"),
            bytes(8, &[bytes(1, b"Node"), bytes(3, b"node1")].concat()),
            bytes(13, b""),
            vec![15 << 3, 3],
        ]
        .concat();
        let wanted = json!({
            "metadata": { "name": "node1.1", "namespace": "default", "labels": { "a": "b", "c": "" } },
            "eventTime": "2000-02-29T00:00:00.001234Z",
            "reason": "Starting",
            "regarding": { "kind": "Node", "name": "node1" },
            "deprecatedCount": 3,
        });
        assert_eq!(event(Kind::Event, &envelope(&raw)), Ok(wanted));
    }

    #[test]
    fn what_is_wrong_is_told() {
        assert_eq!(event(Kind::Event, b"{}"), Err(Error::Magic));
        assert_eq!(
            event(Kind::Event, &envelope(&[0x0a, 5, 1])),
            Err(Error::Wire)
        );
        assert_eq!(event(Kind::Event, &envelope(&[0x0a; 3])), Err(Error::Wire));
        assert_eq!(
            event(Kind::Event, &envelope(&bytes(7, b"\xff"))),
            Err(Error::Text)
        );
        assert_eq!(
            event(Kind::Event, &envelope(&[7 << 3, 1])),
            Err(Error::Wire)
        );
        let gzip = [envelope(b""), bytes(3, b"gzip")].concat();
        assert_eq!(event(Kind::Event, &gzip), Err(Error::Encoding));
    }

    proptest! {
        #[test]
        fn whatever_comes_gets_an_answer(body: Vec<u8>) {
            let _ = event(Kind::Event, &[b"k8s\0".as_slice(), &body].concat());
            let _ = event(Kind::CoreEvent, &envelope(body.get(..120.min(body.len())).unwrap()));
        }
    }
}
