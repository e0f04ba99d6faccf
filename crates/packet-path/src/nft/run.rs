//! A rule that is being carried out for a packet: as data.

use std::net::IpAddr;
use std::sync::Arc;

use nftables_netlink::{Element, Register, Verdict};

use super::reader::Asked;
use super::registers::Registers;
use crate::branch::Branch;
use crate::kernel::Kernel;
use crate::packet::SourceNat;

/// Carries out the rules of one table.
pub(super) struct Evaluation<'a, R> {
    pub(super) asked: &'a mut Asked<R>,
    pub(super) kernel: &'a dyn Kernel,
    /// How many rules and choices may still be followed.
    pub(super) budget: usize,
}

/// A rule that is being carried out.
#[derive(Debug, Clone)]
pub(super) struct Run {
    /// The next expression.
    pub(super) at: usize,
    pub(super) branch: Branch,
    pub(super) registers: Registers,
    /// What it has done, in words.
    pub(super) did: Vec<Did>,
    /// The elements that it has found in sets of its own, each with the place of the expression.
    pub(super) found: Vec<(usize, Element)>,
    /// Those that it has found in sets of the table, as they are listed.
    pub(super) members: Vec<String>,
    /// Among how many it has chosen by chance, if it has.
    pub(super) choices: Option<u32>,
    /// What it depends on and is not known, and whether this run takes it to match.
    pub(super) doubt: Option<(bool, Arc<str>)>,
}

/// What a rule does to a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Did {
    /// Another mark, and the one before.
    Mark(u32, u32),
    /// Another destination.
    Destination(IpAddr, u16),
    /// The destination stays, whatever others say.
    Kept,
    /// To this node itself: its address, where it has one there, and the port.
    Redirected(Option<IpAddr>, u16),
    /// Another source.
    Source(SourceNat),
    /// Noted in a set.
    Noted(nftables_netlink::Name),
    /// Taken out of a set.
    Forgotten(nftables_netlink::Name),
    /// It is not tracked.
    Untracked,
}

impl Did {
    pub(super) fn is_translation(&self) -> bool {
        match self {
            Self::Destination(..) | Self::Kept | Self::Redirected(..) | Self::Source(_) => true,
            Self::Mark(..) | Self::Noted(_) | Self::Forgotten(_) | Self::Untracked => false,
        }
    }
}

/// How the carrying out of a rule stops.
pub(super) enum Stop {
    /// It does not match, its expressions are all done, or one has said where the packet goes.
    Ended(Box<Run>, Option<Verdict>),
    /// It goes on in each of these ways.
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

/// What one expression comes to.
pub(super) enum Done {
    On,
    Missed,
    Ended(Option<Verdict>),
    /// Whether it goes on depends on what is not known.
    Open(&'static str),
    /// The same, of an expression that is not understood.
    NotUnderstood,
    /// What it does to the packet cannot be told.
    Lost,
    /// A number of so many is made, from this one on.
    Choose(u32, u32, Register),
}

impl From<bool> for Done {
    fn from(goes_on: bool) -> Self {
        if goes_on { Self::On } else { Self::Missed }
    }
}
