//! Settings of this mode from flags and the node, for one IP family.

use std::time::Duration;

use footprint::Footprints;
use proxy::LocalDetector;

/// Settings of the userspace mode for one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Detector of traffic from this node's pods.
    pub detector: LocalDetector,
    /// True if NodePorts on all addresses include localhost.
    pub localhost_node_ports: bool,
    /// Mark of the relay's own connections ([`Limits::mark`](relay::Limits::mark)). Marked packets
    /// are not redirected.
    pub own_mark: Option<u32>,
    /// Period of the drift check.
    pub sync_period: Duration,
    /// Modes whose leftovers are removed once this mode serves.
    pub modes: Footprints,
}

impl engine::Config for Config {
    fn longest_pause(&self) -> Duration {
        self.sync_period
    }

    fn serves_localhost(&self) -> bool {
        self.localhost_node_ports
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            detector: LocalDetector::None,
            localhost_node_ports: true,
            own_mark: None,
            sync_period: Duration::from_secs(30),
            modes: &[],
        }
    }
}
