//! Settings of IPVS mode for one IP family, from command-line flags.

use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use iptables::SourcePort;
use proxy::{LocalDetector, Scheduler};

use crate::mark_addresses::MarkAddresses;

/// Implementation of the shim (`--ipvs-shim`). The shim is the set of rules beside IPVS, which
/// masquerade and filter packets. All implementations give packets the same verdicts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ShimStyle {
    /// Upstream's rules, in iptables with ipsets.
    #[default]
    Upstream,
    /// Fewer rules in iptables than upstream's, with fewer look-ups in ipsets per packet.
    Lean,
    /// One nftables table with its own sets and the fewest look-ups per packet.
    Nftables,
}

impl ShimStyle {
    /// Returns true if sets and rules are in one nftables table.
    pub fn is_native(self) -> bool {
        self == Self::Nftables
    }
}

/// Method that makes service addresses local on `kube-ipvs0` (`--ipvs-vip-mode`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VipMode {
    /// Each service address is an address on the link, as in upstream. The more addresses the link
    /// has, the longer the kernel needs to add one.
    #[default]
    Address,
    /// Each service address has a local route of its own. The cost of adding a route does not
    /// depend on the number of routes.
    Route,
    /// Local routes make whole ServiceCIDRs local. Each service address outside the ServiceCIDRs
    /// has a local route of its own.
    Range,
}

impl VipMode {
    /// Returns true if local routes make service addresses local, and false if addresses on the
    /// link do.
    pub fn uses_routes(self) -> bool {
        self != Self::Address
    }
}

/// Semantics of Services: which endpoints a client gets, and which source address the endpoint sees
/// (`--ipvs-semantics`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Semantics {
    /// Upstream's IPVS mode: all clients of a service address get the same endpoints.
    #[default]
    Upstream,
    /// Semantics of iptables mode. If a Service has `externalTrafficPolicy: Local`, clients outside
    /// the cluster get only local endpoints. For these clients, packets get a firewall mark in
    /// these bits, and fwmark virtual servers handle the marked packets.
    Exact(MarkBits),
}

impl Semantics {
    /// Returns the bits for packet marks, or `None` for upstream's semantics, which use no marks.
    pub(crate) fn mark_bits(self) -> Option<MarkBits> {
        match self {
            Self::Upstream => None,
            Self::Exact(bits) => Some(bits),
        }
    }

    /// Returns true for the semantics of iptables mode.
    pub fn is_exact(self) -> bool {
        self != Self::Upstream
    }
}

/// Bits of the packet mark that hold the number of a virtual server (`--ipvs-mark-bits`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkBits(pub u32);

impl MarkBits {
    /// Default bits. Kubernetes (0xc000) does not use these bits, and network plug-ins do not use
    /// them by default: Calico (0xffff0000), Cilium (0xffff0f00), the AWS VPC CNI (0x80).
    pub const DEFAULT: Self = Self(0x307f);

    /// Returns the mark that encodes a number of 1 or higher. Returns `None` if these bits cannot
    /// hold the number.
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

    /// Returns true if a mark uses only these bits.
    pub(crate) fn can_hold(self, mark: u32) -> bool {
        mark != 0 && mark & !self.0 == 0
    }
}

/// Settings of IPVS mode for one IP family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Default scheduler of virtual servers (`--ipvs-scheduler`), any scheduler that the kernel
    /// has.
    pub scheduler: Arc<str>,
    /// Schedulers that a preview has already queried, each with the kernel's response. The proxy
    /// does not query these schedulers again.
    pub foreseen_schedulers: Vec<(Scheduler, Result<(), String>)>,
    /// True if all traffic to Services is masqueraded (`--masquerade-all`).
    pub masquerade_all: bool,
    /// Packet mark that requests masquerading (`1 << --iptables-masquerade-bit`).
    pub masquerade_mark: u32,
    /// Method that detects packets from this node's pods.
    pub detector: LocalDetector,
    /// Networks in which the proxy keeps virtual servers even if no Service wants them
    /// (`--ipvs-exclude-cidrs`).
    pub exclude_cidrs: Vec<IpNet>,
    /// Interval between two checks for drift (`--ipvs-sync-period`). Each check also reads the
    /// shim's rules, unless the proxy has just read them.
    pub sync_period: Duration,
    /// Interval of the cheap check whether another program has removed the virtual servers. `None`
    /// disables this check.
    pub glance_period: Option<Duration>,
    /// Maximum duration of an endpoint's drain (`--ipvs-drain-timeout`). `None` means no limit: a
    /// drain then ends with the endpoint's last connection.
    pub drain_timeout: Option<Duration>,
    /// Method that makes service addresses local (`--ipvs-vip-mode`).
    pub vip_mode: VipMode,
    /// Networks of service addresses (`--ipvs-service-cidrs`). Used while no ServiceCIDR objects of
    /// the API server are known.
    pub service_cidrs: Vec<IpNet>,
    /// Implementation of the shim (`--ipvs-shim`).
    pub shim: ShimStyle,
    /// Semantics of Services: endpoints and source addresses (`--ipvs-semantics`).
    pub semantics: Semantics,
    /// True if service addresses reply to `ping` (`--ipvs-answer-ping`).
    pub answers_ping: bool,
    /// Service address of each packet mark in use. The code that reads counters needs these
    /// addresses. Only IPVS mode writes this table.
    pub mark_addresses: MarkAddresses,
    /// Choice of the source port when a packet is masqueraded.
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
