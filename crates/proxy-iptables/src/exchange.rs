//! Messages to and from the worker threads of this mode.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use crate::saved::Saved;

/// Content of one part of the kernel's state, as a worker thread has read it.
pub enum PartState {
    /// All rules of this mode, and the time that their read took.
    Rules(Box<Saved>, Duration),
    /// Addresses of this node's interfaces.
    Addresses(BTreeSet<IpAddr>),
}

/// Query for the canary chain in table mangle. If the chain is missing, another program has flushed
/// the tables.
pub struct CanaryQuery;
