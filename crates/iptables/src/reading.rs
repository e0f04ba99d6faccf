//! What was read of the rules, and whether it still is what the kernel holds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proxy::IpFamily;

use crate::iptables::Backend;

/// Longer texts are read again each time: rules of others may be very many.
pub(crate) const MOST: usize = 256 * 1024;

/// What the tables of a family and backend are in, as the kernel says without a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// The kernel cannot have any.
    Unsupported,
    /// There is no rule and no chain but the built-in ones.
    Empty,
    /// There may be some; two times with the same number are two times the same.
    Holds(Option<u64>),
}

/// Whether the kernel takes rules, as it says without a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Works,
    Never,
    /// The program has to be tried.
    Unknown,
}

/// What is known of each backend and family, in one network namespace.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    slots: [Slot; 4],
    turn: Mutex<()>,
}

#[derive(Debug, Default)]
pub(crate) struct Slot {
    last: Mutex<Option<Reading>>,
    works: AtomicBool,
}

/// All rules, as they were when the kernel said this number.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) number: u64,
    pub(crate) text: Arc<str>,
}

impl Readings {
    /// Whoever has it writes. Both families' legacy programs wait for one lock of theirs, no longer than they are told to, and
    /// not at all before 1.6.2; nft ones begin again when another has written meanwhile.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn of(&self, backend: Backend, family: IpFamily) -> &Slot {
        let [nft4, nft6, legacy4, legacy6] = &self.slots;
        match (backend, family) {
            (Backend::Nft, IpFamily::V4) => nft4,
            (Backend::Nft, IpFamily::V6) => nft6,
            (Backend::Legacy, IpFamily::V4) => legacy4,
            (Backend::Legacy, IpFamily::V6) => legacy6,
        }
    }
}

impl Slot {
    /// Of two that read at once, one waits for what the other reads.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Reading>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has worked once.
    pub(crate) fn works(&self) -> bool {
        self.works.load(Ordering::Relaxed)
    }

    pub(crate) fn set_works(&self) {
        self.works.store(true, Ordering::Relaxed);
    }
}
