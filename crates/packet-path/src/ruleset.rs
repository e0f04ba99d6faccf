//! Rulesets, and the positions of their chains on a packet's path.

pub use nftables_netlink::{ChainKind, Hook};

use crate::branch::Branch;
use crate::kernel::Kernel;

/// A base chain, through which packets enter a ruleset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base {
    /// Hook that calls the chain.
    pub hook: Hook,
    /// Priority of the chain. A hook calls the chain with the lowest priority first.
    pub priority: i32,
    /// Type of the chain. Chains of type nat differ in two ways:
    ///
    /// - The kernel runs chains of type nat at the priority of its own NAT: -100 at prerouting and
    ///   output, 100 at postrouting and input. The priorities of these chains only order them among
    ///   each other.
    /// - The first chain that decides the translation ends the sequence.
    pub kind: ChainKind,
    /// Number of the chain in its ruleset.
    pub number: usize,
}

/// Rules of one kind, such as the rules of iptables.
pub trait Ruleset {
    /// Returns the ruleset's base chains at a hook, in any order.
    fn base_chains(&self, hook: Hook) -> Vec<Base>;

    /// Moves a path through a base chain and returns the resulting paths. Their probabilities add
    /// up to the probability of `branch`. Exception: after [`Branch::doubt`], both paths keep the
    /// full probability.
    ///
    /// - A path that continues after the chain has no [`Branch::end`]. It may have left the chain
    ///   by accept, by return, or by a policy of accept.
    /// - The function adds a step for a match with an effect, for a jump that leads to such a
    ///   match, and for a matching set member. [`Branch::passed`] counts all other rules.
    /// - Translations use [`Packet::translate`](crate::Packet::translate) and
    ///   [`Packet::translate_source`](crate::Packet::translate_source), and end the chain like
    ///   accept. The caller marks the translation as decided after the last nat chain.
    /// - If a rule is not supported or could not be read, and can affect the packet, the function
    ///   calls [`Branch::doubt`]. If the rule cannot affect the packet, the function adds a step
    ///   with a note.
    /// - The function never panics, and terminates for all rules.
    fn walk(&self, base: &Base, branch: Branch, kernel: &dyn Kernel) -> Vec<Branch>;
}
