//! Metrics of each IP family's progress, with the same numbers as `kube-proxy status`. Ages are
//! computed at each scrape.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use proxy::{IpFamily, Standing};

use modes::metrics::{FamilyLabels, of};

/// Last recorded progress of each IP family. Clones share the content.
#[derive(Debug, Clone, Default)]
pub(crate) struct Standings(Arc<Mutex<BTreeMap<&'static str, Standing>>>);

impl Standings {
    pub(crate) fn set(&self, family: IpFamily, standing: &Standing) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(of(family).ip_family, *standing);
    }
}

/// A metric: its name, its help text, and the function that computes its value.
type Row = (&'static str, &'static str, fn(&Standing) -> f64);

const ROWS: [Row; 4] = [
    (
        "kubeproxy_pending_entries",
        "Entries that are not in the kernel as they are to be.",
        |standing| count(standing.pending),
    ),
    (
        "kubeproxy_failing_entries",
        "Entries that the kernel refused when they were last tried.",
        |standing| count(standing.failing),
    ),
    (
        "kubeproxy_lag_seconds",
        "For how long the oldest change waits to be in the kernel; 0 where none does.",
        |standing| age(standing.pending_since),
    ),
    (
        "kubeproxy_stuck_seconds",
        "For how long nothing that clients wait for could be written; 0 where there is progress, or nothing to do.",
        |standing| age(standing.stuck_since),
    ),
];

#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
fn count(count: usize) -> f64 {
    count as f64
}

fn age(since: Option<Instant>) -> f64 {
    since.map_or(0.0, |since| since.elapsed().as_secs_f64())
}

impl Collector for Standings {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // Releases the lock before rendering, because the daemon's loop may wait for the lock.
        let all = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if all.is_empty() {
            return Ok(());
        }
        for (name, help, value) in ROWS {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (ip_family, standing) in &all {
                let labels = FamilyLabels { ip_family };
                ConstGauge::new(value(standing)).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
