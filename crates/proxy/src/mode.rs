//! What a proxy mode is to the daemon.
//!
//! ```text
//!   update, notice, check ─▶ proceed ─▶ kernel threads ─▶ poll_finished ─▶ book ─▶ Report
//!                               ▲                                            │
//!                               └────────────────────────────────────────────┘
//! ```
//!
//! A mode never waits. What blocks, a system call or a program, runs on threads of the mode's own,
//! several beside each other where one need not wait for another; between their calls one task owns
//! the mode.

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

/// A proxy mode for one IP family. One task owns it; there is no lock around its state.
pub trait Mode: Send {
    /// The family it serves.
    fn family(&self) -> IpFamily;

    /// Whether changes can be carried out at once; until then they are better gathered, and taken
    /// over together.
    fn is_ready(&self) -> bool;

    /// Computes again what is wanted for everything in `changes`. Writes nothing.
    fn update(&mut self, model: &Model, changes: &Changes, now: Instant);

    /// Takes in what the kernel has told of its own accord.
    fn notice(&mut self, notice: &Notice, now: Instant);

    /// Has the kernel compared with what is believed to be there, piece by piece. Called once in
    /// each sync period.
    fn check(&mut self, now: Instant);

    /// Starts all that is due on kernel threads that are free. Waits for nothing.
    fn proceed(&mut self, model: &Model, now: Instant);

    /// Starts only what those who are served wait for, until no kernel thread works on anything
    /// else: another mode is to take the place of this one then.
    fn go_on_serving(&mut self, now: Instant);

    /// Ready when there is something to be [booked](Self::book): a kernel thread has finished
    /// something, or what has changed needs no write. Where neither is so and no thread works on
    /// anything it is pending, and wakes nobody.
    fn poll_finished(&mut self, context: &mut Context<'_>) -> Poll<()>;

    /// Takes over what kernel threads have finished, and says what that was; `None` if there is
    /// nothing.
    fn book(&mut self, model: &Model, now: Instant) -> Option<Report>;

    /// Whether no kernel thread works on anything, so that another one may take the place of this.
    fn is_idle(&self) -> bool;

    /// When [`proceed`](Self::proceed) has something to do without any new event: a retry, a drain
    /// to look at. Later than `now`, or now if there is more to do at once.
    fn next_due(&self, now: Instant) -> Option<Instant>;

    /// How far it has come.
    fn standing(&self) -> Standing;

    /// Where NodePorts are served; `None` while the node's addresses are not known.
    fn node_ports(&self) -> Option<&NodePorts>;

    /// The node's own addresses of this family, on whatever interface; `None` while these are not
    /// known.
    fn node_addresses(&self) -> Option<&BTreeSet<IpAddr>>;

    /// The addresses and ports of Services that another program holds, so that this mode leaves them
    /// alone; none in a mode where only one program can have them.
    fn held_by_others(&self) -> Vec<ServiceAddress> {
        Vec::new()
    }

    /// Values of Services' options that this node cannot give: the mode would heed them.
    fn unavailable_options(&self) -> Vec<UnavailableOption> {
        Vec::new()
    }

    /// What drains, of which at most so many are named: nothing in a mode that lets flows go on by
    /// themselves.
    fn drains(&self, _named: usize) -> Drains {
        Drains::default()
    }
}

/// Endpoints that are gone, and whose connections end by themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drains {
    /// How many there are.
    pub count: usize,
    /// Since when the one that has drained longest has, as far as is known.
    pub oldest: Option<Instant>,
    /// The first of them, by address.
    pub first: Vec<Draining>,
    /// How long each may last at most; `None`: until its connections have ended.
    pub limit: Option<Duration>,
}

/// An endpoint that drains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draining {
    /// The address of its Service.
    pub at: ServiceAddress,
    /// The endpoint.
    pub target: Target,
    /// Since when, as far as is known: after a restart, since then.
    pub since: Option<Instant>,
}

/// What the kernel has told of its own accord.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// An address was added to an interface, or its lifetime changed.
    AddressAdded(IpAddr),
    /// An address was removed from an interface.
    AddressRemoved(IpAddr),
    /// A service address was removed from the link that holds them, by whoever.
    ServiceAddressRemoved(IpAddr),
    /// The link that holds service addresses is gone, is another one, or was set up or down.
    ServiceLink,
    /// Somebody else has changed the rules of this mode, or may have.
    Ruleset,
    /// Messages were lost: anything may have changed.
    Anything,
}

/// How far a mode has come. What could not be written for a reason of its own, and is reported by
/// name, does not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Standing {
    /// Everything that was asked before this is in the kernel; `None`: everything is.
    pub pending_since: Option<Instant>,
    /// Since when something is pending of which nothing could be written; `None`: there is
    /// progress, or nothing to do.
    pub stuck_since: Option<Instant>,
    /// Whether nothing is under way or due.
    pub is_settled: bool,
    /// Entries that differ from what is wanted: refused, waiting for others, or for both initial
    /// lists.
    pub pending: usize,
    /// How many of these were refused when they were last tried.
    pub failing: usize,
}

/// What kernel threads have finished.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Writes that the kernel took.
    pub written: usize,
    /// The same by what they are about, and with those that it did not take.
    pub writes: Writes,
    /// Writes that it refused, or that could not be tried. They stay pending and are tried again
    /// with back-off.
    pub failures: Vec<Failure>,
    /// How many of these are tables of rules that `iptables-restore` did not take.
    pub failed_restores: usize,
    /// Parts of the kernel's state that could not be read. What was believed of them stays, all
    /// else goes on, and they are read again with back-off.
    pub unreadable: Vec<Unreadable>,
    /// Parts that could be read.
    pub readable: Vec<&'static str>,
    /// Services of which all that is wanted is in the kernel now, as of their last
    /// [`update`](Mode::update).
    pub settled: Vec<NamespacedName>,
    /// Of these, the ones for which something was written since they changed.
    pub written_for: HashSet<NamespacedName>,
    /// Of the settled ones, those of which something had been changed by somebody else.
    pub repaired: Vec<NamespacedName>,
    /// UDP frontends that nothing of this mode serves any more: the kernel held rules for them, and
    /// those are removed.
    pub withdrawn: Vec<Frontend>,
    /// Service ports that claim an address and port which another one has, if these are other ones
    /// than before.
    pub conflicts: Option<Vec<Conflict>>,
    /// The number of those that are not listed: a namespace can have very many.
    pub more_conflicts: usize,
    /// Addresses and ports that Service ports want and that another program has taken, each told
    /// once.
    pub foreign: Vec<(String, ServicePortName)>,
    /// What somebody else had changed, once it is repaired.
    pub drift: Drift,
    /// What iptables mode counts.
    pub iptables: Option<IptablesReport>,
    /// What nftables mode counts.
    pub nftables: Option<NftablesReport>,
    /// Whether this has used much memory for a while: the kernel was read, or compared, or much was
    /// written.
    pub has_used_much: bool,
    /// A kernel thread has ended, and why: nothing can be trusted after that, and the process is to
    /// end.
    pub gone: Option<String>,
}

impl Report {
    /// Notes that what was sent to an address, or to this node if there is none, is served no more.
    /// Only UDP counts: flows of other protocols end by themselves.
    pub fn withdraw(&mut self, address: Option<IpAddr>, protocol: Protocol, port: u16) {
        if protocol == Protocol::Udp {
            self.withdrawn.push(Frontend::new(address, port));
        }
    }
}

/// A part of the kernel's state that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// `the virtual servers`, ...
    pub part: &'static str,
    /// Why, and what to do.
    pub reason: String,
}

impl Unreadable {
    /// That a part cannot be read, for this reason.
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

/// What somebody else has changed in the kernel of what is ours, by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drift(BTreeMap<&'static str, Drifted>);

/// The same of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drifted {
    /// How many entries.
    pub count: usize,
    /// The first of them.
    pub first: Vec<String>,
}

impl Drift {
    /// What there is.
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

    /// How many entries of a kind are named.
    pub const NAMED: usize = 3;

    /// Adds an entry of one of the [`KINDS`](Self::KINDS).
    pub fn add(&mut self, kind: &'static str, name: impl FnOnce() -> String) {
        let of = self.0.entry(kind).or_default();
        of.count += 1;
        if of.first.len() < Self::NAMED {
            of.first.push(name());
        }
    }

    /// Whether nothing has drifted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// By kind.
    pub fn kinds(&self) -> impl Iterator<Item = (&'static str, &Drifted)> {
        self.0.iter().map(|(kind, of)| (*kind, of))
    }
}

/// What one sync of iptables mode did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IptablesReport {
    /// How many rules are wanted in filter and nat, those in chains of others left out.
    pub wanted: [usize; 2],
    /// How many of each this sync wrote; `None` if there was nothing to write.
    pub written: Option<[usize; 2]>,
    /// Whether everything was compared with the kernel, and not only changes written.
    pub is_full: bool,
}

/// What nftables mode did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NftablesReport {
    /// Transactions that were refused, or of which nobody knows what became.
    pub failed_syncs: usize,
    /// The same of those that take away only what nobody wants.
    pub failed_cleanups: usize,
    /// NodePorts that could not be served on localhost when that was tried.
    pub failed_listeners: usize,
    /// How many are served there, if that may have changed.
    pub listeners: Option<usize>,
    /// Whether everything was compared with the kernel, and not only changes written.
    pub is_full: bool,
}

/// One thing that could not be done. Displayed as one line for the operator's log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Failure {
    /// What could not be written: `virtual server 10.0.0.1:80/TCP`.
    pub object: String,
    /// Whose it is, where that is known.
    pub owner: Option<ServicePortName>,
    /// Why, in the kernel's words where it gave any, and what to do next.
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

/// Two Service ports want one address and port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The address, port and protocol.
    pub object: String,
    /// Who has it: the older Service, or at the same age the one whose name sorts first.
    pub winner: ServicePortName,
    /// Who goes without until the winner is gone.
    pub loser: ServicePortName,
}
