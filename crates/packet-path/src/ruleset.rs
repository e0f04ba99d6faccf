//! The interface between the walk and the rules of iptables or nf_tables.

pub use nftables_netlink::{ChainKind, Hook};

use crate::branch::Branch;
use crate::kernel::Kernel;

/// A base chain of a ruleset, which the kernel calls at a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base {
    /// Hook at which the kernel calls the chain.
    pub hook: Hook,
    /// Priority of the chain. At a hook, lower priorities are called first.
    pub priority: i32,
    /// Type of the chain. Chains of the type nat differ from others in two ways:
    ///
    /// - The kernel calls them at the priority of its own NAT: -100 at prerouting and output, 100
    ///   at postrouting and input. Their own priorities only order them among each other.
    /// - After the first chain that decides the translation, no further chain is called.
    pub kind: ChainKind,
    /// Number with which the ruleset identifies the chain.
    pub number: usize,
}

/// The rules of iptables or of nf_tables.
pub trait Ruleset {
    /// Returns the ruleset's base chains at `hook`, in any order.
    fn base_chains(&self, hook: Hook) -> Vec<Base>;

    /// Moves a path through a base chain, and returns the resulting paths. Their probabilities add
    /// up to the probability of `branch`, except after [`Branch::doubt`], where both paths keep it.
    ///
    /// - A path that continues after the chain has no [`Branch::end`]. It has left the chain by
    ///   accept, by return, or by the policy accept.
    /// - Each match with an effect adds a step, and so does a jump that leads to such a match.
    ///   [`Branch::passed`] counts all other rules.
    /// - Translations use [`Packet::translate`](crate::Packet::translate) and
    ///   [`Packet::translate_source`](crate::Packet::translate_source), and end the chain like
    ///   accept. If no nat chain translates the packet, the caller marks the translation as
    ///   decided.
    /// - A rule that is not supported or could not be read calls [`Branch::doubt`] if it can affect
    ///   the packet. Otherwise, it only adds a step with a note.
    /// - The function never panics, and ends for all rules.
    fn walk(&self, base: &Base, branch: Branch, kernel: &dyn Kernel) -> Vec<Branch>;
}
