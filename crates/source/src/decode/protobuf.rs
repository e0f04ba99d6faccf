//! Objects and events out of Kubernetes' protobuf.
//!
//! ```text
//!   a list, an object, a Status:  k8s\0 Unknown { typeMeta, raw = the message }
//!   a watch, as frames:           WatchEvent { type, object { raw = k8s\0 Unknown { … } } }
//! ```

use proxy::Kind;

use super::decoded::{Decoded, Unnamed, kind_name};
use super::findings::Findings;
use super::kinds::Wire;
use super::message::{Malformed, Message, Value, read, read_some};
use super::status::Status;
use super::watched::Watched;
use super::wire;

/// What stands before everything but frames.
pub(crate) const MAGIC: &[u8; 4] = b"k8s\0";

/// `runtime.Unknown`.
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

/// `runtime.TypeMeta`.
#[derive(Debug, Default)]
pub(crate) struct TypeMeta<'a> {
    /// Such as `ServiceList`.
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

/// `meta/v1` WatchEvent.
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

/// What is in an envelope: its kind, if it says one, and its bytes.
fn opened(bytes: &[u8]) -> Result<(Option<&str>, &[u8]), Malformed> {
    let bytes = bytes.strip_prefix(MAGIC).ok_or(Malformed::Envelope)?;
    let unknown: Unknown<'_> = read(bytes)?;
    if unknown.is_encoded {
        return Err(Malformed::Envelope);
    }
    let kind = unknown.meta.map(|meta| meta.kind);
    Ok((kind.filter(|kind| !kind.is_empty()), unknown.raw))
}

/// Reads an event of a watch of this kind: what a frame holds. The error is about the event; what
/// is wrong with its object stays with that.
pub(crate) fn event(kind: Kind, frame: &[u8]) -> Result<Watched, String> {
    let failed = |error: Malformed| error.to_string();
    let event: Event<'_> = read(frame).map_err(failed)?;
    let envelope = event.object.unwrap_or_default().raw;
    let (said, raw) = opened(envelope).map_err(failed)?;
    Ok(match event.kind {
        "ADDED" | "MODIFIED" => Watched::Applied(object(kind, said, raw)),
        "DELETED" => Watched::deleted(headed(kind, raw)),
        "BOOKMARK" => {
            let headed = read(raw);
            Watched::bookmark(headed.map_err(|error: Malformed| format!("a bookmark: {error}"))?)?
        }
        "ERROR" => Watched::Refused(read(raw).unwrap_or_default()),
        other => return Err(format!("an event of type {other:?}")),
    })
}

/// Reads an item of a list. One that does not decode is `Unusable`, if at least its name can be
/// read.
pub(crate) fn item(kind: Kind, bytes: &[u8]) -> Result<Decoded, Unnamed> {
    object(kind, None, bytes)
}

/// Reads why something was refused.
pub(crate) fn status(bytes: &[u8]) -> Option<Status> {
    let (_, raw) = opened(bytes).ok()?;
    read(raw).ok()
}

/// `said` is the kind that stands beside it, which a list leaves out.
fn object(kind: Kind, said: Option<&str>, bytes: &[u8]) -> Result<Decoded, Unnamed> {
    if said.is_some_and(|said| said != kind_name(kind)) {
        let mut findings = headed(kind, bytes)?;
        findings.is_kind(said);
        return Ok(findings.unusable());
    }
    match kind {
        Kind::Service => of_kind::<wire::Service<'_>>(kind, bytes),
        Kind::EndpointSlice => of_kind::<wire::EndpointSlice<'_>>(kind, bytes),
        Kind::Node => of_kind::<wire::Node<'_>>(kind, bytes),
        Kind::ServiceCidr => of_kind::<wire::ServiceCidr<'_>>(kind, bytes),
    }
}

fn of_kind<'a, W: Wire<'a>>(kind: Kind, bytes: &'a [u8]) -> Result<Decoded, Unnamed> {
    match read::<W>(bytes) {
        Ok(object) => object.decode(),
        Err(error) => Ok(headed(kind, bytes)?.unreadable(&error.to_string())),
    }
}

fn headed(kind: Kind, bytes: &[u8]) -> Result<Findings, Unnamed> {
    let headed: wire::Headed<'_> = read_some(bytes);
    Findings::new(kind, &headed.metadata.unwrap_or_default())
}

#[cfg(test)]
mod tests;
