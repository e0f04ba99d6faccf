//! Settings of this mode for one IP family, from flags and from the node.

use std::time::Duration;

use footprint::Footprints;
use iptables::SourcePort;
use proxy::LocalDetector;

/// Settings of the iptables mode for one family.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a flag, or a fact about the node"
)]
pub struct Config {
    /// True if rules masquerade all traffic to cluster IPs (`--masquerade-all`).
    pub masquerade_all: bool,
    /// Mark of packets that the rules masquerade: `1 << --iptables-masquerade-bit`.
    pub masquerade_mark: u32,
    /// Detector of traffic from this node's pods (`--detect-local-mode`).
    pub detector: LocalDetector,
    /// True if the mode serves NodePorts at 127.0.0.0/8: `--iptables-localhost-nodeports` is set,
    /// and `--nodeport-addresses` includes these addresses. Always false for IPv6.
    pub localhost_node_ports: bool,
    /// True if the rules accept packets that connection tracking marks INVALID, because
    /// `nf_conntrack_tcp_be_liberal` is set.
    pub lets_invalid_pass: bool,
    /// True if the kernel supports nfacct counters (see [`Counter`](crate::Counter)).
    pub has_counters: bool,
    /// Period of the drift check (`--iptables-sync-period`).
    pub sync_period: Duration,
    /// Source port of masqueraded flows: kept if possible, or always random.
    pub source_port: SourcePort,
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
            masquerade_all: false,
            masquerade_mark: 1 << 14,
            detector: LocalDetector::None,
            localhost_node_ports: false,
            lets_invalid_pass: false,
            has_counters: false,
            sync_period: Duration::from_secs(30),
            source_port: SourcePort::Random,
            modes: &[],
        }
    }
}
