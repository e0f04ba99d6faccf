//! What is exchanged with the kernel threads: what was found.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use crate::found::Snapshot;

/// What was found of a part.
pub enum Found {
    /// The table, and how long it took to read it.
    Table(Box<Snapshot>, Duration),
    /// The node's addresses.
    Addresses(BTreeSet<IpAddr>),
}
