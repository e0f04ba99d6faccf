//! One Service with its slices, as a mode compiles it.

use std::net::{IpAddr, SocketAddr};

use hashbrown::HashSet;

use crate::names::NamespacedName;
use crate::object::{EndpointSlice, Service};

/// One Service and its slices, as input for compiling.
#[derive(Debug, Clone, Copy)]
pub struct ServiceView<'a> {
    /// The Service.
    pub service: &'a Service,
    pub(crate) slices: &'a [EndpointSlice],
    /// Slices that are not served, because the Service exceeds its limits.
    pub(crate) left_out: Option<&'a HashSet<NamespacedName>>,
    pub(crate) api_servers: &'a [SocketAddr],
}

impl<'a> ServiceView<'a> {
    /// Returns a view of a Service and its slices, which must be sorted by name.
    pub fn new(service: &'a Service, slices: &'a [EndpointSlice]) -> Self {
        Self {
            service,
            slices,
            left_out: None,
            api_servers: &[],
        }
    }

    /// Reports whether the API server is known to use this address. Only the API server's own node
    /// may then have it.
    pub fn is_api_server(&self, address: IpAddr) -> bool {
        self.api_servers.iter().any(|at| at.ip() == address)
    }

    /// Returns the slices of both families within the [limits](crate::limits), sorted by name.
    pub fn slices(&self) -> impl Iterator<Item = &'a EndpointSlice> + use<'a> {
        let left_out = self.left_out;
        let slices = self.slices.iter();
        slices.filter(move |slice| left_out.is_none_or(|names| !names.contains(&slice.name)))
    }
}
