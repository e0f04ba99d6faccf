//! What is exchanged with the kernel threads: what was found, what is asked and answered.

use proxy::Unreadable;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use crate::saved::Saved;

/// What was found of a part.
pub enum Found {
    /// All rules, and how long it took to read them.
    Rules(Box<Saved>, Duration),
    /// The node's addresses.
    Addresses(BTreeSet<IpAddr>),
}

/// What a lane asks, beside reading parts.
pub enum Query {
    /// Whether the canary is there.
    Canary,
}

/// What the kernel says to that.
pub enum Answer {
    /// Whether the canary is there.
    Canary(Result<bool, Unreadable>),
}
