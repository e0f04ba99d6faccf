//! Settings of this mode, from flags, for one IP family.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use iptables::SourcePort;
use proxy::{LocalDetector, Scheduler};

/// `--ipvs-shim`: the rules that masquerade and filter by the sets. All forms give the same
/// verdicts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ShimStyle {
    /// Upstream's rules, in iptables, with ipsets.
    #[default]
    Upstream,
    /// Fewer rules, with fewer look-ups per packet.
    Lean,
    /// One table of nftables with its own sets; the fewest look-ups.
    Nftables,
}

impl ShimStyle {
    /// Reports whether sets and rules are in one table of nf_tables.
    pub fn is_native(self) -> bool {
        self == Self::Nftables
    }
}

/// `--ipvs-vip-mode`: the form in which `kube-ipvs0` holds service addresses. Either makes them
/// local.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VipMode {
    /// Addresses, as upstream. Each one costs the kernel more, the more there are.
    #[default]
    Address,
    /// Local routes. The cost of one does not depend on their number.
    Route,
}

/// Settings of the IPVS mode for one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `--ipvs-scheduler`; any scheduler that the kernel has.
    pub scheduler: Arc<str>,
    /// Schedulers that the kernel is known to have or lack, so that it is not asked.
    pub foreseen_schedulers: Vec<(Scheduler, Result<(), String>)>,
    /// `--masquerade-all`.
    pub masquerade_all: bool,
    /// `1 << --iptables-masquerade-bit`.
    pub masquerade_mark: u32,
    /// Detector of traffic from this node's pods.
    pub detector: LocalDetector,
    /// `--ipvs-exclude-cidrs`: virtual servers in these networks are never removed, unless this
    /// proxy wants them.
    pub exclude_cidrs: Vec<IpNet>,
    /// `--bind-address`, if it names this node's address; it precedes those of the Node object.
    pub node_ip: Option<IpAddr>,
    /// `--ipvs-sync-period`: the shim is read back at most once in a period.
    pub sync_period: Duration,
    /// Interval of a cheap check whether all virtual servers exist; `None`: never.
    pub glance_period: Option<Duration>,
    /// `--ipvs-drain-timeout`: longest time that a removed endpoint keeps its connections; `None`
    /// if it lasts until they end.
    pub drain_timeout: Option<Duration>,
    /// `--ipvs-vip-mode`.
    pub vip_mode: VipMode,
    /// `--ipvs-shim`.
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
