//! Messages between the daemon's loop and the worker threads: dumps, outcomes of writes, queries
//! and responses.

use std::collections::BTreeMap;
use std::time::Duration;

use proxy::{Scheduler, Target, Unreadable};

use crate::kernel::{FoundAddresses, FoundRules, FoundSets, Glance};
use crate::plan::Outcome;
use crate::server::{VirtualServer, VirtualServerKey};

/// A dump of one part of the kernel's state.
pub enum PartContent {
    /// All virtual servers of one IP family.
    Servers(BTreeMap<VirtualServerKey, VirtualServer>),
    /// The proxy's sets, with their members.
    Sets(FoundSets),
    /// The link `kube-ipvs0`, and the addresses of all interfaces.
    Addresses(FoundAddresses),
    /// Rules of the shim (the rules beside IPVS), and the leftovers of other modes.
    Rules(FoundRules),
}

/// Result of executing a plan.
pub struct PlanResult {
    pub(crate) outcomes: Vec<Outcome>,
    /// Duration of the writes, or `None` if the plan has too few writes for a useful measurement.
    pub(crate) took: Option<Duration>,
}

/// A query to the kernel, in addition to the regular reads of the kernel's state.
pub enum Query {
    /// The open connections of draining destinations of these virtual servers.
    Connections(Vec<VirtualServerKey>),
    /// A glance, the cheap check for lost virtual servers: the kernel's count of virtual servers
    /// or, if it does not count, the existence of this virtual server.
    Glance(VirtualServerKey),
    /// Question whether the kernel has this scheduler.
    Scheduler(Scheduler),
    /// All virtual servers, sets and addresses, for the drift check.
    All,
}

/// The kernel's response to a query.
pub enum QueryResponse {
    /// The queried virtual servers, and the number of open connections of each destination.
    Connections(
        Vec<VirtualServerKey>,
        Result<BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>, Unreadable>,
    ),
    /// Result of a glance: the number of virtual servers, or whether the queried virtual server
    /// exists.
    Glance(Result<Glance, Unreadable>),
    /// The queried scheduler, with the reason if the kernel lacks it.
    Scheduler(Scheduler, Result<(), String>),
    /// The dump for the drift check: all virtual servers, sets and addresses.
    Dump(Box<Dump>),
}

/// Virtual servers, sets and addresses, as the read-only worker thread dumped them for the drift
/// check.
#[derive(Debug)]
pub struct Dump {
    pub(crate) servers: Result<BTreeMap<VirtualServerKey, VirtualServer>, Unreadable>,
    pub(crate) sets: Result<FoundSets, Unreadable>,
    pub(crate) addresses: Result<FoundAddresses, Unreadable>,
}
