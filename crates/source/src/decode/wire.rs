//! The fields of Kubernetes objects that the proxy uses. The decoder skips all other fields.
//!
//! - Texts are borrowed from the input, because most texts are used once and not stored.
//! - JSON, YAML and protobuf (by `numbers`) are decoded to the same types.
//! - Numbers are wide and enumerations are text, so a value out of range can be decoded. The
//!   conversion then reports the value and ignores only that part of the object.
//! - Decoding an object fails only if a value has the wrong type, such as a text in place of a
//!   number.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::ops::Deref;

use proxy::options;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::address;

/// The fields of an object's `metadata` that the proxy reads.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Metadata<'a> {
    #[serde(borrow)]
    pub(crate) name: Option<Text<'a>>,
    pub(crate) namespace: Option<Text<'a>>,
    pub(crate) uid: Option<Text<'a>>,
    pub(crate) creation_timestamp: Option<Time<'a>>,
    pub(crate) deletion_timestamp: Option<IgnoredAny>,
    pub(crate) resource_version: Option<Text<'a>>,
    pub(crate) labels: Option<Labels<'a>>,
    pub(crate) annotations: Option<Annotations<'a>>,
}

impl Metadata<'_> {
    /// Returns `resourceVersion`, or `None` if it is missing or empty.
    pub(super) fn version(&self) -> Option<&str> {
        let version = self.resource_version.as_deref();
        version.filter(|version| !version.is_empty())
    }
}

/// The labels that the proxy reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Labels<'a> {
    #[serde(rename = "service.kubernetes.io/service-proxy-name")]
    pub(crate) proxy_name: Option<IgnoredAny>,
    #[serde(rename = "service.kubernetes.io/headless")]
    pub(crate) headless: Option<IgnoredAny>,
    #[serde(borrow, rename = "kubernetes.io/service-name")]
    pub(crate) service_name: Option<Text<'a>>,
    #[serde(rename = "topology.kubernetes.io/zone")]
    pub(crate) zone: Option<Text<'a>>,
}

/// The annotations that the proxy reads.
#[derive(Debug, Default)]
pub(crate) struct Annotations<'a> {
    /// Time of the event that caused the last change of this EndpointSlice
    /// (`endpoints.kubernetes.io/last-change-trigger-time`), if any.
    pub(crate) change_trigger: Option<Time<'a>>,
    /// Annotation `k8s.io/initial-events-end`, if present. It marks the bookmark that ends a
    /// streamed list.
    pub(crate) initial_events_end: Option<IgnoredAny>,
    /// Annotations that set [options] of this program, as names with values.
    pub(crate) options: Vec<(Text<'a>, Text<'a>)>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Annotations<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs<'a>(PhantomData<&'a ()>);

        impl<'de: 'a, 'a> Visitor<'de> for Pairs<'a> {
            type Value = Annotations<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut read = Annotations::default();
                while let Some(key) = map.next_key::<Text<'a>>()? {
                    match &*key {
                        "endpoints.kubernetes.io/last-change-trigger-time" => {
                            read.change_trigger = map.next_value()?;
                        }
                        "k8s.io/initial-events-end" => {
                            read.initial_events_end = map.next_value()?;
                        }
                        option if option.starts_with(options::PREFIX) => {
                            let value: Option<Text<'a>> = map.next_value()?;
                            read.options.push((key, value.unwrap_or_default()));
                        }
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(read)
            }
        }

        deserializer.deserialize_map(Pairs(PhantomData))
    }
}

/// A time as text (in JSON, YAML and annotations) or in seconds (in protobuf).
#[derive(Debug)]
pub(crate) enum Time<'a> {
    /// Text in the format of RFC 3339.
    Text(Text<'a>),
    /// Seconds since 1970-01-01 UTC.
    Seconds(i64),
}

impl<'de: 'a, 'a> Deserialize<'de> for Time<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Text::deserialize(deserializer).map(Self::Text)
    }
}

/// The fields of a Service (v1) that the proxy reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Service<'a> {
    #[serde(borrow)]
    pub(crate) kind: Option<Text<'a>>,
    pub(crate) metadata: Option<Metadata<'a>>,
    pub(crate) spec: Option<ServiceSpec<'a>>,
    pub(crate) status: Option<ServiceStatus<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServiceSpec<'a> {
    #[serde(borrow, rename = "type")]
    pub(crate) kind: Option<Text<'a>>,
    #[serde(rename = "clusterIP")]
    pub(crate) cluster_ip: Option<Text<'a>>,
    #[serde(rename = "clusterIPs")]
    pub(crate) cluster_ips: Option<Vec<Text<'a>>>,
    pub(crate) ip_families: Option<Vec<Text<'a>>>,
    #[serde(rename = "externalIPs")]
    pub(crate) external_ips: Option<Vec<Text<'a>>>,
    pub(crate) ports: Option<Vec<ServicePort<'a>>>,
    pub(crate) session_affinity: Option<Text<'a>>,
    pub(crate) session_affinity_config: Option<AffinityConfig>,
    pub(crate) internal_traffic_policy: Option<Text<'a>>,
    pub(crate) external_traffic_policy: Option<Text<'a>>,
    pub(crate) load_balancer_source_ranges: Option<Vec<Text<'a>>>,
    pub(crate) health_check_node_port: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ServicePort<'a> {
    #[serde(borrow)]
    pub(crate) name: Option<Text<'a>>,
    pub(crate) protocol: Option<Text<'a>>,
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
pub(crate) struct ServiceStatus<'a> {
    #[serde(borrow)]
    pub(crate) load_balancer: Option<LoadBalancerStatus<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LoadBalancerStatus<'a> {
    #[serde(borrow)]
    pub(crate) ingress: Option<Vec<Ingress<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Ingress<'a> {
    #[serde(borrow)]
    pub(crate) ip: Option<Text<'a>>,
    pub(crate) ip_mode: Option<Text<'a>>,
}

/// The fields of an `EndpointSlice` (discovery.k8s.io/v1) that the proxy reads.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct EndpointSlice<'a> {
    #[serde(borrow)]
    pub(crate) kind: Option<Text<'a>>,
    pub(crate) metadata: Option<Metadata<'a>>,
    pub(crate) address_type: Option<Text<'a>>,
    pub(crate) ports: Option<Vec<EndpointPort<'a>>>,
    pub(crate) endpoints: Option<Vec<Endpoint<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct EndpointPort<'a> {
    #[serde(borrow)]
    pub(crate) name: Option<Text<'a>>,
    pub(crate) protocol: Option<Text<'a>>,
    pub(crate) port: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Endpoint<'a> {
    pub(crate) addresses: Option<FirstAddress>,
    pub(crate) conditions: Option<Conditions>,
    #[serde(borrow)]
    pub(crate) node_name: Option<Text<'a>>,
    pub(crate) zone: Option<Text<'a>>,
    pub(crate) hints: Option<Hints<'a>>,
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
pub(crate) struct Hints<'a> {
    #[serde(borrow)]
    pub(crate) for_nodes: Option<Vec<Named<'a>>>,
    pub(crate) for_zones: Option<Vec<Named<'a>>>,
}

#[derive(Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub(crate) struct Named<'a> {
    #[serde(borrow)]
    pub(crate) name: Text<'a>,
}

/// The fields of a Node (v1) that the proxy reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Node<'a> {
    #[serde(borrow)]
    pub(crate) kind: Option<Text<'a>>,
    pub(crate) metadata: Option<Metadata<'a>>,
    pub(crate) spec: Option<NodeSpec<'a>>,
    pub(crate) status: Option<NodeStatus<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeSpec<'a> {
    #[serde(borrow, rename = "podCIDR")]
    pub(crate) pod_cidr: Option<Text<'a>>,
    #[serde(rename = "podCIDRs")]
    pub(crate) pod_cidrs: Option<Vec<Text<'a>>>,
    pub(crate) taints: Option<Vec<Taint<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Taint<'a> {
    #[serde(borrow)]
    pub(crate) key: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeStatus<'a> {
    #[serde(borrow)]
    pub(crate) addresses: Option<Vec<NodeAddress<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeAddress<'a> {
    #[serde(borrow, rename = "type")]
    pub(crate) kind: Option<Text<'a>>,
    pub(crate) address: Option<Text<'a>>,
}

/// The fields of a `ServiceCIDR` (networking.k8s.io/v1) that the proxy reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ServiceCidr<'a> {
    #[serde(borrow)]
    pub(crate) kind: Option<Text<'a>>,
    pub(crate) metadata: Option<Metadata<'a>>,
    pub(crate) spec: Option<ServiceCidrSpec<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ServiceCidrSpec<'a> {
    #[serde(borrow)]
    pub(crate) cidrs: Option<Vec<Text<'a>>>,
}

/// Metadata of an object of any kind, even if the rest of the object cannot be decoded.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct MetadataOnly<'a> {
    #[serde(borrow)]
    pub(crate) metadata: Option<Metadata<'a>>,
}

/// First entry of an endpoint's `addresses`, parsed in place. For millions of endpoints, allocating
/// each text would be expensive.
#[derive(Debug, Default)]
pub(crate) enum FirstAddress {
    /// No address, because the list is empty.
    #[default]
    Missing,
    /// A valid first address.
    Ip(IpAddr),
    /// Text of a first entry that is not an address.
    Wrong(Box<str>),
}

impl From<&str> for FirstAddress {
    fn from(text: &str) -> Self {
        match address::ip(text) {
            Some(ip) => Self::Ip(ip),
            None => Self::Wrong(text.into()),
        }
    }
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

/// One element of an endpoint's `addresses`.
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
                Ok(Address(text.into()))
            }
        }

        deserializer.deserialize_str(Text)
    }
}

/// Text that is borrowed from the input if possible, and otherwise copied.
#[derive(Default, PartialEq, Eq, Hash)]
pub(crate) struct Text<'a>(Cow<'a, str>);

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Texts;

        impl<'de> Visitor<'de> for Texts {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }

            fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text)))
            }
        }

        deserializer.deserialize_string(Texts)
    }
}
