//! nftables mode: one nftables table for each IP family distributes the packets of Services to
//! endpoints.

mod counters;
mod metrics;
mod opened;
mod rejected;
pub mod settings;

use std::sync::Arc;

use anyhow::Result;
use flags::Flags;
use proxy::{IpFamily, NodePortAddresses};
use source::ServiceCidrWatch;

use super::definition::{
    Definition, Facts, Module, ModuleNeed, Opened, OwnFlag, Periods, modules, own_flags,
};
use super::families::Access;
use super::programs::Programs;
use super::settings::Settings;
use crate::metrics::ModeLabels;
use crate::sysctl::row::WantedSetting;
use metrics::TableMetrics;
use opened::OpenedNftables;

/// Kernel modules that the rules of nftables mode need.
const MODULES: &[&str] = &[
    "nft_ct",
    "nft_masq",
    "nft_nat",
    "nft_fib",
    "nft_reject",
    "nft_numgen",
];

/// Zero-sized type that implements [`Definition`] for nftables mode.
pub(super) struct NftablesMode;

impl Definition for NftablesMode {
    fn name(&self) -> &'static str {
        "nftables"
    }

    fn fields(&self) -> &'static [&'static str] {
        &[
            "nftables.masqueradeAll",
            "nftables.masqueradeBit",
            "nftables.minSyncPeriod",
            "nftables.syncPeriod",
        ]
    }

    fn flags_without_file(&self) -> &'static [&'static str] {
        &[
            "iptables-min-sync-period",
            "iptables-sync-period",
            "masquerade-all",
        ]
    }

    fn flags(&self) -> &'static [OwnFlag] {
        own_flags! { "nftables-layout" nftables_layout }
    }

    fn take_flags(&self, flags: &mut Flags) {
        settings::take_flags(flags);
    }

    /// Returns the node's primary addresses as the default, as in upstream.
    fn node_port_addresses(&self) -> NodePortAddresses {
        NodePortAddresses::Primary
    }

    fn service_cidrs(&self, _: &Flags) -> ServiceCidrWatch {
        ServiceCidrWatch::On
    }

    fn periods(&self, flags: &Flags) -> Periods {
        let [sync, min_sync] = settings::periods(flags);
        Periods { sync, min_sync }
    }

    fn open(&self, settings: &Settings, _: &Programs, access: Access) -> Result<Box<dyn Opened>> {
        Ok(Box::new(OpenedNftables::open(settings, access)?))
    }

    fn probe(&self, settings: &Settings, _: &Programs, family: IpFamily) -> Result<()> {
        opened::probe(family, settings)
    }

    fn modules(&self, _: &Settings) -> Vec<Module> {
        let some = modules(MODULES, ModuleNeed::Some);
        modules(&["nf_tables", "nf_conntrack", "nf_nat"], ModuleNeed::All)
            .chain(some)
            .collect()
    }

    /// Returns no settings, as in upstream. The CNI plugin enables forwarding, which NodePort
    /// traffic to pods needs. A relay serves NodePorts on 127.0.0.1, so they need no setting.
    fn sysctls(&self, _: Option<&Facts<'_>>) -> Vec<WantedSetting> {
        Vec::new()
    }

    fn metrics(&self) -> Option<Arc<dyn ModeLabels>> {
        Some(Arc::new(TableMetrics::default()))
    }
}
