//! Decodes objects and events in Kubernetes' protobuf.
//!
//! ```text
//!   a list, an object, a Status:  k8s\0 Unknown { typeMeta, raw = the message }
//!   a watch, as frames:           WatchEvent { type, object { raw = k8s\0 Unknown { … } } }
//! ```

use proxy::Kind;

use super::decoded::{DecodedObject, MissingName, kind_name};
use super::findings::Findings;
use super::kinds::{Wire, with_wire};
use super::message::{Malformed, Message, Value, read, read_some};
use super::status::Status;
use super::watch_event::WatchEvent;
use super::wire;

/// First bytes of every protobuf response and of every object in a watch event. A frame has none.
pub(crate) const MAGIC: &[u8; 4] = b"k8s\0";

/// Envelope of a message (`runtime.Unknown`).
#[derive(Debug, Default)]
struct Unknown<'a> {
    meta: Option<TypeMeta<'a>>,
    raw: &'a [u8],
    is_encoded: bool,
}

impl<'a> Message<'a> for Unknown<'a> {
    fn take(&mut self, number: u32, value: Value<'a>) -> Result<(), Malformed> {
        match number {
            1 => value.merge(&mut self.meta)?,
            2 => self.raw = value.bytes()?,
            3 => self.is_encoded = !value.bytes()?.is_empty(),
            _ => {}
        }
        Ok(())
    }
}

/// Type of an object (`runtime.TypeMeta`).
#[derive(Debug, Default)]
pub(crate) struct TypeMeta<'a> {
    /// Kind of the object, such as `ServiceList`.
    pub(crate) kind: &'a str,
}

impl<'a> Message<'a> for TypeMeta<'a> {
    fn take(&mut self, number: u32, value: Value<'a>) -> Result<(), Malformed> {
        if number == 2 {
            self.kind = value.str()?;
        }
        Ok(())
    }
}

/// Protobuf message of a watch event (`WatchEvent` of `meta/v1`).
#[derive(Debug, Default)]
struct Event<'a> {
    kind: &'a str,
    object: Option<RawExtension<'a>>,
}

impl<'a> Message<'a> for Event<'a> {
    fn take(&mut self, number: u32, value: Value<'a>) -> Result<(), Malformed> {
        match number {
            1 => self.kind = value.str()?,
            2 => value.merge(&mut self.object)?,
            _ => {}
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct RawExtension<'a> {
    raw: &'a [u8],
}

impl<'a> Message<'a> for RawExtension<'a> {
    fn take(&mut self, number: u32, value: Value<'a>) -> Result<(), Malformed> {
        if number == 1 {
            self.raw = value.bytes()?;
        }
        Ok(())
    }
}

/// Opens an envelope (`k8s\0` and `Unknown`). Returns the kind, if any, and the bytes of the
/// message.
fn opened(bytes: &[u8]) -> Result<(Option<&str>, &[u8]), Malformed> {
    let bytes = bytes.strip_prefix(MAGIC).ok_or(Malformed::Envelope)?;
    let unknown: Unknown<'_> = read(bytes)?;
    if unknown.is_encoded {
        return Err(Malformed::Envelope);
    }
    let kind = unknown.meta.map(|meta| meta.kind);
    Ok((kind.filter(|kind| !kind.is_empty()), unknown.raw))
}

/// Decodes a watch event about an object of this kind from a frame. Fails if the event itself
/// cannot be decoded. An error that concerns only the object is part of the returned event.
pub(crate) fn event(kind: Kind, frame: &[u8]) -> Result<WatchEvent, String> {
    let failed = |error: Malformed| error.to_string();
    let event: Event<'_> = read(frame).map_err(failed)?;
    let envelope = event.object.unwrap_or_default().raw;
    let (said, raw) = opened(envelope).map_err(failed)?;
    Ok(match event.kind {
        "ADDED" | "MODIFIED" => WatchEvent::Applied(object(kind, said, raw)),
        "DELETED" => WatchEvent::deleted(headed(kind, raw)),
        "BOOKMARK" => {
            let headed = read(raw);
            WatchEvent::bookmark(
                headed.map_err(|error: Malformed| format!("a bookmark: {error}"))?,
            )?
        }
        "ERROR" => WatchEvent::Refused(read(raw).unwrap_or_default()),
        other => return Err(format!("an event of type {other:?}")),
    })
}

/// Decodes an item of a list. If only its name is readable, the item is `Unusable`.
pub(crate) fn item(kind: Kind, bytes: &[u8]) -> Result<DecodedObject, MissingName> {
    object(kind, None, bytes)
}

/// Decodes a `Status` in protobuf, or returns `None` if the bytes are invalid.
pub(crate) fn status(bytes: &[u8]) -> Option<Status> {
    let (_, raw) = opened(bytes).ok()?;
    read(raw).ok()
}

/// Decodes an object. `said` is the kind in the object's envelope, or `None` for an item of a list.
/// Such an item has no envelope.
fn object(kind: Kind, said: Option<&str>, bytes: &[u8]) -> Result<DecodedObject, MissingName> {
    if said.is_some_and(|said| said != kind_name(kind)) {
        let mut findings = headed(kind, bytes)?;
        findings.is_kind(said);
        return Ok(findings.unusable());
    }
    with_wire!(kind, of_kind(kind, bytes))
}

fn of_kind<'a, W: Wire<'a>>(kind: Kind, bytes: &'a [u8]) -> Result<DecodedObject, MissingName> {
    match read::<W>(bytes) {
        Ok(object) => object.decode(),
        Err(error) => Ok(headed(kind, bytes)?.unreadable(&error.to_string())),
    }
}

fn headed(kind: Kind, bytes: &[u8]) -> Result<Findings, MissingName> {
    let headed: wire::MetadataOnly<'_> = read_some(bytes);
    Findings::new(kind, &headed.metadata.unwrap_or_default())
}

#[cfg(test)]
mod tests;
