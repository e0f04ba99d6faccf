//! Kernel state that the threads of this mode have read.

use std::collections::BTreeSet;
use std::net::IpAddr;

use footprint::Leftovers;
use hashbrown::HashMap;

use crate::plan::{Base, RedirectTarget};
use crate::port::Portal;

/// State that one read returned: the redirects or the addresses.
pub enum PartState {
    /// The redirects.
    Rules(Box<RedirectState>),
    /// The node's addresses.
    Addresses(BTreeSet<IpAddr>),
}

/// The redirects that the kernel holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RedirectState {
    /// Rules that do not depend on Services. `None` if any rule differs from the form that this
    /// mode writes.
    pub base: Option<Base>,
    /// Redirects by portal.
    pub redirects: HashMap<Portal, RedirectTarget>,
    /// Leftovers of other modes.
    pub leftovers: Leftovers,
}
