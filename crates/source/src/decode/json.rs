//! Objects and events out of JSON.

use proxy::Kind;
use serde::Deserialize;

use super::decoded::{Decoded, Key, Unnamed};
use super::endpoint_slice::endpoint_slice;
use super::findings::Findings;
use super::kinds::Wire;
use super::node::node;
use super::service::service;
use super::wire;

/// Reads from JSON an event of a watch by which an object is added or modified, and the object with it: in one pass, which is
/// what nearly all events take. `None` for any other event, and if there is something in it that does not decode.
pub(crate) fn applied(kind: Kind, event: &str) -> Option<Result<Decoded, Unnamed>> {
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
    }
}

/// Reads one object from JSON. One that does not decode is `Unusable`, if at least its name can be read.
pub(crate) fn object(kind: Kind, json: &str) -> Result<Decoded, Unnamed> {
    let decoded = match kind {
        Kind::Service => serde_json::from_str(json).map(service),
        Kind::EndpointSlice => serde_json::from_str(json).map(endpoint_slice),
        Kind::Node => serde_json::from_str(json).map(node),
    };
    match decoded {
        Ok(decoded) => decoded,
        Err(error) => {
            let mut findings = headed(kind, json)?;
            let what = format!("{error}, near {:?}", before(json, &error));
            findings.value(
                "the object",
                "unreadable",
                format!("{what}; what was known of it before stays until it is corrected"),
            );
            Ok(findings.unusable())
        }
    }
}

/// Reads from JSON which object it is, and its resource version.
pub(crate) fn key(kind: Kind, json: &str) -> Result<(Key, Option<Box<str>>), Unnamed> {
    headed(kind, json).map(|findings| (findings.key, findings.version))
}

fn headed(kind: Kind, json: &str) -> Result<Findings, Unnamed> {
    let headed: wire::Headed<'_> = serde_json::from_str(json).unwrap_or_default();
    Findings::new(kind, &headed.metadata.unwrap_or_default())
}

/// The text just before the place of an error: a line and column say little where an object is one long line.
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
