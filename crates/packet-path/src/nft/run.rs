//! State of a rule during its evaluation.

use std::net::IpAddr;
use std::sync::Arc;

use nftables_netlink::{Element, Register, Verdict};

use super::reader::CachedReader;
use super::registers::Registers;
use crate::branch::Branch;
use crate::kernel::Kernel;
use crate::packet::SourceNat;

/// Evaluation of one base chain.
pub(super) struct Evaluation<'a, R> {
    pub(super) asked: &'a mut CachedReader<R>,
    pub(super) kernel: &'a dyn Kernel,
    /// Number of rules and choices that may still be evaluated.
    pub(super) budget: usize,
}

/// A rule during its evaluation on one path.
#[derive(Debug, Clone)]
pub(super) struct Run {
    /// Index of the rule's next expression.
    pub(super) at: usize,
    pub(super) branch: Branch,
    pub(super) registers: Registers,
    /// Effects of the rule on the packet so far.
    pub(super) did: Vec<Effect>,
    /// Elements matched in anonymous sets, each with the index of its expression.
    pub(super) found: Vec<(usize, Element)>,
    /// Elements matched in named sets, as text.
    pub(super) members: Vec<String>,
    /// Number of endpoints among which the rule chooses at random, or `None` without a random
    /// choice.
    pub(super) choices: Option<u32>,
    /// Reason why the rule's outcome is unknown. The `bool` is true if this path assumes a match.
    pub(super) doubt: Option<(bool, Arc<str>)>,
}

/// An effect of a rule on a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    /// Change of the packet's mark: the value before, and the value after.
    Mark(u32, u32),
    /// New destination address and port of the packet.
    Destination(IpAddr, u16),
    /// Decision that the packet keeps its destination. Later rules cannot change the destination.
    Kept,
    /// Redirection to this node: the node's address on the input interface, and the port. The
    /// address is `None` if the interface has no address.
    Redirected(Option<IpAddr>, u16),
    /// New source address of the packet.
    Source(SourceNat),
    /// Addition of an element to the set with this name.
    Noted(nftables_netlink::Name),
    /// Deletion of an element from the set with this name.
    Forgotten(nftables_netlink::Name),
    /// Exclusion of the packet from connection tracking.
    Untracked,
}

impl Effect {
    pub(super) fn is_translation(&self) -> bool {
        match self {
            Self::Destination(..) | Self::Kept | Self::Redirected(..) | Self::Source(_) => true,
            Self::Mark(..) | Self::Noted(_) | Self::Forgotten(_) | Self::Untracked => false,
        }
    }
}

/// Result of evaluating a rule on one path.
pub(super) enum RuleResult {
    /// The rule ended: without a match, after its last expression, or with a verdict.
    Ended(Box<Run>, Option<Verdict>),
    /// The rule splits, and continues on each of these paths.
    Fork(Vec<Run>),
}

impl Run {
    pub(super) fn new(branch: Branch) -> Self {
        Self {
            at: 0,
            branch,
            registers: Registers::new(),
            did: Vec::new(),
            found: Vec::new(),
            members: Vec::new(),
            choices: None,
            doubt: None,
        }
    }
}

/// Result of evaluating one expression of a rule.
pub(super) enum ExpressionResult {
    On,
    Missed,
    Ended(Option<Verdict>),
    /// The expression's outcome is unknown, for this reason.
    Open(&'static str),
    /// The expression's outcome is unknown, because the expression is not supported.
    NotUnderstood,
    /// The expression changes the packet in an unknown way.
    Lost,
    /// A random choice. The fields are the number of alternatives, the first number, and the
    /// register that receives the chosen number.
    Choose(u32, u32, Register),
}

impl From<bool> for ExpressionResult {
    fn from(goes_on: bool) -> Self {
        if goes_on { Self::On } else { Self::Missed }
    }
}
