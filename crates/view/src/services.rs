//! `/api/v1/services` and `/api/v1/services/NAMESPACE/NAME`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The name in `lost_to` of a program that holds an address.
pub const ANOTHER_PROGRAM: &str = "another program";

/// Services, sorted by namespace and name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceList {
    /// The Services of this page.
    pub items: Vec<Service>,
    /// The number of matches on all pages.
    pub total: usize,
    /// The value of `after=` for the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<String>,
    /// Missing information, with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

/// `NAMESPACE/NAME`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServiceName {
    /// The namespace.
    pub namespace: String,
    /// The name.
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
    /// The timeout of `ClientIP` affinity, if enabled.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub session_affinity_seconds: Option<u32>,
    /// `spec.loadBalancerSourceRanges`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub source_ranges: Vec<String>,
    /// `spec.healthCheckNodePort`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub health_check_node_port: Option<u16>,
    /// The options, also ignored ones; an error has the reason.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub options: Vec<ServiceOption>,
    /// Problems of the Service: refused writes, addresses of another Service.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub errors: Vec<String>,
    /// The ports of `spec.ports`.
    pub ports: Vec<Port>,
    /// Missing information, with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

/// An annotation that is an option of this proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceOption {
    /// The annotation.
    pub annotation: String,
    /// The value.
    pub value: String,
}

/// A port of a Service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// The name; may be empty.
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// `port`.
    pub port: u16,
    /// `nodePort`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node_port: Option<u16>,
    /// The addresses on this node.
    pub addresses: Vec<Address>,
    /// The numbers of endpoints.
    pub endpoint_counts: EndpointCounts,
    /// The endpoints; a list has them only with `endpoints=true`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub endpoints: Vec<Endpoint>,
    /// The sum over the addresses; absent in a mode without counters.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub counters: Option<Counters>,
}

/// Numbers of endpoints of a port, in both families.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointCounts {
    /// All endpoints.
    pub total: usize,
    /// Ready endpoints.
    pub ready: usize,
    /// Endpoints on this node.
    pub local: usize,
    /// Endpoints that get traffic of this node, by any policy.
    pub used: usize,
    /// Draining endpoints that the mode knows. `total` counts them only while an EndpointSlice has
    /// them.
    #[serde(default)]
    pub draining: usize,
}

/// An address that a port is served at.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// The kind of address.
    pub kind: AddressKind,
    /// The address and port: `10.96.0.1:80`, `[fd00::1]:80`.
    pub at: String,
    /// The scheduler of the virtual server (IPVS mode).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub scheduler: Option<String>,
    /// The Service that the address is served for instead, or [`ANOTHER_PROGRAM`] that has a
    /// virtual server there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lost_to: Option<String>,
    /// The counters of the address.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub counters: Option<Counters>,
}

/// A kind of address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AddressKind {
    /// An address of `spec.clusterIPs`.
    #[default]
    #[serde(rename = "clusterIP")]
    ClusterIp,
    /// An address of `spec.externalIPs`.
    #[serde(rename = "externalIP")]
    ExternalIp,
    /// An address of `status.loadBalancer.ingress`.
    #[serde(rename = "loadBalancerIP")]
    LoadBalancerIp,
    /// An address of the node, at the node port.
    #[serde(rename = "nodePort")]
    NodePort,
}

/// An endpoint of a port.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a field of the object that programs read"
)]
pub struct Endpoint {
    /// `10.244.1.5:8080`.
    pub at: String,
    /// The name of the pod or of another object in `targetRef`, if known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pod: Option<String>,
    /// `nodeName`, if known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node: Option<String>,
    /// `zone`, if known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub zone: Option<String>,
    /// True if the endpoint is on this node.
    pub local: bool,
    /// The state in a word.
    pub condition: Condition,
    /// `conditions.ready`.
    pub ready: bool,
    /// `conditions.serving`.
    pub serving: bool,
    /// `conditions.terminating`.
    pub terminating: bool,
    /// True if the endpoint gets traffic under the policy `Cluster`.
    pub cluster: bool,
    /// True if the endpoint gets traffic under the policy `Local`.
    pub local_policy: bool,
    /// The reason why the endpoint is in or out.
    pub why: String,
    /// The largest weight at the addresses of the port (IPVS mode); absent if the kernel has no
    /// destination.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub weight: Option<u32>,
    /// The drain: the endpoint gets no new connections, and keeps its open ones.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub draining: Option<Drain>,
    /// The counters, over all addresses of the port.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub counters: Option<Counters>,
}

/// The drain of an endpoint, over all addresses of its port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// Seconds since the drain began, or since the restart of the process.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub seconds: Option<f64>,
    /// Open connections.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub open: Option<u64>,
    /// Closed connections that the kernel still has. The drain lasts until they expire.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ended: Option<u64>,
    /// Seconds until the drain ends, even with open connections; absent without a limit.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ends_within_seconds: Option<f64>,
}

/// The state of an endpoint, in a word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Condition {
    /// Ready.
    Ready,
    /// Terminating, and still serving.
    ServingTerminating,
    /// Terminating, and no longer serving.
    Terminating,
    /// Not ready.
    #[default]
    NotReady,
    /// In no EndpointSlice, with open connections.
    Draining,
    /// In no EndpointSlice, and still a target of new connections in the kernel.
    Left,
}

/// Counters of the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counters {
    /// Connections since the entry was created; flows for UDP.
    pub connections: u64,
    /// Traffic from clients.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub packets_in: Option<u64>,
    /// Traffic to clients.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub packets_out: Option<u64>,
    /// Traffic from clients.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes_in: Option<u64>,
    /// Traffic to clients.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes_out: Option<u64>,
    /// Open connections.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub active: Option<u64>,
    /// Closed connections that the kernel still has.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub inactive: Option<u64>,
}
