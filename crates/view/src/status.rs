//! JSON objects in responses to `/api/v1/status`.

use serde::{Deserialize, Serialize};

/// State of kube-proxy on this node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Name of this node.
    pub node: String,
    /// Mode: `ipvs`, `iptables`, `nftables` or `userspace`.
    pub mode: String,
    /// Variants of the mode, such as `shim upstream`, `scheduler rr`, `layout flat`.
    pub forms: Vec<String>,
    /// Version of this program.
    pub version: String,
    /// Version of Kubernetes that this program matches.
    pub kubernetes: String,
    /// Start time of the process, in RFC 3339.
    pub started: String,
    /// True once the kernel has the initial Services, as `/readyz` reports.
    pub ready: bool,
    /// True if the health server's page `/livez` returns 200.
    pub healthy: bool,
    /// The state of each IP family.
    pub families: Vec<Family>,
    /// Source of Services and EndpointSlices, with the number of objects.
    pub source: Source,
    /// Entries that the kernel refused at the last attempt, and parts of Services that the proxy
    /// rejects. At most 100.
    pub errors: Vec<RejectedEntry>,
    /// Settings that do not fit the cluster or this node, and addresses of Services that the proxy
    /// serves with side effects, such as the address of the default gateway. At most 100.
    #[serde(default)]
    pub warnings: Vec<RejectedEntry>,
    /// Parts of the kernel's state, and manifests, that cannot be read.
    pub unreadable: Vec<Unreadable>,
    /// Addresses that two Services claim. At most 100.
    pub conflicts: Vec<Conflict>,
    /// Repaired drift since the start, by family and kind: entries that other programs changed and
    /// this proxy repaired.
    pub drift: Vec<RepairedEntries>,
    /// Removed endpoints with open connections. At most 100.
    pub draining: Vec<Draining>,
    /// Number of all draining endpoints, including those that `draining` omits.
    pub draining_count: usize,
    /// Limits, such as set sizes and open files, with their use.
    pub limits: Vec<Limit>,
    /// Kernel features that the mode uses.
    pub features: Vec<Feature>,
    /// Notes about missing information, each with the reason.
    pub notes: Vec<String>,
}

/// State of kube-proxy in one IP family.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Family {
    /// IP family: `IPv4` or `IPv6`.
    pub family: String,
    /// Sync state of the IP family.
    pub state: SyncState,
    /// Number of pending entries, which still differ from their desired state.
    pub pending: usize,
    /// Number of pending entries that the kernel refused at the last attempt.
    pub failing: usize,
    /// Age of the oldest pending change in seconds. 0 if no change is pending.
    pub lag_seconds: f64,
    /// Seconds since the kernel last accepted a pending change. Absent if no change is stuck.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stuck_seconds: Option<f64>,
    /// Seconds since the kernel last had all changes. Absent if the kernel has never had all
    /// changes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub updated_seconds_ago: Option<f64>,
}

/// Sync state of an IP family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SyncState {
    /// The kernel does not have all initial Services yet.
    #[default]
    Starting,
    /// The kernel has all Services.
    Synced,
    /// Changes are being written to the kernel.
    Syncing,
    /// The kernel refused some entries, and has all other entries.
    Failing,
    /// The kernel accepts no pending change.
    Stuck,
}

/// Source of Services and EndpointSlices, with the number of objects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Source {
    /// Description of the source, such as `API server https://...` or `manifests in /etc/...`.
    pub from: String,
    /// Number of Services that the proxy serves.
    pub services: usize,
    /// Number of EndpointSlices.
    pub endpoint_slices: usize,
    /// True once the initial lists of Services and EndpointSlices are complete.
    pub complete: bool,
    /// True once the proxy has been able to read every object. Until then, the proxy keeps kernel
    /// entries that no known object needs.
    pub whole: bool,
    /// True if this node's Node object exists. Absent if unknown.
    pub node_exists: Option<bool>,
}

/// An entry that the kernel refused, or a part of a Service that the proxy rejects.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RejectedEntry {
    /// Family of the entry, `IPv4` or `IPv6`. Empty if the error concerns the whole Service.
    pub family: String,
    /// Refused write, such as `add virtual server 10.0.0.1:80/TCP`.
    pub object: String,
    /// Service port of the entry, such as `default/web:http`. Absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub service: Option<String>,
    /// Reason why the entry was refused or rejected, and the next step.
    pub reason: String,
    /// Seconds since the first refusal, or 0 if unknown.
    pub seconds: f64,
}

/// A part of the kernel's state, or a manifest, that cannot be read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unreadable {
    /// IP family: `IPv4` or `IPv6`. Empty for a manifest.
    pub family: String,
    /// Part of the state, such as `the virtual servers`, or the path of a manifest.
    pub part: String,
    /// Reason why the part or manifest cannot be read, and the next step.
    pub reason: String,
}

/// An address that two Services claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Conflict {
    /// IP family: `IPv4` or `IPv6`.
    pub family: String,
    /// Claimed address, such as `192.0.2.20:80/TCP`.
    pub address: String,
    /// Service for which the address is served.
    pub winner: String,
    /// Service whose claim the proxy ignores.
    pub loser: String,
}

/// Entries that another program changed and this proxy repaired.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RepairedEntries {
    /// IP family: `IPv4` or `IPv6`.
    pub family: String,
    /// Kind of the entries, such as `virtual server` or `set member`.
    pub kind: String,
    /// Number of entries that other programs have changed since the start.
    pub count: u64,
    /// Time of the last drift, in RFC 3339.
    pub last: String,
    /// Names of the first few entries that drifted last.
    pub names: Vec<String>,
}

/// A draining endpoint with its connections.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Draining {
    /// Virtual server, such as `10.96.0.1:80/TCP`.
    pub server: String,
    /// Draining endpoint, such as `10.244.1.5:8080`.
    pub endpoint: String,
    /// Seconds since the drain began, or since the process restarted during the drain.
    pub seconds: f64,
    /// Number of active and inactive connections at the last check. Absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub connections: Option<u64>,
}

/// A limit, such as the size of a set or the number of open files, and its use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limit {
    /// Name of the limited set, table or files: `set KUBE-CLUSTER-IP (IPv4)`, `connection tracking
    /// entries` or `open files`.
    pub of: String,
    /// Number of entries, connections or files in use.
    pub used: u64,
    /// Largest allowed number of entries, connections or files.
    pub limit: u64,
    /// True if at least 90 % of the limit is in use.
    pub near: bool,
}

/// Prefix of [`Feature::note`] for a feature that the kernel has but that is disabled.
pub const OFF: &str = "off: ";

/// A kernel feature that the mode uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Feature {
    /// Name of the feature, such as `IPVS`, `scheduler rr` or `nf_tables`.
    pub name: String,
    /// True if the kernel has the feature.
    pub found: bool,
    /// Details about the feature, such as the reason why the feature is missing or off.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub note: String,
}
