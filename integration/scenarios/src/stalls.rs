//! Whether anything ran here at all: a guest that its machine gives no time answers nobody, and that
//! is no fault of whom it asked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

/// How long it sleeps at a time.
const TICK: Duration = Duration::from_millis(20);
/// Later than that: nothing ran.
const STALL: Duration = Duration::from_millis(150);

/// A thread that only sleeps, and how late it was. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Meter(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// All that was longer than [`STALL`].
    sum: Duration,
    longest: Duration,
    /// When it ran last.
    seen: Instant,
}

impl Default for Meter {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State {
            sum: Duration::ZERO,
            longest: Duration::ZERO,
            seen: Instant::now(),
        })))
    }
}

impl Meter {
    /// Runs on this thread until that is so.
    pub fn run(&self, is_over: impl Fn() -> bool) {
        self.state().seen = Instant::now();
        while !is_over() {
            thread::sleep(TICK);
            self.state().note();
        }
    }

    /// Does something while it runs on a thread of its own.
    fn during<T>(&self, what: impl FnOnce() -> T) -> T {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| self.run(|| is_over.load(Ordering::Relaxed)));
            let _over = Over(&is_over);
            what()
        })
    }

    /// How long nothing ran in all, with the stall that is just over, which it may not have seen
    /// yet: who compares two of these knows whether there was one between.
    pub fn so_far(&self) -> Duration {
        self.state().so_far()
    }

    /// How late it was at most, however little.
    pub fn longest(&self) -> Duration {
        self.state().longest
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long something took by its own account, less the time in which nothing ran here.
///
/// # Errors
/// Its own.
pub fn less_stalls(what: impl FnOnce() -> Result<Duration>) -> Result<Duration> {
    let meter = Meter::default();
    let took = meter.during(what)?;
    Ok(took.saturating_sub(meter.so_far()))
}

/// Says to threads that they may end, also where what they go on beside panics.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl State {
    fn late(&self) -> Duration {
        self.seen.elapsed().saturating_sub(TICK)
    }

    fn so_far(&self) -> Duration {
        let late = self.late();
        self.sum + if late > STALL { late } else { Duration::ZERO }
    }

    fn note(&mut self) {
        self.longest = self.longest.max(self.late());
        self.sum = self.so_far();
        self.seen = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_counts_once_seen_or_not() {
        let mut state = State {
            sum: Duration::ZERO,
            longest: Duration::ZERO,
            seen: Instant::now()
                .checked_sub(2 * STALL)
                .expect("a machine that has run for a second"),
        };
        let so_far = state.so_far();
        assert!(so_far > STALL);
        state.note();
        assert!(state.sum >= so_far && state.longest >= so_far);
        assert_eq!(state.so_far(), state.sum);
    }
}
