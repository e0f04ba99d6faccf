//! `/api/v1/explain`.

use serde::{Deserialize, Serialize};

/// The traces of packets to a destination, by the kernel's current state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The requested destination: `default/web`, `10.96.0.1:80`.
    pub to: String,
    /// The proxy mode; absent without a daemon.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mode: Option<String>,
    /// One trace for each sender and address.
    pub journeys: Vec<Journey>,
    /// Missing information, with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

/// The first packet of a flow from one sender to one address.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Journey {
    /// The sender: `pod 10.244.1.5 on this node`, `this node`, `outside 192.0.2.7`.
    pub from: String,
    /// `10.96.0.1:80`.
    pub to: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The owner of the address: `clusterIP of default/web:http`; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub of: Option<String>,
    /// The possible paths, the likeliest first.
    pub walks: Vec<Walk>,
    /// The verdict in one sentence.
    pub verdict: String,
}

/// A path of a packet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Walk {
    /// The probability of this path.
    pub chance: Chance,
    /// The end of the path.
    pub fate: Fate,
    /// The address and port of the endpoint.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub endpoint: Option<String>,
    /// `kept`, or how the source is rewritten: `masqueraded, to an address of this node`.
    pub source: String,
    /// The source address that the endpoint sees, if known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub seen_as: Option<String>,
    /// The reason why the endpoint's answer never returns, if so.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unanswered: Option<String>,
    /// The reason why the answer may not return, if this is unknown.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unsure: Option<String>,
    /// The steps of the endpoint's answer on this node, in order.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub answer: Vec<Step>,
    /// Assumptions of this path about rules that could not be read or evaluated.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub doubts: Vec<String>,
    /// The number of rules without effect on the packet.
    #[serde(default)]
    pub rules_passed: usize,
    /// The steps that affect the packet, in order.
    pub steps: Vec<Step>,
}

/// A probability from 0 to 1; for a scheduler, the share of an endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Chance(pub f64);

/// The end of a path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Fate {
    /// An endpoint receives the packet.
    Delivered,
    /// The sender gets an error: connection refused.
    Refused,
    /// This node has no route, and the sender gets an error.
    Unrouted,
    /// The packet is dropped silently.
    Dropped,
    /// The packet is for a process on this node, which may not listen.
    Local,
    /// The packet leaves this node unchanged.
    Forwarded,
    /// The connection is accepted and closed at once.
    Reset,
    /// A rule could not be evaluated; a step names it.
    #[default]
    Unknown,
}

/// A step of a packet in the kernel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// The place in the kernel: `nat PREROUTING`, `routing`, `IPVS`, `table kube-proxy, chain
    /// services`.
    pub place: String,
    /// The entry as its tool lists it: a rule, a set member, a virtual server.
    pub entry: String,
    /// The effect on the packet, in plain words.
    pub says: String,
    /// The origin: `Service default/web, port http`, `--cluster-cidr`; empty for the kernel itself.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub origin: String,
    /// The packet counter, if any.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub packets: Option<u64>,
    /// The byte counter, if any.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes: Option<u64>,
    /// The matching set members, each with its set: `KUBE-CLUSTER-IP 10.96.0.1,tcp:443`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub members: Vec<String>,
}
