//! Settings of IPVS mode for one IP family, as command-line flags determine them.

use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use iptables::SourcePort;
use proxy::{LocalDetector, Scheduler};

use crate::mark_addresses::MarkAddresses;

/// Variant of the shim (`--ipvs-shim`): the rules beside IPVS, which masquerade and filter packets.
/// All variants treat a packet alike.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ShimStyle {
    /// Upstream's rules, in iptables with ipsets.
    #[default]
    Upstream,
    /// iptables rules with ipsets, but fewer rules and fewer set look-ups per packet than
    /// upstream's.
    Lean,
    /// One nftables table with sets of its own, and the fewest look-ups per packet.
    Nftables,
}

impl ShimStyle {
    /// Returns true if the shim is an nftables table, with sets and rules.
    pub fn is_native(self) -> bool {
        self == Self::Nftables
    }
}

/// Way in which service addresses become local on `kube-ipvs0` (`--ipvs-vip-mode`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VipMode {
    /// Each service address is an address of the link, as in upstream. The kernel needs longer to
    /// add an address the more addresses the link has.
    #[default]
    Address,
    /// Each service address has a local route. Adding a route takes the same time, however many
    /// routes there are.
    Route,
    /// One local route covers a whole ServiceCIDR. Each service address outside the ServiceCIDRs
    /// has its own route.
    Range,
}

impl VipMode {
    /// Returns true if service addresses are local by routes, and false if they are addresses on
    /// the link.
    pub fn uses_routes(self) -> bool {
        self != Self::Address
    }
}

/// The endpoints that a client may get, and the source address that an endpoint sees
/// (`--ipvs-semantics`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Semantics {
    /// Upstream's IPVS mode: all clients of a service address get the same endpoints.
    #[default]
    Upstream,
    /// iptables mode's semantics: under `externalTrafficPolicy: Local`, clients outside the cluster
    /// get only local endpoints. Their packets get a firewall mark in these bits, for which IPVS
    /// has a separate virtual server.
    Exact(MarkBits),
}

impl Semantics {
    /// Returns the bits for firewall marks, or `None` for upstream's semantics, which need no
    /// marks.
    pub(crate) fn mark_bits(self) -> Option<MarkBits> {
        match self {
            Self::Upstream => None,
            Self::Exact(bits) => Some(bits),
        }
    }

    /// Returns true for iptables mode's semantics (`--ipvs-semantics=exact`).
    pub fn is_exact(self) -> bool {
        self != Self::Upstream
    }
}

/// Bits of the packet mark that hold the number of an fwmark virtual server (`--ipvs-mark-bits`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkBits(pub u32);

impl MarkBits {
    /// Default bits. They avoid the bits of Kubernetes (0xc000) and the default bits of network
    /// plug-ins: Calico (0xffff0000), Cilium (0xffff0f00), the AWS VPC CNI (0x80).
    pub const DEFAULT: Self = Self(0x307f);

    /// Returns the mark that encodes `number`, which is 1 or higher. Returns `None` if the number
    /// needs more bits.
    pub(crate) fn mark(self, number: u32) -> Option<u32> {
        let (mut left, mut mark) = (number, 0);
        for bit in (0..u32::BITS).filter(|bit| self.0 >> bit & 1 == 1) {
            mark |= (left & 1) << bit;
            left >>= 1;
        }
        (left == 0 && mark != 0).then_some(mark)
    }

    /// Returns the number that a mark encodes.
    pub(crate) fn number(self, mark: u32) -> u32 {
        let bits = (0..u32::BITS).filter(|bit| self.0 >> bit & 1 == 1);
        let digits = bits.enumerate().map(|(at, bit)| (mark >> bit & 1) << at);
        digits.sum()
    }

    /// Returns true if `mark` is not 0 and has no bits outside these bits.
    pub(crate) fn can_hold(self, mark: u32) -> bool {
        mark != 0 && mark & !self.0 == 0
    }
}

/// Settings of IPVS mode for one IP family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Default IPVS scheduler (`--ipvs-scheduler`): any scheduler that the kernel has.
    pub scheduler: Arc<str>,
    /// Schedulers that the start's preview has already tested, each with the kernel's response. The
    /// proxy does not test them again.
    pub foreseen_schedulers: Vec<(Scheduler, Result<(), String>)>,
    /// True if the node masquerades all traffic to service addresses (`--masquerade-all`).
    pub masquerade_all: bool,
    /// Packet mark that requests masquerading (`1 << --iptables-masquerade-bit`).
    pub masquerade_mark: u32,
    /// Method to recognize packets from pods of this node (`--detect-local-mode`).
    pub detector: LocalDetector,
    /// Networks in which the proxy keeps virtual servers that no Service wants
    /// (`--ipvs-exclude-cidrs`).
    pub exclude_cidrs: Vec<IpNet>,
    /// Interval between two drift checks (`--ipvs-sync-period`). Each check also reads the shim's
    /// rules, unless the proxy has just read them.
    pub sync_period: Duration,
    /// Interval between two glances, the cheap checks that the virtual servers still exist. `None`
    /// disables glances.
    pub glance_period: Option<Duration>,
    /// Longest drain of an endpoint (`--ipvs-drain-timeout`). `None` means no limit: a drain then
    /// ends with the endpoint's last connection.
    pub drain_timeout: Option<Duration>,
    /// Way in which service addresses become local (`--ipvs-vip-mode`).
    pub vip_mode: VipMode,
    /// Networks of service addresses (`--ipvs-service-cidrs`), for use while the proxy knows no
    /// ServiceCIDR objects.
    pub service_cidrs: Vec<IpNet>,
    /// Variant of the shim (`--ipvs-shim`).
    pub shim: ShimStyle,
    /// The endpoints that a client may get, and the source address that an endpoint sees
    /// (`--ipvs-semantics`).
    pub semantics: Semantics,
    /// True if service addresses answer `ping` (`--ipvs-answer-ping`).
    pub answers_ping: bool,
    /// Service address of each firewall mark in use. IPVS mode writes this table for the code that
    /// reads counters.
    pub mark_addresses: MarkAddresses,
    /// Way in which the kernel chooses the source port of a masqueraded packet.
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
