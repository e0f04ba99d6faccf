//! The kinds that are read, each with the shape that it has on the wire.

use serde::Deserialize;

use super::decoded::{Decoded, Unnamed};
use super::endpoint_slice::endpoint_slice;
use super::message::Message;
use super::node::node;
use super::service::service;
use super::service_cidr::service_cidr;
use super::wire;

/// The shape of an object on the wire.
pub(crate) trait Wire<'a>: Deserialize<'a> + Message<'a> {
    /// What it comes to.
    fn decode(self) -> Result<Decoded, Unnamed>;
}

impl<'a> Wire<'a> for wire::Service<'a> {
    fn decode(self) -> Result<Decoded, Unnamed> {
        service(self)
    }
}

impl<'a> Wire<'a> for wire::EndpointSlice<'a> {
    fn decode(self) -> Result<Decoded, Unnamed> {
        endpoint_slice(self)
    }
}

impl<'a> Wire<'a> for wire::Node<'a> {
    fn decode(self) -> Result<Decoded, Unnamed> {
        node(self)
    }
}

impl<'a> Wire<'a> for wire::ServiceCidr<'a> {
    fn decode(self) -> Result<Decoded, Unnamed> {
        service_cidr(self)
    }
}
