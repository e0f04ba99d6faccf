//! `/api/v1/explain`.

use serde::{Deserialize, Serialize};

/// What becomes of packets to somewhere, by what the kernel holds now.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// As it was asked: `default/web`, `10.96.0.1:80`.
    pub to: String,
    /// The mode that the daemon serves in, where there is a daemon.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mode: Option<String>,
    /// One for each kind of sender and each address.
    pub journeys: Vec<Journey>,
    /// What could not be told, and why.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

/// The first packet of a flow from one sender to one address.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Journey {
    /// In words: `pod 10.244.1.5 on this node`, `this node`, `outside 192.0.2.7`.
    pub from: String,
    /// `10.96.0.1:80`.
    pub to: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Of which object: `clusterIP of default/web:http`; absent where it is of none that is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub of: Option<String>,
    /// The ways that it may go, by chance.
    pub walks: Vec<Walk>,
    /// All in one sentence.
    pub verdict: String,
}

/// One way.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Walk {
    /// How likely it is.
    pub chance: Chance,
    /// How it ends.
    pub fate: Fate,
    /// Where it ends: the endpoint's address and port.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub endpoint: Option<String>,
    /// `kept`, or the words for what it is rewritten to: `masqueraded, to an address of this node`.
    pub source: String,
    /// The client's address as the endpoint sees it, where that is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub seen_as: Option<String>,
    /// Why the endpoint's answers do not come back, where they do not.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unanswered: Option<String>,
    /// Why it cannot be said whether the answers come back, where nothing is known to stop them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unsure: Option<String>,
    /// What does something to the endpoint's answer on this node, in the order in which it meets it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub answer: Vec<Step>,
    /// What this way takes for granted, as it is not understood or could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub doubts: Vec<String>,
    /// How many rules it passes that do nothing to it.
    #[serde(default)]
    pub rules_passed: usize,
    /// What does something to the packet, in the order in which it meets it.
    pub steps: Vec<Step>,
}

/// From 0 to 1; of a scheduler that is not by chance, the share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Chance(pub f64);

/// How a way ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Fate {
    /// An endpoint gets it.
    Delivered,
    /// The sender is told that nobody listens.
    Refused,
    /// No route of this node leads there, and the sender is told.
    Unrouted,
    /// Nobody is told anything.
    Dropped,
    /// A process of this node gets it, or nobody if none listens there.
    Local,
    /// It leaves this node to where its destination address is.
    Forwarded,
    /// It is taken, and the connection is ended at once.
    Reset,
    /// It depends on what is not understood, which a step names.
    #[default]
    Unknown,
}

/// One thing that the packet meets.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// Where in the kernel: `nat PREROUTING`, `routing`, `IPVS`, `table kube-proxy, chain services`.
    pub place: String,
    /// What is there, as its own tools list it: a rule, a set member, a virtual server.
    pub entry: String,
    /// What it does to the packet, in plain words.
    pub says: String,
    /// The object or flag that it comes from: `Service default/web, port http`, `--cluster-cidr`; empty where
    /// it is the kernel's own.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub origin: String,
    /// Packets that it has counted, where it counts.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub packets: Option<u64>,
    /// Bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes: Option<u64>,
    /// Members of sets by which it was found, each with its set: `KUBE-CLUSTER-IP 10.96.0.1,tcp:443`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub members: Vec<String>,
}
