//! Userspace mode: rules redirect packets to listening ports of this process, which relays them to
//! endpoints.

mod counters;
mod opened;
pub mod settings;

use std::sync::Arc;

use anyhow::Result;
use flags::Flags;
use proxy::IpFamily;

use super::definition::{
    Definition, Facts, Module, ModuleNeed, Opened, OwnFlag, Periods, modules, own_flags,
};
use super::families::Access;
use super::programs::Programs;
use super::settings::Settings;
use crate::metrics::ModeLabels;
use crate::metrics::relay::RelayMetrics;
use crate::sysctl::row::WantedSetting;
use opened::{Redirector, Userspace};

/// Kernel modules that only the variant with nf_tables needs.
const MODULES: &[&str] = &["nf_tables", "nft_redir"];

/// Zero-sized type that implements [`Definition`] for userspace mode.
pub(super) struct UserspaceMode;

impl Definition for UserspaceMode {
    fn name(&self) -> &'static str {
        "userspace"
    }

    fn fields(&self) -> &'static [&'static str] {
        // The configuration file has no section for userspace mode, so the mode reads the section
        // of iptables mode, as upstream did until Kubernetes 1.25.
        &[
            "iptables.localhostNodePorts",
            "iptables.minSyncPeriod",
            "iptables.syncPeriod",
        ]
    }

    fn flags(&self) -> &'static [OwnFlag] {
        own_flags! { "udp-timeout" udp_timeout }
    }

    fn periods(&self, flags: &Flags) -> Periods {
        Periods {
            sync: ("iptables-sync-period", flags.iptables_sync_period),
            min_sync: ("iptables-min-sync-period", flags.iptables_min_sync_period),
        }
    }

    fn metrics(&self) -> Option<Arc<dyn ModeLabels>> {
        Some(Arc::new(RelayMetrics))
    }

    fn open(
        &self,
        settings: &Settings,
        programs: &Programs,
        access: Access,
    ) -> Result<Box<dyn Opened>> {
        let redirector = Redirector::choose(settings, programs, access)?;
        Ok(Box::new(Userspace::open(redirector, settings, access)?))
    }

    fn prepare(&self, settings: &Settings, programs: &Programs) -> Result<()> {
        Redirector::choose(settings, programs, Access::Write).map(drop)
    }

    fn probe(&self, settings: &Settings, programs: &Programs, family: IpFamily) -> Result<()> {
        Redirector::choose(settings, programs, Access::Write)?.probe(family)
    }

    fn modules(&self, _: &Settings) -> Vec<Module> {
        let some = modules(MODULES, ModuleNeed::Some);
        modules(&["nf_conntrack", "nf_nat"], ModuleNeed::All)
            .chain(some)
            .collect()
    }

    fn uses_iptables(&self, settings: &Settings) -> bool {
        settings.shared.iptables_backend.forced().is_some()
    }

    /// Returns no settings. The kernel forwards no packets for this mode, because the relay itself
    /// sends them, from the node's address.
    fn sysctls(&self, _: Option<&Facts<'_>>) -> Vec<WantedSetting> {
        Vec::new()
    }
}
