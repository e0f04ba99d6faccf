//! Values exchanged with the kernel threads: dumps, outcomes, queries and responses.

use std::collections::BTreeMap;
use std::time::Duration;

use proxy::{Scheduler, Target, Unreadable};

use crate::kernel::{FoundAddresses, FoundRules, FoundSets, Glance};
use crate::plan::Outcome;
use crate::server::{VirtualServer, VirtualServerKey};

/// Dump of one part of the kernel.
pub enum PartContent {
    /// All virtual servers of the family.
    Servers(BTreeMap<VirtualServerKey, VirtualServer>),
    /// Our sets.
    Sets(FoundSets),
    /// The link, and the addresses of all interfaces.
    Addresses(FoundAddresses),
    /// The shim, and the leftovers of other modes.
    Rules(FoundRules),
}

/// Outcomes of a plan.
pub struct PlanResult {
    pub(crate) outcomes: Vec<Outcome>,
    /// Duration of the writes, if their number suffices to measure the kernel's speed.
    pub(crate) took: Option<Duration>,
}

/// Query that a lane sends in addition to its reads of parts.
pub enum Query {
    /// Open connections of draining destinations of these virtual servers.
    Connections(Vec<VirtualServerKey>),
    /// Number of virtual servers, or the existence of this one.
    Glance(VirtualServerKey),
    /// Presence of this scheduler in the kernel.
    Scheduler(Scheduler),
    /// Dump of everything but the rules, for comparison.
    All,
}

/// The kernel's response to a query.
pub enum QueryResponse {
    /// The queried virtual servers, and the open connections of each of their destinations.
    Connections(
        Vec<VirtualServerKey>,
        Result<BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>, Unreadable>,
    ),
    /// Number of virtual servers, or the existence of the queried one.
    Glance(Result<Glance, Unreadable>),
    /// Queried scheduler, with an error if the kernel lacks it.
    Scheduler(Scheduler, Result<(), String>),
    /// Dump of everything but the rules.
    Dump(Box<Dump>),
}

/// Dump of each part by the read-only lane.
#[derive(Debug)]
pub struct Dump {
    pub(crate) servers: Result<BTreeMap<VirtualServerKey, VirtualServer>, Unreadable>,
    pub(crate) sets: Result<FoundSets, Unreadable>,
    pub(crate) addresses: Result<FoundAddresses, Unreadable>,
}
