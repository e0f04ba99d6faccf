//! The interface between a proxy mode and the daemon.
//!
//! ```text
//!   update, notice, check ─▶ proceed ─▶ kernel threads ─▶ poll_finished ─▶ book ─▶ Report
//!                               ▲                                            │
//!                               └────────────────────────────────────────────┘
//! ```
//!
//! A mode never waits. Blocking work, such as a system call or a program, runs on the mode's own
//! threads, which work in parallel where they are independent. One task owns the mode between their
//! calls.

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

/// A proxy mode for one IP family. One task owns it; its state has no lock.
pub trait Mode: Send {
    /// Returns the family that the mode serves.
    fn family(&self) -> IpFamily;

    /// Reports whether changes can be computed at once. Until then, the caller collects them.
    fn is_ready(&self) -> bool;

    /// Computes the wanted entries of everything in `changes`. Writes nothing.
    fn update(&mut self, model: &Model, changes: &Changes, now: Instant);

    /// Handles a notification of the kernel.
    fn notice(&mut self, notice: &Notice, now: Instant);

    /// Starts to compare the kernel with the recorded state, piece by piece. Called once in each
    /// sync period.
    fn check(&mut self, now: Instant);

    /// Starts all pending work on free kernel threads. Does not wait.
    fn proceed(&mut self, model: &Model, now: Instant);

    /// Starts only work that clients wait for, until all kernel threads are idle. Another mode then
    /// replaces this one.
    fn go_on_serving(&mut self, now: Instant);

    /// Ready when there is something to [book](Self::book): a kernel thread has finished, or a
    /// change needs no write. If neither is so and no thread works, stays pending and wakes nobody.
    fn poll_finished(&mut self, context: &mut Context<'_>) -> Poll<()>;

    /// Records finished work of kernel threads, and returns a report; `None` if there is none.
    fn book(&mut self, model: &Model, now: Instant) -> Option<Report>;

    /// Reports whether all kernel threads are idle, so that another mode may replace this one.
    fn is_idle(&self) -> bool;

    /// Returns when [`proceed`](Self::proceed) has work without a new event: a retry, or a drain to
    /// check. After `now`, or `now` if there is more work at once.
    fn next_due(&self, now: Instant) -> Option<Instant>;

    /// Returns the progress of the mode.
    fn standing(&self) -> Standing;

    /// Returns the addresses that serve NodePorts; `None` while the node's addresses are unknown.
    fn node_ports(&self) -> Option<&NodePorts>;

    /// Returns the node's own addresses of this family, on any interface; `None` while they are
    /// unknown.
    fn node_addresses(&self) -> Option<&BTreeSet<IpAddr>>;

    /// Returns the Services' addresses and ports that another program has in the kernel, so that
    /// this mode leaves them alone. None in a mode where only one program can have them.
    fn held_by_others(&self) -> Vec<ServiceAddress> {
        Vec::new()
    }

    /// Returns values of Services' options that the mode supports, but this node does not.
    fn unavailable_options(&self) -> Vec<UnavailableOption> {
        Vec::new()
    }

    /// Returns the draining endpoints, of which at most `named` are listed. None in a mode that
    /// lets connections continue by themselves.
    fn drains(&self, _named: usize) -> Drains {
        Drains::default()
    }
}

/// Endpoints that were removed, and whose connections end by themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drains {
    /// Number of draining endpoints.
    pub count: usize,
    /// Start of the oldest drain, as far as known.
    pub oldest: Option<Instant>,
    /// The first draining endpoints, by address.
    pub first: Vec<DrainingEndpoint>,
    /// Longest duration of a drain; `None` if it lasts until the connections end.
    pub limit: Option<Duration>,
}

/// A draining endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainingEndpoint {
    /// The address of its Service.
    pub at: ServiceAddress,
    /// The endpoint.
    pub target: Target,
    /// Start of the drain, as far as known: after a restart, the start of the process.
    pub since: Option<Instant>,
}

/// A notification of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// An address was added to an interface, or its lifetime changed.
    AddressAdded(IpAddr),
    /// An address was removed from an interface.
    AddressRemoved(IpAddr),
    /// A service address was removed from the link that holds them.
    ServiceAddressRemoved(IpAddr),
    /// The link that holds service addresses was removed, replaced, or set up or down.
    ServiceLink,
    /// Another program has changed the rules of this mode, or may have.
    Ruleset,
    /// Notifications were lost: anything may have changed.
    Anything,
}

/// Progress of a mode. Writes that failed for their own reason, and are reported by name, do not
/// count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Standing {
    /// Time of the oldest change that is not in the kernel yet; `None` if all are.
    pub pending_since: Option<Instant>,
    /// Time since when nothing that is pending could be written; `None` if there is progress, or
    /// nothing to do.
    pub stuck_since: Option<Instant>,
    /// True if no work is running or pending.
    pub is_settled: bool,
    /// Number of entries that differ from the wanted state: refused, or waiting for other entries
    /// or for both initial lists.
    pub pending: usize,
    /// Number of these entries whose last write was refused.
    pub failing: usize,
}

/// Finished work of kernel threads.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Number of writes that the kernel accepted.
    pub written: usize,
    /// All writes by subject and result, including refused ones.
    pub writes: Writes,
    /// Writes that were refused, or could not be tried. They stay pending, and are retried with
    /// back-off.
    pub failures: Vec<Failure>,
    /// Number of tables of rules that `iptables-restore` refused.
    pub failed_restores: usize,
    /// Parts of the kernel's state that could not be read. Their last known state stays, everything
    /// else continues, and they are read again with back-off.
    pub unreadable: Vec<Unreadable>,
    /// Parts of the kernel's state that could be read.
    pub readable: Vec<&'static str>,
    /// Services whose wanted entries are all in the kernel, as of their last
    /// [`update`](Mode::update).
    pub settled: Vec<NamespacedName>,
    /// Settled Services for which something was written since they changed.
    pub written_for: HashSet<NamespacedName>,
    /// Settled Services whose entries another program had changed.
    pub repaired: Vec<NamespacedName>,
    /// UDP frontends whose rules were removed from the kernel, so that this mode no longer serves
    /// them.
    pub withdrawn: Vec<Frontend>,
    /// Service ports that claim an address and port of another Service port, if the list changed.
    pub conflicts: Option<Vec<Conflict>>,
    /// Number of conflicts that are not listed: one namespace can have very many.
    pub more_conflicts: usize,
    /// Addresses and ports that Service ports want but another program has, each reported once.
    pub foreign: Vec<(String, ServicePortName)>,
    /// Entries that another program had changed, once they are repaired.
    pub drift: Drift,
    /// Counters of iptables mode.
    pub iptables: Option<IptablesReport>,
    /// Counters of nftables mode.
    pub nftables: Option<NftablesReport>,
    /// True if this work needed much memory for a while: the kernel was read or compared, or much
    /// was written.
    pub has_used_much: bool,
    /// The reason why a kernel thread ended, if one did. No state can be trusted then, and the
    /// process should end.
    pub gone: Option<String>,
}

impl Report {
    /// Records that an address, or this node if there is none, no longer serves a port. Only UDP
    /// counts, since flows of other protocols end by themselves.
    pub fn withdraw(&mut self, address: Option<IpAddr>, protocol: Protocol, port: u16) {
        if protocol == Protocol::Udp {
            self.withdrawn.push(Frontend::new(address, port));
        }
    }
}

/// A part of the kernel's state that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// The part: `the virtual servers`, ...
    pub part: &'static str,
    /// The reason, and the advice.
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
    /// The kinds.
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

    /// Limit of entries that are named for each kind.
    pub const NAMED: usize = 3;

    /// Adds an entry of one of the [`KINDS`](Self::KINDS).
    pub fn add(&mut self, kind: &'static str, name: impl FnOnce() -> String) {
        let of = self.0.entry(kind).or_default();
        of.count += 1;
        if of.first.len() < Self::NAMED {
            of.first.push(name());
        }
    }

    /// Reports whether there is no drift.
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
    /// Number of rules in filter and nat that this sync wrote; `None` if there was nothing to
    /// write.
    pub written: Option<[usize; 2]>,
    /// True if everything was compared with the kernel, and not only changes written.
    pub is_full: bool,
}

/// Result of work of nftables mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NftablesReport {
    /// Transactions that were refused, or whose result is unknown.
    pub failed_syncs: usize,
    /// Failed transactions that only remove unwanted entries.
    pub failed_cleanups: usize,
    /// NodePorts that could not be served on localhost.
    pub failed_listeners: usize,
    /// Number of NodePorts that are served on localhost, if it may have changed.
    pub listeners: Option<usize>,
    /// True if everything was compared with the kernel, and not only changes written.
    pub is_full: bool,
}

/// A failed write. Displayed as one line for the operator's log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Failure {
    /// The entry: `virtual server 10.0.0.1:80/TCP`.
    pub object: String,
    /// The Service port that wants the entry, if known.
    pub owner: Option<ServicePortName>,
    /// The reason, in the kernel's words if there are any, and the advice.
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
    /// The owner: the older Service, or at the same age the one whose name sorts first.
    pub winner: ServicePortName,
    /// The Service port that is not served there until the winner is gone.
    pub loser: ServicePortName,
}
