//! What is exchanged with the kernel threads: what was found, what became of a plan, what is asked
//! and answered.

use std::collections::BTreeMap;
use std::time::Duration;

use proxy::{Scheduler, Target, Unreadable};

use crate::kernel::{FoundAddresses, FoundRules, FoundSets, Glance};
use crate::plan::Outcome;
use crate::server::{VirtualServer, VirtualServerKey};

/// What was found of a part.
pub enum Found {
    /// All virtual servers of the family.
    Servers(BTreeMap<VirtualServerKey, VirtualServer>),
    /// Our sets.
    Sets(FoundSets),
    /// The link and all addresses.
    Addresses(FoundAddresses),
    /// The shim, and what other modes have left.
    Rules(FoundRules),
}

/// What became of a plan.
pub struct Written {
    pub(crate) outcomes: Vec<Outcome>,
    /// How long the writes have taken, if there were enough to tell.
    pub(crate) took: Option<Duration>,
}

/// What a lane asks, beside reading parts.
pub enum Query {
    /// The open connections of what drains at these virtual servers.
    Connections(Vec<VirtualServerKey>),
    /// Whether the virtual servers are all there, this one among them.
    Glance(VirtualServerKey),
    /// True if the kernel has this scheduler.
    Scheduler(Scheduler),
    /// All but the rules, to be compared.
    All,
}

/// What the kernel says to that.
pub enum Answer {
    /// By virtual server and destination; and which ones were asked for.
    Connections(
        Vec<VirtualServerKey>,
        Result<BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>, Unreadable>,
    ),
    /// How many there are, or whether the one is there.
    Glance(Result<Glance, Unreadable>),
    /// The reason if the kernel lacks it.
    Scheduler(Scheduler, Result<(), String>),
    /// All.
    Dump(Box<Dump>),
}

/// What the lane that only reads has found of each part.
#[derive(Debug)]
pub struct Dump {
    pub(crate) servers: Result<BTreeMap<VirtualServerKey, VirtualServer>, Unreadable>,
    pub(crate) sets: Result<FoundSets, Unreadable>,
    pub(crate) addresses: Result<FoundAddresses, Unreadable>,
}
