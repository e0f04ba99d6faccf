//! The result of a Service's health-check node port: the number of ready endpoints on this node.
//!
//! A load balancer checks this port on every node. It sends packets only to nodes with ready
//! endpoints, so no packet is lost with `externalTrafficPolicy: Local`.
//!
//! Terminating endpoints still serve packets, but do not count. So the load balancer sends new
//! connections to other nodes.

use std::net::IpAddr;

use hashbrown::HashSet;

use crate::names::IpFamily;
use crate::view::ServiceView;

/// Result of the health-check node port of one Service, for one IP family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthCheck {
    /// Health-check node port of the Service (`spec.healthCheckNodePort`).
    pub port: u16,
    /// Number of ready endpoints on this node. Endpoints with the same address count once.
    pub local_endpoints: usize,
}

impl HealthCheck {
    /// Returns the health check of a Service on the node `node`. Returns `None` if the Service has
    /// no health-check node port, or no cluster IP of this family.
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
