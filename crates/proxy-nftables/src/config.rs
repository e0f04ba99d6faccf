//! Settings of the nftables mode for one IP family, from flags and from the node.

use std::time::Duration;

use proxy::LocalDetector;

use crate::layout::{Layout, LayoutSizes};

/// Treatment of NodePorts on localhost (KEP-6032).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LocalhostNodePorts {
    /// The table ignores NodePorts on localhost, because the feature gate is off.
    #[default]
    Off,
    /// The table rejects and counts packets to NodePorts on localhost.
    Refused,
    /// A relay serves TCP NodePorts at 127.0.0.1 or `::1`. The table rejects and counts packets to
    /// other NodePorts on localhost.
    Served,
}

/// Settings of the nftables mode for one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// True to masquerade all traffic to ClusterIPs (`nftables.masqueradeAll`, `--masquerade-all`).
    pub masquerade_all: bool,
    /// Mark of packets to masquerade (`1 << nftables.masqueradeBit`).
    pub masquerade_mark: u32,
    /// Layout of the table. If [`sizes`](Self::sizes) are set, the mode changes it.
    pub layout: Layout,
    /// Sizes at which the layout changes, or `None` if it never changes.
    pub sizes: Option<LayoutSizes>,
    /// Treatment of NodePorts on localhost.
    pub localhost: LocalhostNodePorts,
    /// Detector of traffic from this node's pods.
    pub detector: LocalDetector,
    /// Longest delay before a failed write is retried (`nftables.syncPeriod`).
    pub sync_period: Duration,
}

impl engine::Config for Config {
    fn longest_pause(&self) -> Duration {
        self.sync_period
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            masquerade_all: false,
            masquerade_mark: 1 << 14,
            layout: Layout::Upstream,
            sizes: None,
            localhost: LocalhostNodePorts::Off,
            detector: LocalDetector::None,
            sync_period: Duration::from_secs(30),
        }
    }
}
