//! iptables mode: iptables rules distribute the packets of Services to endpoints.

mod chains;
mod counters;
mod metrics;
mod nfacct;
mod opened;
pub mod settings;
mod sysctls;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use flags::Flags;
use iptables::Iptables;
use proxy::IpFamily;

use super::definition::{Definition, Facts, Module, ModuleNeed, Opened, Periods, modules};
use super::families::Access;
use super::programs::Programs;
use super::settings::Settings;
use crate::metrics::ModeLabels;
use crate::sysctl::row::{SysctlRow, WantedSetting, wanted};
use metrics::RuleMetrics;
use opened::Rules;

/// Two texts in the output of `iptables-save`: the chain of NodePorts, and the comment of the rule
/// that drops other hosts' packets to 127.0.0.0/8. If both exist, iptables mode has served
/// NodePorts on 127.0.0.1.
const OF_LOCALHOST: [&str; 2] = [
    ":KUBE-NODEPORTS ",
    "--comment \"block incoming localnet connections\"",
];

/// Kernel modules that the rules of iptables mode need.
const MODULES: &[&str] = &[
    "xt_addrtype",
    "xt_comment",
    "xt_conntrack",
    "xt_mark",
    "xt_nat",
    "xt_MASQUERADE",
    "xt_statistic",
    "xt_tcpudp",
];

/// Zero-sized type that implements [`Definition`] for iptables mode.
pub(super) struct IptablesMode;

impl Definition for IptablesMode {
    fn name(&self) -> &'static str {
        "iptables"
    }

    fn fields(&self) -> &'static [&'static str] {
        &[
            "iptables.localhostNodePorts",
            "iptables.masqueradeAll",
            "iptables.masqueradeBit",
            "iptables.minSyncPeriod",
            "iptables.syncPeriod",
        ]
    }

    fn periods(&self, flags: &Flags) -> Periods {
        Periods {
            sync: ("iptables-sync-period", flags.iptables_sync_period),
            min_sync: ("iptables-min-sync-period", flags.iptables_min_sync_period),
        }
    }

    fn open(&self, _: &Settings, programs: &Programs, access: Access) -> Result<Box<dyn Opened>> {
        Ok(Box::new(Rules::open(choose(programs)?, access)?))
    }

    fn prepare(&self, _: &Settings, programs: &Programs) -> Result<()> {
        choose(programs).map(drop)
    }

    fn probe(&self, _: &Settings, programs: &Programs, family: IpFamily) -> Result<()> {
        let iptables = choose(programs)?;
        iptables.check(family)?;
        proxy_iptables::probe(&iptables, family).context("cannot write the rules of iptables mode")
    }

    fn modules(&self, _: &Settings) -> Vec<Module> {
        let some = modules(MODULES, ModuleNeed::Some);
        modules(&["nf_conntrack", "nf_nat"], ModuleNeed::All)
            .chain(some)
            .collect()
    }

    fn uses_iptables(&self, _: &Settings) -> bool {
        true
    }

    fn sysctls(&self, facts: Option<&Facts<'_>>) -> Vec<WantedSetting> {
        let context = facts.map(|facts| sysctls::Context {
            serves_localhost: facts
                .settings
                .iptables
                .serves_localhost(&facts.settings.shared),
        });
        wanted(sysctls::ROWS, context.as_ref())
    }

    fn go_without(&self, missing: &SysctlRow, settings: &mut Settings) {
        if sysctls::is_for_localhost(missing) {
            settings.iptables.localhost_node_ports = false;
        }
    }

    /// Returns advice to reset `route_localnet`, if it has this mode's value and rules for
    /// NodePorts on 127.0.0.1 exist. The advice names no program, because the kernel does not
    /// record which program wrote the setting. Starts `iptables-save` only if the value matches and
    /// the kernel has any rules.
    fn left_behind(&self, programs: &Programs) -> Option<String> {
        let (row, _) = sysctls::ROWS
            .iter()
            .find(|(row, _)| sysctls::is_for_localhost(row))?;
        let line = row.stays(Path::new("/"))?;
        let has_served = programs.installed().iter().any(|iptables| {
            !iptables.is_empty(IpFamily::V4)
                && iptables
                    .save(IpFamily::V4)
                    .is_ok_and(|saved| OF_LOCALHOST.iter().all(|part| saved.contains(part)))
        });
        has_served.then_some(line)
    }

    fn metrics(&self) -> Option<Arc<dyn ModeLabels>> {
        Some(Arc::new(RuleMetrics::default()))
    }
}

fn choose(programs: &Programs) -> Result<Iptables> {
    let chosen = programs.choose(&proxy_iptables::MODULES);
    chosen.context("cannot use iptables")
}
