//! What iptables mode counts beside what all modes do, as upstream's.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use proxy::{IpFamily, Report};

use super::nfacct;
use crate::metrics::buckets::Buckets;
use crate::metrics::labels::{OfFamily, OfTable, of};
use crate::metrics::of_mode::{Extent, OfMode};
use crate::metrics::rows::Rows;
use crate::metrics::set;

/// Handles to them.
#[derive(Debug)]
pub(crate) struct RuleMetrics {
    failed_partial_restores: Family<OfFamily, Counter>,
    full_sync_duration: Family<OfFamily, Histogram, Buckets>,
    partial_sync_duration: Family<OfFamily, Histogram, Buckets>,
    rules: Family<OfTable, Gauge>,
    rules_written: Family<OfTable, Gauge>,
}

impl Default for RuleMetrics {
    fn default() -> Self {
        Self {
            failed_partial_restores: Family::default(),
            full_sync_duration: Family::new_with_constructor(Buckets::Sync),
            partial_sync_duration: Family::new_with_constructor(Buckets::Sync),
            rules: Family::default(),
            rules_written: Family::default(),
        }
    }
}

impl OfMode for RuleMetrics {
    fn register(&self, rows: &mut Rows) {
        rows.add(
            "ALPHA",
            "kubeproxy_sync_full_proxy_rules_duration_seconds",
            "SyncProxyRules latency in seconds for full resyncs",
            self.full_sync_duration.clone(),
        );
        rows.add(
            "ALPHA",
            "kubeproxy_sync_partial_proxy_rules_duration_seconds",
            "SyncProxyRules latency in seconds for partial resyncs",
            self.partial_sync_duration.clone(),
        );
        rows.add(
            "ALPHA",
            "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures",
            "Cumulative proxy iptables partial restore failures",
            self.failed_partial_restores.clone(),
        );
        // A gauge in spite of its name.
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

    fn booked(&self, family: IpFamily, report: &Report) {
        let Some(counts) = report.iptables else {
            return;
        };
        let of = of(family);
        let partial = self.failed_partial_restores.get_or_create_owned(&of);
        if !counts.is_full {
            partial.inc_by(report.failed_restores as u64);
        }
        let OfFamily { ip_family } = of;
        let tell = |metric: &Family<OfTable, Gauge>, counts: [usize; 2]| {
            for (table, count) in ["filter", "nat"].into_iter().zip(counts) {
                set(&metric.get_or_create(&OfTable { ip_family, table }), count);
            }
        };
        tell(&self.rules, counts.wanted);
        if let Some(written) = counts.written {
            tell(&self.rules_written, written);
        }
    }

    fn extent(&self, report: &Report) -> Option<Extent> {
        let counts = report.iptables?;
        Some(if counts.is_full {
            Extent::Full
        } else {
            Extent::Partial
        })
    }

    fn synced(&self, family: IpFamily, took: Duration, extent: Extent) {
        let durations = match extent {
            Extent::Full => &self.full_sync_duration,
            Extent::Partial => &self.partial_sync_duration,
        };
        let duration = durations.get_or_create(&of(family));
        duration.observe(took.as_secs_f64());
    }
}
