//! Settings of this mode from flags and the node, for one IP family.

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
    /// True if all Service traffic is masqueraded (`--masquerade-all`).
    pub masquerade_all: bool,
    /// Mark of packets for masquerading: `1 << --iptables-masquerade-bit`.
    pub masquerade_mark: u32,
    /// Detector of traffic from this node's pods.
    pub detector: LocalDetector,
    /// True if 127.0.0.0/8 serves NodePorts: `--iptables-localhost-nodeports` is set, and
    /// `--nodeport-addresses` includes these addresses. Always false for IPv6.
    pub localhost_node_ports: bool,
    /// True if packets that connection tracking marks INVALID pass, because
    /// `nf_conntrack_tcp_be_liberal` is set.
    pub lets_invalid_pass: bool,
    /// True if the kernel counts with nfacct. See [`Counter`](crate::Counter).
    pub has_counters: bool,
    /// `--iptables-sync-period`: period of the drift check.
    pub sync_period: Duration,
    /// Source port of masqueraded flows.
    pub source_port: SourcePort,
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
