//! The data read by the kernel threads.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use crate::found::Snapshot;

/// The content of one part of the kernel's state.
pub enum Found {
    /// The table, and the time that reading it took.
    Table(Box<Snapshot>, Duration),
    /// The node's addresses.
    Addresses(BTreeSet<IpAddr>),
}
