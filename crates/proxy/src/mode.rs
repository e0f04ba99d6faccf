//! The interface between a proxy mode and the daemon.
//!
//! ```text
//!   update, notice, check ─▶ proceed ─▶ kernel threads ─▶ poll_finished ─▶ book ─▶ Report
//!                               ▲                                            │
//!                               └────────────────────────────────────────────┘
//! ```
//!
//! A mode never blocks: its own threads run system calls and programs, independent ones in
//! parallel. A single task calls all functions of a mode.

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

/// A proxy mode for one IP family. One task owns the mode, so its state has no lock.
pub trait Mode: Send {
    /// Returns the family that the mode serves.
    fn family(&self) -> IpFamily;

    /// Reports whether the mode can receive changes now. Until then, the caller collects them.
    fn is_ready(&self) -> bool;

    /// Computes the wanted entries after these changes. Writes nothing.
    fn update(&mut self, model: &Model, changes: &Changes, now: Instant);

    /// Handles a notification of the kernel.
    fn notice(&mut self, notice: &Notice, now: Instant);

    /// Starts comparing the kernel with the recorded state, part by part. Called once per sync
    /// period.
    fn check(&mut self, now: Instant);

    /// Starts all pending work on idle kernel threads. Does not wait for it.
    fn proceed(&mut self, model: &Model, now: Instant);

    /// Starts only work that clients wait for. Called before another mode replaces this one, which
    /// happens once all kernel threads are idle.
    fn go_on_serving(&mut self, now: Instant);

    /// Becomes ready when [`book`](Self::book) has a result, because a kernel thread has finished
    /// or a change needs no write. Otherwise stays pending: an idle mode wakes no task.
    fn poll_finished(&mut self, context: &mut Context<'_>) -> Poll<()>;

    /// Records finished work of kernel threads. Returns a report, or `None` if no work has
    /// finished.
    fn book(&mut self, model: &Model, now: Instant) -> Option<Report>;

    /// Reports whether all kernel threads are idle, so that another mode may replace this one.
    fn is_idle(&self) -> bool;

    /// Returns the time at which [`proceed`](Self::proceed) has work without a new event, such as a
    /// retry or a drain to check. Returns `now` if work is ready.
    fn next_due(&self, now: Instant) -> Option<Instant>;

    /// Returns the progress of the mode.
    fn standing(&self) -> Standing;

    /// Returns the addresses that serve NodePorts, or `None` while the node's addresses are
    /// unknown.
    fn node_ports(&self) -> Option<&NodePorts>;

    /// Returns the node's own addresses of this family, on any interface, or `None` while the
    /// addresses are unknown.
    fn node_addresses(&self) -> Option<&BTreeSet<IpAddr>>;

    /// Returns addresses and ports of Services that another program owns in the kernel. This mode
    /// does not serve them. Empty by default.
    fn held_by_others(&self) -> Vec<ServiceAddress> {
        Vec::new()
    }

    /// Returns option values of Services that the mode supports, but not on this node.
    fn unavailable_options(&self) -> Vec<UnavailableOption> {
        Vec::new()
    }

    /// Returns the form of the family's entries, such as `layout flat`, if the mode may change it
    /// while it runs.
    fn form(&self) -> Option<&'static str> {
        None
    }

    /// Returns the draining endpoints, with details of at most `named`. Empty in a mode that does
    /// not track the connections of removed endpoints.
    fn drains(&self, _named: usize) -> Drains {
        Drains::default()
    }
}

/// Removed endpoints whose connections are allowed to end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drains {
    /// Number of draining endpoints.
    pub count: usize,
    /// Start of the oldest known drain.
    pub oldest: Option<Instant>,
    /// The first draining endpoints, by address.
    pub first: Vec<DrainingEndpoint>,
    /// Longest duration of a drain. With `None`, a drain ends with its last connection.
    pub limit: Option<Duration>,
}

/// A draining endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainingEndpoint {
    /// The address of the endpoint's Service.
    pub at: ServiceAddress,
    /// The endpoint.
    pub target: Target,
    /// Time at which the drain began, or at which the process started, if later.
    pub since: Option<Instant>,
}

/// A notification of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// An address was added to an interface, or its lifetime changed.
    AddressAdded(IpAddr),
    /// An address was removed from an interface.
    AddressRemoved(IpAddr),
    /// A service address was removed from the link for service addresses.
    ServiceAddressRemoved(IpAddr),
    /// The link that holds service addresses was removed, replaced, or set up or down.
    ServiceLink,
    /// Another program has changed the mode's rules, or may have changed them.
    Ruleset,
    /// Notifications were lost, so any state may have changed.
    Anything,
}

/// Progress of a mode. An entry that is itself the cause of its failed write does not count. Its
/// failure is reported by name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Standing {
    /// Time of the oldest change that the kernel does not have, if any.
    pub pending_since: Option<Instant>,
    /// Time since which no write of pending work has succeeded. `None` while writes succeed or no
    /// work is pending.
    pub stuck_since: Option<Instant>,
    /// True if no work is running or pending.
    pub is_settled: bool,
    /// Number of entries that differ from the wanted state. Their writes were refused, or wait for
    /// other entries or the initial lists.
    pub pending: usize,
    /// Number of these entries whose last write was refused.
    pub failing: usize,
}

/// Finished work of kernel threads.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Number of writes that the kernel accepted.
    pub written: usize,
    /// All writes, by kind of entry and by result, including refused ones.
    pub writes: Writes,
    /// Writes that failed or could not be tried. They stay pending, and are retried with back-off.
    pub failures: Vec<Failure>,
    /// Number of tables whose rules `iptables-restore` refused.
    pub failed_restores: usize,
    /// Parts of the kernel's state that cannot be read. They keep their last known state, and
    /// reading is retried with back-off. Other work continues.
    pub unreadable: Vec<Unreadable>,
    /// Parts of the kernel's state that were read successfully.
    pub readable: Vec<&'static str>,
    /// Services whose wanted entries, according to their last [`update`](Mode::update), all exist
    /// in the kernel.
    pub settled: Vec<NamespacedName>,
    /// Settled Services that needed at least one write since their change.
    pub written_for: HashSet<NamespacedName>,
    /// Settled Services whose entries another program had changed.
    pub repaired: Vec<NamespacedName>,
    /// UDP frontends whose rules were removed from the kernel, so that this mode no longer serves
    /// them.
    pub withdrawn: Vec<Frontend>,
    /// Service ports that claim an address and port of another Service port. `None` if unchanged.
    pub conflicts: Option<Vec<Conflict>>,
    /// Number of further conflicts, because one namespace can have very many.
    pub more_conflicts: usize,
    /// Addresses and ports that a Service port wants but another program owns. Each appears in one
    /// report only.
    pub foreign: Vec<(String, ServicePortName)>,
    /// Service ports that need a packet mark while none is free (`--ipvs-mark-bits`). Each is
    /// reported once.
    pub unmarked: Vec<ServicePortName>,
    /// Repaired entries that another program had changed.
    pub drift: Drift,
    /// Counters of iptables mode.
    pub iptables: Option<IptablesReport>,
    /// Counters of nftables mode.
    pub nftables: Option<NftablesReport>,
    /// True if this work temporarily needed much memory: the mode read or compared the kernel, or
    /// wrote many entries.
    pub has_used_much: bool,
    /// Reason why a kernel thread ended, if one has. The process should then exit, because the
    /// thread's state is lost.
    pub gone: Option<String>,
}

impl Report {
    /// Records that an address no longer serves a port. Without an `address`, no address of this
    /// node serves the port any more. Ignores all protocols except UDP, because their flows end by
    /// themselves.
    pub fn withdraw(&mut self, address: Option<IpAddr>, protocol: Protocol, port: u16) {
        if protocol == Protocol::Udp {
            self.withdrawn.push(Frontend::new(address, port));
        }
    }
}

/// An unreadable part of the kernel's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// The part's name, such as `the virtual servers`.
    pub part: &'static str,
    /// The reason and advice for the operator.
    pub reason: String,
}

impl Unreadable {
    /// Returns the error of reading a part.
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

/// Our kernel entries that another program has changed, by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drift(BTreeMap<&'static str, DriftedEntries>);

/// Changed entries of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriftedEntries {
    /// Number of entries.
    pub count: usize,
    /// The first entries.
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

    /// Limit of named entries for each kind.
    pub const NAMED: usize = 3;

    /// Adds an entry of one of the [`KINDS`](Self::KINDS).
    pub fn add(&mut self, kind: &'static str, name: impl FnOnce() -> String) {
        let of = self.0.entry(kind).or_default();
        of.count += 1;
        if of.first.len() < Self::NAMED {
            of.first.push(name());
        }
    }

    /// Reports whether no entry has drifted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the entries by kind.
    pub fn kinds(&self) -> impl Iterator<Item = (&'static str, &DriftedEntries)> {
        self.0.iter().map(|(kind, of)| (*kind, of))
    }
}

/// Result of one sync of iptables mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IptablesReport {
    /// Number of wanted rules in filter and nat, without rules in other programs' chains.
    pub wanted: [usize; 2],
    /// Number of rules in filter and nat that this sync wrote. `None` if the kernel already had
    /// every rule.
    pub written: Option<[usize; 2]>,
    /// True if the sync compared all rules with the kernel. False if it only wrote changes.
    pub is_full: bool,
}

/// Result of work of nftables mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NftablesReport {
    /// Number of transactions that were refused or whose result is unknown.
    pub failed_syncs: usize,
    /// Number of failed transactions that only remove unwanted entries.
    pub failed_cleanups: usize,
    /// Number of NodePorts that could not be served on localhost.
    pub failed_listeners: usize,
    /// Number of NodePorts served on localhost. `None` if it cannot have changed.
    pub listeners: Option<usize>,
    /// True if the work compared all entries with the kernel. False if it only wrote changes.
    pub is_full: bool,
}

/// A failed write. Displayed as one line for the operator's log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Failure {
    /// The entry, such as `virtual server 10.0.0.1:80/TCP`.
    pub object: String,
    /// The Service port that wants the entry, if known.
    pub owner: Option<ServicePortName>,
    /// The reason, in the kernel's words where possible, and the advice.
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

/// A conflict: two Service ports want one address and port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The address, port and protocol.
    pub object: String,
    /// Owner of the address and port: the older Service or, at equal age, the first by name.
    pub winner: ServicePortName,
    /// Service port that is not served at this address and port while the winner exists.
    pub loser: ServicePortName,
}
