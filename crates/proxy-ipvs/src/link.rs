//! Decides who caused the kernel's notifications about addresses of `kube-ipvs0`: this proxy, or
//! another program.

use std::mem;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::config::VipMode;
use crate::plan::{Op, Outcome, Plan};

/// Longest expected delay between this proxy's removal of an address and the kernel's notification
/// about it.
const TOLD_WITHIN: Duration = Duration::from_secs(10);

/// Changes to `kube-ipvs0` by this proxy whose notifications have not arrived yet.
#[derive(Default)]
pub(crate) struct Link {
    /// Addresses that this proxy has removed, each until its notification arrives.
    taken_off: HashMap<IpAddr, RemovedAddress>,
    /// True after this proxy set the link down, because the kernel then removes addresses. False
    /// again once a worker thread has read all addresses.
    was_set: bool,
    /// True if the link may lack addresses that the tables contain. False again once a worker
    /// thread has read all addresses.
    is_doubtful: bool,
}

/// An address that this proxy has removed, and whose notification has not arrived yet.
struct RemovedAddress {
    at: Instant,
    /// True if the address may exist again: the proxy has bound it again, or the reply to the
    /// removal was lost.
    is_unclear: bool,
}

/// Returns the address that this write removes from the link. Returns `None` for a removed route,
/// about which the kernel sends no notification of an address.
fn taken_off(op: &Op, vip_mode: VipMode) -> Option<IpAddr> {
    match (op, vip_mode.uses_routes()) {
        (Op::UnbindAddress(address), false) | (Op::UnbindOtherwise(address), true) => {
            Some(*address)
        }
        _ => None,
    }
}

/// Program that removed an address, according to the notification about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// This proxy itself removed the address.
    Own,
    /// Unknown: this proxy or another program. The caller must read all addresses again.
    Unclear,
    /// Another program removed the address, if it existed at all.
    Others,
}

impl Link {
    /// Records the changes of a plan before a worker thread executes it.
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

    /// Records the outcomes of a plan that [`note`](Self::note) has recorded.
    ///
    /// Returns true if the proxy took another program's removal of an address for its own: the
    /// kernel has refused the proxy's removal, after a notification about the address. The caller
    /// must then read all addresses.
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
                // The reply was lost. The address may be absent, or still bound in the form of the
                // other `--ipvs-vip-mode`.
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

    /// Records that the tables have the result of a read of all addresses.
    pub(crate) fn is_read(&mut self) {
        self.is_doubtful = false;
    }

    /// Returns true if the tables agree with all notifications so far.
    pub(crate) fn is_sure(&self) -> bool {
        !self.is_doubtful
    }

    /// Returns which program removed the address of a notification.
    pub(crate) fn lose(&mut self, address: IpAddr) -> Loss {
        match self.taken_off.remove(&address) {
            // The notification may be about an older removal, or about another program's.
            Some(off) if off.is_unclear => Loss::Unclear,
            Some(_) => Loss::Own,
            None if self.was_set => Loss::Unclear,
            None => Loss::Others,
        }
    }

    /// Records that a worker thread has read all addresses. Returns true if this proxy set the link
    /// down before that read.
    pub(crate) fn was_read(&mut self) -> bool {
        mem::take(&mut self.was_set)
    }
}
