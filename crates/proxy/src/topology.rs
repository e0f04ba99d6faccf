//! Who serves cluster traffic and who serves local traffic of one Service port.
//!
//! The rules are upstream's (`CategorizeEndpoints`, KEP-1669 for terminating endpoints, KEP-2433
//! and KEP-3015 for hints): ready endpoints, narrowed by hints if every ready one has them; if none
//! is ready, those that serve while terminating.

use std::net::IpAddr;

use smallvec::SmallVec;

use crate::model::ServiceView;
use crate::names::IpFamily;
use crate::node::NodeFacts;
use crate::object::{EndpointSlice, EndpointView, Service, ServicePort};

/// Address and port of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// The pod's address.
    pub ip: IpAddr,
    /// The pod's port.
    pub port: u16,
}

/// The endpoints of one Service port in one family, each list sorted and without duplicates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backends {
    /// Who serves traffic that may go anywhere. Empty if nobody asks: a Service whose internal
    /// policy is Local and that cannot be reached from outside.
    pub cluster: Vec<Target>,
    /// Who serves traffic that must stay on this node. Empty if no policy of the Service is Local.
    pub local: Vec<Target>,
    /// Every endpoint on this node, whatever its state: these may call themselves (hairpin).
    pub on_node: Vec<Target>,
    /// Whether anybody anywhere serves, here or elsewhere; with hints and no Local policy: anybody
    /// that is meant for us.
    pub any: bool,
    /// How many endpoints there are, whatever their state.
    pub total: usize,
}

impl Backends {
    /// Finds who serves `port`. For several ports of a Service, [`Endpoints`] sorts its endpoints
    /// once.
    pub fn resolve(view: &ServiceView<'_>, port: &ServicePort, node: &NodeFacts) -> Self {
        Endpoints::of(view, node).serving(port)
    }
}

/// A Service's endpoints of one family, sorted by address.
#[derive(Debug)]
pub struct Endpoints<'a> {
    service: &'a Service,
    node: &'a NodeFacts,
    slices: Vec<&'a EndpointSlice>,
    sorted: Vec<Sliced<'a>>,
}

#[derive(Debug)]
struct Sliced<'a> {
    endpoint: EndpointView<'a>,
    /// The number of its slice.
    slice: usize,
    is_local: bool,
}

impl<'a> Endpoints<'a> {
    /// Sorts the endpoints of a Service: O(n log n).
    pub fn of(view: &ServiceView<'a>, node: &'a NodeFacts) -> Self {
        let slices: Vec<_> = view
            .slices()
            .filter(|slice| slice.family == node.family)
            .collect();
        let of_slice = |(number, slice): (usize, &&'a EndpointSlice)| {
            let endpoints = &slice.endpoints;
            endpoints.iter().map(move |endpoint| Sliced {
                endpoint,
                slice: number,
                is_local: endpoint.placement.node.as_deref() == Some(&*node.name),
            })
        };
        let mut sorted: Vec<_> = slices.iter().enumerate().flat_map(of_slice).collect();
        sorted.sort_by_key(|one| (one.endpoint.address, one.endpoint.terminating));
        // Of two that a slice has for one address, and that are not terminating, the last counts,
        // as with upstream (`endpointslicecache.go`, `addEndpoints`).
        let is_same = |one: &Sliced<'_>, next: &Sliced<'_>| {
            (one.slice, one.endpoint.address) == (next.slice, next.endpoint.address)
                && !next.endpoint.terminating
        };
        for same in sorted.chunk_by_mut(is_same) {
            same.reverse();
        }
        Self {
            service: view.service,
            node,
            slices,
            sorted,
        }
    }

    /// All endpoints of a port, sorted, one for each address and port: O(n). Where slices disagree,
    /// an endpoint that is not terminating wins: its address was given to a new pod.
    fn candidates(&self, port: &ServicePort) -> Vec<Candidate<'a>> {
        let numbers = |slice: &&EndpointSlice| -> SmallVec<[u16; 1]> {
            let ports = slice.ports.iter();
            ports
                .filter(|p| p.name == port.name && p.protocol == port.protocol)
                .map(|p| p.port)
                .collect()
        };
        let numbers: Vec<_> = self.slices.iter().map(numbers).collect();
        let mut found = Vec::with_capacity(self.sorted.len());
        for one in &self.sorted {
            let numbers = numbers.get(one.slice).into_iter().flatten();
            found.extend(numbers.map(|number| Candidate {
                target: Target {
                    ip: one.endpoint.address,
                    port: *number,
                },
                endpoint: one.endpoint,
                is_local: one.is_local,
            }));
        }
        // Not in order where an address is in several slices or has several numbers; a sort is
        // linear but for these.
        if !found.is_sorted_by(|one, next| one.target < next.target) {
            found.sort_by_key(|c| (c.target, c.endpoint.terminating));
            found.dedup_by_key(|c| c.target);
        }
        found
    }

    /// Finds who serves `port`: O(n).
    pub fn serving(&self, port: &ServicePort) -> Backends {
        let candidates = self.candidates(port);
        let (service, node) = (self.service, self.node);
        let external = is_externally_reachable(service, port, node.family);
        let uses_cluster = !service.internal_local || external;
        let uses_local = service.internal_local || (service.external_local && external);
        let mut backends = Backends {
            on_node: candidates
                .iter()
                .filter(|c| c.is_local)
                .map(|c| c.target)
                .collect(),
            total: candidates.len(),
            ..Backends::default()
        };
        if uses_cluster {
            let ready: Vec<_> = candidates.iter().filter(|c| c.endpoint.ready).collect();
            let scope = Scope::of(&ready, node);
            backends.cluster = ready
                .into_iter()
                .filter(|c| scope.admits(&c.endpoint, node))
                .map(|c| c.target)
                .collect();
            if backends.cluster.is_empty() {
                backends.cluster = dying(&candidates).map(|c| c.target).collect();
            }
            backends.any = !backends.cluster.is_empty();
        }
        if uses_local {
            backends.any |=
                candidates.iter().any(|c| c.endpoint.ready) || dying(&candidates).next().is_some();
            backends.local = candidates
                .iter()
                .filter(|c| c.endpoint.ready && c.is_local)
                .map(|c| c.target)
                .collect();
            if backends.local.is_empty() {
                backends.local = dying(&candidates)
                    .filter(|c| c.is_local)
                    .map(|c| c.target)
                    .collect();
            }
        }
        backends
    }
}

/// An endpoint under the port it serves.
struct Candidate<'a> {
    target: Target,
    endpoint: EndpointView<'a>,
    is_local: bool,
}

/// Endpoints that serve though their pods are going.
fn dying<'a, 'b>(candidates: &'b [Candidate<'a>]) -> impl Iterator<Item = &'b Candidate<'a>> {
    candidates
        .iter()
        .filter(|c| c.endpoint.serving && c.endpoint.terminating)
}

/// Whether traffic from outside can reach the port, as upstream's `ExternallyAccessible`.
fn is_externally_reachable(service: &Service, port: &ServicePort, family: IpFamily) -> bool {
    let own = |ip: &IpAddr| IpFamily::of(*ip) == family;
    port.node_port.is_some()
        || service.external_ips.iter().any(own)
        || service.ingress_ips.iter().any(own)
}

/// How far hints narrow the ready endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// Not at all.
    Cluster,
    /// To endpoints meant for this zone.
    Zone,
    /// To endpoints meant for this node.
    Node,
}

impl Scope {
    /// Hints count only if every ready endpoint has them and at least one is meant for us: a hint
    /// set that is half written or forgot this node must not cut it off.
    fn of(ready: &[&Candidate<'_>], node: &NodeFacts) -> Self {
        let holds = |scope: Self, is_hinted: fn(&EndpointView<'_>) -> bool| {
            ready.iter().all(|c| is_hinted(&c.endpoint))
                && ready.iter().any(|c| scope.admits(&c.endpoint, node))
        };
        if holds(Self::Node, |e| !e.placement.for_nodes.is_empty()) {
            Self::Node
        } else if holds(Self::Zone, |e| !e.placement.for_zones.is_empty()) {
            Self::Zone
        } else {
            Self::Cluster
        }
    }

    fn admits(self, endpoint: &EndpointView<'_>, node: &NodeFacts) -> bool {
        match self {
            Self::Cluster => true,
            Self::Zone => node
                .zone
                .as_deref()
                .is_some_and(|z| endpoint.placement.for_zones.iter().any(|h| **h == *z)),
            Self::Node => endpoint
                .placement
                .for_nodes
                .iter()
                .any(|h| **h == *node.name),
        }
    }
}
