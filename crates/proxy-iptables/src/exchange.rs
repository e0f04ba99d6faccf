//! Messages to and from the worker threads of this mode.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use crate::saved::Saved;

/// Content of one part of the kernel's state, as read.
pub enum PartState {
    /// All rules, and the duration of their read.
    Rules(Box<Saved>, Duration),
    /// Addresses of the node.
    Addresses(BTreeSet<IpAddr>),
}

/// Query whether the canary chain exists. Another program that flushes the tables deletes this
/// chain.
pub struct CanaryQuery;
