//! What was found by the kernel threads.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::held::Held;

/// What was found of a part.
pub enum Found {
    /// What is redirected.
    Rules(Box<Held>),
    /// The node's addresses.
    Addresses(BTreeSet<IpAddr>),
}
