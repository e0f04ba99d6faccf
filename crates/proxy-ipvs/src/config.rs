//! What the flags say to this mode, for one IP family.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use iptables::SourcePort;
use proxy::{LocalDetector, Scheduler};

/// `--ipvs-shim`: which rules masquerade and filter by the sets. Each gives the same verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ShimStyle {
    /// Upstream's, in iptables, with ipsets.
    #[default]
    Upstream,
    /// Fewer, with fewer look-ups for a packet.
    Lean,
    /// In nftables, with its own sets; fewer still.
    Nftables,
}

impl ShimStyle {
    /// True if sets and rules are in one table of nf_tables.
    pub fn is_native(self) -> bool {
        self == Self::Nftables
    }
}

/// `--ipvs-vip-mode`: in which form `kube-ipvs0` holds the service addresses. Either makes them
/// local to the node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VipMode {
    /// As addresses, as upstream. Each costs the kernel more the more there are.
    #[default]
    Address,
    /// As routes of type local, which cost it the same however many there are.
    Route,
}

/// Settings of the IPVS mode for one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `--ipvs-scheduler`; any scheduler that the kernel has.
    pub scheduler: Arc<str>,
    /// Schedulers for which the kernel is not asked, as it is known whether it has them, or why not.
    pub foreseen_schedulers: Vec<(Scheduler, Result<(), String>)>,
    /// `--masquerade-all`.
    pub masquerade_all: bool,
    /// `1 << --iptables-masquerade-bit`.
    pub masquerade_mark: u32,
    /// How traffic of this node's pods is told apart.
    pub detector: LocalDetector,
    /// `--ipvs-exclude-cidrs`: virtual servers in these are never removed, unless this proxy wants
    /// them.
    pub exclude_cidrs: Vec<IpNet>,
    /// `--bind-address`, if it names this node's address; it counts before those of the Node
    /// object.
    pub node_ip: Option<IpAddr>,
    /// `--ipvs-sync-period`: the shim is read back at most once in it.
    pub sync_period: Duration,
    /// How often it is glanced at whether the virtual servers are all there, if it is.
    pub glance_period: Option<Duration>,
    /// `--ipvs-drain-timeout`: how long a removed endpoint may keep its connections; `None`: until
    /// they end.
    pub drain_timeout: Option<Duration>,
    /// `--ipvs-vip-mode`.
    pub vip_mode: VipMode,
    /// `--ipvs-shim`.
    pub shim: ShimStyle,
    /// The source port of what is masqueraded.
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
