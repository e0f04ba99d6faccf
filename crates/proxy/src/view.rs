//! One Service as a mode sees it.

use std::net::{IpAddr, SocketAddr};

use hashbrown::HashSet;

use crate::names::NamespacedName;
use crate::object::{EndpointSlice, Service};

/// One Service and its slices, to be compiled.
#[derive(Debug, Clone, Copy)]
pub struct ServiceView<'a> {
    /// The Service.
    pub service: &'a Service,
    pub(crate) slices: &'a [EndpointSlice],
    /// Slices that are above the Service's limits.
    pub(crate) left_out: Option<&'a HashSet<NamespacedName>>,
    pub(crate) api_servers: &'a [SocketAddr],
}

impl<'a> ServiceView<'a> {
    /// A Service and its slices, which are in the order of their names.
    pub fn new(service: &'a Service, slices: &'a [EndpointSlice]) -> Self {
        Self {
            service,
            slices,
            left_out: None,
            api_servers: &[],
        }
    }

    /// Whether the API server is at this address, as far as is known: no node but its own may take
    /// it for an address of itself.
    pub fn is_api_server(&self, address: IpAddr) -> bool {
        self.api_servers.iter().any(|at| at.ip() == address)
    }

    /// Its slices, of both families, in the order of their names. Those above the
    /// [limits](crate::limits) are not among them.
    pub fn slices(&self) -> impl Iterator<Item = &'a EndpointSlice> + use<'a> {
        let left_out = self.left_out;
        let slices = self.slices.iter();
        slices.filter(move |slice| left_out.is_none_or(|names| !names.contains(&slice.name)))
    }
}
