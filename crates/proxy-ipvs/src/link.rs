//! Notifications about addresses of `kube-ipvs0`. This module distinguishes this proxy's own
//! changes from other programs' changes.

use std::mem;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::config::VipMode;
use crate::plan::{Op, Outcome, Plan};

/// Longest expected delay between this proxy's removal of an address and the kernel's notification
/// about the removal.
const TOLD_WITHIN: Duration = Duration::from_secs(10);

/// Changes to the link by this proxy about which the kernel's notifications are still outstanding.
#[derive(Default)]
pub(crate) struct Link {
    /// Addresses that this proxy removed, until the kernel's notification arrives.
    taken_off: HashMap<IpAddr, RemovedAddress>,
    /// True after this proxy set the link down, because the kernel then removes addresses. Becomes
    /// false when a worker thread has read all addresses again.
    was_set: bool,
    /// True if the link may lack addresses that the tables contain. Becomes false when a worker
    /// thread has read all addresses again.
    is_doubtful: bool,
}

/// An address that this proxy removed, until the kernel's notification arrives.
struct RemovedAddress {
    at: Instant,
    /// True if the removed address may exist again: the proxy has bound it again, or the reply to
    /// its removal was lost.
    is_unclear: bool,
}

/// Returns the address that a write removes, if the kernel sends a notification about the removal.
/// The kernel sends notifications for addresses, but not for routes.
fn taken_off(op: &Op, vip_mode: VipMode) -> Option<IpAddr> {
    match (op, vip_mode.uses_routes()) {
        (Op::UnbindAddress(address), false) | (Op::UnbindOtherwise(address), true) => {
            Some(*address)
        }
        _ => None,
    }
}

/// Cause of a notification about a removed address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// This proxy itself removed the address.
    Own,
    /// The cause of the notification is unclear, so all addresses must be read again.
    Unclear,
    /// Another program removed the address, if the address existed at all.
    Others,
}

impl Link {
    /// Records the changes of a plan, before the worker thread executes it.
    pub(crate) fn note(&mut self, plan: &Plan, vip_mode: VipMode, now: Instant) {
        let is_recent = |off: &RemovedAddress| now.saturating_duration_since(off.at) < TOLD_WITHIN;
        self.taken_off.retain(|_, off| is_recent(off));
        for op in &plan.ops {
            if let Some(address) = taken_off(op, vip_mode) {
                let off = RemovedAddress {
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

    /// Records the outcomes of a plan that `note` has recorded.
    ///
    /// Returns true if the proxy attributed another program's removal to itself: the kernel has
    /// refused the proxy's own removal, so the earlier notification was about another program's
    /// removal. The caller must then read all addresses.
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
                // The reply was lost. The address may be absent, or still bound by the other
                // `--ipvs-vip-mode`.
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

    /// Records that the link may lack an address that the tables contain.
    pub(crate) fn doubt(&mut self) {
        self.is_doubtful = true;
    }

    /// Records that all addresses have been read.
    pub(crate) fn is_read(&mut self) {
        self.is_doubtful = false;
    }

    /// Returns true if the tables are up to date with all notifications so far.
    pub(crate) fn is_sure(&self) -> bool {
        !self.is_doubtful
    }

    /// Returns the cause of a notification about a removed address.
    pub(crate) fn lose(&mut self, address: IpAddr) -> Loss {
        match self.taken_off.remove(&address) {
            // The notification may be about an older removal, or about another program's removal.
            Some(off) if off.is_unclear => Loss::Unclear,
            Some(_) => Loss::Own,
            None if self.was_set => Loss::Unclear,
            None => Loss::Others,
        }
    }

    /// Records that a worker thread has read all addresses. Returns true if this proxy had set the
    /// link down before the read.
    pub(crate) fn was_read(&mut self) -> bool {
        mem::take(&mut self.was_set)
    }
}
