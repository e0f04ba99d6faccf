//! State of an nf_tables rule while it is evaluated.

use std::net::IpAddr;
use std::sync::Arc;

use nftables_netlink::{Element, Register, Verdict};

use super::reader::CachedReader;
use super::registers::Registers;
use crate::branch::Branch;
use crate::kernel::Kernel;
use crate::packet::SourceNat;

/// Evaluation of one base chain for a packet.
pub(super) struct Evaluation<'a, R> {
    pub(super) asked: &'a mut CachedReader<R>,
    pub(super) kernel: &'a dyn Kernel,
    /// Number of rules and choices that may still be evaluated before the evaluation stops.
    pub(super) budget: usize,
}

/// State of a rule while it is evaluated on one path.
#[derive(Debug, Clone)]
pub(super) struct Run {
    /// Index of the expression that is evaluated next.
    pub(super) at: usize,
    pub(super) branch: Branch,
    pub(super) registers: Registers,
    /// Effects of the rule on the packet so far.
    pub(super) did: Vec<Effect>,
    /// Matched elements of anonymous sets, each with the index of the expression that looked it up.
    pub(super) found: Vec<(usize, Element)>,
    /// Matched elements of named sets, as texts for the user.
    pub(super) members: Vec<String>,
    /// Number of alternatives of the rule's random choice, or `None` if it makes none.
    pub(super) choices: Option<u32>,
    /// Doubt about the rule's match: true if this path assumes a match, and the reason. `None` if
    /// the outcome is certain.
    pub(super) doubt: Option<(bool, Arc<str>)>,
}

/// An effect of a rule on a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    /// The packet mark changed from the first to the second value.
    Mark(u32, u32),
    /// The packet's destination changed to this address and port.
    Destination(IpAddr, u16),
    /// The packet keeps its destination, and no later nat chain can change it.
    Kept,
    /// The packet is redirected to this port of the node, at this address of the input interface.
    /// The address is `None` if the interface has none.
    Redirected(Option<IpAddr>, u16),
    /// The packet's source changed.
    Source(SourceNat),
    /// The rule added an element to the set with this name.
    Noted(nftables_netlink::Name),
    /// The rule deleted an element from the set with this name.
    Forgotten(nftables_netlink::Name),
    /// The packet is excluded from connection tracking (`notrack`).
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
    /// The rule has ended, with its verdict. Without one, the next rule follows.
    Ended(Box<Run>, Option<Verdict>),
    /// The path splits, and the rule continues on each of these paths.
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

/// Result of evaluating one expression of a rule on one path.
pub(super) enum ExpressionResult {
    On,
    Missed,
    Ended(Option<Verdict>),
    /// The match is unknown, because of missing data. The text is the reason.
    Open(&'static str),
    /// The match is unknown, because this program does not support the expression.
    NotUnderstood,
    /// The expression may change the packet in an unknown way.
    Lost,
    /// A random choice: the number of alternatives, the first number, and the register for the
    /// chosen number.
    Choose(u32, u32, Register),
}

impl From<bool> for ExpressionResult {
    fn from(goes_on: bool) -> Self {
        if goes_on { Self::On } else { Self::Missed }
    }
}
