//! Tests with lists that upstream's own serializers wrote (`tests/data/vectors`): whole, in pieces,
//! compressed, and damaged.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use futures::io::AsyncBufRead;
use futures::{TryStreamExt as _, stream};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::runtime::Builder;

use super::*;
use crate::api::messages::{Messages, NextMessage};
use crate::api::request::unpacked;
use crate::decode::{Content, WatchEvent, json as from_json, protobuf as from_protobuf};

macro_rules! vector {
    ($name:literal) => {
        include_bytes!(concat!("../../../tests/data/vectors/", $name)).as_slice()
    };
}

/// Lists that the tests have in both formats: kind, list in JSON, and the equal list in protobuf.
const SAME: [(Kind, &[u8], &[u8]); 4] = [
    (
        Kind::Service,
        vector!("services.json"),
        vector!("services.pb"),
    ),
    (
        Kind::EndpointSlice,
        vector!("slices.json"),
        vector!("slices.pb"),
    ),
    (Kind::Node, vector!("nodes.json"), vector!("nodes.pb")),
    (Kind::Service, vector!("empty.json"), vector!("empty.pb")),
];

type Objects = Vec<Result<DecodedObject, MissingName>>;

/// Returns a body that arrives in pieces of `length` bytes.
fn in_pieces(body: &[u8], length: usize) -> impl AsyncBufRead + Send + use<> {
    let pieces: Vec<_> = body
        .chunks(length)
        .map(|piece| Ok(piece.to_vec()))
        .collect();
    stream::iter(pieces).into_async_read()
}

fn packed(body: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(body).unwrap();
    packer.finish().unwrap()
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(future)
}

fn read(
    kind: Kind,
    format: Format,
    body: impl AsyncBufRead + Send + 'static,
) -> Result<(Meta, Objects), End> {
    let body = Box::pin(body);
    wait(async {
        let mut list = List::new(kind, ResponseStream { format, body });
        let mut objects = Vec::new();
        while let Some(object) = list.next().await? {
            objects.push(object);
        }
        Ok((list.meta().clone(), objects))
    })
}

fn json(kind: Kind, body: impl AsRef<[u8]>) -> Result<(Meta, Objects), End> {
    read(kind, Format::Json, in_pieces(body.as_ref(), 100))
}

#[test]
fn json_and_protobuf_lists_of_upstream_decode_equally() {
    for (kind, json, protobuf) in SAME {
        let (meta, objects) = read(kind, Format::Json, in_pieces(json, json.len())).unwrap();
        for (format, body) in [(Format::Json, json), (Format::Protobuf, protobuf)] {
            for length in [1, 7, 100, body.len()] {
                let whole = read(kind, format, in_pieces(body, length)).unwrap();
                assert_eq!(whole, (meta.clone(), objects.clone()), "{format:?}");
                let packed = in_pieces(&packed(body), length);
                let unpacked = read(kind, format, Box::pin(unpacked(packed))).unwrap();
                assert_eq!(unpacked, whole, "{format:?}");
            }
        }
    }
    let (meta, objects) = read(Kind::Service, Format::Protobuf, in_pieces(SAME[0].2, 100)).unwrap();
    assert_eq!(meta.version.as_deref(), Some("4711"));
    assert_eq!(meta.continue_token.as_deref(), Some("more"));
    assert_eq!(objects.len(), 5);
    assert!(objects[4].is_err(), "it has no name");
    let wrong = objects[2].as_ref().unwrap();
    assert!(wrong.problems.len() > 5, "{wrong:?}");
}

/// Reads the events of a watch up to the first incomplete event.
fn watched(
    kind: Kind,
    format: Format,
    body: impl AsyncBufRead + Send + 'static,
) -> Vec<Result<WatchEvent, String>> {
    let body = Box::pin(body);
    wait(async {
        let mut messages = Messages::new(ResponseStream { format, body });
        let mut events = Vec::new();
        while let Ok(NextMessage::Event) = messages.next().await {
            events.push(match format {
                Format::Json => from_json::event(kind, messages.event()),
                Format::Protobuf => from_protobuf::event(kind, messages.event()),
            });
        }
        events
    })
}

#[test]
fn json_and_protobuf_watches_of_upstream_decode_equally() {
    let (json, protobuf) = (vector!("services.watch.json"), vector!("services.watch.pb"));
    let events = watched(Kind::Service, Format::Json, in_pieces(json, 100));
    assert_eq!(events.len(), 6);
    let ends: Vec<_> = events
        .iter()
        .filter(|event| {
            matches!(
                event,
                Ok(WatchEvent::Bookmark {
                    ends_list: true,
                    ..
                })
            )
        })
        .collect();
    assert_eq!(ends.len(), 1);
    assert!(matches!(&events[5], Ok(WatchEvent::Refused(status)) if status.code == 410));
    for length in [1, 3, 100, protobuf.len()] {
        assert_eq!(
            watched(Kind::Service, Format::Protobuf, in_pieces(protobuf, length)),
            events
        );
        let packed = in_pieces(&packed(protobuf), length);
        assert_eq!(
            watched(Kind::Service, Format::Protobuf, Box::pin(unpacked(packed))),
            events
        );
    }
}

/// Checks that the reader can decode each flushed event before the server sends the next event.
#[test]
fn a_compressed_watch_is_decoded_event_by_event() {
    for (format, event) in [
        (
            Format::Json,
            json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}})
                .to_string()
                + "\n",
        ),
        (Format::Protobuf, "\0\0\0\u{4}abcd".to_owned()),
    ] {
        let (send, receive) = futures::channel::mpsc::unbounded::<std::io::Result<Vec<u8>>>();
        let body = Box::pin(unpacked(receive.into_async_read()));
        wait(async {
            let mut messages = Messages::new(ResponseStream { format, body });
            let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
            for _ in 0..3 {
                packer.write_all(event.as_bytes()).unwrap();
                packer.flush().unwrap();
                let piece = std::mem::take(packer.get_mut());
                send.unbounded_send(Ok(piece)).unwrap();
                let limit = std::time::Duration::from_secs(5);
                let next = tokio::time::timeout(limit, messages.next()).await;
                assert_eq!(next.unwrap().unwrap(), NextMessage::Event);
                assert!(!messages.event().is_empty());
            }
        });
    }
}

#[test]
fn a_truncated_list_is_rejected() {
    for (kind, json, protobuf) in SAME {
        for (format, body) in [(Format::Json, json), (Format::Protobuf, protobuf)] {
            // Keeps the last bytes, which the reader does not need: JSON's line feed, and fields of
            // the envelope that the reader skips.
            let least = if format == Format::Json { 2 } else { 5 };
            for end in 0..body.len() - least {
                assert!(
                    read(kind, format, in_pieces(&body[..end], 64)).is_err(),
                    "{format:?} {end}"
                );
            }
            let packed = packed(body);
            for end in 0..packed.len() {
                let body = Box::pin(unpacked(in_pieces(&packed[..end], 64)));
                assert!(read(kind, format, body).is_err(), "{format:?} {end}");
            }
            // Damages gzip's checksum, which is in the first four of the last eight bytes.
            let mut damaged = packed.clone();
            let at = damaged.len() - 8;
            damaged[at] ^= 1;
            let body = Box::pin(unpacked(in_pieces(&damaged, 64)));
            assert!(read(kind, format, body).is_err(), "{format:?}");
        }
    }
}

#[test]
fn a_list_of_an_unrequested_kind_is_rejected() {
    for (kind, json, protobuf) in SAME {
        for other in Kind::ALL {
            for (format, body) in [(Format::Json, json), (Format::Protobuf, protobuf)] {
                let read = read(other, format, in_pieces(body, 64));
                assert_eq!(read.is_ok(), other == kind, "{format:?}");
            }
        }
    }
}

/// Checks that the reader allocates no memory for a claimed length of 4 GB.
#[test]
fn a_wrong_protobuf_length_allocates_no_memory() {
    let mut list = vector!("empty.pb")[..4].to_vec();
    list.extend_from_slice(b"\x0a\x0d\x12\x0bServiceList\x12\xff\xff\xff\xff\x0f\x12");
    for length in [
        &b"\xff\xff\xff\x07"[..],
        b"\xff\xff\xff\xff\x0e",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    ] {
        let body = [&list, length, b"\x0a\x02"].concat();
        let error = read(Kind::Service, Format::Protobuf, in_pieces(&body, 64)).unwrap_err();
        assert!(matches!(error, End::Failed(_)), "{error:?}");
    }
}

fn page(items: &Value) -> (Meta, Objects) {
    let page = json!({
        "kind": "ServiceList", "apiVersion": "v1", "items": items,
        "metadata": { "resourceVersion": "7", "continue": "on" },
    });
    json(Kind::Service, page.to_string()).unwrap()
}

fn service(name: &str, port: &Value) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": { "clusterIP": "10.96.0.1", "ports": [{ "port": port }] },
    })
}

#[test]
fn an_invalid_object_does_not_affect_other_objects() {
    let right = |name| service(name, &80.into());
    let wrong = service("b", &"http".into());
    let read = page(&json!([right("a"), wrong, {}, right("c")]));
    let [Ok(a), Ok(b), Err(_), Ok(c)] = &read.1[..] else {
        panic!("{read:?}");
    };
    assert_eq!(b.content, Content::Unusable);
    assert!(b.problems[0].to_string().contains("Service default/b"));
    let alone = page(&json!([right("a"), right("c")]));
    assert_eq!([&Ok(a.clone()), &Ok(c.clone())], [&alone.1[0], &alone.1[1]]);
    for (meta, _) in [read, alone] {
        assert_eq!(meta.version.as_deref(), Some("7"));
        assert_eq!(meta.continue_token.as_deref(), Some("on"));
    }
}

#[test]
fn a_list_that_is_not_json_is_rejected() {
    let text = r#"{"kind":"ServiceList","metadata":{},"items":[{"metadata":{"name":"a","labels":{"x":"?"}}}]}"#;
    assert!(json(Kind::Service, text).is_ok());
    let no_text: Vec<u8> = text
        .bytes()
        .map(|byte| if byte == b'?' { 0xff } else { byte })
        .collect();
    let cut = &text.as_bytes()[..text.len() - 1];
    let twice = format!("{text}{text}");
    let comma = text.replace("}}}]", "}}},]");
    for wrong in [
        &no_text[..],
        cut,
        b"",
        b"<html>",
        b"[]",
        twice.as_bytes(),
        comma.as_bytes(),
    ] {
        let error = json(Kind::Service, wrong).unwrap_err();
        assert!(matches!(error, End::Failed(_)), "{error:?}");
    }
}

#[test]
fn an_empty_list_without_a_kind_is_rejected() {
    for items in [json!([]), Value::Null] {
        assert_eq!(page(&items).1.len(), 0);
    }
    assert!(json(Kind::Service, "{}").is_err());
    assert!(json(Kind::Service, r#"{"items":[]}"#).is_err());
}

/// Checks a mix of long and short objects. The text arrives in pieces that end at any byte.
#[test]
fn objects_of_any_length_are_decoded() {
    let long = |name: &str, length: usize| {
        let mut service = service(name, &80.into());
        service["metadata"]["annotations"] = json!({"note": "ü".repeat(length)});
        service
    };
    let items: Vec<_> = (0..30)
        .map(|i| long(&format!("s{i}"), [0, 10, 100_000, 300_000][i % 4]))
        .collect();
    let text = json!({"kind": "ServiceList", "metadata": {"resourceVersion": "7"}, "items": items})
        .to_string();
    for length in [4096, 100_001] {
        let (_, objects) = read(
            Kind::Service,
            Format::Json,
            in_pieces(text.as_bytes(), length),
        )
        .unwrap();
        assert_eq!(objects.len(), 30);
        assert!(
            objects
                .iter()
                .flatten()
                .all(|object| object.problems.is_empty())
        );
    }
}

proptest! {
    #[test]
    fn damaged_lists_never_panic_the_decoder(
        which in 0..SAME.len(), is_json: bool, at: prop::sample::Index, bytes: Vec<u8>, length in 1..200_usize,
    ) {
        let (kind, json, protobuf) = SAME[which];
        let (format, body) = if is_json { (Format::Json, json) } else { (Format::Protobuf, protobuf) };
        let at = at.index(body.len());
        let rest = body.get(at + bytes.len()..).unwrap_or_default();
        let damaged = [&body[..at], &bytes, rest].concat();
        let _ = read(kind, format, in_pieces(&damaged, length));
        let _ = read(kind, format, Box::pin(unpacked(in_pieces(&damaged, length))));
        let _ = watched(kind, format, in_pieces(&damaged, length));
    }

    #[test]
    fn damaged_watches_never_panic_the_decoder(at: prop::sample::Index, bytes: Vec<u8>, length in 1..200_usize) {
        for (format, body) in [(Format::Json, vector!("services.watch.json")), (Format::Protobuf, vector!("services.watch.pb"))] {
            let at = at.index(body.len());
            let rest = body.get(at + bytes.len()..).unwrap_or_default();
            let _ = watched(Kind::Service, format, in_pieces(&[&body[..at], &bytes, rest].concat(), length));
        }
    }
}
