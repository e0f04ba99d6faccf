//! A registry that counts its metrics by stability level, as Kubernetes' registry does.

use std::collections::BTreeMap;

use prometheus_client::collector::Collector;
use prometheus_client::registry::{Metric, Registry};

/// A registry, with the number of its metrics at each stability level.
#[derive(Default)]
pub struct Rows {
    /// Registry to which the metrics are added.
    pub registry: Registry,
    /// Number of metrics at each stability level.
    pub counts: BTreeMap<&'static str, u64>,
}

impl Rows {
    /// Adds a metric at a stability level, such as `ALPHA`. The encoder appends `_total` to a
    /// counter's name.
    pub fn add(&mut self, stability: &'static str, name: &str, help: &str, metric: impl Metric) {
        let help = format!("[{stability}] {help}");
        self.registry.register(name, help, metric);
        *self.counts.entry(stability).or_default() += 1;
    }

    /// Adds a collector, which reads its metrics at each scrape. The counts omit these metrics.
    pub fn collect(&mut self, collector: impl Collector) {
        self.registry.register_collector(Box::new(collector));
    }
}
