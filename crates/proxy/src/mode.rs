//! The interface between a proxy mode and the daemon.
//!
//! ```text
//!   update, notice, check ─▶ proceed ─▶ worker threads ─▶ poll_finished ─▶ book ─▶ Report
//!                               ▲                                            │
//!                               └────────────────────────────────────────────┘
//! ```
//!
//! - A mode never blocks: its worker threads make system calls and run programs.
//! - Independent work runs in parallel.
//! - A single task calls all functions of a mode.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hashbrown::HashSet;

use crate::changes::Changes;
use crate::model::Model;
use crate::names::{IpFamily, NamespacedName, Protocol, ServicePortName};
use crate::node::NodePorts;
use crate::object::ServiceAddress;
use crate::options::UnavailableOption;
use crate::stale_flows::Frontend;
use crate::topology::Target;
use crate::writes::Writes;

/// A proxy mode for one IP family. A single task owns the mode, so its state needs no lock.
pub trait Mode: Send {
    /// Returns the IP family that the mode serves.
    fn family(&self) -> IpFamily;

    /// True if the mode can receive changes. Otherwise, the daemon collects changes until it can.
    fn is_ready(&self) -> bool;

    /// Updates the wanted kernel entries after these changes. Writes nothing to the kernel.
    fn update(&mut self, model: &Model, changes: &Changes, now: Instant);

    /// Handles a kernel notification, such as a removed address.
    fn notice(&mut self, notice: &Notice, now: Instant);

    /// Starts to compare the kernel with the recorded state, part by part. The daemon calls this
    /// function once in each sync period.
    fn check(&mut self, now: Instant);

    /// Starts pending reads and writes of the kernel's state on idle worker threads. Returns
    /// immediately.
    fn proceed(&mut self, model: &Model, now: Instant);

    /// Starts only writes that clients' packets need. The daemon calls this function instead of
    /// [`proceed`](Self::proceed) when another mode will replace this mode. The replacement happens
    /// once all worker threads are idle.
    fn go_on_serving(&mut self, now: Instant);

    /// Becomes ready when [`book`](Self::book) has a result: a worker thread has finished, or a
    /// change needs no write. While the mode is idle, returns `Pending` and wakes no task.
    fn poll_finished(&mut self, context: &mut Context<'_>) -> Poll<()>;

    /// Records the finished work of worker threads. Returns a report, or `None` if there is no
    /// finished work.
    fn book(&mut self, model: &Model, now: Instant) -> Option<Report>;

    /// True if all worker threads are idle, so that another mode may replace this one.
    fn is_idle(&self) -> bool;

    /// Returns the next time at which [`proceed`](Self::proceed) has work without a new event, such
    /// as a retry or the check of a drain. Returns `now` if work is ready.
    fn next_due(&self, now: Instant) -> Option<Instant>;

    /// Returns the progress of the mode: pending writes, and whether they succeed.
    fn standing(&self) -> Standing;

    /// Returns this node's addresses at which the mode serves NodePorts, or `None` while the node's
    /// addresses are unknown.
    fn node_ports(&self) -> Option<&NodePorts>;

    /// Returns the node's own addresses of this family, on all interfaces. Returns `None` while
    /// these addresses are unknown.
    fn node_addresses(&self) -> Option<&BTreeSet<IpAddr>>;

    /// Returns Service addresses and ports that another program owns in the kernel, so that this
    /// mode has no entries for them. By default, returns an empty list.
    fn held_by_others(&self) -> Vec<ServiceAddress> {
        Vec::new()
    }

    /// Returns the option values that this mode supports in general, but not on this node.
    fn unavailable_options(&self) -> Vec<UnavailableOption> {
        Vec::new()
    }

    /// Returns the variant of this mode's kernel entries, such as `layout flat`. Returns `None` if
    /// the mode has only one variant.
    fn form(&self) -> Option<&'static str> {
        None
    }

    /// Returns the number of draining endpoints, and details of at most `named` endpoints. Returns
    /// an empty result if the mode does not track the connections of removed endpoints.
    fn drains(&self, _named: usize) -> Drains {
        Drains::default()
    }
}

/// Draining endpoints: removed endpoints that still have open connections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drains {
    /// Number of draining endpoints.
    pub count: usize,
    /// Start of the oldest drain, or `None` if no start is known.
    pub oldest: Option<Instant>,
    /// Details of the draining endpoints that come first when sorted by address.
    pub first: Vec<DrainingEndpoint>,
    /// Longest duration of a drain, after which open connections are cut off. `None` if a drain
    /// lasts until the last connection ends.
    pub limit: Option<Duration>,
}

/// A removed endpoint that still has open connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainingEndpoint {
    /// Service address at which the endpoint drains.
    pub at: ServiceAddress,
    /// Address and port of the endpoint.
    pub target: Target,
    /// Time at which the drain or this process started, whichever is later. `None` if unknown.
    pub since: Option<Instant>,
}

/// A notification from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// An address was added to an interface, or its lifetime changed.
    AddressAdded(IpAddr),
    /// An address was removed from an interface.
    AddressRemoved(IpAddr),
    /// A service address was removed from the link `kube-ipvs0`.
    ServiceAddressRemoved(IpAddr),
    /// The link `kube-ipvs0` was removed, replaced, or set up or down.
    ServiceLink,
    /// Another program has changed the mode's rules, or may have done so.
    Ruleset,
    /// The kernel dropped notifications, so any state may have changed.
    Anything,
}

/// Progress of a mode: pending writes, and whether they succeed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Standing {
    /// Time of the oldest change that the kernel does not have yet, or `None` if it has all
    /// changes. Does not count an entry that the kernel refuses for a reason of its own. The
    /// report's `failures` list such entries.
    pub pending_since: Option<Instant>,
    /// Time of the oldest pending change that affects clients, or of the last successful write,
    /// whichever is later. `None` if no such change is pending.
    pub stuck_since: Option<Instant>,
    /// True if no write is running or pending.
    pub is_settled: bool,
    /// Number of entries that differ from the wanted state. Includes entries whose write was
    /// refused, and entries that wait for other entries or for the initial lists.
    pub pending: usize,
    /// Number of pending entries whose last write the kernel refused, so that they wait for a
    /// retry.
    pub failing: usize,
}

/// Results of the worker threads since the last report.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Total number of writes that the kernel accepted.
    pub written: usize,
    /// Number of writes by kind of entry and by result, including refused writes.
    pub writes: Writes,
    /// Writes that failed or that the mode could not try. Their entries stay pending, and the mode
    /// retries the writes with back-off.
    pub failures: Vec<Failure>,
    /// Number of restores of rules (such as runs of `iptables-restore`) that failed.
    pub failed_restores: usize,
    /// Parts of the kernel's state that the mode cannot read. The mode keeps the last known state
    /// of these parts and retries the read with back-off. All other work continues.
    pub unreadable: Vec<Unreadable>,
    /// Names of the parts of the kernel's state that the mode has read since the last report.
    pub readable: Vec<&'static str>,
    /// Services whose wanted entries all exist in the kernel. The wanted entries are those of the
    /// last call of [`update`](Mode::update).
    pub settled: Vec<NamespacedName>,
    /// Settled Services for which the mode wrote at least one entry after their last change.
    pub written_for: HashSet<NamespacedName>,
    /// Settled Services whose entries another program had changed.
    pub repaired: Vec<NamespacedName>,
    /// UDP frontends (address and port) whose rules the mode has removed from the kernel.
    pub withdrawn: Vec<Frontend>,
    /// Service ports that claim an address and port of another Service port. `None` if the list has
    /// not changed.
    pub conflicts: Option<Vec<Conflict>>,
    /// Number of further conflicts that `conflicts` omits. One namespace can cause very many
    /// conflicts.
    pub more_conflicts: usize,
    /// Addresses and ports that another program owns, as text, each with the Service port that
    /// wants them. The mode reports each address and port only once.
    pub foreign: Vec<(String, ServicePortName)>,
    /// Service ports that need a packet mark, although no mark is free (`--ipvs-mark-bits`). The
    /// mode reports each Service port only once.
    pub unmarked: Vec<ServicePortName>,
    /// Entries that another program had changed and the mode has repaired.
    pub drift: Drift,
    /// Rule counts for the metrics of iptables mode, or `None` in other modes and without a sync.
    pub iptables: Option<IptablesReport>,
    /// Failure counts for the metrics of nftables mode, or `None` in other modes and without a
    /// sync.
    pub nftables: Option<NftablesReport>,
    /// True if the worker threads temporarily needed much memory: the mode has read or compared the
    /// kernel's state, or written many entries.
    pub has_used_much: bool,
    /// Reason why a worker thread ended, or `None` if all run. The process should then exit,
    /// because the thread's state is lost.
    pub gone: Option<String>,
}

impl Report {
    /// Records that the node no longer serves a UDP port at `address`, or at all addresses of the
    /// node if `address` is `None`. Ignores other protocols, because their flows end by themselves.
    pub fn withdraw(&mut self, address: Option<IpAddr>, protocol: Protocol, port: u16) {
        if protocol == Protocol::Udp {
            self.withdrawn.push(Frontend::new(address, port));
        }
    }
}

/// A part of the kernel's state that the mode cannot read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// The part's name, such as `the virtual servers`.
    pub part: &'static str,
    /// Reason why the mode cannot read the part, with advice for the operator.
    pub reason: String,
}

impl Unreadable {
    /// Creates the record of a part that cannot be read.
    pub fn new(part: &'static str, reason: impl fmt::Display) -> Self {
        let reason = reason.to_string();
        Self { part, reason }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { part, reason } = self;
        write!(f, "cannot read {part}: {reason}")
    }
}

impl std::error::Error for Unreadable {}

/// Entries of this mode that another program has changed, by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drift(BTreeMap<&'static str, DriftedEntries>);

/// Entries of one kind that another program has changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriftedEntries {
    /// Number of drifted entries.
    pub count: usize,
    /// Names of the first [`Drift::NAMED`] drifted entries.
    pub first: Vec<String>,
}

impl Drift {
    /// All kinds of drifted entries.
    pub const KINDS: [&str; 8] = [
        "virtual server",
        "destination",
        "address",
        "link",
        "set",
        "set member",
        "rule",
        "chain",
    ];

    /// Largest number of names of drifted entries that are kept, for each kind.
    pub const NAMED: usize = 3;

    /// Adds a drifted entry. `kind` is one of the [`KINDS`](Self::KINDS).
    pub fn add(&mut self, kind: &'static str, name: impl FnOnce() -> String) {
        let of = self.0.entry(kind).or_default();
        of.count += 1;
        if of.first.len() < Self::NAMED {
            of.first.push(name());
        }
    }

    /// True if no entry has drifted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the drifted entries of each kind.
    pub fn kinds(&self) -> impl Iterator<Item = (&'static str, &DriftedEntries)> {
        self.0.iter().map(|(kind, of)| (*kind, of))
    }
}

/// Result of one sync of iptables mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IptablesReport {
    /// Number of wanted rules in table filter and in table nat, in this order. Rules in built-in
    /// chains and other programs' chains do not count.
    pub wanted: [usize; 2],
    /// Number of rules that this sync wrote in table filter and in table nat. `None` if the kernel
    /// already had all rules.
    pub written: Option<[usize; 2]>,
    /// True if the sync compared all rules with the kernel's rules. False if it only wrote changes.
    pub is_full: bool,
}

/// Result of one sync of nftables mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NftablesReport {
    /// Number of transactions that the kernel refused or whose result is unknown.
    pub failed_syncs: usize,
    /// Number of failed transactions that only removed unwanted entries.
    pub failed_cleanups: usize,
    /// Number of NodePorts that the relay could not open on localhost.
    pub failed_listeners: usize,
    /// Number of NodePorts that the relay serves on localhost. `None` if this number cannot have
    /// changed.
    pub listeners: Option<usize>,
    /// True if the sync compared all entries with the kernel's entries. False if it only wrote
    /// changes.
    pub is_full: bool,
}

/// A failed write. Its display text is one line for the operator's log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Failure {
    /// The entry whose write failed, such as `virtual server 10.0.0.1:80/TCP`.
    pub object: String,
    /// The Service port that wants the entry, if known.
    pub owner: Option<ServicePortName>,
    /// Reason for the failure, from the kernel where possible, with advice for the operator.
    pub reason: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.owner {
            Some(owner) => write!(f, "{} (of Service {owner}): {}", self.object, self.reason),
            None => write!(f, "{}: {}", self.object, self.reason),
        }
    }
}

/// A conflict: two Service ports claim the same address and port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// Address, port and protocol that both Service ports claim.
    pub object: String,
    /// Service port that owns the address and port. Its Service is the older Service or, if both
    /// Services have the same age, the first by name.
    pub winner: ServicePortName,
    /// Service port that is not served at this address and port as long as the winner exists.
    pub loser: ServicePortName,
}
