//! Metrics of modes that write rules with `iptables-restore`.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use proxy::{IpFamily, Report};

use super::rows::Rows;
use super::{FamilyLabels, ModeLabels, SyncExtent, of};

/// A counter of failed runs of `iptables-restore`. IPVS mode has no other metric about its rules.
#[derive(Debug, Default)]
pub struct FailedRestores(Family<FamilyLabels, Counter>);

impl ModeLabels for FailedRestores {
    fn register(&self, rows: &mut Rows) {
        rows.add(
            "ALPHA",
            "kubeproxy_sync_proxy_rules_iptables_restore_failures",
            "Cumulative proxy iptables restore failures",
            self.0.clone(),
        );
    }

    fn begins(&self, family: IpFamily) {
        drop(self.0.get_or_create(&of(family)));
    }

    fn booked(&self, family: IpFamily, report: &Report) {
        let failed = self.0.get_or_create(&of(family));
        failed.inc_by(report.failed_restores as u64);
    }

    fn extent(&self, _: &Report) -> Option<SyncExtent> {
        None
    }

    fn synced(&self, _: IpFamily, _: Duration, _: SyncExtent) {}
}
