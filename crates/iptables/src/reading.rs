//! Stores the rules of the last read, with a number that shows whether these rules are still
//! current.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use inet::IpFamily;

use crate::backend::Backend;
use crate::obstacles::DormantTable;

/// Maximum size in bytes of the rules' text that [`Readings`] stores. The rules of other programs
/// may make the text larger.
pub(crate) const MOST: usize = 256 * 1024;

/// Longest wait for the program that writes rules of the other IP family. After this time, both
/// families write in parallel. The kernel or the programs' own lock then orders the writes.
const TURN_LIMIT: Duration = Duration::from_secs(1);

/// State of one backend's tables in one IP family, as queried from the kernel without a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TablesState {
    /// The kernel cannot have rules of this backend.
    Unsupported,
    /// The tables have only built-in chains, and no rule.
    Empty,
    /// The kernel may have rules. The number changes whenever the rules change. `None` means that
    /// the number is unknown.
    Holds(Option<u64>),
}

/// The kernel's support for rules of one backend, as queried from the kernel without a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuleSupport {
    Works,
    Never,
    /// Tables can exist, but the kernel lacks a feature that rules of every mode need. The kernel
    /// may still load the feature when a program needs it.
    Lacks,
    /// The kernel's replies do not show whether it supports rules. Only a run of an iptables
    /// program shows that.
    Unknown,
}

/// The rules that were last read in one network namespace: one slot for each backend and IP family.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    slots: [Slot; 4],
    is_writing: Mutex<bool>,
    has_written: Condvar,
}

/// The right to write rules, which one writer has at a time. A writer that has waited too long
/// writes without this right.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    of: &'a Readings,
    /// True if the writer has waited too long for the turn. It then writes without the turn.
    is_jumped: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Slot {
    last: Mutex<Option<Reading>>,
    works: AtomicBool,
    /// Dormant tables that the log has already reported.
    dormant: Mutex<Vec<DormantTable>>,
}

/// The text of all rules, and a number that identifies this state of the rules: the nf_tables
/// generation, or a digest of the legacy tables.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) number: u64,
    pub(crate) text: Arc<str>,
}

impl Readings {
    /// Waits for the turn to write. The wait is limited, so that a hanging program of one family
    /// does not block the other family. Turns avoid two conflicts:
    ///
    /// * Legacy programs of both families share one lock, and versions before 1.6.2 do not wait for
    ///   it.
    /// * Programs of the nft backend start over if another program has written rules meanwhile.
    pub(crate) fn turn(&self) -> Turn<'_> {
        let is_writing = self.lock();
        let waited = self
            .has_written
            .wait_timeout_while(is_writing, TURN_LIMIT, |is_writing| *is_writing);
        let (mut is_writing, _) = waited.unwrap_or_else(PoisonError::into_inner);
        Turn {
            of: self,
            is_jumped: std::mem::replace(&mut *is_writing, true),
        }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_writing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Releases the turn, unless this writer has written without the turn.
        if !self.is_jumped {
            *self.of.lock() = false;
            self.of.has_written.notify_one();
        }
    }
}

impl Slot {
    /// Locks the rules of the last read. Waits while another thread reads.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Reading>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the rules of the last read without waiting. Returns `None` while another thread reads.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Option<Reading>>> {
        match self.last.try_lock() {
            Ok(last) => Some(last),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Stores the dormant tables that the log has now reported. Returns the previously stored
    /// tables.
    pub(crate) fn replace_dormant(&self, now: &[DormantTable]) -> Vec<DormantTable> {
        let mut dormant = self.dormant.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut dormant, now.to_vec())
    }

    /// Reports whether an earlier write or query has shown that the kernel accepts rules.
    pub(crate) fn works(&self) -> bool {
        self.works.load(Ordering::Relaxed)
    }

    pub(crate) fn set_works(&self) {
        self.works.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn iptables_writes_run_one_after_another() {
        let readings = Readings::default();
        let order = Mutex::new(Vec::new());
        let say = |what| order.lock().unwrap().push(what);
        let first = readings.turn();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _turn = readings.turn();
                say("second");
            });
            std::thread::sleep(Duration::from_millis(50));
            say("first");
            drop(first);
        });
        assert_eq!(*order.lock().unwrap(), ["first", "second"]);
    }

    #[test]
    fn the_wait_for_a_hung_iptables_write_is_limited() {
        let readings = Readings::default();
        let hung = readings.turn();
        let began = Instant::now();
        let jumped = readings.turn();
        assert!(began.elapsed() >= TURN_LIMIT);
        assert!(!hung.is_jumped && jumped.is_jumped);
        drop(jumped);
        assert!(*readings.lock(), "it still hangs");
        drop(hung);
        assert!(!readings.turn().is_jumped);
    }
}
