//! Compact forms of the Kubernetes objects that matter here.
//!
//! A source decodes JSON or YAML straight into these. At 10,000 Services with 50 endpoints each the k8s-openapi types
//! would hold hundreds of megabytes; an [`Endpoint`] here is 32 bytes. Fields are the API's, after its defaults
//! (`ready` nil is true, `protocol` absent is TCP, ...), so nothing later in the pipeline has to know defaults.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use ipnet::IpNet;
use smallvec::SmallVec;

use crate::names::{IpFamily, NamespacedName, Protocol};

/// `spec.type` of a Service that is proxied (`ExternalName` never is).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ServiceType {
    /// Reachable at its cluster IPs (and external IPs).
    ClusterIp,
    /// Also at a port of each node.
    NodePort,
    /// Also at the addresses in `status.loadBalancer.ingress`.
    LoadBalancer,
}

/// A Service that this proxy serves: it has at least one cluster IP, and is neither headless nor `ExternalName`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Namespace and name.
    pub name: NamespacedName,
    /// `metadata.uid`; empty for objects from manifests that have none.
    pub uid: Arc<str>,
    /// `metadata.creationTimestamp` in seconds since the epoch. Of two Services that claim one address and port, the
    /// older one wins.
    pub created: Option<i64>,
    /// `spec.type`.
    pub kind: ServiceType,
    /// `spec.clusterIPs`, at most one of each family, and only of families in `spec.ipFamilies`.
    pub cluster_ips: SmallVec<[IpAddr; 2]>,
    /// `spec.externalIPs`, both families.
    pub external_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress[].ip` with `ipMode: VIP`, both families.
    pub ingress_ips: Vec<IpAddr>,
    /// `spec.ports`.
    pub ports: SmallVec<[ServicePort; 1]>,
    /// `sessionAffinity: ClientIP` and its timeout in seconds.
    pub affinity_seconds: Option<u32>,
    /// `internalTrafficPolicy: Local`.
    pub internal_local: bool,
    /// `externalTrafficPolicy: Local`.
    pub external_local: bool,
    /// `spec.loadBalancerSourceRanges`, both families, empty when every source is allowed.
    pub source_ranges: Vec<IpNet>,
    /// `spec.healthCheckNodePort` of a `LoadBalancer` Service with `externalTrafficPolicy: Local`.
    pub health_check_node_port: Option<u16>,
}

impl Service {
    /// The cluster IP of a family.
    pub fn cluster_ip(&self, family: IpFamily) -> Option<IpAddr> {
        self.cluster_ips
            .iter()
            .copied()
            .find(|ip| IpFamily::of(*ip) == family)
    }
}

/// One entry of `spec.ports`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// The name, empty when absent; endpoints are matched by it.
    pub name: Arc<str>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port on the Service's addresses.
    pub port: u16,
    /// The port on the node's addresses.
    pub node_port: Option<u16>,
}

/// An EndpointSlice of one IP family (`addressType: FQDN` is never proxied).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSlice {
    /// Namespace and name of the slice.
    pub name: NamespacedName,
    /// The Service it belongs to: label `kubernetes.io/service-name`.
    pub service: NamespacedName,
    /// `addressType`.
    pub family: IpFamily,
    /// `ports` that have a number.
    pub ports: SmallVec<[EndpointPort; 1]>,
    /// `endpoints`, each with its first address.
    pub endpoints: Vec<Endpoint>,
    /// Annotation `endpoints.kubernetes.io/last-change-trigger-time`.
    pub change_trigger: Option<SystemTime>,
}

/// One entry of a slice's `ports`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointPort {
    /// The name, empty when absent.
    pub name: Arc<str>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port that the pods listen on.
    pub port: u16,
}

/// One endpoint. Conditions are after the API's nil rules: `ready` and `serving` nil are true, `terminating` nil is false.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `addresses[0]`; the API says that further ones are to be ignored.
    pub address: IpAddr,
    /// Serves, and is not terminating (or `publishNotReadyAddresses` says so).
    pub ready: bool,
    /// Serves, also while terminating.
    pub serving: bool,
    /// Its pod is being deleted.
    pub terminating: bool,
    /// Where it is, and for whom it is meant.
    pub placement: Arc<Placement>,
}

/// Node and hints of an endpoint; shared between endpoints that have the same.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Placement {
    /// `nodeName`.
    pub node: Option<Box<str>>,
    /// `hints.forNodes[].name`.
    pub for_nodes: Box<[Box<str>]>,
    /// `hints.forZones[].name`.
    pub for_zones: Box<[Box<str>]>,
}

/// This node's own Node object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: Arc<str>,
    /// `status.addresses` of type `InternalIP`, then those of type `ExternalIP`, in their order.
    pub addresses: Vec<IpAddr>,
    /// Label `topology.kubernetes.io/zone`.
    pub zone: Option<Arc<str>>,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Vec<IpNet>,
    /// It is being deleted, or has the taint by which the cluster autoscaler marks a node that it is about to delete: load
    /// balancers are to send elsewhere (KEP-3836).
    pub is_leaving: bool,
}
