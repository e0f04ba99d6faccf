//! `/api/v1/top`.

use serde::{Deserialize, Serialize};

use super::services::{Counters, ServiceName};

/// The busiest Services between two samples of the counters.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Top {
    /// Seconds between the samples; 0 for the first sample, which has no rates.
    pub seconds: f64,
    /// The sum over all Services.
    pub total: Rate,
    /// The busiest Service ports first.
    pub ports: Vec<TopPort>,
    /// The busiest endpoints of the listed ports first.
    pub endpoints: Vec<TopEndpoint>,
    /// Number of draining endpoints.
    pub draining: usize,
    /// Number of pending entries.
    pub pending: usize,
    /// Number of pending entries that the kernel refused.
    pub failing: usize,
    /// Missing information, with the reason, such as a mode without counters.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

/// Rates per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rate {
    /// New connections.
    pub connections: f64,
    /// Traffic from clients.
    pub packets_in: f64,
    /// Traffic to clients.
    pub packets_out: f64,
    /// Traffic from clients.
    pub bytes_in: f64,
    /// Traffic to clients.
    pub bytes_out: f64,
}

/// A Service port.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopPort {
    #[serde(flatten)]
    /// The Service.
    pub service: ServiceName,
    /// The name; may be empty.
    pub port_name: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// `port`.
    pub port: u16,
    /// The rate since the previous sample.
    pub rate: Rate,
    /// The counters since the start.
    pub counters: Counters,
}

/// An endpoint of a Service port.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopEndpoint {
    #[serde(flatten)]
    /// The Service.
    pub service: ServiceName,
    /// The name of the Service port; may be empty.
    pub port_name: String,
    /// `10.244.1.5:8080`.
    pub at: String,
    /// The rate since the previous sample.
    pub rate: Rate,
    /// The counters since the start.
    pub counters: Counters,
}
