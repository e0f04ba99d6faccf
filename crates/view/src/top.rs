//! JSON objects in responses to `/api/v1/top`.

use serde::{Deserialize, Serialize};

use super::services::{Counters, ServiceName};

/// The busiest Services between two samples of the counters.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Top {
    /// Seconds between the samples, or 0 for the first sample, which has no rates.
    pub seconds: f64,
    /// Sum of the rates over all Services.
    pub total: Rate,
    /// Service ports, with the busiest first.
    pub ports: Vec<TopPort>,
    /// Endpoints of the listed ports, with the busiest first.
    pub endpoints: Vec<TopEndpoint>,
    /// Number of draining endpoints.
    pub draining: usize,
    /// Number of pending entries, which still differ from their desired state.
    pub pending: usize,
    /// Number of pending entries that the kernel refused.
    pub failing: usize,
    /// Notes about missing information, each with the reason, such as a mode without counters.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

/// Rates of traffic, per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rate {
    /// New connections per second.
    pub connections: f64,
    /// Packets from clients per second.
    pub packets_in: f64,
    /// Packets to clients per second.
    pub packets_out: f64,
    /// Bytes from clients per second.
    pub bytes_in: f64,
    /// Bytes to clients per second.
    pub bytes_out: f64,
}

/// Traffic rates and counters of one Service port.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopPort {
    #[serde(flatten)]
    /// Service that the port belongs to.
    pub service: ServiceName,
    /// Name of the port. May be empty.
    pub port_name: String,
    /// Protocol: `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Port number at the Service's addresses (`port`).
    pub port: u16,
    /// Rates between the previous sample and this sample.
    pub rate: Rate,
    /// Counters since the creation of the entry in the kernel or in the relay.
    pub counters: Counters,
}

/// Traffic rates and counters of one endpoint of a Service port.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopEndpoint {
    #[serde(flatten)]
    /// Service to which the endpoint belongs.
    pub service: ServiceName,
    /// Name of the Service port. May be empty.
    pub port_name: String,
    /// Address and port of the endpoint, such as `10.244.1.5:8080`.
    pub at: String,
    /// Rates between the previous sample and this sample.
    pub rate: Rate,
    /// Counters since the creation of the entry in the kernel or in the relay.
    pub counters: Counters,
}
