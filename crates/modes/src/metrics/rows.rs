//! A registry that counts its metrics by stability level, as Kubernetes does.

use std::collections::BTreeMap;

use prometheus_client::collector::Collector;
use prometheus_client::registry::{Metric, Registry};

/// A registry, with the number of its metrics by stability.
#[derive(Default)]
pub struct Rows {
    /// Registry of the metrics.
    pub registry: Registry,
    /// Number of metrics, by stability.
    pub counts: BTreeMap<&'static str, u64>,
}

impl Rows {
    /// Adds a metric. The encoder appends `_total` to the name of a counter.
    pub fn add(&mut self, stability: &'static str, name: &str, help: &str, metric: impl Metric) {
        let help = format!("[{stability}] {help}");
        self.registry.register(name, help, metric);
        *self.counts.entry(stability).or_default() += 1;
    }

    /// Adds a collector, which reads its metrics at each scrape.
    pub fn collect(&mut self, collector: impl Collector) {
        self.registry.register_collector(Box::new(collector));
    }
}
