//! Traffic of single Services, from the kernel's counters. A scrape reads the counters, at most
//! once a second. The read blocks the scrape's thread.
//!
//! ```text
//!   the loop ─ changes ─▶ Names: owners of addresses ─┐
//!   the kernel ─▶ all addresses (one dump) ───────────┴▶ busiest Services ─▶ second read
//! ```
//!
//! The metrics report only the busiest Services. A second read, only for these Services, returns
//! active connections and endpoints.

mod names;
pub mod settings;
mod sums;

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::Hash;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use proxy::{Changes, IpFamily, Model, NodePorts, ServicePortName};
use tracing::{info, warn};

use names::Names;
use service_counters::{
    At, Count, CounterSample, CounterSelection, Counters, Listener, ReadCounters,
};
use settings::{Detail, Settings};
use sums::{Source, Sum};

/// Maximum age of a read of the kernel's counters that further scrapes reuse.
const FRESH: Duration = Duration::from_secs(1);
/// Number of addresses that a scrape looks up in the index of names before it releases the index's
/// lock for other threads.
const LOOK_UPS: usize = 512;

/// Collector of the metrics of single Services. Clones share its state.
#[derive(Debug, Clone)]
pub(crate) struct ServiceMetrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    counters: Counters,
    names: Mutex<Names>,
    read: Mutex<Read>,
}

/// Traffic at the last read of the kernel's counters.
#[derive(Debug, Default)]
struct Read {
    at: Option<Instant>,
    took: Duration,
    failure: Option<String>,
    ports: HashMap<ServicePortName, Sum>,
    endpoints: HashMap<OfEndpoint, Sum>,
    /// Numbers of Service ports and of endpoints that the metrics omit because of the limit.
    left_out: [usize; 2],
}

/// Key of an endpoint's counts: the Service port and the endpoint's address.
type OfEndpoint = (ServicePortName, SocketAddr);

/// Counts by Service port or endpoint. Each count has the counter that it was read from.
type Counts<K> = HashMap<K, Vec<(Source, Count)>>;

impl ServiceMetrics {
    /// Creates the collector, or returns `None` if the settings disable metrics of single Services.
    pub(crate) fn new(settings: Settings, counters: Counters) -> Option<Self> {
        let inner = Inner {
            settings,
            counters,
            names: Mutex::default(),
            read: Mutex::default(),
        };
        (settings.detail != Detail::None).then(|| Self(Arc::new(inner)))
    }

    /// Updates the index of Service names and addresses with changed Services.
    pub(crate) fn note(&self, model: &Model, changes: &Changes) {
        lock(&self.0.names).note(model, changes);
    }

    /// Sets the node addresses on which an IP family serves NodePorts.
    pub(crate) fn note_node_ports(&self, family: IpFamily, node_ports: &NodePorts) {
        lock(&self.0.names).note_node_ports(family, node_ports);
    }
}

impl Inner {
    /// Returns the traffic of the last read. If that read is older than a second, reads the
    /// counters again.
    fn fresh(&self) -> MutexGuard<'_, Read> {
        let mut read = lock(&self.read);
        if read.at.is_some_and(|at| at.elapsed() < FRESH) {
            return read;
        }
        let began = Instant::now();
        let counted = self.counters.with(|reader| self.count(reader));
        match counted {
            Some(Ok(counted)) => {
                let names = lock(&self.names);
                sums::update(&mut read.ports, &counted.ports, |port| names.has(port));
                sums::update(&mut read.endpoints, &counted.endpoints, |key| {
                    // The endpoint no longer exists if this read contains the Service port but not
                    // the endpoint. Exception: the limit of reported endpoints excluded the
                    // endpoint.
                    let is_read = counted.ports.contains_key(&key.0);
                    names.has(&key.0) && (!is_read || counted.cut.contains(key))
                });
                drop(names);
                read.left_out = counted.left_out;
                if read.failure.take().is_some() {
                    info!("the traffic of Services can be read again");
                }
            }
            Some(Err(error)) => {
                let failure = format!("{error:#}");
                if read.failure.as_ref() != Some(&failure) {
                    warn!("metrics of single Services are missing: {failure}");
                }
                // Reports no traffic until the kernel can be read again. After that, the counts
                // continue from their sums before the failure.
                read.failure = Some(failure);
            }
            // The daemon has not set its mode yet, so there are no counters.
            None => {}
        }
        read.took = began.elapsed();
        read.at = Some(Instant::now());
        read
    }

    fn count(&self, reader: &mut dyn ReadCounters) -> anyhow::Result<CurrentCounts> {
        let is_apart = reader.tells_more_of_single();
        let which = if is_apart {
            CounterSelection::Addresses
        } else {
            CounterSelection::All
        };
        let mut told = SampleBatch::default();
        reader.tell(which, &mut |one| told.take(one))?;
        let mut ports = self.named(&told.addresses);
        ports.extend(told.ports);
        let mut left_out = [keep_busiest(&mut ports, self.settings.most).len(), 0];
        let mut cut = HashSet::new();
        let mut endpoints = Counts::default();
        if is_apart {
            // Reads the counters of the reported Services again, now with their endpoints.
            let kept = ports
                .values()
                .flatten()
                .filter_map(|(source, _)| match source {
                    Source::At(at) => Some(*at),
                    Source::Listener(_) => None,
                });
            let kept: Vec<At> = kept.collect();
            told = SampleBatch::default();
            reader.tell(CounterSelection::Of(&kept), &mut |one| told.take(one))?;
            let mut again = self.named(&told.addresses);
            again.retain(|port, _| ports.contains_key(port));
            ports = again;
        }
        if self.settings.detail == Detail::Endpoints {
            endpoints = self.named_endpoints(&told.endpoints);
            for (port, listener, endpoint, count) in told.port_endpoints {
                let of = endpoints.entry((port, endpoint)).or_default();
                of.push((Source::Listener(listener), count));
            }
            endpoints.retain(|(port, _), _| ports.contains_key(port));
            cut = keep_busiest(&mut endpoints, self.settings.most);
            left_out[1] = cut.len();
        }
        Ok(CurrentCounts {
            ports,
            endpoints,
            cut,
            left_out,
        })
    }

    /// Groups counts by Service port. Often releases the lock on the index of names, because the
    /// daemon's loop also needs the index.
    fn named(&self, addresses: &[(At, Count)]) -> Counts<ServicePortName> {
        let mut ports = Counts::default();
        for part in addresses.chunks(LOOK_UPS) {
            let names = lock(&self.names);
            for (at, count) in part {
                if let Some(name) = names.find(at) {
                    let of: &mut Vec<_> = ports.entry(name.clone()).or_default();
                    of.push((Source::At(*at), *count));
                }
            }
        }
        ports
    }

    fn named_endpoints(&self, endpoints: &[(At, SocketAddr, Count)]) -> Counts<OfEndpoint> {
        let mut all = Counts::default();
        for part in endpoints.chunks(LOOK_UPS) {
            let names = lock(&self.names);
            for (at, endpoint, count) in part {
                if let Some(name) = names.find(at) {
                    let of: &mut Vec<_> = all.entry((name.clone(), *endpoint)).or_default();
                    of.push((Source::At(*at), *count));
                }
            }
        }
        all
    }
}

struct CurrentCounts {
    ports: Counts<ServicePortName>,
    endpoints: Counts<OfEndpoint>,
    /// Endpoints that exist but are not reported, because the reported endpoints have more
    /// connections.
    cut: HashSet<OfEndpoint>,
    left_out: [usize; 2],
}

/// Samples from one read of the kernel's counters.
#[derive(Default)]
struct SampleBatch {
    addresses: Vec<(At, Count)>,
    endpoints: Vec<(At, SocketAddr, Count)>,
    ports: Counts<ServicePortName>,
    port_endpoints: Vec<(ServicePortName, Listener, SocketAddr, Count)>,
}

impl SampleBatch {
    fn take(&mut self, told: CounterSample<'_>) {
        match told {
            CounterSample::Address(at, _, count) => self.addresses.push((at, count)),
            CounterSample::Endpoint(at, endpoint, _, count) => {
                self.endpoints.push((at, endpoint, count));
            }
            CounterSample::Port(name, listener, count) => {
                let of = self.ports.entry(name.clone()).or_default();
                of.push((Source::Listener(listener), count));
            }
            CounterSample::PortEndpoint(name, listener, endpoint, count) => {
                let of = (name.clone(), listener, endpoint, count);
                self.port_endpoints.push(of);
            }
            // Ignores a virtual server for a firewall mark, which belongs to another program.
            CounterSample::Mark(..) => {}
        }
    }
}

/// Keeps the `most` entries with the most connections. Returns the keys of the removed entries.
fn keep_busiest<K: Clone + Eq + Hash + Ord>(all: &mut Counts<K>, most: usize) -> HashSet<K> {
    if all.len() <= most {
        return HashSet::new();
    }
    let connections = |counts: &[(Source, Count)]| -> u64 {
        let each = counts.iter().map(|(_, count)| count.connections);
        each.fold(0, u64::saturating_add)
    };
    let mut ranked: Vec<(Reverse<u64>, K)> = all
        .iter()
        .map(|(key, counts)| (Reverse(connections(counts)), key.clone()))
        .collect();
    // Breaks ties by key, so that each read keeps the same entries. Otherwise time series would
    // appear and disappear.
    ranked.select_nth_unstable(most);
    let left_out: HashSet<K> = ranked.drain(most..).map(|(_, key)| key).collect();
    all.retain(|key, _| !left_out.contains(key));
    left_out
}

fn lock<T>(held: &Mutex<T>) -> MutexGuard<'_, T> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

// ---- rendering ----

/// Labels of one Service port or endpoint.
type Labels = Vec<(&'static str, String)>;

fn labels(port: &ServicePortName, endpoint: Option<SocketAddr>) -> Labels {
    let mut labels = vec![
        ("namespace", port.service.namespace().to_owned()),
        ("service", port.service.name().to_owned()),
        ("port_name", port.port.to_string()),
        ("protocol", port.protocol.to_string()),
    ];
    labels.extend(endpoint.map(|endpoint| ("endpoint", endpoint.to_string())));
    labels
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LeftOutLabels {
    kind: &'static str,
}

/// Value of a metric: the label `direction`, if the metric has it, and the function that computes
/// the value from a count.
type Value = (Option<&'static str>, fn(&Count) -> Option<u64>);

/// A metric that exists for Service ports and for endpoints.
struct MetricRow {
    /// Metric name without its prefix `kubeproxy_service_` or `kubeproxy_service_endpoint_`.
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    values: &'static [Value],
}

const ROWS: [MetricRow; 5] = [
    MetricRow {
        name: "connections",
        help: "Connections; flows of UDP",
        kind: MetricType::Counter,
        values: &[(None, |count| Some(count.connections))],
    },
    MetricRow {
        name: "packets",
        help: "Packets from clients (in) and to them (out)",
        kind: MetricType::Counter,
        values: &[
            (Some("in"), |count| count.packets_in),
            (Some("out"), |count| count.packets_out),
        ],
    },
    MetricRow {
        name: "bytes",
        help: "Bytes from clients (in) and to them (out)",
        kind: MetricType::Counter,
        values: &[
            (Some("in"), |count| count.bytes_in),
            (Some("out"), |count| count.bytes_out),
        ],
    },
    MetricRow {
        name: "active_connections",
        help: "Connections now",
        kind: MetricType::Gauge,
        values: &[(None, |count| count.active)],
    },
    MetricRow {
        name: "inactive_connections",
        help: "Connections that begin, or have ended and are still known; flows of UDP",
        kind: MetricType::Gauge,
        values: &[(None, |count| count.inactive)],
    },
];

impl Collector for ServiceMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let read = self.0.fresh();
        // Omits all ports after a failed read. Old values would look as if there were no traffic.
        let is_readable = read.failure.is_none();
        let ports = read.ports.iter().filter(|_| is_readable);
        let ports: Vec<(Labels, Count)> = ports
            .filter_map(|(port, sum)| Some((labels(port, None), sum.told()?)))
            .collect();
        for row in &ROWS {
            encode(&mut encoder, "service", "service port", row, &ports)?;
        }
        let has_endpoints = self.0.settings.detail == Detail::Endpoints;
        if has_endpoints {
            let endpoints = read.endpoints.iter().filter(|_| is_readable);
            let endpoints: Vec<(Labels, Count)> = endpoints
                .filter_map(|((port, endpoint), sum)| {
                    Some((labels(port, Some(*endpoint)), sum.told()?))
                })
                .collect();
            let of = "endpoint of a service port";
            for row in &ROWS {
                encode(&mut encoder, "service_endpoint", of, row, &endpoints)?;
            }
        }
        let help = "Service ports and endpoints without metrics, because others have more \
                    connections.";
        let name = "kubeproxy_service_series_left_out";
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        let kinds = ["ports", "endpoints"].into_iter().zip(read.left_out);
        for (kind, count) in kinds.take(1 + usize::from(has_endpoints)) {
            gauge(count as u64).encode(metric.encode_family(&LeftOutLabels { kind })?)?;
        }
        let help = "Duration of the last read of the Services' counters.";
        let name = "kubeproxy_service_counters_read_duration_seconds";
        let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(read.took.as_secs_f64()).encode(metric)?;
        let help = "1 if the last read of the Services' counters succeeded, else 0.";
        let name = "kubeproxy_service_counters_readable";
        let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        gauge(u64::from(read.failure.is_none())).encode(metric)
    }
}

fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    of: &str,
    of_words: &str,
    row: &MetricRow,
    all: &[(Labels, Count)],
) -> fmt::Result {
    let name = format!("kubeproxy_{of}_{}", row.name);
    // The registry adds a full stop to the help text, see `exposition`.
    let help = format!("{}, by {of_words}.", row.help);
    let mut metric: Option<MetricEncoder<'_>> = None;
    let mut descriptor = Some(encoder);
    for (labels, count) in all {
        for (direction, value) in row.values {
            let Some(value) = value(count) else { continue };
            if let Some(encoder) = descriptor.take() {
                metric = Some(encoder.encode_descriptor(&name, &help, None, row.kind)?);
            }
            let Some(metric) = &mut metric else { continue };
            let mut labels = labels.clone();
            labels.extend(direction.map(|direction| ("direction", direction.to_owned())));
            let series = metric.encode_family(&labels)?;
            match row.kind {
                MetricType::Counter => ConstCounter::new(value).encode(series)?,
                _ => gauge(value).encode(series)?,
            }
        }
    }
    Ok(())
}

fn gauge(value: u64) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;
