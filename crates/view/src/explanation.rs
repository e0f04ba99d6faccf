//! JSON objects in responses to `/api/v1/explain`.

use serde::{Deserialize, Serialize};

/// Traces of packets to a destination, according to the kernel's current state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Requested destination, such as `default/web` or `10.96.0.1:80`.
    pub to: String,
    /// Mode of kube-proxy, such as `ipvs`. Absent if no daemon runs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mode: Option<String>,
    /// One trace for each sender and address.
    pub journeys: Vec<Journey>,
    /// Notes about missing information, each with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

/// Trace of the first packet of a flow from one sender to one address.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Journey {
    /// Sender, such as `pod 10.244.1.5 on this node`, `this node` or `outside 192.0.2.7`.
    pub from: String,
    /// Destination address and port, such as `10.96.0.1:80`.
    pub to: String,
    /// Protocol: `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Owner of the address, such as `clusterIP of default/web:http`. Absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub of: Option<String>,
    /// Possible paths, with the likeliest first.
    pub walks: Vec<Walk>,
    /// Result of the trace in one sentence.
    pub verdict: String,
}

/// A possible path of the packet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Walk {
    /// Probability of this path.
    pub chance: Chance,
    /// Fate of the packet at the end of the path.
    pub fate: Fate,
    /// Address and port of the endpoint, if the packet reaches an endpoint.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub endpoint: Option<String>,
    /// Treatment of the source address, such as `kept` or `masqueraded, to an address of this
    /// node`.
    pub source: String,
    /// Source address that the endpoint sees, if known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub seen_as: Option<String>,
    /// Reason why no reply of the Service reaches the sender: the reply is lost, or the packet
    /// reaches no endpoint of the Service. Absent if a reply may reach the sender.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unanswered: Option<String>,
    /// Reason why it is uncertain that a reply of the Service reaches the sender. Absent if the
    /// outcome is certain.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unsure: Option<String>,
    /// Steps of the endpoint's reply on this node, in order.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub answer: Vec<Step>,
    /// Assumptions behind this path, about rules that could not be read or evaluated.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub doubts: Vec<String>,
    /// Number of rules that the packet traverses without an effect.
    #[serde(default)]
    pub rules_passed: usize,
    /// Steps that affect the packet, in order.
    pub steps: Vec<Step>,
}

/// A probability from 0 to 1. At a scheduler, the share of connections that an endpoint gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Chance(pub f64);

/// Fate of a packet at the end of its path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Fate {
    /// An endpoint receives the packet.
    Delivered,
    /// The sender receives an error: connection refused.
    Refused,
    /// This node has no route, and the sender receives an error.
    Unrouted,
    /// The packet is dropped silently.
    Dropped,
    /// This node receives the packet. A process may or may not listen.
    Local,
    /// The packet leaves this node unchanged.
    Forwarded,
    /// The relay accepts the connection, and then resets it.
    Reset,
    /// A rule could not be evaluated. A step names the rule.
    #[default]
    Unknown,
}

/// A step of a packet in the kernel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// Location in the kernel, such as `nat PREROUTING`, `routing`, `IPVS` or `table kube-proxy,
    /// chain services`.
    pub place: String,
    /// Rule, set member or virtual server, in the format of its tool.
    pub entry: String,
    /// Effect of the step on the packet, in words.
    pub says: String,
    /// Origin of the entry, such as `Service default/web, port http` or `--cluster-cidr`. Empty for
    /// a step of the kernel itself.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub origin: String,
    /// Packet counter of the entry. Absent if the entry has no counter.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub packets: Option<u64>,
    /// Byte counter of the entry. Absent if the entry has no counter.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes: Option<u64>,
    /// Matching set members, each with its set, such as `KUBE-CLUSTER-IP 10.96.0.1,tcp:443`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub members: Vec<String>,
}
