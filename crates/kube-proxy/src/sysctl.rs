//! The kernel settings that a mode and connection tracking need to serve Services, as upstream sets them.
//!
//! Written only where they differ, so that a container which may not write /proc/sys works on a node that is set up already.
//! Never undone: others may rely on them by then.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use tracing::warn;

use crate::flags::{Conntrack, Options, ProxyMode};

/// Upstream's ceiling for what `--conntrack-max-per-core` comes to on a node with many CPUs.
const CONNTRACK_MAX: u64 = 1_048_576;

/// One setting.
struct Row {
    /// The file, from the root folder.
    path: &'static str,
    /// Its value; `None` leaves it alone.
    value: fn(&Facts) -> Option<u64>,
    /// Whether more than the value will do.
    is_minimum: bool,
    /// The flag that leaves it alone, if there is one.
    off: Option<&'static str>,
}

/// What the settings depend on.
struct Facts {
    /// Major and minor version of the kernel.
    kernel: (u32, u32),
    /// CPUs that are online, also those that this process may not use.
    cpus: u64,
    mode: ProxyMode,
    strict_arp: bool,
    serves_localhost: bool,
    conntrack: Conntrack,
}

impl Facts {
    fn new(options: &Options) -> Self {
        let release = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        Self {
            kernel: version(&release),
            cpus: online_cpus(),
            mode: options.mode,
            strict_arp: options.strict_arp,
            serves_localhost: options.serves_localhost(),
            conntrack: options.conntrack,
        }
    }

    /// A value that only IPVS mode needs.
    fn of_ipvs(&self, value: u64) -> Option<u64> {
        (self.mode == ProxyMode::Ipvs).then_some(value)
    }

    fn conntrack_max(&self) -> Option<u64> {
        let per_core = u64::from(self.conntrack.max_per_core);
        (per_core > 0).then(|| {
            let scaled = per_core.saturating_mul(self.cpus).min(CONNTRACK_MAX);
            scaled.max(self.conntrack.min.into())
        })
    }
}

/// A setting that is always the same.
const fn fixed(path: &'static str, value: fn(&Facts) -> Option<u64>) -> Row {
    Row {
        path,
        value,
        is_minimum: false,
        off: None,
    }
}

/// A setting that a flag sets, or leaves alone.
const fn flagged(path: &'static str, value: fn(&Facts) -> Option<u64>, off: &'static str) -> Row {
    Row {
        path,
        value,
        is_minimum: false,
        off: Some(off),
    }
}

/// In the order they are written. Why: see the comment of each.
static ROWS: [Row; 15] = [
    // Masquerading of IPVS connections is done by conntrack.
    fixed("proc/sys/net/ipv4/vs/conntrack", |facts| facts.of_ipvs(1)),
    // Before 5.9, a reused source port was rescheduled with one second of delay (k/k#70747); from 5.9 on the kernel's
    // own default is right (k/k#93297). Before 4.1 there is no such setting.
    fixed("proc/sys/net/ipv4/vs/conn_reuse_mode", |facts| {
        facts
            .of_ipvs(0)
            .filter(|_| (4, 1) <= facts.kernel && facts.kernel < (5, 9))
    }),
    // Connections to a destination that was removed end at once, instead of timing out.
    fixed("proc/sys/net/ipv4/vs/expire_nodest_conn", |facts| {
        facts.of_ipvs(1)
    }),
    // Session affinity lets go of a destination that drains (k/k#71809).
    fixed("proc/sys/net/ipv4/vs/expire_quiescent_template", |facts| {
        facts.of_ipvs(1)
    }),
    // Service traffic is forwarded to pods.
    fixed("proc/sys/net/ipv4/ip_forward", |facts| facts.of_ipvs(1)),
    // Packets from 127.0.0.1 may leave for a pod, and answers may come back; rules keep others out (k/k#90259).
    Row {
        off: Some("--iptables-localhost-nodeports=false"),
        ..fixed("proc/sys/net/ipv4/conf/all/route_localnet", |facts| {
            facts.serves_localhost.then_some(1)
        })
    },
    // Answer ARP only for addresses of the interface that is asked: service addresses belong to every node.
    fixed("proc/sys/net/ipv4/conf/all/arp_ignore", |facts| {
        facts.of_ipvs(1).filter(|_| facts.strict_arp)
    }),
    fixed("proc/sys/net/ipv4/conf/all/arp_announce", |facts| {
        facts.of_ipvs(2).filter(|_| facts.strict_arp)
    }),
    // Every connection to a Service has an entry; when the table is full, new ones are dropped. It is one table for all
    // network namespaces, and only the initial one may change it.
    flagged(
        "proc/sys/net/netfilter/nf_conntrack_max",
        Facts::conntrack_max,
        "--conntrack-max-per-core=0",
    ),
    // Four entries to a bucket at most, on average.
    Row {
        path: "sys/module/nf_conntrack/parameters/hashsize",
        value: |facts| Some(facts.conntrack_max()? / 4),
        is_minimum: true,
        off: Some("--conntrack-max-per-core=0"),
    },
    // The kernel's five days keep entries of connections whose peers are long gone.
    flagged(
        "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established",
        |facts| seconds(facts.conntrack.tcp_established),
        "--conntrack-tcp-timeout-established=0",
    ),
    // The kernel's minute is too short for a server that is slow to close (k/k#32551).
    flagged(
        "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait",
        |facts| seconds(facts.conntrack.tcp_close_wait),
        "--conntrack-tcp-timeout-close-wait=0",
    ),
    // A segment that counts as INVALID is not translated back, and its receiver resets the connection (k/k#74839).
    flagged(
        "proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal",
        |facts| facts.conntrack.tcp_be_liberal.then_some(1),
        "--conntrack-tcp-be-liberal=false",
    ),
    // A client that asks without end is bound to its first endpoint for as long as its entry lives.
    flagged(
        "proc/sys/net/netfilter/nf_conntrack_udp_timeout",
        |facts| seconds(facts.conntrack.udp),
        "--conntrack-udp-timeout=0",
    ),
    flagged(
        "proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream",
        |facts| seconds(facts.conntrack.udp_stream),
        "--conntrack-udp-timeout-stream=0",
    ),
];

fn seconds(timeout: Duration) -> Option<u64> {
    Some(timeout.as_secs()).filter(|seconds| *seconds > 0)
}

impl Row {
    /// As sysctl(8) names it, or its file.
    fn name(&self) -> String {
        match self.path.strip_prefix("proc/sys/") {
            Some(key) => key.replace('/', "."),
            None => format!("/{}", self.path),
        }
    }

    fn is_met(&self, found: &str, wanted: u64) -> bool {
        found
            .parse()
            .is_ok_and(|found: u64| found == wanted || (self.is_minimum && found > wanted))
    }

    fn advice(&self, failure: io::ErrorKind) -> String {
        if failure == io::ErrorKind::NotFound {
            return "the kernel lacks it: are ip_vs and nf_conntrack loaded (modprobe ip_vs)?"
                .to_owned();
        }
        let advice = match failure {
            io::ErrorKind::InvalidInput => "the kernel does not take this value here",
            _ => {
                "set it on the node itself, or let this process, or one before it with --init-only, write /proc/sys and /sys"
            }
        };
        match self.off {
            Some(off) => format!("{advice}, or leave it as it is with {off}"),
            None => advice.to_owned(),
        }
    }
}

/// Settings that could not be written; the others were.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub(crate) struct SysctlErrors(Vec<SysctlError>);

/// A setting that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot set {name} to {value} (it is {found}): {source}; {advice}")]
struct SysctlError {
    name: String,
    value: u64,
    found: String,
    advice: String,
    source: io::Error,
}

/// A setting that has not the value that it is to have.
struct Difference {
    row: &'static Row,
    value: u64,
    found: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { row, value, found } = self;
        write!(f, "set {} to {value} (it is {found})", row.name())
    }
}

/// Brings every setting to its value; returns those that were written. `ip_vs` must be loaded, which loads `nf_conntrack`.
pub(crate) fn apply(options: &Options) -> Result<Vec<String>, SysctlErrors> {
    apply_below(Path::new("/"), &Facts::new(options))
}

/// What [`apply`] would write, a line each.
pub(crate) fn pending(options: &Options) -> Vec<String> {
    let facts = Facts::new(options);
    differences(Path::new("/"), &facts)
        .map(|difference| difference.to_string())
        .collect()
}

fn differences(root: &Path, facts: &Facts) -> impl Iterator<Item = Difference> {
    ROWS.iter().filter_map(move |row| {
        let value = (row.value)(facts)?;
        let found = fs::read_to_string(root.join(row.path)).map(|text| text.trim().to_owned());
        let is_met = found.as_deref().is_ok_and(|found| row.is_met(found, value));
        (!is_met).then(|| Difference {
            row,
            value,
            found: found.unwrap_or_else(|_| "unreadable".to_owned()),
        })
    })
}

fn apply_below(root: &Path, facts: &Facts) -> Result<Vec<String>, SysctlErrors> {
    let (mut written, mut failures) = (Vec::new(), Vec::new());
    for Difference { row, value, found } in differences(root, facts) {
        match fs::write(root.join(row.path), value.to_string()) {
            Ok(()) => written.push(row.name()),
            // Container engines mount /sys read-only at times; a table with few buckets is slow, but works. As upstream.
            Err(source) if row.is_minimum && source.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                warn!(setting = row.name(), %found, wanted = value, "is on a read-only file system and stays too small; set it on the node itself");
            }
            Err(source) => failures.push(SysctlError {
                name: row.name(),
                value,
                found,
                advice: row.advice(source.kind()),
                source,
            }),
        }
    }
    if failures.is_empty() {
        Ok(written)
    } else {
        Err(SysctlErrors(failures))
    }
}

fn online_cpus() -> u64 {
    let listed = fs::read_to_string("/sys/devices/system/cpu/online").ok();
    listed
        .and_then(|list| count(list.trim()))
        .unwrap_or_else(|| {
            std::thread::available_parallelism().map_or(1, |usable| usable.get() as u64)
        })
}

/// How many numbers a list of ranges such as `0-3,7` holds.
fn count(list: &str) -> Option<u64> {
    list.split(',')
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
            last.checked_sub(first)?.checked_add(1)
        })
        .sum()
}

/// `6.1.0-13-amd64` is (6, 1); what cannot be read is taken for new.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => (u32::MAX, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn versions_are_read() {
        assert_eq!(version("6.1.0-13-amd64"), (6, 1));
        assert_eq!(version("5.4"), (5, 4));
        assert_eq!(version("odd"), (u32::MAX, 0));
    }

    #[test]
    fn cpus_are_counted() {
        assert_eq!(count("0"), Some(1));
        assert_eq!(count("0-3,7"), Some(5));
        assert_eq!(count("0-3,"), None);
        assert_eq!(count("3-0"), None);
    }

    /// A kernel in which every setting is 0, and the settings of `facts` that leave connection tracking alone.
    fn kernel(name: &str, version: (u32, u32)) -> (PathBuf, Facts) {
        let root = std::env::temp_dir().join(format!("sysctl-{}-{name}", std::process::id()));
        for row in &ROWS {
            let path = root.join(row.path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "0\n").unwrap();
        }
        let facts = Facts {
            kernel: version,
            cpus: 1,
            mode: ProxyMode::Ipvs,
            strict_arp: false,
            serves_localhost: false,
            conntrack: Conntrack::default(),
        };
        (root, facts)
    }

    #[test]
    fn only_what_differs_is_written() {
        let (root, mut facts) = kernel("differs", (6, 1));
        fs::write(root.join("proc/sys/net/ipv4/ip_forward"), "1\n").unwrap();
        let told: Vec<String> = differences(&root, &facts)
            .map(|difference| difference.to_string())
            .collect();
        assert_eq!(told.len(), 3);
        assert_eq!(told[0], "set net.ipv4.vs.conntrack to 1 (it is 0)");
        let written = apply_below(&root, &facts).unwrap();
        assert_eq!(
            written,
            [
                "net.ipv4.vs.conntrack",
                "net.ipv4.vs.expire_nodest_conn",
                "net.ipv4.vs.expire_quiescent_template"
            ]
        );
        assert_eq!(apply_below(&root, &facts).unwrap(), Vec::<String>::new());
        (facts.kernel, facts.strict_arp) = ((5, 4), true);
        fs::write(root.join("proc/sys/net/ipv4/vs/conn_reuse_mode"), "1\n").unwrap();
        assert_eq!(apply_below(&root, &facts).unwrap().len(), 3);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn connection_tracking_is_set_as_the_flags_say() {
        let (root, mut facts) = kernel("conntrack", (6, 1));
        apply_below(&root, &facts).unwrap();
        let hash_size = root.join("sys/module/nf_conntrack/parameters/hashsize");
        let netfilter = root.join("proc/sys/net/netfilter");
        let read = |name: &str| fs::read_to_string(netfilter.join(name)).unwrap();
        facts.conntrack = Conntrack {
            max_per_core: 32_768,
            min: 131_072,
            tcp_established: Duration::from_hours(24),
            tcp_close_wait: Duration::from_hours(1),
            tcp_be_liberal: true,
            udp: Duration::from_secs(30),
            udp_stream: Duration::from_millis(120_900),
        };
        assert_eq!(apply_below(&root, &facts).unwrap().len(), 7);
        for (name, value) in [
            ("nf_conntrack_max", "131072"),
            ("nf_conntrack_tcp_timeout_established", "86400"),
            ("nf_conntrack_tcp_timeout_close_wait", "3600"),
            ("nf_conntrack_tcp_be_liberal", "1"),
            ("nf_conntrack_udp_timeout", "30"),
            ("nf_conntrack_udp_timeout_stream", "120"),
        ] {
            assert_eq!(read(name), value, "{name}");
        }
        assert_eq!(fs::read_to_string(&hash_size).unwrap(), "32768");
        // A smaller table keeps its buckets.
        facts.conntrack.min = 0;
        assert_eq!(
            apply_below(&root, &facts).unwrap(),
            ["net.netfilter.nf_conntrack_max"]
        );
        assert_eq!(read("nf_conntrack_max"), "32768");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn the_table_grows_with_the_cpus_between_two_limits() {
        for (max_per_core, min, cpus, max) in [
            (32_768, 131_072, 1, Some(131_072)),
            (32_768, 131_072, 4, Some(131_072)),
            (32_768, 131_072, 8, Some(262_144)),
            (32_768, 131_072, 64, Some(1_048_576)),
            (1, 2_000_000, 64, Some(2_000_000)),
            (0, 131_072, 8, None),
        ] {
            let conntrack = Conntrack {
                max_per_core,
                min,
                ..Conntrack::default()
            };
            let facts = Facts {
                kernel: (6, 1),
                cpus,
                mode: ProxyMode::Ipvs,
                strict_arp: false,
                serves_localhost: false,
                conntrack,
            };
            assert_eq!(
                facts.conntrack_max(),
                max,
                "{max_per_core}, {min}, {cpus} CPUs"
            );
        }
    }

    #[test]
    fn an_error_names_the_setting_and_the_next_step() {
        let (root, mut facts) = kernel("missing", (6, 1));
        let error_without = |folder: &str, facts: &Facts| {
            fs::remove_dir_all(root.join(folder)).unwrap();
            apply_below(&root, facts).unwrap_err().to_string()
        };
        let expect = |error: String, parts: &[&str]| {
            for part in parts {
                assert!(error.contains(part), "{error}");
            }
        };
        facts.conntrack.max_per_core = 1;
        // What is no file cannot be written.
        let max = "proc/sys/net/netfilter/nf_conntrack_max";
        fs::remove_file(root.join(max)).unwrap();
        fs::create_dir(root.join(max)).unwrap();
        let error = apply_below(&root, &facts).unwrap_err().to_string();
        expect(
            error,
            &[
                "net.netfilter.nf_conntrack_max to 1 ",
                "--conntrack-max-per-core=0",
            ],
        );
        let error = error_without("proc/sys/net/ipv4/vs", &facts);
        expect(
            error,
            &[
                "net.ipv4.vs.conntrack",
                "modprobe ip_vs",
                "net.ipv4.vs.expire_nodest_conn",
                "net.netfilter.nf_conntrack_max",
            ],
        );
        fs::remove_dir_all(root).unwrap();
    }
}
