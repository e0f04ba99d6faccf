//! What the flags, and the node, say to this mode, for one IP family.

use std::net::IpAddr;
use std::time::Duration;

use footprint::Footprints;
use proxy::LocalDetector;

/// Settings of the userspace mode for one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// How traffic of this node's pods is told apart.
    pub detector: LocalDetector,
    /// Whether NodePorts are served on localhost, where every address serves them.
    pub localhost_node_ports: bool,
    /// `--bind-address`, if it names this node's address; it counts before those of the Node
    /// object.
    pub node_ip: Option<IpAddr>,
    /// The mark of the relay's own connections ([`Limits::mark`](relay::Limits::mark)), which are not
    /// redirected.
    pub own_mark: Option<u32>,
    /// How often the kernel is looked at.
    pub sync_period: Duration,
    /// The modes of which something may be left, which goes once this one serves.
    pub modes: Footprints,
}

impl engine::Config for Config {
    fn longest_pause(&self) -> Duration {
        self.sync_period
    }

    fn node_ip(&self) -> Option<IpAddr> {
        self.node_ip
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
            node_ip: None,
            own_mark: None,
            sync_period: Duration::from_secs(30),
            modes: &[],
        }
    }
}
