//! Settings of this mode for one IP family, from flags and from the node.

use std::net::IpAddr;
use std::time::Duration;

use proxy::LocalDetector;

use crate::layout::Layout;

/// The treatment of NodePorts on localhost (KEP-6032).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LocalhostNodePorts {
    /// The table ignores them: the feature gate is off.
    #[default]
    Off,
    /// They are rejected and counted.
    Refused,
    /// A relay serves TCP NodePorts at 127.0.0.1 or `::1`; others are rejected and counted.
    Served,
}

/// Settings of the nftables mode for one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `nftables.masqueradeAll`, `--masquerade-all`.
    pub masquerade_all: bool,
    /// `1 << nftables.masqueradeBit`.
    pub masquerade_mark: u32,
    /// The layout of the table.
    pub layout: Layout,
    /// The treatment of NodePorts on localhost.
    pub localhost: LocalhostNodePorts,
    /// The method that recognizes traffic of this node's pods.
    pub detector: LocalDetector,
    /// `--bind-address`, if it is an address of this node; it takes precedence over the Node
    /// object.
    pub node_ip: Option<IpAddr>,
    /// `nftables.syncPeriod`: the longest delay before a failed write is repeated.
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
