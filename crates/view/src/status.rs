//! `/api/v1/status`.

use serde::{Deserialize, Serialize};

/// How the node stands.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The node's name.
    pub node: String,
    /// `ipvs`, `iptables`, `nftables` or `userspace`.
    pub mode: String,
    /// What of the mode has several forms, in words: `shim upstream`, `scheduler rr`, `layout flat`.
    pub forms: Vec<String>,
    /// This program's version.
    pub version: String,
    /// The Kubernetes version that it is as.
    pub kubernetes: String,
    /// When the process began, RFC 3339.
    pub started: String,
    /// Whether all that was first known is in the kernel, as `/readyz` says.
    pub ready: bool,
    /// As `/livez` says.
    pub healthy: bool,
    /// By IP family.
    pub families: Vec<Family>,
    /// Where objects come from.
    pub source: Source,
    /// What the kernel refused when it was last tried, at most 100.
    pub errors: Vec<Refused>,
    /// Parts of the kernel's state that cannot be read.
    pub unreadable: Vec<Unreadable>,
    /// Addresses that two Services claim, at most 100.
    pub conflicts: Vec<Conflict>,
    /// What somebody else has changed since the start, by family and kind.
    pub drift: Vec<Drifted>,
    /// Endpoints that are gone, and whose connections end by themselves; at most 100.
    pub draining: Vec<Draining>,
    /// How many drain, also those that are not listed.
    pub draining_count: usize,
    /// What is limited, and how much of it is used.
    pub limits: Vec<Limit>,
    /// Parts of the kernel that the mode uses, found or missing.
    pub features: Vec<Feature>,
    /// What could not be told, and why.
    pub notes: Vec<String>,
}

/// How one IP family stands.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Family {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// In a word.
    pub state: State,
    /// Entries that are not in the kernel as they are to be.
    pub pending: usize,
    /// How many of these were refused when they were last tried.
    pub failing: usize,
    /// The lag: for how long the oldest change waits to be in the kernel, in seconds; 0 if none does.
    pub lag_seconds: f64,
    /// For how long nothing that is pending could be written, in seconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stuck_seconds: Option<f64>,
    /// How long ago all that was asked was in the kernel, in seconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub updated_seconds_ago: Option<f64>,
}

/// How a family stands, in a word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// What was first known is not in the kernel yet.
    #[default]
    Starting,
    /// All is in the kernel.
    Synced,
    /// Something is under way.
    Syncing,
    /// Something was refused; all else is in the kernel.
    Failing,
    /// Nothing that is pending can be written.
    Stuck,
}

/// Where objects come from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// `API server https://...`, `manifests in /etc/...`.
    pub from: String,
    /// Services that are proxied.
    pub services: usize,
    /// EndpointSlices.
    pub endpoint_slices: usize,
    /// Whether both lists were complete once.
    pub complete: bool,
    /// Whether every object that exists could be read; until then nothing is removed.
    pub whole: bool,
    /// Whether the own Node exists, if that is known.
    pub node_exists: Option<bool>,
}

/// What the kernel refused.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
    /// `IPv4` or `IPv6`; empty where it concerns all of a Service.
    pub family: String,
    /// What could not be written: `add virtual server 10.0.0.1:80/TCP`.
    pub object: String,
    /// Whose it is: `default/web:http`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub service: Option<String>,
    /// Why, and what to do next.
    pub reason: String,
    /// For how long, in seconds; 0 if that is not known.
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
    /// Why, and what to do next.
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
    /// Who has it.
    pub winner: String,
    /// Who goes without.
    pub loser: String,
}

/// What somebody else has changed, and was made right again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Drifted {
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// `virtual server`, `set member`, ...
    pub kind: String,
    /// How many entries since the start.
    pub count: u64,
    /// When the last was found, RFC 3339.
    pub last: String,
    /// The first names of the last time.
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
    /// For how long, in seconds, as far as this process knows.
    pub seconds: f64,
    /// Connections when it was last looked at, active and inactive ones.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub connections: Option<u64>,
}

/// Something that is limited.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limit {
    /// `set KUBE-CLUSTER-IP (IPv4)`, `connection tracking entries`, `open files`.
    pub of: String,
    /// How much of it is used.
    pub used: u64,
    /// How much there may be.
    pub limit: u64,
    /// Whether it is nearly reached: from nine tenths on.
    pub near: bool,
}

/// How the note of a feature begins that is there and switched off.
pub const OFF: &str = "off: ";

/// A part of the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Feature {
    /// `IPVS`, `scheduler rr`, `nf_tables`, ...
    pub name: String,
    /// Whether it is there.
    pub found: bool,
    /// What is known of it.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub note: String,
}
