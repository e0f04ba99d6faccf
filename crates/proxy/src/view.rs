//! The input of a mode's compiler: one Service with its EndpointSlices.

use std::net::{IpAddr, SocketAddr};

use hashbrown::HashSet;

use crate::names::NamespacedName;
use crate::object::{EndpointSlice, Service};

/// A Service and its EndpointSlices: the input of a mode's compiler.
#[derive(Debug, Clone, Copy)]
pub struct ServiceView<'a> {
    /// The Service, with only the addresses and ports that the model serves.
    pub service: &'a Service,
    pub(crate) slices: &'a [EndpointSlice],
    /// EndpointSlices that the proxy does not serve, because the Service exceeds its limits. `None`
    /// if the proxy serves all EndpointSlices.
    pub(crate) left_out: Option<&'a HashSet<NamespacedName>>,
    pub(crate) api_servers: &'a [SocketAddr],
}

impl<'a> ServiceView<'a> {
    /// Creates a view of a Service and its EndpointSlices. The EndpointSlices must be sorted by
    /// name.
    pub fn new(service: &'a Service, slices: &'a [EndpointSlice]) -> Self {
        Self {
            service,
            slices,
            left_out: None,
            api_servers: &[],
        }
    }

    /// Reports whether the API server has this address. A mode must not bind such an address on the
    /// node, because the node could then no longer reach the API server.
    pub fn is_api_server(&self, address: IpAddr) -> bool {
        self.api_servers.iter().any(|at| at.ip() == address)
    }

    /// Returns the EndpointSlices of both families within the [limits](crate::limits), sorted by
    /// name.
    pub fn slices(&self) -> impl Iterator<Item = &'a EndpointSlice> + use<'a> {
        let left_out = self.left_out;
        let slices = self.slices.iter();
        slices.filter(move |slice| left_out.is_none_or(|names| !names.contains(&slice.name)))
    }
}
