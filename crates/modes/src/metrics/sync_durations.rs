//! Histograms of sync durations, for modes that distinguish full and partial syncs.

use std::time::Duration;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use proxy::IpFamily;

use super::buckets::Buckets;
use super::rows::Rows;
use super::{FamilyLabels, SyncExtent, of};

/// Histograms of sync durations: one for full syncs, one for partial syncs.
#[derive(Debug)]
pub struct SyncDurations {
    full: Family<FamilyLabels, Histogram, Buckets>,
    partial: Family<FamilyLabels, Histogram, Buckets>,
}

impl Default for SyncDurations {
    fn default() -> Self {
        Self {
            full: Family::new_with_constructor(Buckets::Sync),
            partial: Family::new_with_constructor(Buckets::Sync),
        }
    }
}

impl SyncDurations {
    /// Adds the histograms to the registry.
    pub fn register(&self, rows: &mut Rows) {
        rows.add(
            "ALPHA",
            "kubeproxy_sync_full_proxy_rules_duration_seconds",
            "SyncProxyRules latency in seconds for full resyncs",
            self.full.clone(),
        );
        rows.add(
            "ALPHA",
            "kubeproxy_sync_partial_proxy_rules_duration_seconds",
            "SyncProxyRules latency in seconds for partial resyncs",
            self.partial.clone(),
        );
    }

    /// Records the duration of a finished sync of one IP family.
    pub fn synced(&self, family: IpFamily, took: Duration, extent: SyncExtent) {
        let durations = match extent {
            SyncExtent::Full => &self.full,
            SyncExtent::Partial => &self.partial,
        };
        let duration = durations.get_or_create(&of(family));
        duration.observe(took.as_secs_f64());
    }
}
