//! Settings of IPVS mode for one IP family, from command-line flags.

use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use iptables::SourcePort;
use proxy::{LocalDetector, Scheduler};

use crate::mark_addresses::MarkAddresses;

/// Implementation of the shim, the rules that masquerade and filter packets (`--ipvs-shim`). All
/// implementations give the same verdicts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ShimStyle {
    /// Upstream's rules, in iptables with ipsets.
    #[default]
    Upstream,
    /// Fewer rules than upstream's, with fewer look-ups per packet.
    Lean,
    /// One nftables table with its own sets and the fewest look-ups per packet.
    Nftables,
}

impl ShimStyle {
    /// Reports whether sets and rules are in one table of nf_tables.
    pub fn is_native(self) -> bool {
        self == Self::Nftables
    }
}

/// Method that makes service addresses local on `kube-ipvs0` (`--ipvs-vip-mode`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VipMode {
    /// An address on the link for each service address, as in upstream. The more addresses exist,
    /// the more time the kernel needs for each.
    #[default]
    Address,
    /// A local route for each service address. The cost of a route does not depend on the number of
    /// routes.
    Route,
    /// One local route for each ServiceCIDR, and local routes for all other service addresses.
    Range,
}

impl VipMode {
    /// Reports whether a single service address is a local route.
    pub fn uses_routes(self) -> bool {
        self != Self::Address
    }
}

/// Semantics of Services: how a packet gets its endpoint and its source address
/// (`--ipvs-semantics`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Semantics {
    /// Upstream's IPVS mode: at one service address, all clients get the same endpoints.
    #[default]
    Upstream,
    /// Semantics of iptables mode. If a Service has `externalTrafficPolicy: Local`, clients outside
    /// the cluster get only local endpoints. These clients use virtual servers with marks in these
    /// bits.
    Exact(MarkBits),
}

impl Semantics {
    /// Returns the bits of marks, or `None` for semantics without marks.
    pub(crate) fn mark_bits(self) -> Option<MarkBits> {
        match self {
            Self::Upstream => None,
            Self::Exact(bits) => Some(bits),
        }
    }

    /// True for the semantics of iptables mode.
    pub fn is_exact(self) -> bool {
        self != Self::Upstream
    }
}

/// Bits of the packet mark that hold the number of a virtual server (`--ipvs-mark-bits`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkBits(pub u32);

impl MarkBits {
    /// Bits that Kubernetes (0xc000) does not use, and that network plug-ins do not use by default:
    /// Calico (0xffff0000), Cilium (0xffff0f00), the AWS VPC CNI (0x80).
    pub const DEFAULT: Self = Self(0x307f);

    /// Returns the mark for a number, which is 1 or higher. Returns `None` if these bits cannot
    /// hold the number.
    pub(crate) fn mark(self, number: u32) -> Option<u32> {
        let (mut left, mut mark) = (number, 0);
        for bit in (0..u32::BITS).filter(|bit| self.0 >> bit & 1 == 1) {
            mark |= (left & 1) << bit;
            left >>= 1;
        }
        (left == 0 && mark != 0).then_some(mark)
    }

    /// Returns the number of a mark.
    pub(crate) fn number(self, mark: u32) -> u32 {
        let bits = (0..u32::BITS).filter(|bit| self.0 >> bit & 1 == 1);
        let digits = bits.enumerate().map(|(at, bit)| (mark >> bit & 1) << at);
        digits.sum()
    }

    /// Returns true if a mark uses only these bits.
    pub(crate) fn can_hold(self, mark: u32) -> bool {
        mark != 0 && mark & !self.0 == 0
    }
}

/// Settings of the IPVS mode for one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Default scheduler of virtual servers (`--ipvs-scheduler`), any scheduler that the kernel
    /// has.
    pub scheduler: Arc<str>,
    /// Schedulers that a preview has already looked for in the kernel, each with the result. The
    /// proxy does not query the kernel for them again.
    pub foreseen_schedulers: Vec<(Scheduler, Result<(), String>)>,
    /// True if all traffic to Services is masqueraded (`--masquerade-all`).
    pub masquerade_all: bool,
    /// Mark of packets to masquerade (`1 << --iptables-masquerade-bit`).
    pub masquerade_mark: u32,
    /// Method that detects packets of this node's pods.
    pub detector: LocalDetector,
    /// Networks in which the proxy keeps virtual servers even if no Service wants them
    /// (`--ipvs-exclude-cidrs`).
    pub exclude_cidrs: Vec<IpNet>,
    /// Interval between two checks for drift (`--ipvs-sync-period`). Each check reads the shim's
    /// rules, unless the proxy has read them shortly before.
    pub sync_period: Duration,
    /// Interval of the cheap check that virtual servers still exist, or `None` for no such check.
    pub glance_period: Option<Duration>,
    /// Longest drain of a removed endpoint (`--ipvs-drain-timeout`), or `None` for no limit: a
    /// drain then ends with the endpoint's last connection.
    pub drain_timeout: Option<Duration>,
    /// Method that makes service addresses local (`--ipvs-vip-mode`).
    pub vip_mode: VipMode,
    /// Networks of service addresses (`--ipvs-service-cidrs`). Used only if the API server has no
    /// ServiceCIDRs.
    pub service_cidrs: Vec<IpNet>,
    /// Implementation of the shim (`--ipvs-shim`).
    pub shim: ShimStyle,
    /// Semantics for the choice of endpoints and source addresses (`--ipvs-semantics`).
    pub semantics: Semantics,
    /// True if service addresses reply to `ping` (`--ipvs-answer-ping`).
    pub answers_ping: bool,
    /// Service address of each packet mark in use, for the code that reads counters. Only IPVS mode
    /// writes this table.
    pub mark_addresses: MarkAddresses,
    /// Source port of masqueraded packets.
    pub source_port: SourcePort,
}

impl engine::Config for Config {
    fn longest_pause(&self) -> Duration {
        self.sync_period
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
            sync_period: Duration::from_secs(30),
            glance_period: None,
            drain_timeout: None,
            vip_mode: VipMode::default(),
            service_cidrs: Vec::new(),
            shim: ShimStyle::default(),
            semantics: Semantics::default(),
            answers_ping: false,
            mark_addresses: MarkAddresses::default(),
            source_port: SourcePort::Random,
        }
    }
}
