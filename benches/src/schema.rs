//! Cells, outcomes and the report: all that host and guest exchange, and all of `report.json`.
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

/// Question that a cell asks about a subject.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Axis {
    /// Cold start: from exec to the whole state in an empty kernel.
    Cold,
    /// A cold start with the kernel modules loaded before.
    Loaded,
    /// Restart: from exec to the end of the first sync on a kernel that holds the state already.
    Restart,
    /// Addition of a Service.
    Add,
    /// Replacement of one endpoint of one Service, many times; each is seen in the kernel before
    /// the next.
    Change,
    /// 100 endpoints replaced, one object after another without waiting.
    Rolling,
    /// Deletion of all Services.
    Delete,
    /// Nothing happens.
    Idle,
    /// A cold start; peak and steady memory.
    Memory,
    /// Service with as many endpoints as the size says.
    Big,
    /// Requests to the API server, and its responses.
    Api,
    /// The first packet of a new flow.
    First,
    /// New connections in a second.
    Connect,
    /// Requests on a connection that is kept.
    Keptalive,
    /// Datagrams.
    Udp,
    /// Bytes in a second.
    Throughput,
    /// Cost that each piece of the shim adds to a first packet, at one Service.
    Anatomy,
}

impl Axis {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied()
    }

    /// Returns true if packets are measured, not writes.
    pub(crate) fn is_data_plane(self) -> bool {
        self >= Self::First
    }
}

/// The word on the command line and in the report.
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
    /// IPVS.
    Ipvs,
    /// iptables.
    Iptables,
    /// nftables.
    Nftables,
    /// Sockets of the daemon itself.
    Userspace,
}

impl Mode {
    /// The value of `--proxy-mode`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ipvs => "ipvs",
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
            Self::Userspace => "userspace",
        }
    }
}

/// Subject of measurements: a column of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Subject {
    /// Name in the report.
    pub(crate) name: String,
    /// Kind of the subject.
    #[serde(flatten)]
    pub(crate) kind: SubjectKind,
}

/// Kind of a subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum SubjectKind {
    /// A kube-proxy binary.
    KubeProxy {
        /// The binary.
        path: PathBuf,
        /// `--proxy-mode`.
        mode: Mode,
        /// Further flags.
        flags: Vec<String>,
        /// True if it is built from this repository, so that flags of our own may be used.
        is_ours: bool,
    },
    /// The bare loader: the same final state of the IPVS mode as messages encoded beforehand.
    Floor,
    /// A bare loader of nftables mode.
    NftFloor,
    /// A bare loader of nftables mode's flat layout.
    NftFlatFloor,
    /// `ipvsadm -R`, `ipset restore` and `ip -batch` with the same final state.
    Tools,
    /// Data plane: virtual servers and nothing else: no sets, no rules.
    BareIpvs,
    /// Data plane: no Service at all; the pod is asked directly.
    Direct,
}

/// Prefix of the series of the axis `anatomy` that belong to a node which a daemon has programmed.
/// The name of the subject follows.
pub(crate) const WHOLE: &str = "by the daemon: ";
/// The series of the axis anatomy in which addresses are translated, and no rule says how.
pub(crate) const NAT_ALONE: &str = "translation of addresses, no rule";
/// Why a cell is not run after its run's time.
pub(crate) const NO_TIME: &str =
    "it would not have been done in the time of the whole run (--minutes)";
/// The flag of our leaner shim.
pub(crate) const LEAN: &str = "--ipvs-shim=lean";
/// The flag of the shim that is a table of nftables.
pub(crate) const NATIVE: &str = "--ipvs-shim=nftables";
/// The flag of the flat layout of nftables mode.
pub(crate) const FLAT: &str = "--nftables-layout=flat";
/// The flag that has service addresses as routes.
pub(crate) const ROUTE: &str = "--ipvs-vip-mode=route";

impl Outcome {
    /// Describes a cell that is not measured, for this reason.
    pub(crate) fn skipped(why: impl Into<String>) -> Self {
        Self::Skipped {
            why: why.into(),
            cold_over_s: None,
        }
    }
}

impl SubjectKind {
    /// Returns true for a kube-proxy that is not of this repository.
    pub(crate) fn is_other(&self) -> bool {
        matches!(self, Self::KubeProxy { is_ours: false, .. })
    }

    /// Returns true if the shim is the lean one.
    pub(crate) fn is_lean(&self) -> bool {
        self.has(LEAN)
    }

    /// Returns true for a kube-proxy that has this flag of its own.
    pub(crate) fn has(&self, wanted: &str) -> bool {
        matches!(self, Self::KubeProxy { flags, .. } if flags.iter().any(|flag| flag == wanted))
    }
}

/// Number of Services and endpoints: `10000x2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Size {
    /// Services, of one TCP port each.
    pub(crate) services: u32,
    /// Endpoints of each.
    pub(crate) endpoints: u32,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}x{}", self.services, self.endpoints))
    }
}

impl FromStr for Size {
    type Err = String;

    /// `10000` (two endpoints each) or `10000x50`.
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

/// Measurement in a fresh guest of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) axis: Axis,
    pub(crate) subject: Subject,
    pub(crate) size: Size,
    /// Number of the repeat, from 0. Repeats of one axis, subject and size are one point of the
    /// report.
    pub(crate) repeat: u32,
    /// The subject runs under `strace -f`: what it does is counted, and its times mean nothing.
    pub(crate) is_counting: bool,
    /// The time limit, in seconds, of what is measured, and of what has to be there before each.
    pub(crate) limit_s: u64,
    /// Number of changes of the axis `change`.
    pub(crate) changes: u32,
    /// Seconds for which the axis `idle` looks.
    pub(crate) idle_s: u64,
}

impl Cell {
    /// Returns the factor of the run's time limit for this cell. strace slows everything down.
    /// Another kube-proxy gets more at up to 1,000 Services, where it may take minutes and is to be
    /// compared.
    pub(crate) fn patience(&self) -> u32 {
        let is_slow = self.subject.kind.is_other() && self.size.services <= 1_000;
        if self.is_counting || is_slow { 2 } else { 1 }
    }
}

/// Outcome of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// Figures, of a state that was compared with what it must be.
    Measured(Box<Measured>),
    /// The time limit passed: a result, "over N s".
    Over {
        /// The limit; in JSON by another name than the cell's, which it stands beside.
        #[serde(rename = "over_s")]
        limit_s: u64,
        /// State that was reached by then.
        reached: String,
    },
    /// Done, and the kernel holds something else than it must.
    Wrong {
        /// The first differences.
        differences: String,
    },
    /// Could not be measured.
    Failed {
        /// Why.
        why: String,
    },
    /// Was not measured: the subject does not know its mode or flags, its cold start takes too
    /// long, or there was no time.
    Skipped {
        /// Why.
        why: String,
        /// The time limit, in seconds, that a cold start of no more than this has passed: the cell
        /// would have, too.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cold_over_s: Option<u64>,
    },
}

/// Figures of a cell. What an axis does not have is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Measured {
    /// Wall time of the whole, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wall_s: Option<f64>,
    /// CPU time of the subject and the processes it started, user and system, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_s: Option<f64>,
    /// CPU time of the API fixture meanwhile, on the same CPU: part of the wall time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fixture_cpu_s: Option<f64>,
    /// The subject's `VmHWM`, in KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peak_kib: Option<u64>,
    /// The subject's `VmRSS` when all was done and a while had passed, in KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) steady_kib: Option<u64>,
    /// Distributions by name: `all` for change; `first`, `middle`, `last` and `direct` for the data
    /// plane.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) series: BTreeMap<String, Distribution>,
    /// Further figures; the name ends in the unit: `write_sets_s`, `wakeups_per_s`,
    /// `connections_per_s`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) figures: BTreeMap<String, f64>,
    /// Cost of the subject at the API server, on each occasion.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) server: BTreeMap<Occasion, ServerCost>,
    /// Counts of a counting repeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) counts: Option<Counts>,
    /// Release and machine of the guest's kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kernel: Option<String>,
    /// The kernel's state at the end, as it was read and found right.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) state: Option<State>,
}

/// Many values in short.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Distribution {
    /// `ms`, `us`, `ns`, `per_s`.
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

/// When the API server is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Occasion {
    /// The subject starts.
    First,
    /// Stop and start of the subject.
    Restart,
    /// Endpoints change.
    Watch,
    /// Break of all connections of many clients at once.
    Reconnect,
    /// The server answers watches with 504 for a while.
    WatchStorm,
    /// Break of all connections, with lists refused for a while.
    Storm,
}

impl Occasion {
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

/// Work of an API server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ServerCost {
    /// Bytes that it sent, on the wire.
    pub(crate) bytes: u64,
    pub(crate) requests: u64,
    /// Requests that it answered with all objects of a kind.
    pub(crate) lists: u64,
    /// CPU time of its process, in seconds.
    pub(crate) cpu_s: f64,
}

/// System calls of a subject and its children, counted by strace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) system_calls: u64,
    /// Messages sent to netlink sockets, counted in the sent bytes.
    pub(crate) netlink_messages: u64,
    /// Netlink messages that write.
    pub(crate) netlink_writes: u64,
    /// Netlink messages that write, by command or type.
    #[serde(default)]
    pub(crate) writes_by_name: BTreeMap<String, u64>,
    /// Tables that the legacy iptables replaced (`IPT_SO_SET_REPLACE`); the other one writes by
    /// netlink.
    #[serde(default)]
    pub(crate) table_writes: u64,
    /// Programs started (`execve`), its own not counted.
    pub(crate) processes: u64,
    /// The dearest system calls: name, and calls.
    #[serde(default)]
    pub(crate) by_name: BTreeMap<String, u64>,
}

/// Size of the kernel's state, and a digest of all of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) servers: u64,
    pub(crate) destinations: u64,
    pub(crate) members: u64,
    pub(crate) addresses: u64,
    /// iptables rules of both tables.
    pub(crate) rules: u64,
    /// Equal for equal states.
    pub(crate) digest: String,
}

/// A cell with what came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measurement {
    #[serde(flatten)]
    pub(crate) cell: Cell,
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
    /// Wall time of the whole cell, boot included, in seconds.
    pub(crate) took_s: f64,
}

/// `report.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Changes when what is written here changes its meaning.
    pub(crate) version: u32,
    pub(crate) about: About,
    /// Measurements in their order.
    pub(crate) measurements: Vec<Measurement>,
}

/// Circumstances of a report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct About {
    /// UTC, `2026-11-21T11:45:00Z`.
    pub(crate) started: String,
    pub(crate) seconds: u64,
    /// Number of planned cells. A report with fewer measurements was interrupted.
    pub(crate) cells: usize,
    /// The commit that was measured; `-dirty` behind it if there were changes.
    pub(crate) commit: String,
    /// The arguments, to run it again.
    pub(crate) command: String,
    /// The lab's lane: `host`, `A` or `B`.
    pub(crate) lane: String,
    /// The kernel of the guest: `6.1.0 x86_64`.
    pub(crate) kernel: String,
    /// The model and number of the host's CPUs.
    pub(crate) cpu: String,
    /// Memory of the guest.
    pub(crate) memory: String,
    /// The 1-minute load of the host when it started.
    pub(crate) load: String,
    /// True if the limits were lifted.
    pub(crate) is_full: bool,
    /// Subjects, in the order of the columns.
    pub(crate) subjects: Vec<String>,
    /// The subjects that are not of this repository.
    pub(crate) others: Vec<Other>,
    /// Kube-proxies that were given and are no subjects, because `--subjects` does not name them.
    pub(crate) not_named: Vec<String>,
}

/// A kube-proxy that is not of this repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Other {
    /// The subject.
    pub(crate) name: String,
    /// Output of `--version`; empty without output.
    pub(crate) version: String,
    /// SHA-256 of the file, in hex; empty if it cannot be read.
    pub(crate) sha256: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_is_read_as_it_was_written() {
        let text = || "why".to_owned();
        let measured = Measured {
            wall_s: Some(1.0),
            counts: Some(Counts::default()),
            state: Some(State::default()),
            ..Measured::default()
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
