//! Decodes JSON objects and events.

use std::borrow::Cow;

use proxy::Kind;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::decoded::{DecodedObject, MissingName};
use super::findings::Findings;
use super::kinds::{Wire, with_wire};
use super::status::Status;
use super::watch_event::WatchEvent;
use super::wire;

/// A watch event in JSON, whose object is not decoded yet.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Decodes a watch event about an object of this kind. Fails if the event itself cannot be decoded.
/// An error that concerns only the object is part of the returned event.
pub(crate) fn event(kind: Kind, event: &[u8]) -> Result<WatchEvent, String> {
    // Checks the encoding of the whole event, because the parser does not check text that it skips.
    let text = str::from_utf8(event).map_err(|error| error.to_string())?;
    if let Some(object) = applied(kind, text) {
        return Ok(WatchEvent::Applied(object));
    }
    let read: Event<'_> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let json = read.object.get();
    Ok(match &*read.kind {
        "ADDED" | "MODIFIED" => WatchEvent::Applied(object(kind, json)),
        "DELETED" => WatchEvent::deleted(headed(kind, json)),
        "BOOKMARK" => {
            let headed = serde_json::from_str(json);
            WatchEvent::bookmark(headed.map_err(|error| format!("a bookmark: {error}"))?)?
        }
        "ERROR" => WatchEvent::Refused(status(json.as_bytes()).unwrap_or_default()),
        other => return Err(format!("an event of type {other:?}")),
    })
}

/// Decodes a `Status` in JSON, or returns `None` if the text is invalid.
pub(crate) fn status(json: &[u8]) -> Option<Status> {
    serde_json::from_slice(json).ok()
}

/// Decodes an added or modified object together with its event in one pass, because nearly all
/// events have these types. Returns `None` for other events, or if any part cannot be decoded.
pub(super) fn applied(kind: Kind, event: &str) -> Option<Result<DecodedObject, MissingName>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "UPPERCASE")]
    enum Type {
        Added,
        Modified,
    }

    #[derive(Deserialize)]
    struct Applied<T> {
        #[serde(rename = "type")]
        _type: Type,
        object: T,
    }

    fn read<'a, W: Wire<'a>>(event: &'a str) -> Option<Result<DecodedObject, MissingName>> {
        let applied: Applied<W> = serde_json::from_str(event).ok()?;
        Some(applied.object.decode())
    }

    with_wire!(kind, read(event))
}

/// Decodes one object. If only its name is readable, the object is `Unusable`.
pub(crate) fn object(kind: Kind, json: &str) -> Result<DecodedObject, MissingName> {
    fn read<'a, W: Wire<'a>>(
        json: &'a str,
    ) -> serde_json::Result<Result<DecodedObject, MissingName>> {
        serde_json::from_str(json).map(W::decode)
    }

    match with_wire!(kind, read(json)) {
        Ok(decoded) => decoded,
        Err(error) => {
            let what = format!("{error}, near {:?}", before(json, &error));
            Ok(headed(kind, json)?.unreadable(&what))
        }
    }
}

fn headed(kind: Kind, json: &str) -> Result<Findings, MissingName> {
    let headed: wire::MetadataOnly<'_> = serde_json::from_str(json).unwrap_or_default();
    Findings::new(kind, &headed.metadata.unwrap_or_default())
}

/// Returns at most 40 bytes of text before an error's position. They help more than line and
/// column, because an object is often one long line.
fn before<'a>(json: &'a str, error: &serde_json::Error) -> &'a str {
    const LENGTH: usize = 40;
    let line_start: usize = json
        .split_inclusive('\n')
        .take(error.line().saturating_sub(1))
        .map(str::len)
        .sum();
    let end = json.floor_char_boundary(line_start + error.column());
    let start = json.floor_char_boundary(end.saturating_sub(LENGTH));
    json.get(start..end).unwrap_or_default()
}
