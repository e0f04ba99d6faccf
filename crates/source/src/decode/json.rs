//! Objects and events out of JSON.

use std::borrow::Cow;

use proxy::Kind;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::decoded::{Decoded, Unnamed};
use super::endpoint_slice::endpoint_slice;
use super::findings::Findings;
use super::kinds::Wire;
use super::node::node;
use super::service::service;
use super::service_cidr::service_cidr;
use super::status::Status;
use super::watched::Watched;
use super::wire;

/// An event of a watch.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Reads an event of a watch of this kind. The error is about the event; what is wrong with its
/// object stays with that.
pub(crate) fn event(kind: Kind, event: &[u8]) -> Result<Watched, String> {
    // Once, as a whole: texts that are skipped are not looked at again.
    let text = str::from_utf8(event).map_err(|error| error.to_string())?;
    if let Some(object) = applied(kind, text) {
        return Ok(Watched::Applied(object));
    }
    let read: Event<'_> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let json = read.object.get();
    Ok(match &*read.kind {
        "ADDED" | "MODIFIED" => Watched::Applied(object(kind, json)),
        "DELETED" => Watched::deleted(headed(kind, json)),
        "BOOKMARK" => {
            let headed = serde_json::from_str(json);
            Watched::bookmark(headed.map_err(|error| format!("a bookmark: {error}"))?)?
        }
        "ERROR" => Watched::Refused(status(json.as_bytes()).unwrap_or_default()),
        other => return Err(format!("an event of type {other:?}")),
    })
}

/// Reads why something was refused.
pub(crate) fn status(json: &[u8]) -> Option<Status> {
    serde_json::from_slice(json).ok()
}

/// Reads from JSON an event of a watch by which an object is added or modified, and the object with
/// it: in one pass, which is what nearly all events take. `None` for any other event, and if there
/// is something in it that does not decode.
pub(super) fn applied(kind: Kind, event: &str) -> Option<Result<Decoded, Unnamed>> {
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

    fn read<'a, W: Wire<'a>>(event: &'a str) -> Option<Result<Decoded, Unnamed>> {
        let applied: Applied<W> = serde_json::from_str(event).ok()?;
        Some(applied.object.decode())
    }

    match kind {
        Kind::Service => read::<wire::Service<'_>>(event),
        Kind::EndpointSlice => read::<wire::EndpointSlice<'_>>(event),
        Kind::Node => read::<wire::Node<'_>>(event),
        Kind::ServiceCidr => read::<wire::ServiceCidr<'_>>(event),
    }
}

/// Reads one object from JSON. One that does not decode is `Unusable`, if at least its name can be
/// read.
pub(crate) fn object(kind: Kind, json: &str) -> Result<Decoded, Unnamed> {
    let decoded = match kind {
        Kind::Service => serde_json::from_str(json).map(service),
        Kind::EndpointSlice => serde_json::from_str(json).map(endpoint_slice),
        Kind::Node => serde_json::from_str(json).map(node),
        Kind::ServiceCidr => serde_json::from_str(json).map(service_cidr),
    };
    match decoded {
        Ok(decoded) => decoded,
        Err(error) => {
            let what = format!("{error}, near {:?}", before(json, &error));
            Ok(headed(kind, json)?.unreadable(&what))
        }
    }
}

fn headed(kind: Kind, json: &str) -> Result<Findings, Unnamed> {
    let headed: wire::Headed<'_> = serde_json::from_str(json).unwrap_or_default();
    Findings::new(kind, &headed.metadata.unwrap_or_default())
}

/// The text just before the place of an error: a line and column say little where an object is one
/// long line.
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
