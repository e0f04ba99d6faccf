//! Cells, outcomes and the report: the data that the host and its VMs exchange, and the format of
//! `report.json`.
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

    /// Returns true if the axis measures packets. All other axes measure the daemon.
    pub(crate) fn is_data_plane(self) -> bool {
        self >= Self::First
    }
}

/// Formats the axis as the name that the command line and the report use.
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

/// Mode of a kube-proxy, as in `--proxy-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// The kernel's IPVS distributes connections (`ipvs`).
    Ipvs,
    /// iptables rules translate packets (`iptables`).
    Iptables,
    /// An nftables table translates packets (`nftables`).
    Nftables,
    /// The daemon relays connections and datagrams through its own sockets (`userspace`).
    Userspace,
}

impl Mode {
    /// Returns the value of `--proxy-mode`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ipvs => "ipvs",
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
            Self::Userspace => "userspace",
        }
    }
}

/// A measured program, or a kernel state without a program. Each has a column in the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Subject {
    /// Name of the subject in the report.
    pub(crate) name: String,
    /// The measured program or kernel state itself.
    #[serde(flatten)]
    pub(crate) kind: SubjectKind,
}

impl Subject {
    /// Creates a kube-proxy in a mode, with additional flags, for measurement.
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

/// The measured program, or the kernel state that is measured without a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum SubjectKind {
    /// A kube-proxy binary, either this repository's or another one.
    KubeProxy {
        /// Path of the binary.
        path: PathBuf,
        /// Value of `--proxy-mode`.
        mode: Mode,
        /// Additional command line flags for the binary.
        flags: Vec<String>,
        /// True if this repository built the binary. Only such a binary gets this project's
        /// additional flags.
        is_ours: bool,
    },
    /// The bare loader of IPVS mode. It sends prepared messages that write the daemon's state.
    Floor,
    /// The bare loader of nftables mode, with upstream's layout.
    NftFloor,
    /// The bare loader of nftables mode, with the flat layout.
    NftFlatFloor,
    /// The kernel's tools `ipvsadm -R`, `ipset restore` and `ip -batch`, which write the daemon's
    /// final state.
    Tools,
    /// Data plane only: IPVS virtual servers without sets and rules.
    BareIpvs,
    /// Data plane only: no Service. The client connects directly to the pod.
    Direct,
}

/// Prefix of `anatomy` series that were measured on a node with a complete mode. The name of the
/// measured program follows.
pub(crate) const WHOLE: &str = "by the daemon: ";
/// Name of the `anatomy` series in which the kernel has address translation enabled, but no rule.
pub(crate) const NAT_ALONE: &str = "translation of addresses, no rule";
/// Reason for skipping a cell that would not finish within the run's time limit.
pub(crate) const NO_TIME: &str =
    "it would not have been done in the time of the whole run (--minutes)";
/// Flag that selects the short iptables rules of IPVS mode.
pub(crate) const LEAN: &str = "--ipvs-shim=lean";
/// Flag that selects nftables for the rules and sets of IPVS mode.
pub(crate) const NATIVE: &str = "--ipvs-shim=nftables";
/// Flag that makes IPVS mode treat packets exactly like iptables mode.
pub(crate) const EXACT: &str = "--ipvs-semantics=exact";
/// Flag that selects upstream's table layout in nftables mode.
pub(crate) const UPSTREAM_LAYOUT: &str = "--nftables-layout=upstream";
/// Flag that selects the flat table layout in nftables mode.
pub(crate) const FLAT: &str = "--nftables-layout=flat";
/// Flag that makes each Service address local by a route.
pub(crate) const ROUTE: &str = "--ipvs-vip-mode=route";
/// Flag that makes a whole network of Service addresses local by one route.
pub(crate) const RANGE: &str = "--ipvs-vip-mode=range";
/// Flag that names the network for [`RANGE`].
pub(crate) const SERVICE_CIDRS: &str = "--ipvs-service-cidrs=10.96.0.0/12";

impl Outcome {
    /// Returns the outcome of a cell that the run skips for the reason `why`.
    pub(crate) fn skipped(why: impl Into<String>) -> Self {
        Self::Skipped {
            why: why.into(),
            cold_over_s: None,
        }
    }
}

impl SubjectKind {
    /// Returns true for a kube-proxy that this repository did not build.
    pub(crate) fn is_other(&self) -> bool {
        matches!(self, Self::KubeProxy { is_ours: false, .. })
    }

    /// Returns true for a kube-proxy with the short iptables rules of IPVS mode ([`LEAN`]).
    pub(crate) fn is_lean(&self) -> bool {
        self.has(LEAN)
    }

    /// Returns true for a kube-proxy that has this additional flag.
    pub(crate) fn has(&self, wanted: &str) -> bool {
        matches!(self, Self::KubeProxy { flags, .. } if flags.iter().any(|flag| flag == wanted))
    }
}

/// Number of Services, and of endpoints per Service, such as `10000x2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Size {
    /// Number of Services. Each Service has one TCP port.
    pub(crate) services: u32,
    /// Number of endpoints per Service.
    pub(crate) endpoints: u32,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}x{}", self.services, self.endpoints))
    }
}

impl FromStr for Size {
    type Err = String;

    /// Parses `10000x50`, or `10000` for two endpoints per Service.
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

/// One measurement, made in a fresh VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) axis: Axis,
    pub(crate) subject: Subject,
    pub(crate) size: Size,
    /// Number of the repeat, counted from 0. The report combines the repeats of one axis, measured
    /// program and size.
    pub(crate) repeat: u32,
    /// True if the measured program runs under `strace -f`. The cell then counts system calls, and
    /// its durations are meaningless.
    pub(crate) is_counting: bool,
    /// Time limit in seconds. It applies to the measurement, and separately to the preparation of
    /// each step.
    pub(crate) limit_s: u64,
    /// Number of changes that the axis `change` makes.
    pub(crate) changes: u32,
    /// Duration of the measurement on the axis `idle`, in seconds.
    pub(crate) idle_s: u64,
}

impl Cell {
    /// Returns the factor by which this cell's time limit exceeds the limit of the run.
    ///
    /// - strace slows a program down.
    /// - At up to 1,000 Services, another kube-proxy may take minutes. It gets more time, so that a
    ///   comparison is possible.
    pub(crate) fn patience(&self) -> u32 {
        let is_slow = self.subject.kind.is_other() && self.size.services <= 1_000;
        if self.is_counting || is_slow { 2 } else { 1 }
    }
}

/// Result of a cell: its figures, or the reason why it has none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// Figures of a cell whose final kernel state is correct.
    Measured(Box<CellFigures>),
    /// The cell exceeded its time limit. The report shows "over N s".
    Over {
        /// Time limit in seconds. The JSON name is `over_s`, because the same JSON object has the
        /// cell's `limit_s`.
        #[serde(rename = "over_s")]
        limit_s: u64,
        /// Progress of the measured program when the time limit passed.
        reached: String,
    },
    /// The measured program finished its work, but the kernel's state is wrong.
    Wrong {
        /// The first few differences between the kernel's state and the expected state.
        differences: String,
    },
    /// The measurement failed.
    Failed {
        /// The error that stopped the measurement.
        why: String,
    },
    /// The run skipped the cell, because the program does not support its mode or flags, its cold
    /// start takes too long, or the run has too little time left.
    Skipped {
        /// Reason why the run skipped the cell.
        why: String,
        /// Time limit in seconds that a cold start of the same or a smaller size exceeded. This
        /// cell would have exceeded its limit, too. `None` if the run skipped the cell for another
        /// reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cold_over_s: Option<u64>,
    },
}

/// Figures of a cell. Figures that the axis does not measure are absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CellFigures {
    /// Wall time of the whole measurement in seconds, if measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wall_s: Option<f64>,
    /// CPU time of the measured program and its child processes (user and system) in seconds, if
    /// measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_s: Option<f64>,
    /// CPU time of the API fixture during the measurement in seconds, if measured. The fixture
    /// shares the CPU, so this time is part of the wall time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fixture_cpu_s: Option<f64>,
    /// Peak memory of the measured program (`VmHWM`) in KiB, if measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peak_kib: Option<u64>,
    /// Memory of the measured program (`VmRSS`) in KiB some time after it has finished its work, if
    /// measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) steady_kib: Option<u64>,
    /// Distributions of measured values, by name. The axis `change` has `all`. The data plane has
    /// `first`, `middle`, `last` and `direct`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) series: BTreeMap<String, Distribution>,
    /// Additional figures, by name. Each name ends in its unit: `write_sets_s`, `wakeups_per_s`,
    /// `connections_per_s`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) figures: BTreeMap<String, f64>,
    /// Load on the API server, by occasion.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) server: BTreeMap<RequestOccasion, ServerCost>,
    /// System calls and messages that strace counted, if the measured program ran under strace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) counts: Option<Counts>,
    /// Release and machine architecture of the VM's kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kernel: Option<String>,
    /// Summary of the kernel's final state, which was read back and found correct.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<KernelDigest>,
}

/// Summary of many measured values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Distribution {
    /// Unit of the values: `ms`, `us`, `ns`, `per_s`.
    pub(crate) unit: String,
    pub(crate) n: usize,
    pub(crate) min: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Distribution {
    /// Computes the distribution of these values by the nearest-rank method. Returns `None` if
    /// there are no values.
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

/// Occasion on which a kube-proxy sends requests to the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RequestOccasion {
    /// First start of the kube-proxy.
    First,
    /// Restart of the kube-proxy.
    Restart,
    /// Changes to endpoints while the kube-proxy watches them.
    Watch,
    /// Many clients reconnect at the same time.
    Reconnect,
    /// All connections break. For a while, the server then returns 504 to watches.
    WatchStorm,
    /// All connections break. For a while, the server then returns 504 to watches and lists.
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

    /// Returns the name of the occasion in the report.
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

/// Load that clients have put on the API server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ServerCost {
    /// Bytes that the server sent on the wire.
    pub(crate) bytes: u64,
    pub(crate) requests: u64,
    /// Number of requests whose response contained all objects of a kind.
    pub(crate) lists: u64,
    /// CPU time of the server process, in seconds.
    pub(crate) cpu_s: f64,
}

/// System calls of the measured program and its child processes, counted by strace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) system_calls: u64,
    /// Number of messages that the program sent to netlink sockets, found in the sent bytes.
    pub(crate) netlink_messages: u64,
    /// Number of netlink messages that change the kernel's state.
    pub(crate) netlink_writes: u64,
    /// Number of netlink messages that change the kernel's state, by command or message type.
    #[serde(default)]
    pub(crate) writes_by_name: BTreeMap<String, u64>,
    /// Number of tables that legacy iptables replaced (`IPT_SO_SET_REPLACE`). iptables-nft writes
    /// over netlink instead.
    #[serde(default)]
    pub(crate) table_writes: u64,
    /// Number of programs that the measured program started (`execve`).
    pub(crate) processes: u64,
    /// Number of calls of each of the most frequent system calls, by name.
    #[serde(default)]
    pub(crate) by_name: BTreeMap<String, u64>,
}

/// Numbers of entries in the kernel's state, and a digest of the state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KernelDigest {
    pub(crate) servers: u64,
    pub(crate) destinations: u64,
    pub(crate) members: u64,
    pub(crate) addresses: u64,
    /// Number of IPv4 rules in the iptables nat table.
    pub(crate) rules: u64,
    /// Digest of the state. Equal states have equal digests.
    pub(crate) digest: String,
}

/// A cell and its outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measurement {
    #[serde(flatten)]
    pub(crate) cell: Cell,
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
    /// Wall time of the whole cell, including the boot, in seconds.
    pub(crate) took_s: f64,
}

/// Content of `report.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Format version, incremented whenever a field changes its meaning.
    pub(crate) version: u32,
    pub(crate) about: About,
    /// Measurements in the order in which they were made.
    pub(crate) measurements: Vec<Measurement>,
}

/// Circumstances of a run: time, commit, machine and options.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct About {
    /// Start time in UTC, such as `2026-11-21T11:45:00Z`.
    pub(crate) started: String,
    pub(crate) seconds: u64,
    /// Number of planned cells. If the report has fewer measurements, the run was interrupted.
    pub(crate) cells: usize,
    /// The measured commit, with the suffix `-dirty` if there were uncommitted changes.
    pub(crate) commit: String,
    /// Command line of the run.
    pub(crate) command: String,
    /// Kernel that the lab uses: `host` for the host's kernel, otherwise `A` or `B`.
    pub(crate) lane: String,
    /// Kernel of the VMs, such as `6.1.0 x86_64`.
    pub(crate) kernel: String,
    /// Model and number of the host's CPUs.
    pub(crate) cpu: String,
    /// Memory of each VM.
    pub(crate) memory: String,
    /// The host's 1-minute load average at the start.
    pub(crate) load: String,
    /// True if the run had no limits (`--full`).
    pub(crate) is_full: bool,
    /// Names of the measured programs, in the order of the columns.
    pub(crate) subjects: Vec<String>,
    /// Measured kube-proxies that this repository did not build.
    pub(crate) others: Vec<Other>,
    /// Kube-proxies that the option `--kube-proxy` gives but `--subjects` excludes.
    pub(crate) not_named: Vec<String>,
}

/// A kube-proxy that this repository did not build.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Other {
    /// Name of the kube-proxy in the report.
    pub(crate) name: String,
    /// Output of `--version`, or an empty text if the binary printed nothing.
    pub(crate) version: String,
    /// SHA-256 of the binary in hex, or an empty text if the binary is unreadable.
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
