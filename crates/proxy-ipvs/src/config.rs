//! Settings of the IPVS mode for one IP family, from command-line flags.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use iptables::SourcePort;
use proxy::{LocalDetector, Scheduler};

/// Form of the rules that masquerade and filter packets (`--ipvs-shim`). All forms give the same
/// verdicts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ShimStyle {
    /// Upstream's rules, in iptables with ipsets.
    #[default]
    Upstream,
    /// Fewer rules, with fewer look-ups per packet.
    Lean,
    /// One nftables table with its own sets. Needs the fewest look-ups.
    Nftables,
}

impl ShimStyle {
    /// Reports whether sets and rules are in one table of nf_tables.
    pub fn is_native(self) -> bool {
        self == Self::Nftables
    }
}

/// Form in which `kube-ipvs0` holds service addresses (`--ipvs-vip-mode`). Both forms make them
/// local.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VipMode {
    /// Addresses, as upstream. The kernel's cost of each address grows with their number.
    #[default]
    Address,
    /// Local routes. The cost of a route does not depend on their number.
    Route,
}

/// Settings of the IPVS mode for one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Default scheduler (`--ipvs-scheduler`): any scheduler that the kernel has.
    pub scheduler: Arc<str>,
    /// Schedulers whose presence or absence is already known. They need no kernel query.
    pub foreseen_schedulers: Vec<(Scheduler, Result<(), String>)>,
    /// True to masquerade all traffic to Services (`--masquerade-all`).
    pub masquerade_all: bool,
    /// Mark of packets to masquerade (`1 << --iptables-masquerade-bit`).
    pub masquerade_mark: u32,
    /// Detector of traffic from this node's pods.
    pub detector: LocalDetector,
    /// Networks whose virtual servers stay unless this proxy wants them (`--ipvs-exclude-cidrs`).
    pub exclude_cidrs: Vec<IpNet>,
    /// Node address from `--bind-address`, if set. It takes precedence over the Node object's
    /// addresses.
    pub node_ip: Option<IpAddr>,
    /// Shortest interval between two reads of the shim (`--ipvs-sync-period`).
    pub sync_period: Duration,
    /// Interval of the cheap check that all virtual servers exist, or `None` for no check.
    pub glance_period: Option<Duration>,
    /// Longest time that a removed endpoint keeps its connections (`--ipvs-drain-timeout`). With
    /// `None`, a drain lasts until they end.
    pub drain_timeout: Option<Duration>,
    /// Form of service addresses on the link (`--ipvs-vip-mode`).
    pub vip_mode: VipMode,
    /// Form of the shim (`--ipvs-shim`).
    pub shim: ShimStyle,
    /// Source port of masqueraded packets.
    pub source_port: SourcePort,
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
            scheduler: "rr".into(),
            foreseen_schedulers: Vec::new(),
            masquerade_all: false,
            masquerade_mark: 1 << 14,
            detector: LocalDetector::None,
            exclude_cidrs: Vec::new(),
            node_ip: None,
            sync_period: Duration::from_secs(30),
            glance_period: None,
            drain_timeout: None,
            vip_mode: VipMode::default(),
            shim: ShimStyle::default(),
            source_port: SourcePort::Random,
        }
    }
}
