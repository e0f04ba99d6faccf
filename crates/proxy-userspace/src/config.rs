//! Settings of userspace mode for one IP family, from flags and from the node.

use std::time::Duration;

use footprint::Footprints;
use proxy::LocalDetector;

/// Settings of userspace mode for one IP family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Detector of packets from pods on this node.
    pub detector: LocalDetector,
    /// True if localhost serves NodePorts when `--nodeport-addresses` selects all addresses.
    pub localhost_node_ports: bool,
    /// Mark of the relay's own packets ([`Limits::mark`](relay::Limits::mark)), or `None` if they
    /// have no mark. No rule redirects packets with this mark.
    pub own_mark: Option<u32>,
    /// Period of the drift check.
    pub sync_period: Duration,
    /// Modes whose leftovers this mode removes once it serves all Services.
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
