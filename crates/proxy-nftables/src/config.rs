//! What the flags, and the node, say to this mode, for one IP family.

use std::net::IpAddr;
use std::time::Duration;

use proxy::LocalDetector;

use crate::layout::Layout;

/// What becomes of NodePorts on localhost (KEP-6032).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LocalhostNodePorts {
    /// The table says nothing of them: the feature gate is off.
    #[default]
    Off,
    /// They are refused and counted.
    Refused,
    /// A relay serves those of TCP at 127.0.0.1 or `::1`; others are refused and counted.
    Served,
}

/// Settings of the nftables mode for one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `nftables.masqueradeAll`, `--masquerade-all`.
    pub masquerade_all: bool,
    /// `1 << nftables.masqueradeBit`.
    pub masquerade_mark: u32,
    /// How the table is laid out.
    pub layout: Layout,
    /// What becomes of NodePorts on localhost.
    pub localhost: LocalhostNodePorts,
    /// How traffic of this node's pods is told apart.
    pub detector: LocalDetector,
    /// `--bind-address`, if it names this node's address; it counts before those of the Node
    /// object.
    pub node_ip: Option<IpAddr>,
    /// `nftables.syncPeriod`: the longest pause before what failed is tried again.
    pub sync_period: Duration,
}

impl engine::Config for Config {
    fn longest_pause(&self) -> Duration {
        self.sync_period
    }

    fn node_ip(&self) -> Option<IpAddr> {
        self.node_ip
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            masquerade_all: false,
            masquerade_mark: 1 << 14,
            layout: Layout::Upstream,
            localhost: LocalhostNodePorts::Off,
            detector: LocalDetector::None,
            node_ip: None,
            sync_period: Duration::from_secs(30),
        }
    }
}
