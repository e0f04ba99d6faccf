//! Values that the daemon's loop exchanges with the worker threads that access the kernel: dumps,
//! outcomes, queries and responses.

use std::collections::BTreeMap;
use std::time::Duration;

use proxy::{Scheduler, Target, Unreadable};

use crate::kernel::{FoundAddresses, FoundRules, FoundSets, Glance};
use crate::plan::Outcome;
use crate::server::{VirtualServer, VirtualServerKey};

/// Content of one part of the kernel.
pub enum PartContent {
    /// All virtual servers of the family.
    Servers(BTreeMap<VirtualServerKey, VirtualServer>),
    /// Our sets, with their members.
    Sets(FoundSets),
    /// The link `kube-ipvs0`, and the addresses of all interfaces.
    Addresses(FoundAddresses),
    /// Rules of the shim, and the leftovers of other modes.
    Rules(FoundRules),
}

/// Outcomes of a plan.
pub struct PlanResult {
    pub(crate) outcomes: Vec<Outcome>,
    /// Duration of the writes, or `None` if the writes are too few to measure the kernel's speed.
    pub(crate) took: Option<Duration>,
}

/// A query to the kernel, apart from regular reads of the kernel's state.
pub enum Query {
    /// Open connections of the draining destinations of these virtual servers.
    Connections(Vec<VirtualServerKey>),
    /// Number of virtual servers. If the kernel does not count virtual servers, existence of this
    /// virtual server.
    Glance(VirtualServerKey),
    /// Existence of this scheduler in the kernel.
    Scheduler(Scheduler),
    /// Dump of virtual servers, sets and addresses, for a comparison.
    All,
}

/// The kernel's response to a query.
pub enum QueryResponse {
    /// The queried virtual servers, and the number of open connections of each destination.
    Connections(
        Vec<VirtualServerKey>,
        Result<BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>, Unreadable>,
    ),
    /// Number of virtual servers, or existence of the queried virtual server.
    Glance(Result<Glance, Unreadable>),
    /// The queried scheduler, and an error if the kernel lacks it.
    Scheduler(Scheduler, Result<(), String>),
    /// Dump of virtual servers, sets and addresses.
    Dump(Box<Dump>),
}

/// Dump of virtual servers, sets and addresses. A read-only worker thread makes this dump.
#[derive(Debug)]
pub struct Dump {
    pub(crate) servers: Result<BTreeMap<VirtualServerKey, VirtualServer>, Unreadable>,
    pub(crate) sets: Result<FoundSets, Unreadable>,
    pub(crate) addresses: Result<FoundAddresses, Unreadable>,
}
