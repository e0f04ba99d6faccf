//! Kubernetes objects to our own compact ones.
//!
//! ```text
//!   JSON, YAML ──serde──▶ ┐                ┌─ service()        ┐
//!                         │ wire::Service  │                   │   Decoded { key, content, problems }
//!                         │ wire::Endpoint…┼─ endpoint_slice() ┼─▶ content: Proxied(Service), Ignored(why) or Unusable
//!   protobuf ─────────▶   ┘                ├─ service_cidr()   │
//!                                          └─ node()           ┘
//! ```
//!
//! There is one shape of each kind, whatever it is read from, and one place that says what is right
//! in it.
//!
//! Defaults that an API server fills in are filled in here too, as manifests lack them. What an API
//! server would have refused is found here as well: a part that is wrong is left out and reported
//! as a `Problem` by name, and the rest of the object is used. An object of which nothing is left
//! is `Unusable`; whoever asked keeps what it knew of it before.

pub mod address;
mod decoded;
mod endpoint_slice;
mod findings;
pub(crate) mod json;
mod kinds;
pub(crate) mod message;
mod node;
mod numbers;
pub(crate) mod protobuf;
mod service;
mod service_cidr;
mod status;
mod watched;
pub(crate) mod wire;

pub use decoded::kind_name;
pub(crate) use decoded::{Content, Decoded, Key, Problem, Unnamed};
pub(crate) use endpoint_slice::endpoint_slice;
pub(crate) use kinds::Wire;
pub(crate) use node::node;
pub(crate) use service::service;
pub(crate) use service_cidr::service_cidr;
pub(crate) use status::Status;
pub(crate) use watched::Watched;

#[cfg(test)]
mod tests;
