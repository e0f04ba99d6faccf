//! IPVS mode: virtual servers in the kernel distribute the packets of Services to endpoints.

mod counters;
mod metrics;
mod opened;
pub mod settings;
pub mod shim;
mod sysctls;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use flags::Flags;
use flags::gates::IPVS_MODE;
use proxy::IpFamily;
use service_counters::ReadCounters;
use source::ServiceCidrWatch;
use tracing::warn;

use super::definition::{
    Definition, Facts, Module, ModuleNeed, Opened, OwnFlag, Periods, modules, own_flags,
};
use super::families::Access;
use super::programs::Programs;
use super::settings::Settings;
use crate::metrics::ModeLabels;
use crate::sysctl;
use crate::sysctl::row::{WantedSetting, wanted};
use counters::IpvsCounters;
use metrics::IpvsMetrics;
use opened::Ipvs;
pub use opened::foresee_scheduler;
use settings::Timeouts;
use shim::ChosenShim;

/// Prefix of the line in /proc/net/dev for `kube-ipvs0`, the link that has the service addresses.
const LINK: &str = "kube-ipvs0:";

/// Kernel modules for the ipsets that rules of the shims `upstream` and `lean` use.
const OF_SETS: &[&str] = &[
    "ip_set",
    "ip_set_hash_ip",
    "ip_set_hash_ipport",
    "ip_set_hash_ipportip",
    "ip_set_hash_ipportnet",
    "ip_set_bitmap_port",
    "xt_set",
];

/// Kernel modules for the iptables rules that `--ipvs-semantics=exact` adds to the shims `upstream`
/// and `lean`.
const OF_MARKS: &[&str] = &["iptable_mangle", "ip6table_mangle"];

/// Zero-sized type that implements [`Definition`] for IPVS mode.
pub(super) struct IpvsMode;

impl Definition for IpvsMode {
    fn name(&self) -> &'static str {
        "ipvs"
    }

    fn gate(&self) -> Option<&'static str> {
        Some(IPVS_MODE)
    }

    fn fields(&self) -> &'static [&'static str] {
        // Omits `ipvs.excludeCIDRs`: a mode that replaces IPVS mode reads this field during its
        // cleanup.
        &[
            "iptables.masqueradeAll",
            "iptables.masqueradeBit",
            "ipvs.minSyncPeriod",
            "ipvs.scheduler",
            "ipvs.strictARP",
            "ipvs.syncPeriod",
            "ipvs.tcpFinTimeout",
            "ipvs.tcpTimeout",
            "ipvs.udpTimeout",
        ]
    }

    fn flags(&self) -> &'static [OwnFlag] {
        // Omits `ipvs-drain-timeout`: a mode that replaces IPVS mode reads this flag during its
        // cleanup.
        own_flags! {
            "ipvs-shim" ipvs_shim,
            "ipvs-semantics" ipvs_semantics,
            "ipvs-mark-bits" ipvs_mark_bits,
            "ipvs-vip-mode" ipvs_vip_mode,
            "ipvs-service-cidrs" ipvs_service_cidrs,
            "ipvs-answer-ping" ipvs_answer_ping,
        }
    }

    fn periods(&self, flags: &Flags) -> Periods {
        Periods {
            sync: ("ipvs-sync-period", flags.ipvs_sync_period),
            min_sync: ("ipvs-min-sync-period", flags.ipvs_min_sync_period),
        }
    }

    fn open(
        &self,
        settings: &Settings,
        programs: &Programs,
        access: Access,
    ) -> Result<Box<dyn Opened>> {
        let shim = ChosenShim::choose(settings, programs, access)?;
        let opened = Ipvs::open(settings, shim, access)?;
        if access == Access::Write {
            proxy_ipvs::probe_scheduler(&settings.ipvs.scheduler)?;
            opened.set_timeouts(settings.ipvs.timeouts)?;
            if let Some(conflict) = shim::mark_conflict(settings) {
                warn!("{conflict}");
            }
        }
        Ok(Box::new(opened))
    }

    /// Makes the kernel load IPVS and the scheduler, and sets the IPVS timeouts.
    fn prepare(&self, settings: &Settings, programs: &Programs) -> Result<()> {
        ChosenShim::choose(settings, programs, Access::Write)?;
        let Timeouts { tcp, tcp_fin, udp } = settings.ipvs.timeouts;
        proxy_ipvs::prepare(tcp, tcp_fin, udp)?;
        proxy_ipvs::probe_scheduler(&settings.ipvs.scheduler)?;
        Ok(())
    }

    fn probe(&self, settings: &Settings, programs: &Programs, family: IpFamily) -> Result<()> {
        ChosenShim::choose(settings, programs, Access::Write)?.probe(family)
    }

    fn sysctls(&self, facts: Option<&Facts<'_>>) -> Vec<WantedSetting> {
        let context = facts.map(|facts| sysctls::Context {
            kernel: facts.machine.kernel,
            strict_arp: facts.asked.strict_arp,
        });
        wanted(sysctls::ROWS, context.as_ref())
    }

    /// Lists the ARP settings if all of them have the values of strictARP, although strictARP is
    /// off. An earlier kube-proxy or another program may have written them.
    fn unasked_sysctls(&self, asked: &sysctl::settings::Settings, root: &Path) -> Vec<String> {
        if asked.strict_arp {
            return Vec::new();
        }
        let rows = sysctls::ROWS.iter().map(|(row, _)| row);
        let lines: Option<Vec<String>> = rows
            .filter(|row| row.end != sysctl::row::End::Stays)
            .map(|row| row.stays(root))
            .collect();
        lines.unwrap_or_default()
    }

    fn service_cidrs(&self, flags: &Flags) -> ServiceCidrWatch {
        if flags.ipvs_vip_mode == settings::RANGE {
            ServiceCidrWatch::On
        } else {
            ServiceCidrWatch::Off
        }
    }

    fn modules(&self, settings: &Settings) -> Vec<Module> {
        let mut all: Vec<Module> = modules(&["ip_vs", "nf_conntrack"], ModuleNeed::All).collect();
        all.push(Module {
            name: format!("ip_vs_{}", settings.ipvs.scheduler).into(),
            need: ModuleNeed::All,
        });
        if shim::is_in_nftables(settings) {
            all.extend(modules(&["nf_tables"], ModuleNeed::All));
        } else {
            all.extend(modules(OF_SETS, ModuleNeed::Some));
            if settings.ipvs.semantics.is_exact() {
                all.extend(modules(OF_MARKS, ModuleNeed::Some));
            }
        }
        all
    }

    fn uses_iptables(&self, settings: &Settings) -> bool {
        !shim::is_in_nftables(settings)
    }

    fn metrics(&self) -> Option<Arc<dyn ModeLabels>> {
        Some(Arc::new(IpvsMetrics::new(Path::new("/"))))
    }

    fn has_served(&self, root: &Path) -> bool {
        let links = fs::read_to_string(root.join("proc/thread-self/net/dev"));
        links.is_ok_and(|links| {
            links
                .lines()
                .any(|line| line.trim_start().starts_with(LINK))
        })
    }
}

/// Returns a reader of all virtual servers, including those of other programs. Commands that run
/// without a daemon use it. It opens no socket before its first read.
pub fn virtual_servers() -> Box<dyn ReadCounters> {
    Box::new(IpvsCounters::default())
}
