//! A kind of rules, and where it hangs on a packet's way.

pub use nftables_netlink::{ChainKind, Hook};

use crate::branch::Branch;
use crate::kernel::Kernel;

/// A base chain: where packets come into a ruleset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base {
    /// Where.
    pub hook: Hook,
    /// Lower ones come first.
    pub priority: i32,
    /// What may be done in it. Those of type nat are asked at the priority of the kernel's own NAT
    /// (-100 before routing and on output, 100 after routing and on input), one after the other by
    /// their own, and only until one of them has settled what the hook is for.
    pub kind: ChainKind,
    /// The ruleset's own number for it.
    pub number: usize,
}

/// A kind of rules.
pub trait Ruleset {
    /// The base chains that it has at a hook, in any order.
    fn base_chains(&self, hook: Hook) -> Vec<Base>;

    /// Takes one way through a base chain; gives the ways that come of it, whose chances add up to
    /// that of `branch` (each side of a doubt counts whole).
    ///
    /// - A way that goes on behind the chain has no [`Branch::end`], whatever of accept, return and a
    ///   policy of accept has led out.
    /// - Only what does something is kept as a step: a match with an effect, a jump that leads
    ///   somewhere, a member found. All other rules are counted in [`Branch::passed`].
    /// - What is translated is so by [`Packet::translate`](crate::Packet::translate) and
    ///   [`Packet::translate_source`](crate::Packet::translate_source), and ends the chain as accept
    ///   does. The walk sets what is settled after the last chain of type nat.
    /// - What is not understood, or cannot be read, is [`Branch::doubt`] where it matters, and a step
    ///   that says so where it does not.
    /// - It never panics, and ends, whatever the rules are.
    fn walk(&self, base: &Base, branch: Branch, kernel: &dyn Kernel) -> Vec<Branch>;
}
