//! Compact forms of the Kubernetes objects that a proxy needs.
//!
//! A source decodes JSON, YAML and protobuf into these types, because they are small. For 10,000
//! Services with 50 endpoints each, the k8s-openapi types would need hundreds of megabytes. An
//! endpoint in an [`EndpointList`] needs 5 bytes.
//!
//! The source also sets the API's default for each absent value (`ready` is true, `protocol` is
//! TCP, ...). So no other code handles absent values.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use ipnet::IpNet;
use smallvec::SmallVec;

use crate::names::{FamilySet, IpFamily, NamespacedName, Protocol};
use crate::options::ServiceOptions;

/// Type of a proxied Service (`spec.type`). `ExternalName` Services are never proxied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ServiceType {
    /// The Service is reachable at its cluster IPs and external IPs.
    ClusterIp,
    /// The Service is also reachable at a port of each node.
    NodePort,
    /// The Service is also reachable at the addresses in `status.loadBalancer.ingress`.
    LoadBalancer,
}

/// A proxied Service: it has at least one cluster IP, and is neither headless nor `ExternalName`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Namespace and name of the Service.
    pub name: NamespacedName,
    /// The object's `metadata.uid`. Empty for objects from manifests without a UID.
    pub uid: Arc<str>,
    /// `metadata.creationTimestamp` in seconds since the epoch, or `None` if absent. If two
    /// Services claim one address and port, the older Service wins.
    pub created: Option<i64>,
    /// The Service's type (`spec.type`).
    pub kind: ServiceType,
    /// `spec.clusterIPs`, at most one of each family, and only of families in `spec.ipFamilies`.
    pub cluster_ips: SmallVec<[IpAddr; 2]>,
    /// `spec.externalIPs`, of both families. At some addresses and ports, another Service is served
    /// instead (`yielded`). [`external_ips_of`](Self::external_ips_of) returns only the addresses
    /// that serve a given port.
    pub external_ips: Vec<IpAddr>,
    /// Addresses and ports of this Service's external IPs at which another Service's load balancer
    /// or node port is served instead. Sorted. Set by the model.
    pub yielded: Box<[ServiceAddress]>,
    /// Load-balancer addresses of both families: `status.loadBalancer.ingress[].ip` with `ipMode:
    /// VIP`.
    pub ingress_ips: Vec<IpAddr>,
    /// Load-balancer addresses with `ipMode: Proxy`, which no mode serves.
    pub proxied_ips: Box<[IpAddr]>,
    /// The Service's ports (`spec.ports`).
    pub ports: SmallVec<[ServicePort; 1]>,
    /// Timeout of client affinity in seconds. `None` without `sessionAffinity: ClientIP`.
    pub affinity_seconds: Option<u32>,
    /// True if internal traffic must stay on the node (`internalTrafficPolicy: Local`).
    pub internal_local: bool,
    /// True if external traffic must stay on the node (`externalTrafficPolicy: Local`).
    pub external_local: bool,
    /// `spec.loadBalancerSourceRanges`, of both families. If empty, every source is allowed.
    pub source_ranges: Vec<IpNet>,
    /// IP families of which `spec.loadBalancerSourceRanges` has no valid range, but an invalid one
    /// or one of another family. No client may reach load-balancer addresses of these families.
    pub closed: FamilySet,
    /// `spec.healthCheckNodePort` of a `LoadBalancer` Service with `externalTrafficPolicy: Local`.
    /// `None` for any other Service.
    pub health_check_node_port: Option<u16>,
    /// Options that annotations of this proxy set, because Kubernetes has no fields for them.
    /// `None` for most Services, which have no such annotation.
    pub options: Option<Box<ServiceOptions>>,
}

impl Service {
    /// Creates a Service with these cluster IPs, no ports, and the API's defaults.
    pub fn at(name: NamespacedName, cluster_ips: impl IntoIterator<Item = IpAddr>) -> Self {
        Self {
            name,
            uid: Arc::default(),
            created: None,
            kind: ServiceType::ClusterIp,
            cluster_ips: cluster_ips.into_iter().collect(),
            external_ips: Vec::new(),
            yielded: Box::default(),
            ingress_ips: Vec::new(),
            proxied_ips: Box::default(),
            ports: SmallVec::new(),
            affinity_seconds: None,
            internal_local: false,
            external_local: false,
            source_ranges: Vec::new(),
            closed: FamilySet::default(),
            health_check_node_port: None,
            options: None,
        }
    }

    /// Returns the cluster IP of a family, or `None` if the Service has none.
    pub fn cluster_ip(&self, family: IpFamily) -> Option<IpAddr> {
        self.cluster_ips
            .iter()
            .copied()
            .find(|ip| IpFamily::of(*ip) == family)
    }

    /// Returns the external IPs of both families at which `port` is served.
    pub fn external_ips_of(
        &self,
        port: &ServicePort,
    ) -> impl Iterator<Item = IpAddr> + Clone + use<'_> {
        let (number, protocol) = (port.port, port.protocol);
        let is_own = move |ip: &IpAddr| {
            let at = ServiceAddress::new(*ip, number, protocol);
            self.yielded.is_empty() || self.yielded.binary_search(&at).is_err()
        };
        self.external_ips.iter().copied().filter(is_own)
    }
}

/// Address, port and protocol at which clients reach a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceAddress {
    /// The IP address of the Service or node.
    pub address: IpAddr,
    /// The port to which clients connect.
    pub port: u16,
    /// The transport protocol of the port.
    pub protocol: Protocol,
}

impl ServiceAddress {
    /// Combines an address, a port and a protocol.
    pub const fn new(address: IpAddr, port: u16, protocol: Protocol) -> Self {
        Self {
            address,
            port,
            protocol,
        }
    }

    /// Returns the address and port without the protocol.
    pub const fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }
}

impl fmt::Display for ServiceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.socket(), self.protocol)
    }
}

/// One entry of `spec.ports`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// The port's name, or empty. EndpointSlices refer to the Service port by this name.
    pub name: Arc<str>,
    /// The transport protocol of the port.
    pub protocol: Protocol,
    /// The port on the Service's addresses.
    pub port: u16,
    /// The port on the node's addresses (`nodePort`), if any.
    pub node_port: Option<u16>,
}

/// An EndpointSlice of one IP family. EndpointSlices with `addressType: FQDN` are never proxied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSlice {
    /// Namespace and name of the EndpointSlice.
    pub name: NamespacedName,
    /// The Service to which the EndpointSlice belongs (label `kubernetes.io/service-name`).
    pub service: NamespacedName,
    /// The EndpointSlice's IP family (`addressType`).
    pub family: IpFamily,
    /// The EndpointSlice's `ports`, without ports that have no number.
    pub ports: SmallVec<[EndpointPort; 1]>,
    /// The EndpointSlice's `endpoints`, each with its first address.
    pub endpoints: EndpointList,
    /// Time in the annotation `endpoints.kubernetes.io/last-change-trigger-time`, if present.
    pub change_trigger: Option<SystemTime>,
}

/// One entry of an EndpointSlice's `ports`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointPort {
    /// Name of the port, or empty if absent.
    pub name: Arc<str>,
    /// The transport protocol of the port.
    pub protocol: Protocol,
    /// The port on which the pods listen.
    pub port: u16,
}

/// One endpoint. Its conditions follow the API's rules for absent values: `ready` and `serving` are
/// true, `terminating` is false.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `addresses[0]`. The API says that consumers should ignore further addresses.
    pub address: IpAddr,
    /// True if the endpoint is serving and not terminating, or if the Service sets
    /// `publishNotReadyAddresses`.
    pub ready: bool,
    /// True if the endpoint is serving, even while it terminates.
    pub serving: bool,
    /// True if the endpoint's pod is being deleted.
    pub terminating: bool,
    /// The endpoint's node and hints.
    pub placement: Arc<Placement>,
}

/// An endpoint of an [`EndpointList`], with the fields of [`Endpoint`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is described at Endpoint")]
pub struct EndpointView<'a> {
    pub address: IpAddr,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    pub placement: &'a Arc<Placement>,
}

impl From<EndpointView<'_>> for Endpoint {
    fn from(view: EndpointView<'_>) -> Self {
        let EndpointView {
            address,
            ready,
            serving,
            terminating,
            placement,
        } = view;
        Self {
            address,
            ready,
            serving,
            terminating,
            placement: Arc::clone(placement),
        }
    }
}

/// A compact list of endpoints. A node may store 500,000 endpoints. An endpoint takes 5 bytes if
/// all endpoints of the list are IPv4 and their other fields have few distinct combinations.
#[derive(Clone, PartialEq, Eq)]
pub struct EndpointList(PackedEndpoints);

#[derive(Clone, PartialEq, Eq)]
enum PackedEndpoints {
    /// Compact form for IPv4 endpoints with at most 256 distinct states. `states` is in the order
    /// of first use.
    V4 {
        states: Box<[EndpointState]>,
        list: Box<[Endpoint4]>,
    },
    Any(Box<[Endpoint]>),
}

/// All fields of an endpoint except its address.
#[derive(Clone, PartialEq, Eq, Hash)]
struct EndpointState {
    ready: bool,
    serving: bool,
    terminating: bool,
    placement: Arc<Placement>,
}

/// An IPv4 endpoint: its address, and the index of its state in `states`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Endpoint4(Ipv4Addr, u8);

impl EndpointList {
    /// Returns the number of endpoints.
    pub fn len(&self) -> usize {
        match &self.0 {
            PackedEndpoints::V4 { list, .. } => list.len(),
            PackedEndpoints::Any(list) => list.len(),
        }
    }

    /// Reports whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all endpoints in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = EndpointView<'_>> {
        let (states, v4, any) = match &self.0 {
            PackedEndpoints::V4 { states, list } => (&**states, &**list, &[][..]),
            PackedEndpoints::Any(list) => (&[][..], &[][..], &**list),
        };
        let v4 = v4.iter().filter_map(|Endpoint4(address, number)| {
            let state = states.get(usize::from(*number))?;
            Some(EndpointView {
                address: (*address).into(),
                ready: state.ready,
                serving: state.serving,
                terminating: state.terminating,
                placement: &state.placement,
            })
        });
        v4.chain(any.iter().map(|endpoint| EndpointView {
            address: endpoint.address,
            ready: endpoint.ready,
            serving: endpoint.serving,
            terminating: endpoint.terminating,
            placement: &endpoint.placement,
        }))
    }

    /// Replaces each placement by the result of `place`. In the compact form, calls `place` only
    /// once for endpoints with the same state.
    #[must_use]
    pub fn with_placements(self, mut place: impl FnMut(&Arc<Placement>) -> Arc<Placement>) -> Self {
        let (given, mut list) = match self.0 {
            PackedEndpoints::V4 { states, list } => (states, list),
            PackedEndpoints::Any(list) => {
                let placed = list.into_iter().map(|endpoint| Endpoint {
                    placement: place(&endpoint.placement),
                    ..endpoint
                });
                return placed.collect();
            }
        };
        // `place` may have made states equal. This loop keeps each distinct state once, in the
        // order of first use.
        let mut states: Vec<EndpointState> = Vec::with_capacity(given.len());
        let mut numbers: Vec<u8> = Vec::with_capacity(given.len());
        for state in given {
            let state = EndpointState {
                placement: place(&state.placement),
                ..state
            };
            let known = states.iter().position(|known| *known == state);
            let number = known.unwrap_or(states.len());
            // The conversion cannot overflow: `states` has at most as many elements as before.
            numbers.push(number.try_into().unwrap_or(u8::MAX));
            if known.is_none() {
                states.push(state);
            }
        }
        if states.len() < numbers.len() {
            for Endpoint4(_, number) in &mut list {
                *number = numbers
                    .get(usize::from(*number))
                    .copied()
                    .unwrap_or(*number);
            }
        }
        Self(PackedEndpoints::V4 {
            states: states.into(),
            list,
        })
    }

    /// Packs endpoints into the compact form. Returns `None` if an endpoint is IPv6, or if the
    /// endpoints have more than 256 distinct states.
    fn pack(endpoints: &[Endpoint]) -> Option<PackedEndpoints> {
        // Uses a hash table, because an EndpointSlice may have many states: each endpoint may be on
        // another node.
        let most = endpoints.len().min(usize::from(u8::MAX));
        let mut numbers: HashMap<EndpointState, u8> = HashMap::with_capacity(most);
        let mut states: Vec<EndpointState> = Vec::new();
        let mut list = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints {
            let IpAddr::V4(address) = endpoint.address else {
                return None;
            };
            let state = EndpointState {
                ready: endpoint.ready,
                serving: endpoint.serving,
                terminating: endpoint.terminating,
                placement: Arc::clone(&endpoint.placement),
            };
            let number = match numbers.entry(state) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => {
                    let number = states.len().try_into().ok()?;
                    states.push(new.key().clone());
                    *new.insert(number)
                }
            };
            list.push(Endpoint4(address, number));
        }
        Some(PackedEndpoints::V4 {
            states: states.into(),
            list: list.into(),
        })
    }
}

impl FromIterator<Endpoint> for EndpointList {
    fn from_iter<T: IntoIterator<Item = Endpoint>>(endpoints: T) -> Self {
        Vec::from_iter(endpoints).into()
    }
}

impl From<Vec<Endpoint>> for EndpointList {
    fn from(endpoints: Vec<Endpoint>) -> Self {
        Self(Self::pack(&endpoints).unwrap_or_else(|| PackedEndpoints::Any(endpoints.into())))
    }
}

impl fmt::Debug for EndpointList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Node, zone and hints of an endpoint. Equal placements share memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Placement {
    /// Name of the endpoint's node (`nodeName`), if known.
    pub node: Option<Box<str>>,
    /// Zone of the endpoint's node (`zone`), if known.
    pub zone: Option<Box<str>>,
    /// Nodes that should use the endpoint (`hints.forNodes[].name`).
    pub for_nodes: Box<[Box<str>]>,
    /// Zones that should use the endpoint (`hints.forZones[].name`).
    pub for_zones: Box<[Box<str>]>,
}

/// This node's own Node object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// The name of the Node.
    pub name: Arc<str>,
    /// Addresses of type `InternalIP`, then addresses of type `ExternalIP`, in the order of
    /// `status.addresses`.
    pub addresses: Vec<IpAddr>,
    /// The node's zone (label `topology.kubernetes.io/zone`), if the Node has this label.
    pub zone: Option<Arc<str>>,
    /// Networks of the node's pods (`spec.podCIDRs`).
    pub pod_cidrs: Vec<IpNet>,
    /// True if the Node is being deleted, or the cluster autoscaler has announced its deletion by a
    /// taint. Load balancers should then use other nodes (KEP-3836).
    pub is_leaving: bool,
}

/// A ServiceCIDR (networking.k8s.io/v1): networks from which ClusterIPs are allocated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceCidr {
    /// The name of the ServiceCIDR.
    pub name: Arc<str>,
    /// The networks from which ClusterIPs are allocated (`spec.cidrs`).
    pub nets: Vec<IpNet>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(address: &str) -> Endpoint {
        Endpoint {
            address: address.parse().unwrap(),
            ready: address.ends_with('1'),
            serving: address.ends_with('2'),
            terminating: address.ends_with('3'),
            placement: Arc::default(),
        }
    }

    #[test]
    fn an_endpoint_list_packs_ipv4_endpoints_without_loss() {
        assert_eq!(size_of::<Endpoint4>(), 5);
        for addresses in [
            &["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.11"][..],
            &["fd00::1", "fd00::2"],
            &["10.0.0.1", "fd00::3"],
            &[],
        ] {
            let endpoints: Vec<_> = addresses.iter().map(|text| endpoint(text)).collect();
            let list = EndpointList::from(endpoints.clone());
            let is_v4 = addresses.iter().all(|text| !text.contains(':'));
            assert_eq!(matches!(list.0, PackedEndpoints::V4 { .. }), is_v4);
            assert_eq!(list.len(), endpoints.len());
            let back: Vec<_> = list.iter().map(Endpoint::from).collect();
            assert_eq!(back, endpoints);
        }
    }

    #[test]
    fn an_endpoint_list_with_replaced_placements_equals_a_new_endpoint_list() {
        let placed = |number: u8, node: u16, has_v6: bool| Endpoint {
            address: if has_v6 {
                [0xfd00, 0, 0, 0, 0, 0, 0, number.into()].into()
            } else {
                [10, 0, 0, number].into()
            },
            ready: !number.is_multiple_of(3),
            placement: Arc::new(Placement {
                node: Some(format!("node{node}").into()),
                ..Placement::default()
            }),
            ..endpoint("10.0.0.0")
        };
        let nowhere = Arc::default();
        let place = |placement: &Arc<Placement>| match placement.node.as_deref() {
            Some("node1") => Arc::clone(placement),
            _ => Arc::clone(&nowhere),
        };
        for (count, nodes, has_v6) in [
            (0, 1, false),
            (9, 4, false),
            (9, 4, true),
            (300, 300, false),
        ] {
            let of =
                |number: u16| placed(u8::try_from(number % 200).unwrap(), number % nodes, has_v6);
            let given: Vec<Endpoint> = (0..count).map(of).collect();
            let wanted: EndpointList = given
                .iter()
                .map(|endpoint| Endpoint {
                    placement: place(&endpoint.placement),
                    ..endpoint.clone()
                })
                .collect();
            assert_eq!(EndpointList::from(given).with_placements(place), wanted);
        }
    }

    #[test]
    fn an_endpoint_list_with_many_placements_is_not_packed() {
        let of_nodes = |count: usize| -> Vec<Endpoint> {
            let placed = |node: usize| Endpoint {
                placement: Arc::new(Placement {
                    node: Some(format!("node{node}").into()),
                    ..Placement::default()
                }),
                ..endpoint("10.0.0.1")
            };
            (0..count).map(placed).collect()
        };
        for (count, is_packed) in [(256, true), (257, false)] {
            let list = EndpointList::from(of_nodes(count));
            assert_eq!(matches!(list.0, PackedEndpoints::V4 { .. }), is_packed);
            let back: Vec<_> = list.iter().map(Endpoint::from).collect();
            assert_eq!(back, of_nodes(count));
        }
    }
}
