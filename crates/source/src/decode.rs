//! Converts Kubernetes objects to the model's compact objects.
//!
//! ```text
//!   JSON, YAML ──serde──▶ ┐                ┌─ service()        ┐
//!                         │ wire::Service  │                   │
//!                         │ wire::Endpoint…┼─ endpoint_slice() ┼─▶ DecodedObject
//!   protobuf ─────────▶   ┘                ├─ service_cidr()   │
//!                                          └─ node()           ┘
//! ```
//!
//! A `DecodedObject` has a key, content and problems. Its content is `Proxied` (with a Service or
//! another object), `Ignored` (with the reason) or `Unusable`.
//!
//! Each kind has one wire type for all formats, and one function that validates it.
//!
//! Manifests have not passed through an API server. So the converters set the API server's
//! defaults, and find the errors that the API server would reject:
//!
//! - An invalid part is ignored and reported by name as a `Problem`. The rest of the object is
//!   used.
//! - An object without any usable part is `Unusable`. Its last valid content stays in use.

pub mod address;
mod decoded;
mod endpoint_slice;
pub(crate) mod findings;
pub(crate) mod json;
mod kinds;
pub(crate) mod message;
mod node;
mod numbers;
pub(crate) mod protobuf;
mod service;
mod service_cidr;
mod status;
mod watch_event;
pub(crate) mod wire;

pub use decoded::kind_name;
pub(crate) use decoded::{Content, DecodedObject, Key, MissingName, Problem};
pub(crate) use kinds::{Wire, with_wire};
pub(crate) use status::Status;
pub(crate) use watch_event::WatchEvent;

#[cfg(test)]
mod tests;
