//! What was read of the rules, and whether it still is what the kernel holds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use inet::IpFamily;

use crate::backend::Backend;
use crate::obstacles::DormantTable;

/// Longer texts are read again each time: rules of others may be very many.
pub(crate) const MOST: usize = 256 * 1024;

/// How long one who wants to write waits for the other family's turn to end. After that both write,
/// and the kernel, or the program's own lock, puts them in order.
const TURN_LIMIT: Duration = Duration::from_secs(1);

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
    /// Tables can be there, and the kernel has not all that rules of every mode need. A program may
    /// still load it.
    Lacks,
    /// The program has to be tried.
    Unknown,
}

/// What is known of each backend and family, in one network namespace.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    slots: [Slot; 4],
    is_writing: Mutex<bool>,
    has_written: Condvar,
}

/// Whoever has it writes.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    of: &'a Readings,
    /// Whether it was waited for long enough, and not had.
    is_jumped: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Slot {
    last: Mutex<Option<Reading>>,
    works: AtomicBool,
    /// Tables that were told to be switched off.
    dormant: Mutex<Vec<DormantTable>>,
}

/// All rules, as they were when the kernel said this number.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) number: u64,
    pub(crate) text: Arc<str>,
}

impl Readings {
    /// Waits for the turn to write, though not for ever: a program that hangs in one family is not
    /// to hold up the other. Both families' legacy programs wait for one lock of theirs, no longer
    /// than they are told to, and not at all before 1.6.2; nft ones begin again when another has
    /// written meanwhile.
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
        // Who did not wait for its end leaves the turn to whom it belongs.
        if !self.is_jumped {
            *self.of.lock() = false;
            self.of.has_written.notify_one();
        }
    }
}

impl Slot {
    /// Of two that read at once, one waits for what the other reads.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Reading>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same for one who does not wait; `None` while somebody reads.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Option<Reading>>> {
        match self.last.try_lock() {
            Ok(last) => Some(last),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes over which tables are switched off, and returns those that were before.
    pub(crate) fn replace_dormant(&self, now: &[DormantTable]) -> Vec<DormantTable> {
        let mut dormant = self.dormant.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut dormant, now.to_vec())
    }

    /// Whether it has worked once.
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
    fn one_writes_after_the_other() {
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
    fn a_turn_that_does_not_end_is_not_waited_for() {
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
