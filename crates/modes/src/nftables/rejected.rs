//! Exports the number of packets to NodePorts on localhost that rules reject, from named counters
//! of the table. If the table lacks these counters, the metric is absent.

use std::fmt;

use nftables_netlink::{Family, Nftables};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use proxy::{IpFamily, Protocol};
use proxy_nftables::{TABLE, localhost_counter};

/// Name of the metric, to which the encoder appends `_total`.
const NAME: &str = "kubeproxy_nftables_localhost_nodeport_rejected_packets";
const HELP: &str = "[ALPHA] Number of packets rejected on localhost NodePorts. UDP and SCTP are always rejected; TCP is \
                    rejected when the localhost NodePort proxy is not running";

/// A collector that reads the counters of rejected packets at each scrape.
#[derive(Debug)]
pub(super) struct RejectedCollector;

impl Collector for RejectedCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Ok(mut nftables) = Nftables::open() else {
            return Ok(());
        };
        let mut found = Vec::new();
        for family in IpFamily::ALL {
            let of = nftables.counters(Family::from(family), TABLE);
            for counter in of.unwrap_or_default() {
                let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
                let mut protocols = protocols.into_iter();
                let of = protocols.find(|of| *counter.name == *localhost_counter(*of));
                found.extend(of.map(|protocol| (family, protocol, counter.packets)));
            }
        }
        if found.is_empty() {
            return Ok(());
        }
        let mut metric = encoder.encode_descriptor(NAME, HELP, None, MetricType::Counter)?;
        for (family, protocol, packets) in found {
            let labels = [
                ("ip_family", family.to_string()),
                ("protocol", protocol.to_string()),
            ];
            let one = metric.encode_family(&labels)?;
            ConstCounter::new(packets).encode(one)?;
        }
        Ok(())
    }
}
