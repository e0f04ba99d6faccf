//! JSON objects in responses to `/api/v1/services` and `/api/v1/services/NAMESPACE/NAME`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Value of `lost_to` for an address at which another program has a virtual server.
pub const ANOTHER_PROGRAM: &str = "another program";

/// Services, sorted by namespace and name.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceList {
    /// Services on this page of the list.
    pub items: Vec<Service>,
    /// Number of matching Services on all pages.
    pub total: usize,
    /// Value of `after=` for the next page. Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub next: Option<String>,
    /// Notes about information that is missing from the response, each with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

/// Name of a Service, printed as `NAMESPACE/NAME`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServiceName {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service within its namespace.
    pub name: String,
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A Service that this proxy serves.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    #[serde(flatten)]
    /// Namespace and name of the Service.
    pub name: ServiceName,
    /// Type of the Service: `ClusterIP`, `NodePort` or `LoadBalancer`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Internal traffic policy: `Cluster` or `Local`.
    pub internal_traffic_policy: String,
    /// External traffic policy: `Cluster` or `Local`.
    pub external_traffic_policy: String,
    /// Timeout of session affinity in seconds. Absent without `ClientIP` affinity.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub session_affinity_seconds: Option<u32>,
    /// Networks from which clients may use load-balancer addresses
    /// (`spec.loadBalancerSourceRanges`).
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub source_ranges: Vec<String>,
    /// Port of the health check (`spec.healthCheckNodePort`). Absent if the Service has no such
    /// port.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub health_check_node_port: Option<u16>,
    /// Options of the Service, including ignored options. An ignored option has an error with the
    /// reason.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub options: Vec<ServiceOption>,
    /// Problems of the Service, such as writes that the kernel refused, or addresses that belong to
    /// another Service.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub errors: Vec<String>,
    /// Ports of the Service, in the order of `spec.ports`.
    pub ports: Vec<Port>,
    /// Notes about information that is missing from the response, each with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

/// An annotation that sets an option of this proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceOption {
    /// Name of the annotation.
    pub annotation: String,
    /// Value of the annotation.
    pub value: String,
}

/// A port of a Service, with its addresses and endpoints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// Name of the port. May be empty.
    pub name: String,
    /// Protocol: `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Port number at the Service's addresses (`port`).
    pub port: u16,
    /// Port number at the node's addresses (`nodePort`). Absent if the port has no NodePort.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node_port: Option<u16>,
    /// Addresses at which this node serves the port.
    pub addresses: Vec<Address>,
    /// Numbers of the port's endpoints by state.
    pub endpoint_counts: EndpointCounts,
    /// Endpoints of the port. In a list of Services, present only with `endpoints=true`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub endpoints: Vec<Endpoint>,
    /// Counters of the port, summed over its addresses. Absent in a mode without counters.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub counters: Option<Counters>,
}

/// Numbers of a port's endpoints, over both IP families.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointCounts {
    /// Number of all endpoints of the port, ready or not.
    pub total: usize,
    /// Number of ready endpoints.
    pub ready: usize,
    /// Number of endpoints on this node.
    pub local: usize,
    /// Number of endpoints that receive traffic from this node, under any policy.
    pub used: usize,
    /// Number of draining endpoints in the kernel. `total` includes a draining endpoint only while
    /// an EndpointSlice contains it.
    #[serde(default)]
    pub draining: usize,
}

/// An address at which a port is served.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// Kind of the address: cluster IP, external IP, load-balancer IP or node address.
    pub kind: AddressKind,
    /// Address and port, such as `10.96.0.1:80` or `[fd00::1]:80`.
    pub at: String,
    /// Scheduler of the virtual server. Absent in modes other than IPVS.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub scheduler: Option<String>,
    /// Service that owns the address instead of this Service, or [`ANOTHER_PROGRAM`] if another
    /// program has a virtual server there. Absent without a conflict.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lost_to: Option<String>,
    /// Counters of connections to the address. Absent if the mode has no counters.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub counters: Option<Counters>,
}

/// Kind of an address at which a port is served.
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
    /// Address and port, such as `10.244.1.5:8080`.
    pub at: String,
    /// The name of the pod or of another object in `targetRef`, if known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pod: Option<String>,
    /// Node of the endpoint (`nodeName`), if known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node: Option<String>,
    /// Zone of the endpoint (`zone`), if known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub zone: Option<String>,
    /// True if the endpoint is on this node.
    pub local: bool,
    /// State of the endpoint in one word.
    pub condition: Condition,
    /// True if the endpoint is ready (`conditions.ready`).
    pub ready: bool,
    /// True if the endpoint is serving (`conditions.serving`).
    pub serving: bool,
    /// True if the endpoint is terminating (`conditions.terminating`).
    pub terminating: bool,
    /// True if the endpoint receives traffic under the traffic policy `Cluster`.
    pub cluster: bool,
    /// True if the endpoint receives traffic under the traffic policy `Local`.
    pub local_policy: bool,
    /// Reason why the endpoint receives traffic, or why it receives no traffic.
    pub why: String,
    /// Largest weight of the endpoint at the port's addresses (IPVS mode). Absent if the kernel has
    /// no destination for the endpoint.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub weight: Option<u32>,
    /// Drain of the endpoint: it receives no new connections, and its open connections continue.
    /// Absent if the endpoint does not drain.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub draining: Option<Drain>,
    /// Counters of the endpoint, summed over all addresses of the port. Absent if the mode has no
    /// counters.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub counters: Option<Counters>,
}

/// Drain of one endpoint, summed over all service addresses of the Service port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// Seconds since the drain began, or since the process restarted during the drain.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub seconds: Option<f64>,
    /// Number of open connections. Absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub open: Option<u64>,
    /// Number of closed connections that the kernel still stores. The drain lasts until they
    /// expire. Absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ended: Option<u64>,
    /// Seconds until the drain ends, even if connections are still open. Absent if the drain has no
    /// time limit.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ends_within_seconds: Option<f64>,
}

/// State of an endpoint, in one word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Condition {
    /// The endpoint is ready.
    Ready,
    /// The endpoint is terminating and still serving.
    ServingTerminating,
    /// The endpoint is terminating and no longer serving.
    Terminating,
    /// The endpoint is not ready.
    #[default]
    NotReady,
    /// No EndpointSlice contains the endpoint, but it has open connections.
    Draining,
    /// No EndpointSlice contains the endpoint, but the kernel still sends it new connections.
    Left,
}

/// Counters of connections, packets and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counters {
    /// Number of connections (flows for UDP) since the counted entry was created in the kernel or
    /// relay.
    pub connections: u64,
    /// Number of packets from clients. Absent if the mode does not count packets.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub packets_in: Option<u64>,
    /// Number of packets to clients. Absent if the mode does not count packets.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub packets_out: Option<u64>,
    /// Number of bytes from clients. Absent if the mode does not count bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes_in: Option<u64>,
    /// Number of bytes to clients. Absent if the mode does not count bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes_out: Option<u64>,
    /// Number of open connections. Absent if the mode does not count open connections.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub active: Option<u64>,
    /// Number of connections that are not established, but still in the kernel's table (`InActConn`
    /// of `ipvsadm`). Absent if the mode does not count such connections.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub inactive: Option<u64>,
}
