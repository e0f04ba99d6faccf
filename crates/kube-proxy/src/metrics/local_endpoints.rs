//! Counts Services that have a Local traffic policy but endpoints only on other nodes.
//!
//! A Service counts if at least one of its ports has endpoints only on other nodes, as in
//! upstream's IPVS mode. The internal and the external policy have separate counts. Each count
//! contains a Service at most once, even if it has several such ports.

use std::collections::HashSet;

use proxy::{
    Backends, Changes, IpFamily, Model, NamespacedName, NodeFacts, ServicePort, ServiceView,
};

use super::Metrics;

/// Services of one IP family that need an endpoint on this node but have none.
#[derive(Debug)]
pub(crate) struct NoLocalEndpoints {
    node: NodeFacts,
    internal: HashSet<NamespacedName>,
    external: HashSet<NamespacedName>,
}

impl NoLocalEndpoints {
    /// Creates an empty set for an IP family on the node `node`.
    pub(crate) fn new(family: IpFamily, node: &str) -> Self {
        Self {
            node: NodeFacts::new(family, node),
            internal: HashSet::new(),
            external: HashSet::new(),
        }
    }

    /// Adds changed Services that lack a local endpoint, and removes all other changed Services.
    pub(crate) fn note(&mut self, model: &Model, changes: &Changes) {
        for name in &changes.services {
            let (mut internal, mut external) = (false, false);
            if let Some(view) = model.view(name)
                && view
                    .service
                    .ports
                    .iter()
                    .any(|port| self.lacks(&view, port))
            {
                internal = view.service.internal_local;
                external = view.service.external_local;
            }
            for (is_in, names) in [
                (internal, &mut self.internal),
                (external, &mut self.external),
            ] {
                if is_in {
                    names.insert(name.clone());
                } else {
                    names.remove(name);
                }
            }
        }
    }

    /// Sets the metrics of this IP family to the current counts.
    pub(crate) fn tell(&self, metrics: &Metrics) {
        metrics.no_local_endpoints(self.node.family, self.internal.len(), self.external.len());
    }

    fn lacks(&self, view: &ServiceView<'_>, port: &ServicePort) -> bool {
        let service = view.service;
        let family = self.node.family;
        if service.cluster_ip(family).is_none() {
            return false;
        }
        let balanced = service.ingress_ips.iter().copied();
        let mut outside = service.external_ips_of(port).chain(balanced);
        let is_outside = port.node_port.is_some() || outside.any(|ip| IpFamily::of(ip) == family);
        let is_asked = service.internal_local || (service.external_local && is_outside);
        is_asked
            && self.has_any(view, port)
            && Backends::resolve(view, port, &self.node).local.is_empty()
    }

    /// Reports whether any node has an endpoint for the port.
    fn has_any(&self, view: &ServiceView<'_>, port: &ServicePort) -> bool {
        let mut slices = view.slices().filter(|slice| {
            let mut ports = slice.ports.iter();
            slice.family == self.node.family
                && ports.any(|of| of.name == port.name && of.protocol == port.protocol)
        });
        slices.any(|slice| {
            let mut endpoints = slice.endpoints.iter();
            endpoints.any(|endpoint| endpoint.ready || (endpoint.serving && endpoint.terminating))
        })
    }
}
