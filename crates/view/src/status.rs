//! `/api/v1/status`.

use serde::{Deserialize, Serialize};

/// The state of the node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The name of the node.
    pub node: String,
    /// `ipvs`, `iptables`, `nftables` or `userspace`.
    pub mode: String,
    /// The variants of the mode: `shim upstream`, `scheduler rr`, `layout flat`.
    pub forms: Vec<String>,
    /// This program's version.
    pub version: String,
    /// The Kubernetes version that this program matches.
    pub kubernetes: String,
    /// The start time of the process, RFC 3339.
    pub started: String,
    /// True once the initial Services are programmed, like `/readyz`.
    pub ready: bool,
    /// True if `/livez` answers 200.
    pub healthy: bool,
    /// The state of each IP family.
    pub families: Vec<Family>,
    /// The source of objects.
    pub source: Source,
    /// Entries that the kernel refused at the last attempt; at most 100.
    pub errors: Vec<Refused>,
    /// Parts of the kernel's state that cannot be read.
    pub unreadable: Vec<Unreadable>,
    /// Addresses that two Services claim; at most 100.
    pub conflicts: Vec<Conflict>,
    /// Drift since the start, by family and kind.
    pub drift: Vec<Drifted>,
    /// Removed endpoints with open connections; at most 100.
    pub draining: Vec<Draining>,
    /// The number of draining endpoints, including unlisted ones.
    pub draining_count: usize,
    /// Limited resources, with their use.
    pub limits: Vec<Limit>,
    /// Kernel features that the mode uses.
    pub features: Vec<Feature>,
    /// Missing information, with the reason.
    pub notes: Vec<String>,
}

/// The state of an IP family.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Family {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// The state in a word.
    pub state: State,
    /// Number of pending entries.
    pub pending: usize,
    /// Number of pending entries that the kernel refused at the last attempt.
    pub failing: usize,
    /// The age of the oldest pending change in seconds; 0 without one.
    pub lag_seconds: f64,
    /// Seconds since a pending change could last be written.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stuck_seconds: Option<f64>,
    /// Seconds since all changes were last programmed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub updated_seconds_ago: Option<f64>,
}

/// The state of a family in a word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The initial Services are not programmed yet.
    #[default]
    Starting,
    /// All Services are programmed.
    Synced,
    /// Changes are being written.
    Syncing,
    /// The kernel refused some entries; the rest is programmed.
    Failing,
    /// No pending change can be written.
    Stuck,
}

/// The source of objects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// `API server https://...`, `manifests in /etc/...`.
    pub from: String,
    /// Number of proxied Services.
    pub services: usize,
    /// Number of EndpointSlices.
    pub endpoint_slices: usize,
    /// True once both initial lists are complete.
    pub complete: bool,
    /// True if every object could be read; otherwise nothing is removed.
    pub whole: bool,
    /// True if the Node of this node exists, if known.
    pub node_exists: Option<bool>,
}

/// An entry that the kernel refused.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
    /// `IPv4` or `IPv6`; empty if the whole Service is concerned.
    pub family: String,
    /// The failed write: `add virtual server 10.0.0.1:80/TCP`.
    pub object: String,
    /// The Service port: `default/web:http`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub service: Option<String>,
    /// The reason, and the next step.
    pub reason: String,
    /// Seconds since the first refusal; 0 if unknown.
    pub seconds: f64,
}

/// A part of the kernel's state that cannot be read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unreadable {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// `the virtual servers`, ...
    pub part: String,
    /// The reason, and the next step.
    pub reason: String,
}

/// An address that two Services claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Conflict {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// `192.0.2.20:80/TCP`.
    pub address: String,
    /// The Service that the address is served for.
    pub winner: String,
    /// The Service whose claim is ignored.
    pub loser: String,
}

/// Entries that another program changed and kube-proxy repaired.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Drifted {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// `virtual server`, `set member`, ...
    pub kind: String,
    /// Number of entries since the start.
    pub count: u64,
    /// Time of the last drift, RFC 3339.
    pub last: String,
    /// Names of the first entries of the last drift.
    pub names: Vec<String>,
}

/// An endpoint that drains.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Draining {
    /// `10.96.0.1:80/TCP`.
    pub server: String,
    /// `10.244.1.5:8080`.
    pub endpoint: String,
    /// Seconds since the drain began, as this process knows.
    pub seconds: f64,
    /// Active and inactive connections at the last check.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub connections: Option<u64>,
}

/// A limited resource.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limit {
    /// `set KUBE-CLUSTER-IP (IPv4)`, `connection tracking entries`, `open files`.
    pub of: String,
    /// The amount in use.
    pub used: u64,
    /// The maximum.
    pub limit: u64,
    /// True from 90 % of the limit.
    pub near: bool,
}

/// Prefix of the note on a feature that exists and is switched off.
pub const OFF: &str = "off: ";

/// A kernel feature.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Feature {
    /// `IPVS`, `scheduler rr`, `nf_tables`, ...
    pub name: String,
    /// True if the kernel has the feature.
    pub found: bool,
    /// Details.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub note: String,
}
