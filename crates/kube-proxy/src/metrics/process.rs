//! The metrics `process_*`, as Prometheus' client libraries define them. The values are from
//! `/proc/self`; a value that cannot be read is omitted.

use std::fmt;
use std::fs;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use rustix::process::{Resource, getrlimit};

/// Clock ticks per second in `/proc`, on every architecture that Kubernetes supports.
const TICKS_PER_SECOND: u64 = 100;

/// Collector of the metrics `process_*`, which reads their values at each scrape.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut encode = |name, help, metric: &dyn Encode| metric.encode(&mut encoder, name, help);
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let stat = Stat::read(&stat);
        if let Some(stat) = &stat {
            let cpu = seconds(stat.cpu_ticks);
            encode(
                "process_cpu_seconds",
                "Total user and system CPU time spent in seconds.",
                &ConstCounter::new(cpu),
            )?;
            encode(
                "process_virtual_memory_bytes",
                "Virtual memory size in bytes.",
                &gauge(stat.virtual_bytes),
            )?;
            if let Some(booted) = booted() {
                let started = ConstGauge::new(booted + seconds(stat.started_ticks));
                encode(
                    "process_start_time_seconds",
                    "Start time of the process since unix epoch in seconds.",
                    &started,
                )?;
            }
        }
        if let Some(bytes) = resident_bytes() {
            encode(
                "process_resident_memory_bytes",
                "Resident memory size in bytes.",
                &gauge(bytes),
            )?;
        }
        if let Ok(fds) = fs::read_dir("/proc/self/fd") {
            // Subtracts the descriptor of the directory listing itself.
            let open = fds.count().saturating_sub(1) as u64;
            encode(
                "process_open_fds",
                "Number of open file descriptors.",
                &gauge(open),
            )?;
        }
        let limit = |resource| gauge(getrlimit(resource).current.unwrap_or(u64::MAX));
        encode(
            "process_max_fds",
            "Maximum number of open file descriptors.",
            &limit(Resource::Nofile),
        )?;
        encode(
            "process_virtual_memory_max_bytes",
            "Maximum amount of virtual memory available in bytes.",
            &limit(Resource::As),
        )?;
        if let Some((received, sent)) = network_bytes() {
            encode(
                "process_network_receive_bytes",
                "Number of bytes received by the process over the network.",
                &ConstCounter::new(received),
            )?;
            encode(
                "process_network_transmit_bytes",
                "Number of bytes sent by the process over the network.",
                &ConstCounter::new(sent),
            )?;
        }
        Ok(())
    }
}

/// A metric that can be encoded together with its descriptor.
trait Encode {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str) -> fmt::Result;
}

impl<M: EncodeMetric> Encode for M {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str) -> fmt::Result {
        // The registry adds a full stop to the help text, see `exposition`.
        let help = format!("{help}.");
        let metric = encoder.encode_descriptor(name, &help, None, self.metric_type())?;
        EncodeMetric::encode(self, metric)
    }
}

/// Creates a gauge. For a resource limit, 2^64 means "no limit".
#[allow(clippy::cast_precision_loss, reason = "metrics are doubles")]
fn gauge(value: u64) -> ConstGauge<f64> {
    ConstGauge::new(value as f64)
}

fn seconds(ticks: u64) -> f64 {
    Duration::from_millis(ticks.saturating_mul(1000 / TICKS_PER_SECOND)).as_secs_f64()
}

/// Fields of `/proc/PID/stat` that the metrics use.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    started_ticks: u64,
    virtual_bytes: u64,
}

impl Stat {
    fn read(text: &str) -> Option<Self> {
        // The second field is the program's name in parentheses. The name may contain any
        // character, also a parenthesis.
        let (_, after_name) = text.rsplit_once(')')?;
        let fields: Vec<_> = after_name.split_whitespace().collect();
        // proc(5) counts fields from 1. The first item of `fields` is field 3.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            cpu_ticks: field(14)?.saturating_add(field(15)?),
            started_ticks: field(22)?,
            virtual_bytes: field(23)?,
        })
    }
}

/// Returns the machine's boot time in seconds since 1970, or `None` if it cannot be read.
fn booted() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let seconds = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    seconds.parse().ok()
}

fn resident_bytes() -> Option<u64> {
    resident(&fs::read_to_string("/proc/self/status").ok()?)
}

fn resident(status: &str) -> Option<u64> {
    let value = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// Returns the numbers of bytes received and sent in this network namespace, or `None` if they
/// cannot be read.
fn network_bytes() -> Option<(u64, u64)> {
    octets(&fs::read_to_string("/proc/self/net/netstat").ok()?)
}

fn octets(netstat: &str) -> Option<(u64, u64)> {
    let mut lines = netstat
        .lines()
        .filter_map(|line| line.strip_prefix("IpExt: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let value = |wanted| {
        let mut fields = names.split(' ').zip(values.split(' '));
        let (_, value) = fields.find(|(name, _)| *name == wanted)?;
        value.parse().ok()
    };
    Some((value("InOctets")?, value("OutOctets")?))
}

/// Parses text in the format of three `/proc` files. Entry point for fuzzing.
pub(super) fn read(text: &str) {
    let _ = Stat::read(text);
    let _ = octets(text);
    let _ = resident(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_statistics_are_parsed_for_any_program_name() {
        let after = "R 1 2 3 0 -1 4194304 95 0 0 0 7 5 0 0 20 0 1 0 8801 2990080 396 1844";
        let stat = Stat {
            cpu_ticks: 12,
            started_ticks: 8801,
            virtual_bytes: 2_990_080,
        };
        assert_eq!(Stat::read(&format!("42 (a) R 1) {after}")), Some(stat));
        assert_eq!(Stat::read("42 (a) R 1"), None);
        assert_eq!(Stat::read(""), None);
    }

    #[test]
    fn network_byte_counters_are_found_by_name() {
        let text =
            "TcpExt: A B\nTcpExt: 1 2\nIpExt: InNoRoutes InOctets OutOctets\nIpExt: 0 34 56\n";
        assert_eq!(octets(text), Some((34, 56)));
        assert_eq!(octets("IpExt: InOctets\nIpExt: 1\n"), None);
    }
}
