//! Chooses the endpoints of one Service port for cluster traffic and for local traffic.
//!
//! The rules are those of upstream's `CategorizeEndpoints`, with KEP-1669 for terminating
//! endpoints, and with KEP-2433 and KEP-3015 for hints:
//!
//! * Traffic uses ready endpoints. If all ready endpoints have hints, the hints narrow the choice.
//! * If no endpoint is ready, traffic uses terminating endpoints that still serve.

use std::fmt;
use std::net::IpAddr;

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::names::{IpFamily, Protocol};
use crate::node::NodeFacts;
use crate::object::{EndpointSlice, EndpointView, Service, ServicePort};
use crate::view::ServiceView;

/// Address and port of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// IP address of the endpoint.
    pub ip: IpAddr,
    /// Port on which the endpoint listens.
    pub port: u16,
}

/// The endpoints of one Service port in one family. Each list is sorted and without duplicates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backends {
    /// Endpoints for traffic that may use any node. Empty if such traffic cannot exist, because the
    /// internal policy is Local and external traffic cannot reach the Service.
    pub cluster: Vec<Target>,
    /// Endpoints for traffic that must stay on this node. Empty if the Service has no policy Local.
    pub local: Vec<Target>,
    /// Every endpoint on this node, in any state. Each endpoint may connect to itself through the
    /// Service (hairpin).
    pub on_node: Vec<Target>,
    /// Endpoints in this node's zone, in any state. Empty unless the Service sets weights.
    pub in_zone: Vec<Target>,
    /// True if an endpoint on any node can serve. If hints apply and no policy is Local, only
    /// endpoints with a hint for this node or zone count.
    pub any: bool,
    /// Number of the port's endpoints on all nodes, in any state.
    pub total: usize,
}

impl Backends {
    /// Chooses the endpoints for `port`. For several ports of a Service, use [`Endpoints`]: it
    /// sorts the endpoints only once.
    pub fn resolve(view: &ServiceView<'_>, port: &ServicePort, node: &NodeFacts) -> Self {
        Endpoints::of(view, node).serving(port)
    }
}

/// A Service's endpoints of one family, sorted by address.
#[derive(Debug)]
pub struct Endpoints<'a> {
    service: &'a Service,
    node: &'a NodeFacts,
    sorted: Vec<SliceEndpoint<'a>>,
    /// For each EndpointSlice, the indexes of its endpoints in `sorted`.
    places: Vec<Vec<usize>>,
    /// For each port (name and protocol), the EndpointSlices that contain it, with the port number
    /// in each EndpointSlice. A Service may have thousands of ports, in different EndpointSlices.
    numbers: HashMap<(&'a str, Protocol), Numbers>,
}

/// Indexes of EndpointSlices in [`Endpoints::places`], each with a port number in that
/// EndpointSlice.
type Numbers = SmallVec<[(usize, u16); 1]>;

#[derive(Debug)]
struct SliceEndpoint<'a> {
    endpoint: EndpointView<'a>,
    /// Index of the endpoint's EndpointSlice in [`Endpoints::places`].
    slice: usize,
    is_local: bool,
}

impl<'a> Endpoints<'a> {
    /// Collects and sorts the Service's endpoints of the node's IP family. Costs O(n log n).
    pub fn of(view: &ServiceView<'a>, node: &'a NodeFacts) -> Self {
        let slices: Vec<_> = view
            .slices()
            .filter(|slice| slice.family == node.family && !slice.endpoints.is_empty())
            .collect();
        let of_slice = |(number, slice): (usize, &&'a EndpointSlice)| {
            let endpoints = &slice.endpoints;
            endpoints.iter().map(move |endpoint| SliceEndpoint {
                endpoint,
                slice: number,
                is_local: endpoint.placement.node.as_deref() == Some(&*node.name),
            })
        };
        let mut sorted: Vec<_> = slices.iter().enumerate().flat_map(of_slice).collect();
        sorted.sort_by_key(|one| (one.endpoint.address, one.endpoint.terminating));
        // If an EndpointSlice contains an address twice and neither endpoint is terminating, the
        // later endpoint is used, as in upstream (`endpointslicecache.go`, `addEndpoints`).
        let is_same = |one: &SliceEndpoint<'_>, next: &SliceEndpoint<'_>| {
            (one.slice, one.endpoint.address) == (next.slice, next.endpoint.address)
                && !next.endpoint.terminating
        };
        for same in sorted.chunk_by_mut(is_same) {
            same.reverse();
        }
        let mut places = vec![Vec::new(); slices.len()];
        for (place, one) in sorted.iter().enumerate() {
            if let Some(of_slice) = places.get_mut(one.slice) {
                of_slice.push(place);
            }
        }
        let mut numbers: HashMap<_, Numbers> = HashMap::new();
        for (number, slice) in slices.iter().enumerate() {
            for port in &slice.ports {
                let slices = numbers.entry((&*port.name, port.protocol)).or_default();
                slices.push((number, port.port));
            }
        }
        Self {
            service: view.service,
            node,
            sorted,
            places,
            numbers,
        }
    }

    /// Returns the endpoints of a port, sorted, one for each address and port. If EndpointSlices
    /// disagree, an endpoint that is not terminating wins: it belongs to a new pod with the same
    /// address. Costs O(n).
    fn candidates(&self, port: &ServicePort) -> Vec<Candidate<'a>> {
        let mut found = self.listed(port);
        // The list is unsorted only in two cases: several EndpointSlices contain one address, or
        // one address has several port numbers.
        if !found.is_sorted_by(|one, next| one.target < next.target) {
            found.sort_by_key(|c| (c.target, c.endpoint.terminating));
            found.dedup_by_key(|c| c.target);
        }
        found
    }

    /// Returns all endpoints of a port, sorted by address. An endpoint that several EndpointSlices
    /// contain occurs several times.
    fn listed(&self, port: &ServicePort) -> Vec<Candidate<'a>> {
        let numbers = self.numbers.get(&(&*port.name, port.protocol));
        let numbers = numbers.into_iter().flatten();
        let listed = numbers.filter_map(|(slice, number)| Some((self.places.get(*slice)?, number)));
        let listed =
            listed.flat_map(|(places, number)| places.iter().map(move |at| (*at, *number)));
        let mut listed: Vec<(usize, u16)> = listed.collect();
        // Costs little if only one EndpointSlice has the port, because its endpoints are already
        // sorted.
        listed.sort_by_key(|(place, _)| *place);
        let listed = listed.into_iter();
        let candidates = listed.filter_map(|(place, number)| {
            let one = self.sorted.get(place)?;
            Some(Candidate {
                target: Target {
                    ip: one.endpoint.address,
                    port: number,
                },
                endpoint: one.endpoint,
                is_local: one.is_local,
            })
        });
        candidates.collect()
    }

    /// Chooses the endpoints that serve `port`. Costs O(endpoints of the port).
    pub fn serving(&self, port: &ServicePort) -> Backends {
        let candidates = self.candidates(port);
        let node = self.node;
        let (uses_cluster, uses_local) = uses(self.service, port, node.family);
        let options = self.service.options.as_deref();
        let weights = options.and_then(|options| options.weights);
        let zone = node.zone.as_deref().filter(|_| weights.is_some());
        let in_zone = candidates.iter().filter(|c| {
            let of = c.endpoint.placement.zone.as_deref();
            zone.is_some() && of == zone
        });
        let mut backends = Backends {
            in_zone: in_zone.map(|c| c.target).collect(),
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

/// Returns two flags: whether the port has traffic of policy Cluster, and whether it has traffic of
/// policy Local.
fn uses(service: &Service, port: &ServicePort, family: IpFamily) -> (bool, bool) {
    let external = is_externally_reachable(service, port, family);
    (
        !service.internal_local || external,
        service.internal_local || (service.external_local && external),
    )
}

/// An endpoint, with the port that it serves.
#[derive(Clone, Copy)]
struct Candidate<'a> {
    target: Target,
    endpoint: EndpointView<'a>,
    is_local: bool,
}

/// An endpoint of a port, with the reasons why traffic uses it or not (see
/// [`Endpoints::verdicts`]).
#[derive(Debug, Clone, Copy)]
pub struct EndpointVerdict<'a> {
    /// IP address of the endpoint.
    pub ip: IpAddr,
    /// Port of the endpoint, or `None` if the EndpointSlice has no port for this Service port.
    pub port: Option<u16>,
    /// The endpoint as its EndpointSlice describes it.
    pub endpoint: EndpointView<'a>,
    /// True if the endpoint is on this node.
    pub is_local: bool,
    /// Number of times that EndpointSlices list this endpoint. Traffic uses only one of these
    /// entries.
    pub listed: usize,
    /// Reason why traffic that may use any node uses the endpoint, or does not use it.
    pub cluster: Reason,
    /// Reason why traffic that must stay on this node uses the endpoint, or does not use it.
    pub local: Reason,
}

/// Reason why traffic of one policy uses an endpoint, or does not use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Used: the endpoint is ready.
    Ready,
    /// Used: the endpoint is terminating but still serving, and no endpoint is ready.
    LastResort,
    /// Not used: the Service has no traffic of this policy.
    Unasked,
    /// Not used: the endpoint is not ready.
    NotReady,
    /// Not used: the endpoint is terminating and no longer serving.
    Terminating,
    /// Not used: the endpoint is terminating, and other endpoints are ready.
    OthersAreReady,
    /// Not used: the endpoint has no hint for this zone, but another endpoint has one.
    OtherZone,
    /// Not used: the endpoint has no hint for this node, but another endpoint has one.
    OtherNode,
    /// Not used: the endpoint is on another node.
    NotOnNode,
    /// Not used: the endpoint has no `nodeName`, so it counts as on another node.
    NoNodeName,
    /// Not used: the Service has no cluster IP of the endpoint's IP family.
    NoClusterIp(IpFamily),
    /// Not used: the endpoint's EndpointSlice lacks a port with the Service port's name and
    /// protocol.
    OtherPort,
}

impl Reason {
    /// Reports whether traffic uses the endpoint.
    pub fn is_in(self) -> bool {
        matches!(self, Self::Ready | Self::LastResort)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoClusterIp(family) => {
                return write!(f, "{family}, and the Service has no {family} cluster IP");
            }
            Self::Ready => "ready",
            Self::LastResort => "terminating, but still serving, and none is ready",
            Self::Unasked => "the Service has no traffic of this policy",
            Self::NotReady => "not ready",
            Self::Terminating => "terminating, and not serving any more",
            Self::OthersAreReady => "terminating, and others are ready",
            Self::OtherZone => "ready, but hinted for another zone",
            Self::OtherNode => "ready, but hinted for another node",
            Self::NotOnNode => "on another node",
            Self::NoNodeName => {
                "counts as on another node, because its EndpointSlice has no nodeName for it"
            }
            Self::OtherPort => "its EndpointSlice has no port of this name and protocol",
        })
    }
}

impl<'a> Endpoints<'a> {
    /// Returns all endpoints of a port, sorted by address, each with the reasons why traffic uses
    /// it or not. Agrees with [`serving`](Self::serving), except that no endpoint is used if the
    /// Service has no cluster IP of the node's IP family. O(n log n).
    pub fn verdicts(&self, port: &ServicePort) -> Vec<EndpointVerdict<'a>> {
        let mut listed = self.listed(port);
        listed.sort_by_key(|c| (c.target, c.endpoint.terminating));
        let same = listed.chunk_by(|one, next| one.target == next.target);
        let counted: Vec<(Candidate<'a>, usize)> = same
            .filter_map(|same| Some((*same.first()?, same.len())))
            .collect();
        let candidates: Vec<Candidate<'a>> = counted.iter().map(|(one, _)| *one).collect();
        let (uses_cluster, uses_local) = uses(self.service, port, self.node.family);
        let cluster = Judge::of_cluster(&candidates, self.node);
        let local = Judge::of_node(&candidates);
        let judged = counted.into_iter().map(|(one, listed)| EndpointVerdict {
            ip: one.target.ip,
            port: Some(one.target.port),
            endpoint: one.endpoint,
            is_local: one.is_local,
            listed,
            cluster: if uses_cluster {
                cluster.reason(&one, self.node)
            } else {
                Reason::Unasked
            },
            local: match uses_local {
                true if one.is_local => local.reason(&one, self.node),
                true if one.endpoint.placement.node.is_none() => Reason::NoNodeName,
                true => Reason::NotOnNode,
                false => Reason::Unasked,
            },
        });
        let mut judged: Vec<_> = judged.collect();
        judged.extend(self.of_other_ports(&candidates));
        judged.sort_by_key(|one| (one.ip, one.port));
        let family = self.node.family;
        if self.service.cluster_ip(family).is_none() {
            for one in &mut judged {
                let reason = Reason::NoClusterIp(family);
                (one.cluster, one.local) = (reason, reason);
            }
        }
        judged
    }

    /// Returns the endpoints of EndpointSlices that lack the port.
    fn of_other_ports(&self, candidates: &[Candidate<'a>]) -> Vec<EndpointVerdict<'a>> {
        let is_known = |ip: &IpAddr| candidates.binary_search_by_key(ip, |c| c.target.ip).is_ok();
        let others = self.sorted.iter();
        let others = others.filter(|one| !is_known(&one.endpoint.address));
        let mut others: Vec<_> = others
            .map(|one| EndpointVerdict {
                ip: one.endpoint.address,
                port: None,
                endpoint: one.endpoint,
                is_local: one.is_local,
                listed: 1,
                cluster: Reason::OtherPort,
                local: Reason::OtherPort,
            })
            .collect();
        others.dedup_by(|next, one| {
            let is_same = next.ip == one.ip;
            one.listed += usize::from(is_same);
            is_same
        });
        others
    }
}

/// Decision on which endpoints get the traffic of one policy (Cluster or Local).
struct Judge {
    scope: Scope,
    /// True if traffic uses at least one ready endpoint.
    has_ready: bool,
}

impl Judge {
    fn of_cluster(candidates: &[Candidate<'_>], node: &NodeFacts) -> Self {
        let ready: Vec<_> = candidates.iter().filter(|c| c.endpoint.ready).collect();
        let scope = Scope::of(&ready, node);
        let has_ready = ready.iter().any(|c| scope.admits(&c.endpoint, node));
        Self { scope, has_ready }
    }

    fn of_node(candidates: &[Candidate<'_>]) -> Self {
        let mut all = candidates.iter();
        Self {
            scope: Scope::Cluster,
            has_ready: all.any(|c| c.endpoint.ready && c.is_local),
        }
    }

    fn reason(&self, candidate: &Candidate<'_>, node: &NodeFacts) -> Reason {
        let endpoint = &candidate.endpoint;
        match (endpoint.ready, endpoint.terminating) {
            (true, _) if self.scope.admits(endpoint, node) => Reason::Ready,
            (true, _) if self.scope == Scope::Node => Reason::OtherNode,
            (true, _) => Reason::OtherZone,
            (false, false) => Reason::NotReady,
            (false, true) if !endpoint.serving => Reason::Terminating,
            (false, true) if self.has_ready => Reason::OthersAreReady,
            (false, true) => Reason::LastResort,
        }
    }
}

/// Returns the endpoints that are terminating but still serving.
fn dying<'a, 'b>(candidates: &'b [Candidate<'a>]) -> impl Iterator<Item = &'b Candidate<'a>> {
    candidates
        .iter()
        .filter(|c| c.endpoint.serving && c.endpoint.terminating)
}

/// Reports whether external traffic can reach the port, like upstream's `ExternallyAccessible`.
fn is_externally_reachable(service: &Service, port: &ServicePort, family: IpFamily) -> bool {
    let own = |ip: IpAddr| IpFamily::of(ip) == family;
    port.node_port.is_some()
        || service.external_ips_of(port).any(own)
        || service.ingress_ips.iter().copied().any(own)
}

/// Scope to which hints narrow the choice of ready endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// The whole cluster: no hint applies.
    Cluster,
    /// Endpoints with a hint for this zone.
    Zone,
    /// Endpoints with a hint for this node.
    Node,
}

impl Scope {
    /// Chooses the scope of the hints. Hints apply only if every ready endpoint has a hint, and at
    /// least one endpoint has a hint for this node or zone. So incomplete hints cannot leave this
    /// node without endpoints.
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
