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
    /// Adds a metric. If it is a counter, the encoder appends `_total` to its name.
    pub fn add(&mut self, stability: &'static str, name: &str, help: &str, metric: impl Metric) {
        let help = format!("[{stability}] {help}");
        self.registry.register(name, help, metric);
        *self.counts.entry(stability).or_default() += 1;
    }

    /// Adds a collector. It reads its metrics at each scrape.
    pub fn collect(&mut self, collector: impl Collector) {
        self.registry.register_collector(Box::new(collector));
    }
}
