//! Data that the host and its VMs exchange (cells and outcomes), and the format of `report.json`.
//!
//! ```text
//!  run (host) ── Cell ──▶ lab run -- bench cell JSON ── Outcome ──▶ run
//!  run ── Report ──▶ report.json ──▶ report (drawn)
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Quantity that a cell (one benchmark run) measures.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Axis {
    /// Cold start: the time from exec until an empty kernel has the whole state.
    Cold,
    /// Cold start with kernel modules that are already loaded.
    Loaded,
    /// Restart: the time from exec until the program has repaired one Service. The kernel holds the
    /// state of all other Services.
    Restart,
    /// Time from the creation of a Service until the kernel has it.
    Add,
    /// Replacement of one endpoint of one Service, many times. Each change waits until the kernel
    /// has the previous change.
    Change,
    /// Replacement of 100 endpoints without waiting in between.
    Rolling,
    /// Time until the kube-proxy has removed all Services from the kernel.
    Delete,
    /// CPU time, wakeups and started processes of an idle daemon.
    Idle,
    /// Peak memory during a cold start, and steady memory after it.
    Memory,
    /// Cold start with one Service that has many endpoints.
    Big,
    /// Load on the API server: requests, the sizes of their responses, and CPU time.
    Api,
    /// Cost of the first packet of a new flow.
    First,
    /// New connections per second.
    Connect,
    /// Requests per second on a persistent connection.
    Keptalive,
    /// UDP datagrams per second that get a reply.
    Udp,
    /// Gigabits per second on one connection.
    Throughput,
    /// Cost that each part of a mode's rules adds to the first packet of a flow.
    Anatomy,
}

impl Axis {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied()
    }

    /// Returns true if the axis measures packets. All other axes measure the program itself.
    pub(crate) fn is_data_plane(self) -> bool {
        self >= Self::First
    }
}

/// Formats the axis as its name on the command line and in the report.
impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.to_possible_value();
        f.pad(name.as_ref().map_or("", |name| name.get_name()))
    }
}

impl FromStr for Axis {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        <Self as ValueEnum>::from_str(name, false).map_err(|_| {
            let known: Vec<String> = Self::all().map(|axis| axis.to_string()).collect();
            format!("no axis `{name}`: there are {}", known.join(", "))
        })
    }
}

/// Mode of a kube-proxy, the value of `--proxy-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// IPVS mode (`ipvs`): the kernel's IPVS distributes connections.
    Ipvs,
    /// iptables mode (`iptables`): iptables rules translate packets (DNAT).
    Iptables,
    /// nftables mode (`nftables`): rules in an nf_tables table translate packets (DNAT).
    Nftables,
    /// Userspace mode (`userspace`): the daemon relays connections and datagrams through its own
    /// sockets.
    Userspace,
}

impl Mode {
    /// Returns the value of `--proxy-mode` for this mode.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ipvs => "ipvs",
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
            Self::Userspace => "userspace",
        }
    }
}

/// Subject of a measurement: a program, or a kernel state without a program. Each subject has a
/// column in the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Subject {
    /// Name of the subject on the command line and in the report.
    pub(crate) name: String,
    /// Program to measure, or kernel state to measure without a program.
    #[serde(flatten)]
    pub(crate) kind: SubjectKind,
}

impl Subject {
    /// Returns a kube-proxy in this mode, with additional flags, as a subject.
    pub(crate) fn kube_proxy(
        name: &str,
        path: impl Into<PathBuf>,
        mode: Mode,
        flags: &[&str],
        is_ours: bool,
    ) -> Self {
        Self {
            name: name.to_owned(),
            kind: SubjectKind::KubeProxy {
                path: path.into(),
                mode,
                flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
                is_ours,
            },
        }
    }
}

/// Program to measure, or kernel state to measure without a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum SubjectKind {
    /// A kube-proxy, ours or another one.
    KubeProxy {
        /// Path of the kube-proxy's binary.
        path: PathBuf,
        /// Value of `--proxy-mode`.
        mode: Mode,
        /// Additional command line flags.
        flags: Vec<String>,
        /// True for our kube-proxy. Only ours gets flags that upstream lacks.
        is_ours: bool,
    },
    /// The bare loader of IPVS mode: a program that only sends prepared messages, which write the
    /// same state as the daemon.
    Floor,
    /// The bare loader of nftables mode with upstream's layout: a program that only sends prepared
    /// transactions.
    NftFloor,
    /// The bare loader of nftables mode with the flat layout.
    NftFlatFloor,
    /// The tools `ipset restore`, `iptables-restore`, `ipvsadm -R` and `ip -batch`, which write
    /// IPVS mode's final state.
    Tools,
    /// Only virtual servers of IPVS, without sets and rules. Only for axes that measure packets.
    BareIpvs,
    /// No Service: the client connects directly to a pod. Only for axes that measure packets.
    Direct,
}

/// Start of the name of an `anatomy` series on a node that has a complete mode. The subject's name
/// follows.
pub(crate) const WHOLE: &str = "by the daemon: ";
/// Name of the `anatomy` series in which NAT is enabled, but no rule exists.
pub(crate) const NAT_ALONE: &str = "translation of addresses, no rule";
/// Reason for skipping a cell (benchmark run) that would not finish within the time limit of the
/// whole run.
pub(crate) const NO_TIME: &str =
    "it would not have been done in the time of the whole run (--minutes)";
/// Flag that selects the lean shim of IPVS mode, with fewer iptables rules than upstream's.
pub(crate) const LEAN: &str = "--ipvs-shim=lean";
/// Flag that puts the rules and sets of IPVS mode into an nf_tables table.
pub(crate) const NATIVE: &str = "--ipvs-shim=nftables";
/// Flag that makes IPVS mode treat packets as iptables mode does.
pub(crate) const EXACT: &str = "--ipvs-semantics=exact";
/// Flag that selects upstream's layout in nftables mode, with a chain for each Service and
/// endpoint.
pub(crate) const UPSTREAM_LAYOUT: &str = "--nftables-layout=upstream";
/// Flag that selects our flat layout in nftables mode, with shared maps instead of chains.
pub(crate) const FLAT: &str = "--nftables-layout=flat";
/// Flag that makes each Service address local by a route, in IPVS mode.
pub(crate) const ROUTE: &str = "--ipvs-vip-mode=route";
/// Flag that makes a whole range of Service addresses local by one route, in IPVS mode.
pub(crate) const RANGE: &str = "--ipvs-vip-mode=range";
/// Flag that names the range of Service addresses for [`RANGE`].
pub(crate) const SERVICE_CIDRS: &str = "--ipvs-service-cidrs=10.96.0.0/12";

impl Outcome {
    /// Returns the outcome of a cell (benchmark run) that is skipped because of `why`.
    pub(crate) fn skipped(why: impl Into<String>) -> Self {
        Self::Skipped {
            why: why.into(),
            cold_over_s: None,
        }
    }
}

impl SubjectKind {
    /// Returns true for a kube-proxy that is not ours.
    pub(crate) fn is_other(&self) -> bool {
        matches!(self, Self::KubeProxy { is_ours: false, .. })
    }

    /// Returns true for a kube-proxy with the lean shim of IPVS mode ([`LEAN`]).
    pub(crate) fn is_lean(&self) -> bool {
        self.has(LEAN)
    }

    /// Returns true for a kube-proxy with this additional flag.
    pub(crate) fn has(&self, wanted: &str) -> bool {
        matches!(self, Self::KubeProxy { flags, .. } if flags.iter().any(|flag| flag == wanted))
    }
}

/// Size of a measurement: number of Services, and endpoints of each Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Size {
    /// Number of Services, each with one TCP port.
    pub(crate) services: u32,
    /// Number of endpoints of each Service.
    pub(crate) endpoints: u32,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}x{}", self.services, self.endpoints))
    }
}

impl FromStr for Size {
    type Err = String;

    /// Parses a size such as `10000x50`. Without `x`, each Service has two endpoints.
    fn from_str(text: &str) -> Result<Self, String> {
        let (services, endpoints) = text.split_once('x').unwrap_or((text, "2"));
        let number = |text: &str| {
            text.parse()
                .ok()
                .filter(|number| *number > 0)
                .ok_or_else(|| format!("{text:?} is no size: write 10000 or 10000x50"))
        };
        Ok(Self {
            services: number(services)?,
            endpoints: number(endpoints)?,
        })
    }
}

/// A benchmark run in its own VM: an axis, a size, a subject and a repeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) axis: Axis,
    pub(crate) subject: Subject,
    pub(crate) size: Size,
    /// Index of the repeat, from 0 on. The report combines all repeats of an axis, a size and a
    /// subject.
    pub(crate) repeat: u32,
    /// True if the subject runs under `strace -f`, to count its system calls. Its durations then
    /// mean nothing.
    pub(crate) is_counting: bool,
    /// Time limit in seconds, which applies to the preparation of each step, and to its
    /// measurement.
    pub(crate) limit_s: u64,
    /// Number of changes to make on the axis `change`.
    pub(crate) changes: u32,
    /// Duration of a measurement on the axis `idle`, in seconds.
    pub(crate) idle_s: u64,
}

impl Cell {
    /// Returns the factor for this cell's time limit. It is 2 in these cases, otherwise 1:
    ///
    /// - strace slows a program down.
    /// - Another kube-proxy may take minutes at up to 1,000 Services. More time makes a comparison
    ///   possible.
    pub(crate) fn patience(&self) -> u32 {
        let is_slow = self.subject.kind.is_other() && self.size.services <= 1_000;
        if self.is_counting || is_slow { 2 } else { 1 }
    }
}

/// Result of a cell (benchmark run): figures, or the reason why there are none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// Figures of a cell whose final kernel state was correct.
    Measured(Box<CellFigures>),
    /// The cell exceeded its time limit.
    Over {
        /// Time limit in seconds. In JSON `over_s`, because the same object has the cell's
        /// `limit_s`.
        #[serde(rename = "over_s")]
        limit_s: u64,
        /// Entries that the kernel had at the time limit.
        reached: String,
    },
    /// The subject finished its work, but the kernel's state is wrong.
    Wrong {
        /// First differences between the kernel's state and the expected state.
        differences: String,
    },
    /// The measurement failed with an error.
    Failed {
        /// The error, for people.
        why: String,
    },
    /// The cell was not run: the kube-proxy does not know the mode or a flag, its cold start takes
    /// too long, or too little time was left.
    Skipped {
        /// Reason why the cell was not run.
        why: String,
        /// Time limit in seconds that a cold start of this or a smaller size has exceeded, so that
        /// this cell would exceed it as well. `None` if the cell was skipped for another reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cold_over_s: Option<u64>,
    },
}

/// Figures of a cell (benchmark run). A figure that the axis does not measure is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CellFigures {
    /// Duration of the whole measurement in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wall_s: Option<f64>,
    /// CPU time of the subject and its child processes (user and system), in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_s: Option<f64>,
    /// CPU time of the fake API server in seconds. It uses the same CPU as the subject, so the wall
    /// time includes this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fixture_cpu_s: Option<f64>,
    /// Peak memory of the subject (`VmHWM`) in KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peak_kib: Option<u64>,
    /// Memory of the subject (`VmRSS`) in KiB, some seconds after it has finished its work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) steady_kib: Option<u64>,
    /// Distributions of values by name: `all` for the axis `change`; `first`, `middle`, `last` and
    /// `direct` for packets.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) series: BTreeMap<String, Distribution>,
    /// Other figures by name, which ends with the unit: `write_sets_s`, `wakeups_per_min`,
    /// `cpu_ms_per_step`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) figures: BTreeMap<String, f64>,
    /// Load on the API server by occasion (axis `api`).
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) server: BTreeMap<RequestOccasion, ServerCost>,
    /// System calls and messages of the subject, if it ran under strace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) counts: Option<Counts>,
    /// Release and machine of the VM's kernel, such as `6.12.0 x86_64`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kernel: Option<String>,
    /// Summary of the kernel's final state, which was correct.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<KernelDigest>,
}

/// Summary of many values: their number, minimum, maximum and percentiles.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Distribution {
    /// Unit of the values, such as `ms`, `us`, `ns` or `per_s`.
    pub(crate) unit: String,
    pub(crate) n: usize,
    pub(crate) min: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Distribution {
    /// Summarizes values, with percentiles by the nearest-rank method. Returns `None` if there are
    /// no values.
    pub(crate) fn of(unit: &str, mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let rank = |percent: usize| {
            let index = (values.len() * percent).div_ceil(100).max(1) - 1;
            values.get(index).copied()
        };
        Some(Self {
            unit: unit.to_owned(),
            n: values.len(),
            min: *values.first()?,
            p50: rank(50)?,
            p90: rank(90)?,
            p99: rank(99)?,
            max: *values.last()?,
        })
    }
}

/// Occasion on which a kube-proxy puts load on the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RequestOccasion {
    /// First start of the kube-proxy.
    First,
    /// Restart of the kube-proxy.
    Restart,
    /// Changes of endpoints, which the kube-proxy and other clients watch.
    Watch,
    /// Reconnect of many clients at once.
    Reconnect,
    /// All connections break, and for some time the server responds to watches with 504.
    WatchStorm,
    /// All connections break, and for some time the server responds to watches and lists with 504.
    Storm,
}

impl RequestOccasion {
    pub(crate) const ALL: [Self; 6] = [
        Self::First,
        Self::Restart,
        Self::Watch,
        Self::Reconnect,
        Self::WatchStorm,
        Self::Storm,
    ];

    /// Returns the occasion's name in the report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::First => "First list",
            Self::Restart => "Restart",
            Self::Watch => "Changes",
            Self::Reconnect => "Reconnect",
            Self::WatchStorm => "504 to watches",
            Self::Storm => "504 to all",
        }
    }
}

/// Load on the API server by its clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ServerCost {
    /// Bytes that the server sent in responses, after compression.
    pub(crate) bytes: u64,
    pub(crate) requests: u64,
    /// Number of lists with all objects of a kind.
    pub(crate) lists: u64,
    /// CPU time of the server's process in seconds.
    pub(crate) cpu_s: f64,
}

/// Counts from strace of the system calls of a subject and its child processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) system_calls: u64,
    /// Number of netlink messages to the kernel, counted in the bytes that the subject sent.
    pub(crate) netlink_messages: u64,
    /// Number of netlink messages that change kernel state.
    pub(crate) netlink_writes: u64,
    /// Number of netlink messages that change kernel state, by command or message type.
    #[serde(default)]
    pub(crate) writes_by_name: BTreeMap<String, u64>,
    /// Number of tables that legacy iptables replaced (`IPT_SO_SET_REPLACE`). (iptables-nft sends
    /// netlink messages.)
    #[serde(default)]
    pub(crate) table_writes: u64,
    /// Number of programs that the subject executed (`execve`).
    pub(crate) processes: u64,
    /// Number of calls, for each of the most frequent system calls.
    #[serde(default)]
    pub(crate) by_name: BTreeMap<String, u64>,
}

/// Summary of a kernel state: numbers of entries, and a digest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KernelDigest {
    pub(crate) servers: u64,
    pub(crate) destinations: u64,
    pub(crate) members: u64,
    pub(crate) addresses: u64,
    /// Number of rules in the IPv4 nat table of iptables.
    pub(crate) rules: u64,
    /// Digest of all entries. Equal states have equal digests.
    pub(crate) digest: String,
}

/// A cell (benchmark run) and its outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measurement {
    #[serde(flatten)]
    pub(crate) cell: Cell,
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
    /// Duration of the whole cell in seconds, including the VM's boot.
    pub(crate) took_s: f64,
}

/// Content of `report.json`: all measurements of a run, and its circumstances.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Version of the file format, which increases when a field changes its meaning.
    pub(crate) version: u32,
    pub(crate) about: About,
    /// Measurements in the order in which they were made.
    pub(crate) measurements: Vec<Measurement>,
}

/// Circumstances of a run: time, commit, machine and options.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct About {
    /// Start of the run in UTC, such as `2026-11-21T11:45:00Z`.
    pub(crate) started: String,
    pub(crate) seconds: u64,
    /// Number of planned cells. A report with fewer measurements is from an interrupted run.
    pub(crate) cells: usize,
    /// Commit that was measured, followed by `-dirty` if the work tree had uncommitted changes.
    pub(crate) commit: String,
    /// Command line that started the run.
    pub(crate) command: String,
    /// Lane (kernel) of the lab: `host`, `A` or `B`.
    pub(crate) lane: String,
    /// Release and machine of the VMs' kernel, such as `6.1.0 x86_64`.
    pub(crate) kernel: String,
    /// Model and number of the host's CPUs.
    pub(crate) cpu: String,
    /// Memory of each VM, as passed to the lab.
    pub(crate) memory: String,
    /// Load average of the host over one minute, at the start of the run.
    pub(crate) load: String,
    /// True for a run without limits (`--full`).
    pub(crate) is_full: bool,
    /// Names of the subjects in the order of the report's columns.
    pub(crate) subjects: Vec<String>,
    /// Measured kube-proxies that are not ours.
    pub(crate) others: Vec<Other>,
    /// Names of kube-proxies that `--kube-proxy` gave, but `--subjects` did not include.
    pub(crate) not_named: Vec<String>,
}

/// A kube-proxy that is not ours: its name, version and checksum.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Other {
    /// Name of the kube-proxy's column in the report.
    pub(crate) name: String,
    /// Output of the kube-proxy's `--version`. Empty if it printed nothing.
    pub(crate) version: String,
    /// SHA-256 of the binary in hexadecimal. Empty if the binary is unreadable.
    pub(crate) sha256: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_benchmark_outcome_survives_serialization() {
        let text = || "why".to_owned();
        let measured = CellFigures {
            wall_s: Some(1.0),
            counts: Some(Counts::default()),
            state: Some(KernelDigest::default()),
            ..CellFigures::default()
        };
        let outcomes = [
            Outcome::Measured(Box::new(measured)),
            Outcome::Over {
                limit_s: 120,
                reached: text(),
            },
            Outcome::Wrong {
                differences: text(),
            },
            Outcome::Failed { why: text() },
            Outcome::Skipped {
                why: text(),
                cold_over_s: Some(120),
            },
            Outcome::Skipped {
                why: text(),
                cold_over_s: None,
            },
        ];
        for outcome in outcomes {
            let one = Measurement {
                cell: Cell {
                    axis: Axis::Cold,
                    subject: Subject {
                        name: "ours".into(),
                        kind: SubjectKind::KubeProxy {
                            path: "kube-proxy".into(),
                            mode: Mode::Ipvs,
                            flags: vec![LEAN.into()],
                            is_ours: true,
                        },
                    },
                    size: "100".parse().unwrap(),
                    repeat: 0,
                    is_counting: false,
                    limit_s: 60,
                    changes: 1,
                    idle_s: 1,
                },
                outcome,
                took_s: 2.0,
            };
            let text = serde_json::to_string(&one).unwrap();
            assert_eq!(serde_json::from_str::<Measurement>(&text).unwrap(), one);
        }
    }
}
