//! What the kernel tells of addresses on the link `kube-ipvs0`, and which of it is this proxy's own
//! doing.

use std::mem;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::config::VipMode;
use crate::plan::{Op, Outcome, Plan};

/// What the kernel tells of an address that this proxy has taken off the link comes within so long.
const TOLD_WITHIN: Duration = Duration::from_secs(10);

/// What this proxy has done to the link and that the kernel tells, too.
#[derive(Default)]
pub(crate) struct Link {
    /// Addresses that it has taken off.
    taken_off: HashMap<IpAddr, TakenOff>,
    /// Whether it has set the link down, which takes addresses away, until they are read again.
    was_set: bool,
    /// Whether addresses are gone that may be believed to be there, until all are read again.
    is_doubtful: bool,
}

/// An address of which the kernel has not told yet.
struct TakenOff {
    at: Instant,
    /// Whether it may be there all the same: it was bound again, or nobody knows whether it was taken off.
    is_unclear: bool,
}

/// The address that this takes off the link, which the kernel tells. Of the two places of a service
/// address one is an address, the other one a route, and of routes nobody tells.
fn taken_off(op: &Op, vip_mode: VipMode) -> Option<IpAddr> {
    match (op, vip_mode) {
        (Op::UnbindAddress(address), VipMode::Address)
        | (Op::UnbindOtherwise(address), VipMode::Route) => Some(*address),
        _ => None,
    }
}

/// What it means that an address is no longer on the link, as the kernel tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// It is this proxy's own doing.
    Own,
    /// It does not say whether this one is there: all of them have to be read.
    Unclear,
    /// Somebody else's, if the address was there.
    Others,
}

impl Link {
    /// Notes what is going to be written.
    pub(crate) fn note(&mut self, plan: &Plan, vip_mode: VipMode, now: Instant) {
        let is_recent = |off: &TakenOff| now.saturating_duration_since(off.at) < TOLD_WITHIN;
        self.taken_off.retain(|_, off| is_recent(off));
        for op in &plan.ops {
            if let Some(address) = taken_off(op, vip_mode) {
                let off = TakenOff {
                    at: now,
                    is_unclear: false,
                };
                self.taken_off.insert(address, off);
            }
            match op {
                Op::CreateLink => self.was_set = true,
                Op::BindAddress(address) => {
                    if let Some(off) = self.taken_off.get_mut(address) {
                        off.is_unclear = true;
                    }
                }
                _ => {}
            }
        }
    }

    /// Books what became of what was noted; whether addresses have to be read: one that was told to be
    /// gone was taken for what this proxy has not done.
    pub(crate) fn settle(&mut self, plan: &Plan, outcomes: &[Outcome], vip_mode: VipMode) -> bool {
        let mut was_misread = false;
        for (op, outcome) in plan.ops.iter().zip(outcomes) {
            let is_unbinding = matches!(op, Op::UnbindAddress(_) | Op::UnbindOtherwise(_));
            let off = taken_off(op, vip_mode);
            match outcome {
                Outcome::Done => {}
                Outcome::Refused { .. } => {
                    was_misread |= off.is_some_and(|off| self.taken_off.remove(&off).is_none());
                }
                // The place where an address is believed to be may be none.
                Outcome::Unknown => {
                    self.is_doubtful |= is_unbinding;
                    if let Some(off) = off.and_then(|off| self.taken_off.get_mut(&off)) {
                        off.is_unclear = true;
                    }
                }
            }
        }
        self.is_doubtful |= was_misread;
        was_misread
    }

    /// Some address may be gone that is believed to be there.
    pub(crate) fn doubt(&mut self) {
        self.is_doubtful = true;
    }

    /// All addresses were read since.
    pub(crate) fn is_read(&mut self) {
        self.is_doubtful = false;
    }

    /// Whether what is believed of addresses is all that was heard of them.
    pub(crate) fn is_sure(&self) -> bool {
        !self.is_doubtful
    }

    /// An address is gone, as the kernel tells.
    pub(crate) fn lose(&mut self, address: IpAddr) -> Loss {
        match self.taken_off.remove(&address) {
            // It may be of before, or somebody else's.
            Some(off) if off.is_unclear => Loss::Unclear,
            Some(_) => Loss::Own,
            None if self.was_set => Loss::Unclear,
            None => Loss::Others,
        }
    }

    /// All addresses have been read; whether the link had been set.
    pub(crate) fn was_read(&mut self) -> bool {
        mem::take(&mut self.was_set)
    }
}
