//! Metrics of nftables mode, with upstream's names.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use proxy::{IpFamily, Report};

use super::rejected::RejectedCollector;
use super::settings::LAYOUTS;
use crate::metrics::relay::RelayEvictions;
use crate::metrics::rows::Rows;
use crate::metrics::set;
use crate::metrics::sync_durations::SyncDurations;
use crate::metrics::{FamilyLabels, ModeLabels, SyncExtent, of};

/// Labels of the metric that shows the layout of the mode's nftables table.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LayoutLabels {
    ip_family: &'static str,
    layout: &'static str,
}

/// Metrics of nftables mode.
#[derive(Debug, Default)]
pub(super) struct TableMetrics {
    failed_syncs: Family<FamilyLabels, Counter>,
    failed_cleanups: Family<FamilyLabels, Counter>,
    listeners: Family<FamilyLabels, Gauge>,
    failed_listeners: Family<FamilyLabels, Counter>,
    layouts: Family<LayoutLabels, Gauge>,
    sync_durations: SyncDurations,
}

impl ModeLabels for TableMetrics {
    fn register(&self, rows: &mut Rows) {
        self.sync_durations.register(rows);
        rows.add(
            "ALPHA",
            "kubeproxy_sync_proxy_rules_nftables_sync_failures",
            "Cumulative proxy nftables sync failures",
            self.failed_syncs.clone(),
        );
        rows.add(
            "ALPHA",
            "kubeproxy_sync_proxy_rules_nftables_cleanup_failures",
            "Cumulative proxy nftables cleanup failures",
            self.failed_cleanups.clone(),
        );
        rows.add(
            "ALPHA",
            "kubeproxy_nftables_localhost_nodeport_listeners",
            "Number of active localhost NodePort userspace proxy listeners.",
            self.listeners.clone(),
        );
        rows.add(
            "ALPHA",
            "kubeproxy_nftables_localhost_nodeport_listener_creation_failures",
            "Number of localhost NodePort userspace proxy listener creation failures.",
            self.failed_listeners.clone(),
        );
        rows.registry.register(
            "kubeproxy_nftables_layout",
            "1 for the layout that the table of nftables mode has or gets, 0 for the other layout",
            self.layouts.clone(),
        );
        rows.collect(RejectedCollector);
        rows.collect(RelayEvictions::of_process());
    }

    fn begins(&self, family: IpFamily) {
        for counter in [&self.failed_syncs, &self.failed_cleanups] {
            drop(counter.get_or_create(&of(family)));
        }
    }

    fn booked(&self, family: IpFamily, report: &Report) {
        let Some(counts) = report.nftables else {
            return;
        };
        let of = of(family);
        let failed_syncs = self.failed_syncs.get_or_create_owned(&of);
        failed_syncs.inc_by(counts.failed_syncs as u64);
        let failed_cleanups = self.failed_cleanups.get_or_create_owned(&of);
        failed_cleanups.inc_by(counts.failed_cleanups as u64);
        if let Some(listeners) = counts.listeners {
            set(&self.listeners.get_or_create(&of), listeners);
            let failed = self.failed_listeners.get_or_create_owned(&of);
            failed.inc_by(counts.failed_listeners as u64);
        }
    }

    fn form(&self, family: IpFamily, form: &'static str) {
        for (name, layout) in LAYOUTS {
            let of = LayoutLabels {
                ip_family: of(family).ip_family,
                layout: name,
            };
            let is_present = layout.form() == form;
            self.layouts.get_or_create(&of).set(is_present.into());
        }
    }

    fn extent(&self, report: &Report) -> Option<SyncExtent> {
        report.nftables.map(|counts| SyncExtent::of(counts.is_full))
    }

    fn synced(&self, family: IpFamily, took: Duration, extent: SyncExtent) {
        self.sync_durations.synced(family, took, extent);
    }
}
