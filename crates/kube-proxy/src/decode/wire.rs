//! The fields of Kubernetes objects that are read, in their JSON shape; everything else is skipped without being stored.
//!
//! Both sources read these: serde's formats differ, the objects do not. Numbers are wide and enumerations are text, so
//! that a value out of range is found by the conversion, which can name it, and costs no more than its own part. Only a
//! value of another type (a text where a number belongs) makes an object undecodable.

use std::fmt;
use std::net::IpAddr;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};

use super::address;

/// `metadata`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Metadata {
    pub(crate) name: Option<Box<str>>,
    pub(crate) namespace: Option<Box<str>>,
    pub(crate) uid: Option<Box<str>>,
    pub(crate) creation_timestamp: Option<Box<str>>,
    pub(crate) deletion_timestamp: Option<IgnoredAny>,
    pub(crate) resource_version: Option<Box<str>>,
    pub(crate) labels: Option<Labels>,
    pub(crate) annotations: Option<Annotations>,
}

/// The labels that are read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Labels {
    #[serde(rename = "service.kubernetes.io/service-proxy-name")]
    pub(crate) proxy_name: Option<IgnoredAny>,
    #[serde(rename = "service.kubernetes.io/headless")]
    pub(crate) headless: Option<IgnoredAny>,
    #[serde(rename = "kubernetes.io/service-name")]
    pub(crate) service_name: Option<Box<str>>,
    #[serde(rename = "topology.kubernetes.io/zone")]
    pub(crate) zone: Option<Box<str>>,
}

/// The annotations that are read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Annotations {
    #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time")]
    pub(crate) change_trigger: Option<Box<str>>,
}

/// v1 Service.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Service {
    pub(crate) kind: Option<Box<str>>,
    pub(crate) metadata: Option<Metadata>,
    pub(crate) spec: Option<ServiceSpec>,
    pub(crate) status: Option<ServiceStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServiceSpec {
    #[serde(rename = "type")]
    pub(crate) kind: Option<Box<str>>,
    #[serde(rename = "clusterIP")]
    pub(crate) cluster_ip: Option<Box<str>>,
    #[serde(rename = "clusterIPs")]
    pub(crate) cluster_ips: Option<Vec<Box<str>>>,
    pub(crate) ip_families: Option<Vec<Box<str>>>,
    #[serde(rename = "externalIPs")]
    pub(crate) external_ips: Option<Vec<Box<str>>>,
    pub(crate) ports: Option<Vec<ServicePort>>,
    pub(crate) session_affinity: Option<Box<str>>,
    pub(crate) session_affinity_config: Option<AffinityConfig>,
    pub(crate) internal_traffic_policy: Option<Box<str>>,
    pub(crate) external_traffic_policy: Option<Box<str>>,
    pub(crate) load_balancer_source_ranges: Option<Vec<Box<str>>>,
    pub(crate) health_check_node_port: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServicePort {
    pub(crate) name: Option<Box<str>>,
    pub(crate) protocol: Option<Box<str>>,
    pub(crate) port: Option<i64>,
    pub(crate) node_port: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct AffinityConfig {
    #[serde(rename = "clientIP")]
    pub(crate) client_ip: Option<ClientIpConfig>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClientIpConfig {
    pub(crate) timeout_seconds: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServiceStatus {
    pub(crate) load_balancer: Option<LoadBalancerStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LoadBalancerStatus {
    pub(crate) ingress: Option<Vec<Ingress>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Ingress {
    pub(crate) ip: Option<Box<str>>,
    pub(crate) ip_mode: Option<Box<str>>,
}

/// discovery.k8s.io/v1 `EndpointSlice`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct EndpointSlice {
    pub(crate) kind: Option<Box<str>>,
    pub(crate) metadata: Option<Metadata>,
    pub(crate) address_type: Option<Box<str>>,
    pub(crate) ports: Option<Vec<EndpointPort>>,
    pub(crate) endpoints: Option<Vec<Endpoint>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct EndpointPort {
    pub(crate) name: Option<Box<str>>,
    pub(crate) protocol: Option<Box<str>>,
    pub(crate) port: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Endpoint {
    pub(crate) addresses: Option<FirstAddress>,
    pub(crate) conditions: Option<Conditions>,
    pub(crate) node_name: Option<Box<str>>,
    pub(crate) hints: Option<Hints>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Conditions {
    pub(crate) ready: Option<bool>,
    pub(crate) serving: Option<bool>,
    pub(crate) terminating: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Hints {
    pub(crate) for_nodes: Option<Vec<Named>>,
    pub(crate) for_zones: Option<Vec<Named>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Named {
    pub(crate) name: Box<str>,
}

/// v1 Node.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Node {
    pub(crate) kind: Option<Box<str>>,
    pub(crate) metadata: Option<Metadata>,
    pub(crate) spec: Option<NodeSpec>,
    pub(crate) status: Option<NodeStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeSpec {
    #[serde(rename = "podCIDR")]
    pub(crate) pod_cidr: Option<Box<str>>,
    #[serde(rename = "podCIDRs")]
    pub(crate) pod_cidrs: Option<Vec<Box<str>>>,
    pub(crate) taints: Option<Vec<Taint>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Taint {
    pub(crate) key: Box<str>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeStatus {
    pub(crate) addresses: Option<Vec<NodeAddress>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeAddress {
    #[serde(rename = "type")]
    pub(crate) kind: Option<Box<str>>,
    pub(crate) address: Option<Box<str>>,
}

/// What is known of an object of any kind, also of one that does not decode.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Headed {
    pub(crate) metadata: Option<Metadata>,
}

/// The first of an endpoint's `addresses`, read in place: there may be millions, and texts would cost an allocation each.
#[derive(Debug, Default)]
pub(crate) enum FirstAddress {
    /// There is none.
    #[default]
    Missing,
    /// It is an address.
    Ip(IpAddr),
    /// It is something else.
    Wrong(Box<str>),
}

impl<'de> Deserialize<'de> for FirstAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Addresses;

        impl<'de> Visitor<'de> for Addresses {
            type Value = FirstAddress;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of addresses")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let first = seq.next_element::<Address>()?;
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(first.map_or(FirstAddress::Missing, |Address(first)| first))
            }
        }

        deserializer.deserialize_seq(Addresses)
    }
}

/// One address.
struct Address(FirstAddress);

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = Address;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address")
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Address(match address::ip(text) {
                    Some(ip) => FirstAddress::Ip(ip),
                    None => FirstAddress::Wrong(text.into()),
                }))
            }
        }

        deserializer.deserialize_str(Text)
    }
}
