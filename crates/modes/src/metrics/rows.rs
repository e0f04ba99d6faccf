//! A registry that counts its metrics, as Kubernetes does.

use std::collections::BTreeMap;

use prometheus_client::collector::Collector;
use prometheus_client::registry::{Metric, Registry};

/// A registry, and how many metrics of each stability it has.
#[derive(Default)]
pub struct Rows {
    /// The registry.
    pub registry: Registry,
    /// Metrics of each stability.
    pub counts: BTreeMap<&'static str, u64>,
}

impl Rows {
    /// Adds a metric; a counter's name is without `_total`, which the encoder adds.
    pub fn add(&mut self, stability: &'static str, name: &str, help: &str, metric: impl Metric) {
        let help = format!("[{stability}] {help}");
        self.registry.register(name, help, metric);
        *self.counts.entry(stability).or_default() += 1;
    }

    /// Adds metrics that are made when they are asked for.
    pub fn collect(&mut self, collector: impl Collector) {
        self.registry.register_collector(Box::new(collector));
    }
}
