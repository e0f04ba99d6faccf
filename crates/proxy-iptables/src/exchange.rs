//! Messages from and to the kernel threads of this mode.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use crate::saved::Saved;

/// The state of one part of the kernel.
pub enum PartState {
    /// All rules, and the duration of their read.
    Rules(Box<Saved>, Duration),
    /// Addresses of the node.
    Addresses(BTreeSet<IpAddr>),
}

/// A query for the canary. The answer is true if the canary exists.
pub struct CanaryQuery;
