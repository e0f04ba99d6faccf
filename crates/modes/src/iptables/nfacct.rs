//! Reads the nfacct counters of the rules of iptables mode. Without nfacct in the kernel, the
//! metrics are absent.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use proxy_iptables::{Counter, NfacctSocket};

/// A collector that reads the nfacct counters at each scrape.
#[derive(Debug)]
pub(super) struct Counters;

/// The nfacct counters, each with its metric's name and help. The encoder appends `_total` to the
/// name.
const ROWS: [(Counter, &str, &str); 2] = [
    (
        Counter::InvalidDropped,
        "kubeproxy_iptables_ct_state_invalid_dropped_packets",
        "[ALPHA] packets dropped by iptables to work around conntrack problems",
    ),
    (
        Counter::LocalhostNodePorts,
        "kubeproxy_iptables_localhost_nodeports_accepted_packets",
        "[ALPHA] Number of packets accepted on nodeports of loopback interface",
    ),
];

impl Collector for Counters {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Ok(mut accounting) = NfacctSocket::open() else {
            return Ok(());
        };
        for (counter, name, help) in ROWS {
            if let Ok(Some(packets)) = accounting.packets(counter) {
                let counter = ConstCounter::new(packets);
                let metric = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
                counter.encode(metric)?;
            }
        }
        Ok(())
    }
}
