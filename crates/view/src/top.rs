//! `/api/v1/top`.

use serde::{Deserialize, Serialize};

use super::services::{Counters, ServiceName};

/// The busiest, over the time between two looks at the kernel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Top {
    /// How long that time was, in seconds; 0 at the first look, which has no rates.
    pub seconds: f64,
    /// Over all.
    pub total: Rate,
    /// Service ports, the busiest first.
    pub ports: Vec<TopPort>,
    /// Endpoints, the busiest first: of the ports that are listed.
    pub endpoints: Vec<TopEndpoint>,
    /// How many endpoints drain.
    pub draining: usize,
    /// Entries that are not in the kernel as they are to be.
    pub pending: usize,
    /// How many of these were refused.
    pub failing: usize,
    /// What could not be told, and why: a mode in which the kernel does not count.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

/// Per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rate {
    /// New connections.
    pub connections: f64,
    /// From clients.
    pub packets_in: f64,
    /// To clients.
    pub packets_out: f64,
    /// From clients.
    pub bytes_in: f64,
    /// To clients.
    pub bytes_out: f64,
}

/// A Service port.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopPort {
    #[serde(flatten)]
    /// Its Service.
    pub service: ServiceName,
    /// Its name; empty where it has none.
    pub port_name: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// `port`.
    pub port: u16,
    /// Since the look before.
    pub rate: Rate,
    /// Since the beginning.
    pub counters: Counters,
}

/// An endpoint of a Service port.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopEndpoint {
    #[serde(flatten)]
    /// Its Service.
    pub service: ServiceName,
    /// The Service port's name; empty where it has none.
    pub port_name: String,
    /// `10.244.1.5:8080`.
    pub at: String,
    /// Since the look before.
    pub rate: Rate,
    /// Since the beginning.
    pub counters: Counters,
}
