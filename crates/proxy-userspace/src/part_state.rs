//! Parts of the kernel's state, as this mode's worker threads have read them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use footprint::Leftovers;
use hashbrown::HashMap;

use crate::plan::{Base, RedirectTarget};
use crate::port::Portal;

/// A part of the kernel's state: the redirects, or the node's addresses.
pub enum PartState {
    /// The redirects, and the rules that lead packets to them.
    Rules(Box<RedirectState>),
    /// The addresses of the node's interfaces.
    Addresses(BTreeSet<IpAddr>),
}

/// Redirects in the kernel, the rules that lead packets to them, and leftovers of other modes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RedirectState {
    /// Rules that do not depend on Services. `None` if the kernel has a rule that this mode would
    /// write differently.
    pub base: Option<Base>,
    /// Redirects in the kernel, by portal.
    pub redirects: HashMap<Portal, RedirectTarget>,
    /// Leftovers of other modes in the kernel, which this mode removes last.
    pub leftovers: Leftovers,
}
