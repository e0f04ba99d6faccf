//! The pulse of the daemon's loop. Threads that answer probes use it to find out if the loop is
//! alive.
//!
//! ```text
//!   a probe ─ hung_for ─▶ asks, unless it has just answered ─▶ the loop: answer
//!                └─ how long the oldest question has had no answer
//! ```
//!
//! Without questions, nothing happens. A loop that works in bounded pieces answers between two of
//! them. A hung loop is noticed by the first probe [`HUNG_AFTER`] after the first unanswered
//! question.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Longest time that the loop may leave a question without an answer.
pub(crate) const HUNG_AFTER: Duration = Duration::from_secs(30);
/// Time for which an answer is valid for later questions.
const FRESH: Duration = Duration::from_secs(1);

/// Reports whether a loop is alive.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    state: Mutex<State>,
    asked: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Time of the oldest question without an answer.
    asked: Option<Instant>,
    answered: Option<Instant>,
    /// True once the process ends: the loop is over.
    is_over: bool,
}

impl Pulse {
    /// Asks the loop for an answer. Returns how long it has been hung; `None` if it is alive.
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

    /// Waits for a question. The loop must [answer](Self::answer) it.
    pub(crate) async fn asked(&self) {
        self.asked.notified().await;
    }

    /// Answers the question: the loop is alive.
    pub(crate) fn answer(&self, now: Instant) {
        let mut state = self.lock();
        (state.asked, state.answered) = (None, Some(now));
    }

    /// Answers all questions while there is no loop yet. Never returns.
    pub(crate) async fn answer_all(&self) {
        loop {
            self.asked().await;
            self.answer(Instant::now());
        }
    }

    /// Marks the loop as ended, shortly before the process ends.
    pub(crate) fn end(&self) {
        self.lock().is_over = true;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The lock is never held across code that can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn a_loop_that_leaves_a_question_without_an_answer_hangs() {
        let pulse = Pulse::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(pulse.hung_for(at(0)), None);
        assert!(pulse.asked().now_or_never().is_some());
        pulse.answer(at(1));
        // An hour without a probe does not count as an hour without an answer.
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
    fn a_flood_of_probes_does_not_keep_the_loop_busy() {
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
