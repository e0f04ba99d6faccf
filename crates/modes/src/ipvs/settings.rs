//! Settings that only IPVS mode has.

use std::time::Duration;

use flags::Flags;
use flags::unusable_flag::UnusableFlag;
use flags::words::word;
use proxy_ipvs::{ShimStyle, VipMode};

use super::shim::ShimChoice;

/// Values of `--ipvs-shim`.
const SHIMS: [(&str, ShimChoice); 4] = [
    ("auto", ShimChoice::Auto),
    ("upstream", ShimChoice::Fixed(ShimStyle::Upstream)),
    ("lean", ShimChoice::Fixed(ShimStyle::Lean)),
    ("nftables", ShimChoice::Fixed(ShimStyle::Nftables)),
];

/// Values of `--ipvs-vip-mode`.
const VIP_MODES: [(&str, VipMode); 2] = [("address", VipMode::Address), ("route", VipMode::Route)];

/// Settings that only IPVS mode has.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// IPVS scheduler of virtual servers whose Service does not choose one.
    pub scheduler: String,
    /// Timeouts of IPVS connections.
    pub timeouts: Timeouts,
    /// Shim: the rules that IPVS mode needs in addition to IPVS.
    pub shim: ShimChoice,
    /// Time after which a removed endpoint loses its TCP connections, or `None` for no limit.
    pub drain_timeout: Option<Duration>,
    /// Form of the service addresses on `kube-ipvs0`.
    pub vip_mode: VipMode,
}

/// Timeouts of IPVS connections. Zero keeps the kernel's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timeouts {
    /// Timeout of idle TCP connections.
    pub tcp: Duration,
    /// Timeout of TCP connections after a FIN.
    pub tcp_fin: Duration,
    /// Timeout of idle UDP flows.
    pub udp: Duration,
}

impl Settings {
    pub(crate) fn read(flags: &Flags) -> Result<Self, UnusableFlag> {
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
            vip_mode: word("ipvs-vip-mode", &flags.ipvs_vip_mode, &VIP_MODES)?,
        })
    }
}

fn timeout(flag: &'static str, timeout: Duration) -> Result<Duration, UnusableFlag> {
    // The kernel multiplies seconds by HZ (at most 1000) in a signed 32-bit number.
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
