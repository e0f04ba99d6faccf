//! Settings that only IPVS mode has, read from flags.

use std::time::Duration;

use flags::Flags;
use flags::nets::nets;
use flags::unusable_flag::UnusableFlag;
use flags::words::word;
use ipnet::IpNet;
use proxy::IpFamily;
use proxy_ipvs::{MarkBits, Semantics, ShimStyle, VipMode};

use super::shim::ShimChoice;

/// Allowed values of `--ipvs-shim`.
const SHIMS: [(&str, ShimChoice); 4] = [
    ("auto", ShimChoice::Auto),
    ("upstream", ShimChoice::Fixed(ShimStyle::Upstream)),
    ("lean", ShimChoice::Fixed(ShimStyle::Lean)),
    ("nftables", ShimChoice::Fixed(ShimStyle::Nftables)),
];

/// Allowed values of `--ipvs-vip-mode`.
const VIP_MODES: [(&str, VipMode); 3] = [
    ("address", VipMode::Address),
    ("route", VipMode::Route),
    (RANGE, VipMode::Range),
];

/// Value of `--ipvs-vip-mode` with which the daemon watches ServiceCIDRs.
pub(super) const RANGE: &str = "range";

/// Allowed values of `--ipvs-semantics`, each with a flag that is true for exact semantics.
const SEMANTICS: [(&str, bool); 2] = [("upstream", false), ("exact", true)];

/// Settings that only IPVS mode has.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// IPVS scheduler of virtual servers whose Service names no scheduler.
    pub scheduler: String,
    /// Timeouts of IPVS connections (`--ipvs-tcp-timeout` and similar flags).
    pub timeouts: Timeouts,
    /// Choice of the shim: the rules that IPVS mode needs besides virtual servers.
    pub shim: ShimChoice,
    /// Longest time for which TCP connections to a removed endpoint may continue, or `None` for no
    /// limit.
    pub drain_timeout: Option<Duration>,
    /// Way in which IPVS mode makes service addresses local to the node, such as addresses or
    /// routes of `kube-ipvs0`.
    pub vip_mode: VipMode,
    /// Networks of service addresses (`--ipvs-service-cidrs`), in case the API server has no
    /// ServiceCIDRs.
    pub service_cidrs: Vec<IpNet>,
    /// Rules by which IPVS mode chooses endpoints and source addresses: upstream's, or exact ones.
    pub semantics: Semantics,
    /// True if the node replies to `ping` at service addresses.
    pub answers_ping: bool,
}

/// Timeouts of IPVS connections. Zero leaves the kernel's value unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timeouts {
    /// Time after which IPVS expires an idle TCP connection.
    pub tcp: Duration,
    /// Time after which IPVS expires a TCP connection that has received a FIN.
    pub tcp_fin: Duration,
    /// Time after which IPVS expires an idle UDP flow.
    pub udp: Duration,
}

impl Settings {
    pub(crate) fn read(flags: &Flags) -> Result<Self, UnusableFlag> {
        let is_exact = word("ipvs-semantics", &flags.ipvs_semantics, &SEMANTICS)?;
        Ok(Self {
            scheduler: match &*flags.ipvs_scheduler {
                "" => "rr".to_owned(),
                name => name.to_owned(),
            },
            timeouts: Timeouts {
                tcp: timeout("ipvs-tcp-timeout", flags.ipvs_tcp_timeout)?,
                tcp_fin: timeout("ipvs-tcpfin-timeout", flags.ipvs_tcpfin_timeout)?,
                udp: timeout("ipvs-udp-timeout", flags.ipvs_udp_timeout)?,
            },
            shim: word("ipvs-shim", &flags.ipvs_shim, &SHIMS)?,
            drain_timeout: (!flags.ipvs_drain_timeout.is_zero())
                .then_some(flags.ipvs_drain_timeout),
            service_cidrs: nets("ipvs-service-cidrs", &flags.ipvs_service_cidrs)?,
            vip_mode: match word("ipvs-vip-mode", &flags.ipvs_vip_mode, &VIP_MODES)? {
                // Exact semantics need routes. If the node had the service address itself, the
                // kernel would use it as the source of the node's own packets to this address.
                VipMode::Address if is_exact => VipMode::Route,
                vip_mode => vip_mode,
            },
            semantics: match mark_bits(flags, is_exact)? {
                bits if is_exact => Semantics::Exact(bits),
                _ => Semantics::Upstream,
            },
            answers_ping: flags.ipvs_answer_ping,
        })
    }

    /// Returns the networks of `--ipvs-service-cidrs` that belong to `family`.
    pub(super) fn service_cidrs(&self, family: IpFamily) -> Vec<IpNet> {
        let nets = self.service_cidrs.iter().copied();
        nets.filter(|net| IpFamily::of(net.addr()) == family)
            .collect()
    }
}

/// Parses `--ipvs-mark-bits`. With exact semantics, the bits must not include the masquerade bit.
fn mark_bits(flags: &Flags, is_exact: bool) -> Result<MarkBits, UnusableFlag> {
    let unusable = |reason: String| {
        Err(UnusableFlag::new(
            "ipvs-mark-bits",
            &flags.ipvs_mark_bits,
            reason,
        ))
    };
    let text = &*flags.ipvs_mark_bits;
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let masquerade = u32::try_from(flags.iptables_masquerade_bit).ok();
    let masquerade = masquerade
        .and_then(|bit| 1_u32.checked_shl(bit))
        .unwrap_or(0);
    match number {
        Ok(0) => unusable("at least one bit is needed".to_owned()),
        Ok(bits) if is_exact && bits & masquerade != 0 => unusable(format!(
            "{masquerade:#x} is the mark for masquerading (--iptables-masquerade-bit): leave its bit out"
        )),
        Ok(bits) => Ok(MarkBits(bits)),
        Err(_) => unusable("must be a number of 32 bits, like 0x307f".to_owned()),
    }
}

fn timeout(flag: &'static str, timeout: Duration) -> Result<Duration, UnusableFlag> {
    // The kernel multiplies the seconds by HZ (at most 1000) in a signed 32-bit integer.
    const MAX: Duration = Duration::from_secs(i32::MAX as u64 / 1000);
    if timeout > MAX {
        return Err(UnusableFlag::new(
            flag,
            &format!("{timeout:?}"),
            format!("the kernel takes at most {}s", MAX.as_secs()),
        ));
    }
    Ok(timeout)
}
