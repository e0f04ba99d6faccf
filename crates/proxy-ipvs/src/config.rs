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

/// Endpoints and sources that packets get (`--ipvs-semantics`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Semantics {
    /// Semantics of upstream's IPVS mode: a service address has one list of endpoints for all
    /// clients.
    #[default]
    Upstream,
    /// Semantics of iptables mode. Clients from outside get the local endpoints of a Service with
    /// `externalTrafficPolicy: Local` by virtual servers with marks of these bits.
    Exact(MarkBits),
}

impl Semantics {
    /// True for the semantics of iptables mode.
    pub fn is_exact(self) -> bool {
        self != Self::Upstream
    }
}

/// Bits of the packet mark that number virtual servers (`--ipvs-mark-bits`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkBits(pub u32);

impl MarkBits {
    /// Bits that neither Kubernetes (0xc000) nor network plug-ins use by default: Calico
    /// (0xffff0000), Cilium (0xffff0f00), the AWS VPC CNI (0x80).
    pub const DEFAULT: Self = Self(0x307f);

    /// Returns the mark with this number, from 1 on, or `None` if the bits hold no such number.
    pub(crate) fn mark(self, number: u32) -> Option<u32> {
        let (mut left, mut mark) = (number, 0);
        for bit in (0..u32::BITS).filter(|bit| self.0 >> bit & 1 == 1) {
            mark |= (left & 1) << bit;
            left >>= 1;
        }
        (left == 0 && mark != 0).then_some(mark)
    }

    /// True if these bits can hold a mark.
    pub(crate) fn can_hold(self, mark: u32) -> bool {
        mark != 0 && mark & !self.0 == 0
    }
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
    /// Endpoints and sources that packets get (`--ipvs-semantics`). Exact semantics need the shim
    /// in nftables.
    pub semantics: Semantics,
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
            semantics: Semantics::default(),
            source_port: SourcePort::Random,
        }
    }
}
