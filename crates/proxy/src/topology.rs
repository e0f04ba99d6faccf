//! Who serves cluster traffic and who serves local traffic of one Service port.
//!
//! The rules are upstream's (`CategorizeEndpoints`, KEP-1669 for terminating endpoints, KEP-2433
//! and KEP-3015 for hints): ready endpoints, narrowed by hints if every ready one has them; if none
//! is ready, those that serve while terminating.

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
    sorted: Vec<Sliced<'a>>,
    /// The places in `sorted` of each slice's endpoints.
    places: Vec<Vec<usize>>,
    /// The slices that have a port, by name, and its number there: a Service may have thousands of
    /// ports, each in other slices.
    numbers: HashMap<(&'a str, Protocol), Numbers>,
}

/// Slices, by their place among those of a Service, and the number of a port in each.
type Numbers = SmallVec<[(usize, u16); 1]>;

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
            .filter(|slice| slice.family == node.family && !slice.endpoints.is_empty())
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

    /// All endpoints of a port, sorted, one for each address and port: O(n). Where slices disagree,
    /// an endpoint that is not terminating wins: its address was given to a new pod.
    fn candidates(&self, port: &ServicePort) -> Vec<Candidate<'a>> {
        let mut found = self.listed(port);
        // Not in order where an address is in several slices or has several numbers; a sort is
        // linear but for these.
        if !found.is_sorted_by(|one, next| one.target < next.target) {
            found.sort_by_key(|c| (c.target, c.endpoint.terminating));
            found.dedup_by_key(|c| c.target);
        }
        found
    }

    /// All endpoints of a port as its slices have them: O(these).
    fn listed(&self, port: &ServicePort) -> Vec<Candidate<'a>> {
        let numbers = self.numbers.get(&(&*port.name, port.protocol));
        let numbers = numbers.into_iter().flatten();
        let listed = numbers.filter_map(|(slice, number)| Some((self.places.get(*slice)?, number)));
        let listed =
            listed.flat_map(|(places, number)| places.iter().map(move |at| (*at, *number)));
        let mut listed: Vec<(usize, u16)> = listed.collect();
        // Slice by slice it is in order.
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

    /// Finds who serves `port`: O(its endpoints).
    pub fn serving(&self, port: &ServicePort) -> Backends {
        let candidates = self.candidates(port);
        let node = self.node;
        let (uses_cluster, uses_local) = uses(self.service, port, node.family);
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

/// Which policies anybody asks for: Cluster, Local.
fn uses(service: &Service, port: &ServicePort, family: IpFamily) -> (bool, bool) {
    let external = is_externally_reachable(service, port, family);
    (
        !service.internal_local || external,
        service.internal_local || (service.external_local && external),
    )
}

/// An endpoint under the port it serves.
#[derive(Clone, Copy)]
struct Candidate<'a> {
    target: Target,
    endpoint: EndpointView<'a>,
    is_local: bool,
}

/// An endpoint of a port, and why it is in or out: [`Endpoints::judged`].
#[derive(Debug, Clone, Copy)]
pub struct Judged<'a> {
    /// Its address.
    pub ip: IpAddr,
    /// The port that its pod listens on; `None` where its slice has none for this Service port.
    pub port: Option<u16>,
    /// As its slice has it.
    pub endpoint: EndpointView<'a>,
    /// Whether it is on this node.
    pub is_local: bool,
    /// How often slices list it; one of them counts.
    pub listed: usize,
    /// Whether it serves traffic that may go anywhere.
    pub cluster: Reason,
    /// Whether it serves traffic that must stay on this node.
    pub local: Reason,
}

/// Why an endpoint is in or out of one policy's traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// In: it is ready.
    Ready,
    /// In: it terminates, but serves, and none is ready.
    LastResort,
    /// Out: the Service has no traffic of this policy.
    Unasked,
    /// Out: it is not ready.
    NotReady,
    /// Out: it terminates, and serves no more.
    Terminating,
    /// Out: it terminates, and ready ones are there.
    OthersAreReady,
    /// Out: hints mean it for another zone, and others for this one.
    OtherZone,
    /// Out: hints mean it for another node, and others for this one.
    OtherNode,
    /// Out: it is on another node.
    NotOnNode,
    /// Out: its slice has no port of the Service port's name and protocol.
    OtherPort,
}

impl Reason {
    /// Whether the endpoint is sent to.
    pub fn is_in(self) -> bool {
        matches!(self, Self::Ready | Self::LastResort)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready => "ready",
            Self::LastResort => "terminating, but still serving, and none is ready",
            Self::Unasked => "the Service has no traffic of this policy",
            Self::NotReady => "not ready",
            Self::Terminating => "terminating, and not serving any more",
            Self::OthersAreReady => "terminating, and others are ready",
            Self::OtherZone => "ready, but hinted for another zone",
            Self::OtherNode => "ready, but hinted for another node",
            Self::NotOnNode => "on another node",
            Self::OtherPort => "its EndpointSlice has no port of this name and protocol",
        })
    }
}

impl<'a> Endpoints<'a> {
    /// All endpoints of a port, sorted by address, each with why it is in or out. What is in is what
    /// [`serving`](Self::serving) finds. O(n log n).
    pub fn judged(&self, port: &ServicePort) -> Vec<Judged<'a>> {
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
        let judged = counted.into_iter().map(|(one, listed)| Judged {
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
                true => Reason::NotOnNode,
                false => Reason::Unasked,
            },
        });
        let mut judged: Vec<_> = judged.collect();
        judged.extend(self.of_other_ports(&candidates));
        judged.sort_by_key(|one| (one.ip, one.port));
        judged
    }

    /// Endpoints of slices that have no such port.
    fn of_other_ports(&self, candidates: &[Candidate<'a>]) -> Vec<Judged<'a>> {
        let is_known = |ip: &IpAddr| candidates.binary_search_by_key(ip, |c| c.target.ip).is_ok();
        let others = self.sorted.iter();
        let others = others.filter(|one| !is_known(&one.endpoint.address));
        let mut others: Vec<_> = others
            .map(|one| Judged {
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

/// Judges the endpoints that one policy may use.
struct Judge {
    scope: Scope,
    /// Whether one that is ready is in.
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

/// Endpoints that serve though their pods are going.
fn dying<'a, 'b>(candidates: &'b [Candidate<'a>]) -> impl Iterator<Item = &'b Candidate<'a>> {
    candidates
        .iter()
        .filter(|c| c.endpoint.serving && c.endpoint.terminating)
}

/// Whether traffic from outside can reach the port, as upstream's `ExternallyAccessible`.
fn is_externally_reachable(service: &Service, port: &ServicePort, family: IpFamily) -> bool {
    let own = |ip: IpAddr| IpFamily::of(ip) == family;
    port.node_port.is_some()
        || service.external_ips_of(port).any(own)
        || service.ingress_ips.iter().copied().any(own)
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
