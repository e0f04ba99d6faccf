//! The parts of the kernel's state, as the worker threads of this mode have read them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use footprint::Leftovers;
use hashbrown::HashMap;

use crate::plan::{Base, RedirectTarget};
use crate::port::Portal;

/// A part of the kernel's state: the redirects, or the node's addresses.
pub enum PartState {
    /// The redirects, with the rules that lead to them.
    Rules(Box<RedirectState>),
    /// The addresses of the node's interfaces.
    Addresses(BTreeSet<IpAddr>),
}

/// Redirects and related state that the kernel has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RedirectState {
    /// Rules that do not depend on Services, or `None` if a rule is not in the form that this mode
    /// writes.
    pub base: Option<Base>,
    /// Redirects in the kernel, by portal.
    pub redirects: HashMap<Portal, RedirectTarget>,
    /// Leftovers of other modes.
    pub leftovers: Leftovers,
}
