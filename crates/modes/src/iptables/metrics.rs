//! Metrics of iptables mode, with upstream's names.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use proxy::{IpFamily, Report};

use super::nfacct;
use crate::metrics::restores::FailedRestores;
use crate::metrics::rows::Rows;
use crate::metrics::set;
use crate::metrics::sync_durations::SyncDurations;
use crate::metrics::{FamilyLabels, ModeLabels, SyncExtent, TableLabels, of};

/// Metrics of iptables mode.
#[derive(Debug, Default)]
pub(super) struct RuleMetrics {
    failed_restores: FailedRestores,
    failed_partial_restores: Family<FamilyLabels, Counter>,
    sync_durations: SyncDurations,
    rules: Family<TableLabels, Gauge>,
    rules_written: Family<TableLabels, Gauge>,
}

impl ModeLabels for RuleMetrics {
    fn register(&self, rows: &mut Rows) {
        self.sync_durations.register(rows);
        self.failed_restores.register(rows);
        rows.add(
            "ALPHA",
            "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures",
            "Cumulative proxy iptables partial restore failures",
            self.failed_partial_restores.clone(),
        );
        // Although its name ends in `_total`, this metric is a gauge, as in upstream.
        rows.add(
            "ALPHA",
            "kubeproxy_sync_proxy_rules_iptables_total",
            "Total number of iptables rules owned by kube-proxy",
            self.rules.clone(),
        );
        rows.add(
            "ALPHA",
            "kubeproxy_sync_proxy_rules_iptables_last",
            "Number of iptables rules written by kube-proxy in last sync",
            self.rules_written.clone(),
        );
        rows.collect(nfacct::Counters);
    }

    fn begins(&self, family: IpFamily) {
        self.failed_restores.begins(family);
    }

    fn booked(&self, family: IpFamily, report: &Report) {
        self.failed_restores.booked(family, report);
        let Some(counts) = report.iptables else {
            return;
        };
        let of = of(family);
        let partial = self.failed_partial_restores.get_or_create_owned(&of);
        if !counts.is_full {
            partial.inc_by(report.failed_restores as u64);
        }
        let FamilyLabels { ip_family } = of;
        let tell = |metric: &Family<TableLabels, Gauge>, counts: [usize; 2]| {
            for (table, count) in ["filter", "nat"].into_iter().zip(counts) {
                set(
                    &metric.get_or_create(&TableLabels { ip_family, table }),
                    count,
                );
            }
        };
        tell(&self.rules, counts.wanted);
        if let Some(written) = counts.written {
            tell(&self.rules_written, written);
        }
    }

    fn extent(&self, report: &Report) -> Option<SyncExtent> {
        report.iptables.map(|counts| SyncExtent::of(counts.is_full))
    }

    fn synced(&self, family: IpFamily, took: Duration, extent: SyncExtent) {
        self.sync_durations.synced(family, took, extent);
    }
}
