//! Settings of nftables mode for one IP family, from flags and from the Node object.

use std::time::Duration;

use proxy::LocalDetector;

use crate::layout::{Layout, LayoutSizes};

/// Policy for packets to NodePorts on localhost (KEP-6032): ignore, reject or serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LocalhostNodePorts {
    /// The rules ignore NodePorts on localhost, because the feature gate is off.
    #[default]
    Off,
    /// The rules reject and count all packets to NodePorts on localhost.
    Refused,
    /// A relay serves TCP NodePorts at 127.0.0.1 or `::1`. The rules reject and count packets of
    /// other protocols to NodePorts at these addresses.
    Served,
}

/// Settings of the nftables mode for one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// True if the rules masquerade all traffic to ClusterIPs (`nftables.masqueradeAll`,
    /// `--masquerade-all`).
    pub masquerade_all: bool,
    /// Mark of the packets that rules masquerade (`1 << nftables.masqueradeBit`).
    pub masquerade_mark: u32,
    /// Layout of the table. The mode may change the layout if [`sizes`](Self::sizes) is set.
    pub layout: Layout,
    /// Numbers of Service ports at which the mode changes the layout, or `None` for a fixed layout.
    pub sizes: Option<LayoutSizes>,
    /// Policy for packets to NodePorts on localhost: ignore, reject or serve.
    pub localhost: LocalhostNodePorts,
    /// Detector of traffic from this node's pods (`--detect-local-mode`).
    pub detector: LocalDetector,
    /// Longest delay before a retry of a failed read (`nftables.syncPeriod`).
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
