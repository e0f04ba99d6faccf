//! Exports the number of connections and flows that the relays of this process have evicted. The
//! metric is absent until the process starts a relay.

use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use proxy::{IpFamily, Protocol, Report};
use relay::Evictions;

use super::rows::Rows;
use super::{ModeLabels, SyncExtent};

/// Name of the metric, to which the encoder appends `_total`.
const NAME: &str = "kubeproxy_relay_evictions";
const HELP: &str = "[ALPHA] Connections (TCP) and flows (UDP) that kube-proxy's relay ended to make room for those of other \
                    clients or Services";

/// A collector that reads the relays' numbers of evictions at each scrape.
#[derive(Debug)]
pub struct RelayEvictions(fn() -> Option<Evictions>);

impl RelayEvictions {
    /// Creates a collector for all relays of this process.
    pub fn of_process() -> Self {
        Self(Evictions::of_process)
    }
}

impl Collector for RelayEvictions {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(all) = (self.0)() else {
            return Ok(());
        };
        let mut metric = encoder.encode_descriptor(NAME, HELP, None, MetricType::Counter)?;
        for (protocol, count) in [(Protocol::Tcp, all.connections), (Protocol::Udp, all.flows)] {
            let labels = [("protocol", protocol.to_string())];
            ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// Metrics of a mode whose only metrics are the relays' evictions.
#[derive(Debug)]
pub struct RelayMetrics;

impl ModeLabels for RelayMetrics {
    fn register(&self, rows: &mut Rows) {
        rows.collect(RelayEvictions::of_process());
    }

    fn begins(&self, _: IpFamily) {}

    fn booked(&self, _: IpFamily, _: &Report) {}

    fn extent(&self, _: &Report) -> Option<SyncExtent> {
        None
    }

    fn synced(&self, _: IpFamily, _: Duration, _: SyncExtent) {}
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    fn page(read: fn() -> Option<Evictions>) -> String {
        let (mut registry, mut page) = (Registry::default(), String::new());
        registry.register_collector(Box::new(RelayEvictions(read)));
        encode(&mut page, &registry).unwrap();
        page
    }

    #[test]
    fn relay_evictions_are_exported_only_if_a_relay_runs() {
        let page_with_relay = page(|| {
            Some(Evictions {
                connections: 68,
                flows: 0,
            })
        });
        for line in [
            "# TYPE kubeproxy_relay_evictions counter",
            "kubeproxy_relay_evictions_total{protocol=\"TCP\"} 68",
            "kubeproxy_relay_evictions_total{protocol=\"UDP\"} 0",
        ] {
            let mut lines = page_with_relay.lines();
            assert!(lines.any(|told| told == line), "{page_with_relay}");
        }
        assert!(!page(|| None).contains("relay"));
    }
}
