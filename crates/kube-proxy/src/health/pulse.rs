//! Pulse of the daemon's loop. The threads that respond to probes use the pulse to check that the
//! loop is alive.
//!
//! ```text
//!   a probe ─ hung_for ─▶ request, unless the loop has just replied ─▶ the loop: answer
//!                └─ age of the oldest request without a reply
//! ```
//!
//! - Without probes, the pulse does nothing.
//! - A loop that is alive works in turns of limited length, and replies between two turns.
//! - If the loop hangs, requests stay without a reply. Once the oldest such request has the age
//!   [`HUNG_AFTER`], each probe reports the hang.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Time limit for a reply of the daemon's loop, after which the loop counts as hung.
pub(crate) const HUNG_AFTER: Duration = Duration::from_secs(30);
/// Maximum age of a reply of the main loop that further requests reuse.
const FRESH: Duration = Duration::from_secs(1);

/// Requests to the daemon's loop for a sign of life, and the times of its replies.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    state: Mutex<ProbeTimes>,
    asked: Notify,
}

#[derive(Debug, Default)]
struct ProbeTimes {
    /// Time of the oldest request without a reply. `None`: every request has a reply.
    asked: Option<Instant>,
    answered: Option<Instant>,
    /// True once the daemon's loop has ended, shortly before the process ends.
    is_over: bool,
}

impl Pulse {
    /// Requests a sign of life from the daemon's loop. Returns the time for which the loop has
    /// hung, or `None` if the loop is alive.
    pub(crate) fn hung_for(&self, now: Instant) -> Option<Duration> {
        let mut state = self.lock();
        if state.is_over {
            return None;
        }
        let since = |at: Instant| now.saturating_duration_since(at);
        let Some(asked) = state.asked else {
            if state.answered.is_none_or(|at| since(at) >= FRESH) {
                state.asked = Some(now);
                self.asked.notify_one();
            }
            return None;
        };
        Some(since(asked)).filter(|waited| *waited >= HUNG_AFTER)
    }

    /// Waits for a request, to which the daemon's loop must [reply](Self::answer).
    pub(crate) async fn asked(&self) {
        self.asked.notified().await;
    }

    /// Replies to the request, which shows that the daemon's loop is alive.
    pub(crate) fn answer(&self, now: Instant) {
        let mut state = self.lock();
        (state.asked, state.answered) = (None, Some(now));
    }

    /// Replies to every request, during the start, until the daemon's loop runs and replies itself.
    /// Never returns.
    pub(crate) async fn answer_all(&self) {
        loop {
            self.asked().await;
            self.answer(Instant::now());
        }
    }

    /// Marks the daemon's loop as ended, shortly before the process ends.
    pub(crate) fn end(&self) {
        self.lock().is_over = true;
    }

    fn lock(&self) -> MutexGuard<'_, ProbeTimes> {
        // A poisoned lock is harmless, because no code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn a_main_loop_that_does_not_answer_probes_is_hung() {
        let pulse = Pulse::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(pulse.hung_for(at(0)), None);
        assert!(pulse.asked().now_or_never().is_some());
        pulse.answer(at(1));
        // An hour without a probe is not a hang.
        assert_eq!(pulse.hung_for(at(3600)), None);
        assert_eq!(pulse.hung_for(at(3629)), None);
        assert_eq!(pulse.hung_for(at(3630)), Some(HUNG_AFTER));
        pulse.answer(at(3631));
        assert_eq!(pulse.hung_for(at(3632)), None);
        assert_eq!(pulse.hung_for(at(3700)), Some(Duration::from_secs(68)));
        pulse.end();
        assert_eq!(pulse.hung_for(at(3701)), None);
    }

    #[test]
    fn many_probes_do_not_keep_the_main_loop_busy() {
        let pulse = Pulse::default();
        let now = Instant::now();
        assert_eq!(pulse.hung_for(now), None);
        assert!(pulse.asked().now_or_never().is_some());
        pulse.answer(now);
        for _ in 0..100 {
            assert_eq!(pulse.hung_for(now + FRESH / 2), None);
        }
        assert!(pulse.asked().now_or_never().is_none());
    }
}
