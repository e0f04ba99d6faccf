//! Messages between the daemon's loop and the worker threads that access the kernel: dumps,
//! outcomes, queries and responses.

use std::collections::BTreeMap;
use std::time::Duration;

use proxy::{Scheduler, Target, Unreadable};

use crate::kernel::{FoundAddresses, FoundRules, FoundSets, Glance};
use crate::plan::Outcome;
use crate::server::{VirtualServer, VirtualServerKey};

/// Content of one part of the kernel's state.
pub enum PartContent {
    /// All virtual servers of one IP family.
    Servers(BTreeMap<VirtualServerKey, VirtualServer>),
    /// Our sets, with their members.
    Sets(FoundSets),
    /// The link `kube-ipvs0`, and the addresses of all interfaces.
    Addresses(FoundAddresses),
    /// Rules of the shim (the rules beside IPVS), and the leftovers of other modes.
    Rules(FoundRules),
}

/// Result of executing a plan.
pub struct PlanResult {
    pub(crate) outcomes: Vec<Outcome>,
    /// Duration of the writes. `None` if the plan has too few writes to measure the kernel's speed.
    pub(crate) took: Option<Duration>,
}

/// A query to the kernel, in addition to the regular reads of the kernel's state.
pub enum Query {
    /// Open connections of the draining destinations of these virtual servers.
    Connections(Vec<VirtualServerKey>),
    /// A glance: the number of virtual servers or, if the kernel does not count virtual servers,
    /// the existence of this virtual server.
    Glance(VirtualServerKey),
    /// Presence of this scheduler in the kernel.
    Scheduler(Scheduler),
    /// Dump of all virtual servers, sets and addresses, for the drift check.
    All,
}

/// The kernel's response to a query.
pub enum QueryResponse {
    /// Connections of virtual servers: the queried virtual servers, and the number of open
    /// connections of each destination.
    Connections(
        Vec<VirtualServerKey>,
        Result<BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>, Unreadable>,
    ),
    /// Result of a glance: the number of virtual servers, or whether the queried virtual server
    /// exists.
    Glance(Result<Glance, Unreadable>),
    /// The queried scheduler, and an error with the reason if the kernel lacks it.
    Scheduler(Scheduler, Result<(), String>),
    /// Dump of virtual servers, sets and addresses.
    Dump(Box<Dump>),
}

/// Dump of virtual servers, sets and addresses for the drift check, made by the read-only worker
/// thread.
#[derive(Debug)]
pub struct Dump {
    pub(crate) servers: Result<BTreeMap<VirtualServerKey, VirtualServer>, Unreadable>,
    pub(crate) sets: Result<FoundSets, Unreadable>,
    pub(crate) addresses: Result<FoundAddresses, Unreadable>,
}
