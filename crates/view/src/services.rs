//! `/api/v1/services` and `/api/v1/services/NAMESPACE/NAME`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The holder of an address that is no Service.
pub const ANOTHER_PROGRAM: &str = "another program";

/// Services, sorted by namespace and name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceList {
    /// A page of them.
    pub items: Vec<Service>,
    /// How many match, on all pages.
    pub total: usize,
    /// Give it as `after=` for the next page; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<String>,
    /// What could not be told, and why.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

/// `NAMESPACE/NAME`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServiceName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A Service that is proxied.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    #[serde(flatten)]
    /// Namespace and name.
    pub name: ServiceName,
    /// `ClusterIP`, `NodePort` or `LoadBalancer`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `Cluster` or `Local`.
    pub internal_traffic_policy: String,
    /// `Cluster` or `Local`.
    pub external_traffic_policy: String,
    /// `ClientIP`'s timeout, where it is on.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub session_affinity_seconds: Option<u32>,
    /// `spec.loadBalancerSourceRanges`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub source_ranges: Vec<String>,
    /// `spec.healthCheckNodePort`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub health_check_node_port: Option<u16>,
    /// Its options, also those that are not heeded: then one of the errors says why.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub options: Vec<ServiceOption>,
    /// What is wrong with it, in words: refused writes, claims that it lost.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub errors: Vec<String>,
    /// Its ports, as in `spec.ports`.
    pub ports: Vec<Port>,
    /// What could not be told, and why.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

/// An annotation that is an option of this proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceOption {
    /// Its key.
    pub annotation: String,
    /// Its value.
    pub value: String,
}

/// One of its ports.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// Empty where it has none.
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// `port`.
    pub port: u16,
    /// `nodePort`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node_port: Option<u16>,
    /// Where it is served on this node.
    pub addresses: Vec<Address>,
    /// How many endpoints it has.
    pub endpoint_counts: EndpointCounts,
    /// Its endpoints; in a list only where they are asked for (`endpoints=true`).
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub endpoints: Vec<Endpoint>,
    /// The sum over its addresses; absent where the kernel does not count in this mode.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub counters: Option<Counters>,
}

/// How many endpoints a port has, over both families.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointCounts {
    /// Whatever their state.
    pub total: usize,
    /// Those that are ready.
    pub ready: usize,
    /// Those on this node.
    pub local: usize,
    /// Those that traffic on this node is sent to, of any policy.
    pub used: usize,
    /// Those that drain, as far as is known without asking the kernel; `total` has only those of them that
    /// are in an EndpointSlice still.
    #[serde(default)]
    pub draining: usize,
}

/// An address that a port is served at.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// What it is.
    pub kind: AddressKind,
    /// The address and port: `10.96.0.1:80`, `[fd00::1]:80`.
    pub at: String,
    /// The scheduler of the virtual server, in IPVS mode.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub scheduler: Option<String>,
    /// The Service that has it instead, where two claim it; [`ANOTHER_PROGRAM`] where such a one has
    /// a virtual server there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lost_to: Option<String>,
    /// What the kernel has counted there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub counters: Option<Counters>,
}

/// What an address is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AddressKind {
    /// Of `spec.clusterIPs`.
    #[default]
    #[serde(rename = "clusterIP")]
    ClusterIp,
    /// Of `spec.externalIPs`.
    #[serde(rename = "externalIP")]
    ExternalIp,
    /// Of `status.loadBalancer.ingress`.
    #[serde(rename = "loadBalancerIP")]
    LoadBalancerIp,
    /// The node's, at the node port.
    #[serde(rename = "nodePort")]
    NodePort,
}

/// One endpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a field of the object that programs read"
)]
pub struct Endpoint {
    /// `10.244.1.5:8080`.
    pub at: String,
    /// The pod's name, or what else `targetRef` names, where it is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pod: Option<String>,
    /// `nodeName`, where it is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node: Option<String>,
    /// `zone`, where it is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub zone: Option<String>,
    /// Whether it is on this node.
    pub local: bool,
    /// In a word.
    pub condition: Condition,
    /// `conditions.ready`.
    pub ready: bool,
    /// `conditions.serving`.
    pub serving: bool,
    /// `conditions.terminating`.
    pub terminating: bool,
    /// Whether traffic under the policy `Cluster` is sent to it.
    pub cluster: bool,
    /// Whether traffic under the policy `Local` is.
    pub local_policy: bool,
    /// Why it is in or out.
    pub why: String,
    /// Its weight in the kernel, in IPVS mode: the largest of those at the port's addresses; absent where
    /// it is in none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub weight: Option<u32>,
    /// That it drains: it gets no new connection, and keeps those that it has.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub draining: Option<Drain>,
    /// What the kernel has counted for it, over the port's addresses.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub counters: Option<Counters>,
}

/// How an endpoint drains, over all addresses of its port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// For how long, in seconds, as far as this process knows: after a restart, since then.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub seconds: Option<f64>,
    /// Connections that are open.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub open: Option<u64>,
    /// Those that have ended, and that the kernel still remembers: it drains until these are
    /// forgotten, too.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ended: Option<u64>,
    /// It ends within so many seconds, whatever is open then; absent where it may last for as long as
    /// its connections.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ends_within_seconds: Option<f64>,
}

/// The state of an endpoint, in a word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Condition {
    /// Serves, and is not terminating.
    Ready,
    /// Terminates, and still serves.
    ServingTerminating,
    /// Terminates, and serves no more.
    Terminating,
    /// Does not serve.
    #[default]
    NotReady,
    /// Has left its EndpointSlices, and keeps the connections that it has.
    Draining,
    /// Is in no EndpointSlice, and the kernel still sends new connections to it.
    Left,
}

/// What the kernel has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counters {
    /// Connections since the entry was made; flows, for UDP.
    pub connections: u64,
    /// From clients.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub packets_in: Option<u64>,
    /// To clients.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub packets_out: Option<u64>,
    /// From clients.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes_in: Option<u64>,
    /// To clients.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes_out: Option<u64>,
    /// Connections now.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub active: Option<u64>,
    /// Those that have ended, and are still known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub inactive: Option<u64>,
}
