//! Metrics of draining endpoints: their number, and the age of the oldest drain at the time of the
//! scrape.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use proxy::IpFamily;

use modes::metrics::of;

/// Draining endpoints by IP family. Clones share the data.
#[derive(Debug, Clone, Default)]
pub(crate) struct Draining(Arc<Mutex<BTreeMap<&'static str, DrainingCount>>>);

/// Number of draining endpoints, and the time at which the oldest drain began, if known.
type DrainingCount = (usize, Option<Instant>);

impl Draining {
    pub(crate) fn set(&self, family: IpFamily, count: usize, oldest: Option<Instant>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(of(family).ip_family, (count, oldest));
    }
}

impl Collector for Draining {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<(&'static str, DrainingCount)> =
            all.iter().map(|(family, told)| (*family, *told)).collect();
        if all.is_empty() {
            return Ok(());
        }
        let name = "kubeproxy_draining_endpoints";
        let help = "Removed endpoints whose connections continue.";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (ip_family, (count, _)) in &all {
            let labels = modes::metrics::FamilyLabels { ip_family };
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            ConstGauge::new(count).encode(metric.encode_family(&labels)?)?;
        }
        let name = "kubeproxy_draining_oldest_age_seconds";
        let help = "Age of the oldest draining endpoint; 0 without one.";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (ip_family, (_, oldest)) in &all {
            let labels = modes::metrics::FamilyLabels { ip_family };
            let age = oldest.map_or(0.0, |since| since.elapsed().as_secs_f64());
            ConstGauge::new(age).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
