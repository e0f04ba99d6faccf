//! What a proxy mode is to the daemon.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::time::{Duration, Instant};

use crate::model::{Changes, Model};
use crate::names::{IpFamily, ServicePortName};

/// A proxy mode for one IP family. One task owns it; there is no lock around its state.
pub trait Mode: Send {
    /// The family it serves.
    fn family(&self) -> IpFamily;

    /// Computes again what is wanted for everything in `changes`. Writes nothing.
    fn update(&mut self, model: &Model, changes: &Changes);

    /// Writes all that is pending and due, in the order that never breaks a connection, and says what happened.
    fn sync(&mut self, now: Instant) -> Pin<Box<dyn Future<Output = SyncReport> + Send + '_>>;

    /// Reads the kernel and takes what is there for actual, so that whatever differs becomes pending. Called at start, after
    /// lost acknowledgements, and once in each sync period. In the last case it may only begin to: the syncs that follow, due at
    /// once, go on piece by piece, so that no event waits for the whole, and what differs shows as [`needs_resync`](Self::needs_resync).
    fn resync<'a>(
        &'a mut self,
        model: &'a Model,
        now: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 'a>>;

    /// When [`sync`](Self::sync) next has something due without any new event: a retry, a drain to look at.
    fn next_due(&self) -> Option<Instant>;

    /// Whether the kernel's state has become uncertain, so that a [`resync`](Self::resync) must come before the next sync.
    fn needs_resync(&self) -> bool;

    /// The node's addresses that serve NodePorts, as of the last [`resync`](Self::resync).
    fn node_port_addresses(&self) -> &[IpAddr];
}

/// What one sync did.
#[derive(Debug, Clone, Default)]
pub struct SyncReport {
    /// How long it took.
    pub took: Duration,
    /// Writes that the kernel took.
    pub written: usize,
    /// Writes that it refused, or that could not be tried. They stay pending and are tried again with back-off.
    pub failures: Vec<Failure>,
    /// How many of these are tables of rules that `iptables-restore` did not take.
    pub failed_restores: usize,
    /// Entries that still differ from what is wanted: refused, waiting for others, or for both initial lists.
    pub pending: usize,
    /// How many of these were refused when they were last tried, in this sync or before, and wait for their next try.
    pub failing: usize,
    /// Whether what all Services rely on is among the failing ones (the link, a set, the rules): then this node is late whatever
    /// else was written, and upstream's would say so, too. What fails otherwise is of single Services.
    pub is_base_failing: bool,
    /// Service ports that claim an address and port which another one has.
    pub conflicts: Vec<Conflict>,
    /// What iptables mode counts.
    pub iptables: Option<IptablesReport>,
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

/// One thing that could not be done. Displayed as one line for the operator's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What could not be written: `virtual server 10.0.0.1:80/TCP`.
    pub object: String,
    /// Whose it is, where that is known.
    pub owner: Option<ServicePortName>,
    /// Why, in the kernel's words where it gave any, and what to do next.
    pub reason: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.owner {
            Some(owner) => write!(f, "{} (of Service {owner}): {}", self.object, self.reason),
            None => write!(f, "{}: {}", self.object, self.reason),
        }
    }
}

/// Two Service ports want one address and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The address, port and protocol.
    pub object: String,
    /// Who has it: the older Service, or at the same age the one whose name sorts first.
    pub winner: ServicePortName,
    /// Who goes without until the winner is gone.
    pub loser: ServicePortName,
}
