//! A registry that counts its metrics by stability, as Kubernetes does.

use std::collections::BTreeMap;

use prometheus_client::collector::Collector;
use prometheus_client::registry::{Metric, Registry};

/// A registry with the number of metrics of each stability.
#[derive(Default)]
pub struct Rows {
    /// Registry of the metrics.
    pub registry: Registry,
    /// Number of metrics of each stability.
    pub counts: BTreeMap<&'static str, u64>,
}

impl Rows {
    /// Adds a metric. A counter's name has no `_total`: the encoder adds it.
    pub fn add(&mut self, stability: &'static str, name: &str, help: &str, metric: impl Metric) {
        let help = format!("[{stability}] {help}");
        self.registry.register(name, help, metric);
        *self.counts.entry(stability).or_default() += 1;
    }

    /// Adds metrics that are read at each scrape.
    pub fn collect(&mut self, collector: impl Collector) {
        self.registry.register_collector(Box::new(collector));
    }
}
