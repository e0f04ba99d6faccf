//! Values exchanged with the kernel threads: dumps, outcomes, queries and answers.

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
    /// The link and all addresses.
    Addresses(FoundAddresses),
    /// The shim, and the leftovers of other modes.
    Rules(FoundRules),
}

/// Outcomes of a plan.
pub struct PlanResult {
    pub(crate) outcomes: Vec<Outcome>,
    /// Duration of the writes, if there were enough of them to tell the kernel's speed.
    pub(crate) took: Option<Duration>,
}

/// Query for a lane, beside reading parts.
pub enum Query {
    /// Open connections of draining destinations of these virtual servers.
    Connections(Vec<VirtualServerKey>),
    /// Check that all virtual servers exist, this one among them.
    Glance(VirtualServerKey),
    /// The presence of this scheduler.
    Scheduler(Scheduler),
    /// Dump of everything but the rules, for comparison.
    All,
}

/// Answer of the kernel to a query.
pub enum QueryResponse {
    /// Queried virtual servers, and the open connections by virtual server and destination.
    Connections(
        Vec<VirtualServerKey>,
        Result<BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>, Unreadable>,
    ),
    /// Number of virtual servers, or presence of the one.
    Glance(Result<Glance, Unreadable>),
    /// The error if the kernel lacks the scheduler.
    Scheduler(Scheduler, Result<(), String>),
    /// Dump of everything but the rules.
    Dump(Box<Dump>),
}

/// Dump of each part by the lane that only reads.
#[derive(Debug)]
pub struct Dump {
    pub(crate) servers: Result<BTreeMap<VirtualServerKey, VirtualServer>, Unreadable>,
    pub(crate) sets: Result<FoundSets, Unreadable>,
    pub(crate) addresses: Result<FoundAddresses, Unreadable>,
}
