//! Detects stalls of the VM: times in which the host gives it no CPU time, so that no server in it
//! can reply.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::{Crew, StopSignal};

/// Interval between two readings of the clock.
const TICK: Duration = Duration::from_millis(20);
/// Shortest delay of a clock reading that counts as a stall of the VM.
const STALL: Duration = Duration::from_millis(150);

/// Sum and maximum of all stalls of this VM, measured by a thread that only sleeps and reads the
/// clock. Clones share these values.
#[derive(Debug, Clone)]
pub(crate) struct Meter(Arc<Mutex<StallTimes>>);

#[derive(Debug)]
struct StallTimes {
    /// Sum of the delays of at least [`STALL`].
    sum: Duration,
    longest: Duration,
    /// Time of the last clock reading.
    seen: Instant,
}

impl Default for Meter {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(StallTimes {
            sum: Duration::ZERO,
            longest: Duration::ZERO,
            seen: Instant::now(),
        })))
    }
}

impl Meter {
    /// Measures stalls on this thread until `over` is set.
    pub(crate) fn run(&self, over: &StopSignal) {
        self.state().seen = Instant::now();
        while !over.is_over() {
            thread::sleep(TICK);
            self.state().note();
        }
    }

    /// Returns the sum of all stalls, including a stall that the measuring thread has not recorded
    /// yet. If two calls return different sums, a stall occurred in between.
    pub(crate) fn so_far(&self) -> Duration {
        self.state().so_far()
    }

    /// Returns the longest delay of a clock reading, even if it is too short for a stall
    /// ([`STALL`]).
    pub(crate) fn longest(&self) -> Duration {
        self.state().longest
    }

    fn state(&self) -> MutexGuard<'_, StallTimes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs `work`, and returns the duration that it reports, minus the VM's stalls in the meantime.
///
/// # Errors
/// Returns the error of `work`.
pub fn less_stalls(work: impl FnOnce() -> anyhow::Result<Duration>) -> anyhow::Result<Duration> {
    let meter = Meter::default();
    let mut crew = Crew::default();
    let measuring = meter.clone();
    crew.begin(move |over| measuring.run(over));
    let took = work()?;
    Ok(took.saturating_sub(meter.so_far()))
}

impl StallTimes {
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
    fn each_stall_is_counted_once() {
        let mut state = StallTimes {
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
