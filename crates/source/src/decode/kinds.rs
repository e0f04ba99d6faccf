//! Kinds of objects and their wire types.

use serde::Deserialize;

use super::decoded::{DecodedObject, MissingName};
use super::endpoint_slice::endpoint_slice;
use super::message::Message;
use super::node::node;
use super::service::service;
use super::service_cidr::service_cidr;
use super::wire;

/// Wire type of a kind of object, which can be decoded from JSON, YAML and protobuf.
pub(crate) trait Wire<'a>: Deserialize<'a> + Message<'a> {
    /// Validates the object, and converts it to the model's compact form.
    fn decode(self) -> Result<DecodedObject, MissingName>;
}

macro_rules! wires {
    ($($kind:ident => $decode:path;)+) => {$(
        impl<'a> Wire<'a> for wire::$kind<'a> {
            fn decode(self) -> Result<DecodedObject, MissingName> {
                $decode(self)
            }
        }
    )+};
}

wires! {
    Service => service;
    EndpointSlice => endpoint_slice;
    Node => node;
    ServiceCidr => service_cidr;
}

/// Calls a generic function whose type argument is the wire type of a kind.
macro_rules! with_wire {
    ($kind:expr, $function:ident($($argument:expr),*)) => {{
        use proxy::Kind;
        use $crate::decode::wire;
        match $kind {
            Kind::Service => $function::<wire::Service<'_>>($($argument),*),
            Kind::EndpointSlice => $function::<wire::EndpointSlice<'_>>($($argument),*),
            Kind::Node => $function::<wire::Node<'_>>($($argument),*),
            Kind::ServiceCidr => $function::<wire::ServiceCidr<'_>>($($argument),*),
        }
    }};
}

pub(crate) use with_wire;
