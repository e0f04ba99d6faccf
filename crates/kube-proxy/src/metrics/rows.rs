//! A registry that counts its metrics, as Kubernetes does.

use std::collections::BTreeMap;

use prometheus_client::collector::Collector;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Metric, Registry};

use super::labels::OfStability;
use super::process;

/// A registry, and how many metrics of each stability it has.
#[derive(Default)]
pub(crate) struct Rows {
    pub(super) registry: Registry,
    counts: BTreeMap<&'static str, u64>,
}

impl Rows {
    /// Adds a metric; a counter's name is without `_total`, which the encoder adds.
    pub(crate) fn add(
        &mut self,
        stability: &'static str,
        name: &str,
        help: &str,
        metric: impl Metric,
    ) {
        let help = format!("[{stability}] {help}");
        self.registry.register(name, help, metric);
        *self.counts.entry(stability).or_default() += 1;
    }

    /// Adds metrics that are made when they are asked for.
    pub(crate) fn collect(&mut self, collector: impl Collector) {
        self.registry.register_collector(Box::new(collector));
    }

    /// Adds what is known of the metrics themselves, and of the process.
    pub(super) fn finish(mut self) -> Registry {
        let none = Counter::<u64>::default;
        let help = "The count of disabled metrics.";
        self.add("BETA", "disabled_metrics", help, none());
        let help = "The count of hidden metrics.";
        self.add("BETA", "hidden_metrics", help, none());
        let registered = Family::<OfStability, Counter>::default();
        let help =
            "The count of registered metrics broken by stability level and deprecation version.";
        self.add("BETA", "registered_metrics", help, registered.clone());
        for (stability_level, count) in self.counts {
            let of = OfStability {
                deprecated_version: "",
                stability_level,
            };
            registered.get_or_create(&of).inc_by(count);
        }
        let process = Box::new(process::Process);
        self.registry.register_collector(process);
        self.registry
    }
}
