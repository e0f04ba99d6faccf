//! What a Service's health-check node port answers for: the endpoints on this node that are ready.
//!
//! A load balancer asks that port of every node and sends only to nodes that have such endpoints,
//! so that `externalTrafficPolicy: Local` loses nothing. Endpoints that serve while terminating
//! still take what arrives, but do not count: the balancer is to send elsewhere.

use std::net::IpAddr;

use hashbrown::HashSet;

use crate::names::IpFamily;
use crate::view::ServiceView;

/// What one Service's health-check node port says in one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthCheck {
    /// `spec.healthCheckNodePort`.
    pub port: u16,
    /// How many ready endpoints are on this node: distinct addresses, whatever their ports.
    pub local_endpoints: usize,
}

impl HealthCheck {
    /// The health check of a Service, seen from the node of this name; `None` if it has no such
    /// port, or no cluster IP of this family.
    pub fn of(view: &ServiceView<'_>, family: IpFamily, node: &str) -> Option<Self> {
        let port = view.service.health_check_node_port?;
        view.service.cluster_ip(family)?;
        let endpoints = view
            .slices()
            .filter(|slice| slice.family == family && !slice.ports.is_empty())
            .flat_map(|slice| slice.endpoints.iter());
        let addresses: HashSet<IpAddr> = endpoints
            .filter(|endpoint| endpoint.ready && endpoint.placement.node.as_deref() == Some(node))
            .map(|endpoint| endpoint.address)
            .collect();
        Some(Self {
            port,
            local_endpoints: addresses.len(),
        })
    }
}
