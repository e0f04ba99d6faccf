//! Cells, outcomes and the report: the data that host and VM exchange, and the format of
//! `report.json`.
//!
//! ```text
//!  run (host) ── Cell ──▶ lab run -- bench cell JSON ── Outcome ──▶ run ── Report ──▶ report.json ──▶ report (drawn)
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Quantity that a cell measures.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Axis {
    /// Cold start: from exec to the whole state in an empty kernel.
    Cold,
    /// A cold start with kernel modules that are already loaded.
    Loaded,
    /// Restart: from exec to the end of the first sync. The kernel already holds the state.
    Restart,
    /// Time until an added Service is in the kernel.
    Add,
    /// Replacement of one endpoint of one Service, many times. The next change waits until the
    /// kernel has the previous one.
    Change,
    /// Replacement of 100 endpoints, one object after another without waiting.
    Rolling,
    /// Time until the subject has removed all Services from the kernel.
    Delete,
    /// CPU time and wakeups of an idle daemon.
    Idle,
    /// Peak and steady memory of a cold start.
    Memory,
    /// One Service with many endpoints. The size sets their number.
    Big,
    /// Requests to the API server, and its responses.
    Api,
    /// The first packet of a new flow.
    First,
    /// New connections per second.
    Connect,
    /// Requests per second on a persistent connection.
    Keptalive,
    /// Answered datagrams per second.
    Udp,
    /// Gigabits per second on one connection.
    Throughput,
    /// Cost that each part of a mode's rules adds to a first packet.
    Anatomy,
}

impl Axis {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied()
    }

    /// Returns true if the axis measures packets. Other axes measure writes.
    pub(crate) fn is_data_plane(self) -> bool {
        self >= Self::First
    }
}

/// Formats the axis as on the command line and in the report.
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

/// Mode of a kube-proxy: `--proxy-mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// The kernel's IPVS distributes connections (`ipvs`).
    Ipvs,
    /// iptables rules translate packets (`iptables`).
    Iptables,
    /// An nftables table translates packets (`nftables`).
    Nftables,
    /// Userspace mode, in which the daemon relays packets through its sockets.
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

/// Program or kernel state that a run measures: a column of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Subject {
    /// Name of the subject in the report.
    pub(crate) name: String,
    /// Kind of the subject.
    #[serde(flatten)]
    pub(crate) kind: SubjectKind,
}

impl Subject {
    /// Returns a kube-proxy in a mode, with additional flags.
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

/// Program or kernel state that a subject consists of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum SubjectKind {
    /// A kube-proxy binary, ours or another one.
    KubeProxy {
        /// Path of the binary.
        path: PathBuf,
        /// Value of `--proxy-mode`.
        mode: Mode,
        /// Additional command line flags of the binary.
        flags: Vec<String>,
        /// True if this repository built the binary. Only such a binary gets our additional flags.
        is_ours: bool,
    },
    /// The bare loader of IPVS mode. It sends messages for the same final state, encoded
    /// beforehand.
    Floor,
    /// A bare loader of nftables mode.
    NftFloor,
    /// A bare loader of nftables mode's flat layout.
    NftFlatFloor,
    /// `ipvsadm -R`, `ipset restore` and `ip -batch` with the same final state.
    Tools,
    /// Data plane: only virtual servers, without sets and rules.
    BareIpvs,
    /// Data plane: no Service. The client connects directly to the pod.
    Direct,
}

/// Prefix of `anatomy` series from a node that a daemon has programmed. The name of the daemon's
/// subject follows.
pub(crate) const WHOLE: &str = "by the daemon: ";
/// Name of the `anatomy` series in which address translation is enabled but no rule translates.
pub(crate) const NAT_ALONE: &str = "translation of addresses, no rule";
/// Reason for skipping a cell that would not finish within the run's time limit.
pub(crate) const NO_TIME: &str =
    "it would not have been done in the time of the whole run (--minutes)";
/// Flag that selects the lean shim.
pub(crate) const LEAN: &str = "--ipvs-shim=lean";
/// Flag that selects the nftables shim.
pub(crate) const NATIVE: &str = "--ipvs-shim=nftables";
/// Flag that selects the semantics of iptables mode in IPVS mode.
pub(crate) const EXACT: &str = "--ipvs-semantics=exact";
/// Flag that selects upstream's layout of nftables mode.
pub(crate) const UPSTREAM_LAYOUT: &str = "--nftables-layout=upstream";
/// Flag that selects the flat layout of nftables mode.
pub(crate) const FLAT: &str = "--nftables-layout=flat";
/// Flag that makes Service addresses local by routes.
pub(crate) const ROUTE: &str = "--ipvs-vip-mode=route";
/// Flag that makes a network of Service addresses local by one route.
pub(crate) const RANGE: &str = "--ipvs-vip-mode=range";
/// Flag that names the network of [`RANGE`].
pub(crate) const SERVICE_CIDRS: &str = "--ipvs-service-cidrs=10.96.0.0/12";

impl Outcome {
    /// Returns the outcome of a cell that the run skips for this reason.
    pub(crate) fn skipped(why: impl Into<String>) -> Self {
        Self::Skipped {
            why: why.into(),
            cold_over_s: None,
        }
    }
}

impl SubjectKind {
    /// Returns true for a kube-proxy from another source.
    pub(crate) fn is_other(&self) -> bool {
        matches!(self, Self::KubeProxy { is_ours: false, .. })
    }

    /// Returns true if the subject has the lean shim.
    pub(crate) fn is_lean(&self) -> bool {
        self.has(LEAN)
    }

    /// Returns true for a kube-proxy with this additional flag.
    pub(crate) fn has(&self, wanted: &str) -> bool {
        matches!(self, Self::KubeProxy { flags, .. } if flags.iter().any(|flag| flag == wanted))
    }
}

/// Number of Services and endpoints: `10000x2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Size {
    /// Number of Services. Each has one TCP port.
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

    /// Parses `10000` (two endpoints each) or `10000x50`.
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

/// Measurement in a fresh VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) axis: Axis,
    pub(crate) subject: Subject,
    pub(crate) size: Size,
    /// Number of the repeat, from 0. The repeats of one axis, subject and size are one point of the
    /// report.
    pub(crate) repeat: u32,
    /// True if the subject runs under `strace -f`. The cell then counts system calls, and its
    /// durations are meaningless.
    pub(crate) is_counting: bool,
    /// Time limit in seconds. It applies to the measurement, and to the preparation of each step.
    pub(crate) limit_s: u64,
    /// Number of changes of the axis `change`.
    pub(crate) changes: u32,
    /// Duration of the axis `idle`, in seconds.
    pub(crate) idle_s: u64,
}

impl Cell {
    /// Returns the factor by which this cell's time limit exceeds the run's. strace slows the
    /// subject down. At up to 1,000 Services, other kube-proxies may take minutes. They get more
    /// time so that a comparison is possible.
    pub(crate) fn patience(&self) -> u32 {
        let is_slow = self.subject.kind.is_other() && self.size.services <= 1_000;
        if self.is_counting || is_slow { 2 } else { 1 }
    }
}

/// Result of a cell: figures, or the reason for their absence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// Figures of a correct state.
    Measured(Box<CellFigures>),
    /// The time limit passed. The report shows "over N s".
    Over {
        /// The limit. In JSON, its name differs from the cell's limit in the same object.
        #[serde(rename = "over_s")]
        limit_s: u64,
        /// Progress of the subject when the time limit passed.
        reached: String,
    },
    /// The subject finished its work, but the kernel's state is wrong.
    Wrong {
        /// The first differences between the kernel's state and the wanted state.
        differences: String,
    },
    /// The measurement failed.
    Failed {
        /// The error that stopped the measurement.
        why: String,
    },
    /// Skipped: the subject does not support its mode or flags, its cold start takes too long, or
    /// the run's time limit would pass.
    Skipped {
        /// The reason.
        why: String,
        /// Time limit in seconds that a cold start of this or a smaller size exceeded. This cell
        /// would have exceeded it as well.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cold_over_s: Option<u64>,
    },
}

/// Figures of a cell. A figure that the axis does not measure is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CellFigures {
    /// Wall time of the whole measurement, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wall_s: Option<f64>,
    /// CPU time of the subject and its child processes, user and system, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_s: Option<f64>,
    /// CPU time of the API fixture during the measurement, in seconds. The fixture shares the CPU,
    /// so this time is part of the wall time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fixture_cpu_s: Option<f64>,
    /// `VmHWM` of the subject, in KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peak_kib: Option<u64>,
    /// `VmRSS` of the subject after it has finished its work and settled, in KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) steady_kib: Option<u64>,
    /// Distributions by name: `all` for change; `first`, `middle`, `last` and `direct` for the data
    /// plane.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) series: BTreeMap<String, Distribution>,
    /// Additional figures. The name ends in the unit: `write_sets_s`, `wakeups_per_s`,
    /// `connections_per_s`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) figures: BTreeMap<String, f64>,
    /// Load of the API server on each occasion.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) server: BTreeMap<RequestOccasion, ServerCost>,
    /// Counts of a counting repeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) counts: Option<Counts>,
    /// Release and machine of the VM's kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kernel: Option<String>,
    /// The kernel's state at the end, read back and found correct.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<KernelDigest>,
}

/// Summary of many values.
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
    /// Computes the distribution of these values, by the nearest rank; `None` without values.
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

/// Occasion on which a subject sends requests to the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RequestOccasion {
    /// First start of the subject.
    First,
    /// Restart of the subject.
    Restart,
    /// Endpoints change while the subject watches them.
    Watch,
    /// Simultaneous reconnect of many clients.
    Reconnect,
    /// The server returns 504 to watches for a while.
    WatchStorm,
    /// All connections break. For a while, the server returns 504 to lists as well as watches.
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

    /// Returns the name.
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

/// Work that an API server did for its clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ServerCost {
    /// Bytes that the server sent on the wire.
    pub(crate) bytes: u64,
    pub(crate) requests: u64,
    /// Requests whose response contained all objects of a kind.
    pub(crate) lists: u64,
    /// CPU time of the server process, in seconds.
    pub(crate) cpu_s: f64,
}

/// System calls of a subject and its children, counted by strace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) system_calls: u64,
    /// Messages that the subject sent to netlink sockets, counted in the sent bytes.
    pub(crate) netlink_messages: u64,
    /// Netlink messages that change the kernel's state.
    pub(crate) netlink_writes: u64,
    /// Numbers of netlink messages that write, by command or type.
    #[serde(default)]
    pub(crate) writes_by_name: BTreeMap<String, u64>,
    /// Tables that legacy iptables replaced (`IPT_SO_SET_REPLACE`). iptables-nft writes over
    /// netlink instead.
    #[serde(default)]
    pub(crate) table_writes: u64,
    /// Programs that the subject started (`execve`).
    pub(crate) processes: u64,
    /// Numbers of calls of the most frequent system calls, by name.
    #[serde(default)]
    pub(crate) by_name: BTreeMap<String, u64>,
}

/// Size and digest of the kernel's state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KernelDigest {
    pub(crate) servers: u64,
    pub(crate) destinations: u64,
    pub(crate) members: u64,
    pub(crate) addresses: u64,
    /// iptables rules of both tables.
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
    /// Wall time of the whole cell, boot included, in seconds.
    pub(crate) took_s: f64,
}

/// Content of `report.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Format version. Incremented when a field changes its meaning.
    pub(crate) version: u32,
    pub(crate) about: About,
    /// Measurements in their order.
    pub(crate) measurements: Vec<Measurement>,
}

/// Environment of a run: time, commit, machine and options.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct About {
    /// Start time in UTC: `2026-11-21T11:45:00Z`.
    pub(crate) started: String,
    pub(crate) seconds: u64,
    /// Number of planned cells. A report with fewer measurements was interrupted.
    pub(crate) cells: usize,
    /// The measured commit, with the suffix `-dirty` if there were uncommitted changes.
    pub(crate) commit: String,
    /// Command line of the run.
    pub(crate) command: String,
    /// Lane of the lab, which selects the kernel of the VMs: `host`, `A` or `B`.
    pub(crate) lane: String,
    /// Kernel of the VMs: `6.1.0 x86_64`.
    pub(crate) kernel: String,
    /// The model and number of the host's CPUs.
    pub(crate) cpu: String,
    /// Memory of each VM.
    pub(crate) memory: String,
    /// The host's 1-minute load average at the start.
    pub(crate) load: String,
    /// True if the run had no limits (`--full`).
    pub(crate) is_full: bool,
    /// Subjects, in the order of the columns.
    pub(crate) subjects: Vec<String>,
    /// The subjects from other sources.
    pub(crate) others: Vec<Other>,
    /// Kube-proxies that `--kube-proxy` gave but `--subjects` does not name.
    pub(crate) not_named: Vec<String>,
}

/// A kube-proxy from another source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Other {
    /// Name of the subject.
    pub(crate) name: String,
    /// Output of `--version`; empty without output.
    pub(crate) version: String,
    /// SHA-256 of the binary in hex. Empty if the binary is unreadable.
    pub(crate) sha256: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_survives_serialization() {
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
