//! A kernel thread with one job at a time, for a caller that waits for nothing.
//!
//! ```text
//!   start(job) ─▶ Worker ─▶ poll: ready ─▶ take
//! ```
//!
//! What a job is about stays as it is while the job runs, if whoever starts jobs starts none about
//! it on another lane: so several lanes beside each other need no lock.

use std::fmt;
use std::task::{Context, Poll};

use futures::FutureExt as _;
use futures::channel::oneshot;

use crate::worker::{Gone, Worker};

/// A [`Worker`] that does one job at a time. `R` is what a job comes to.
pub struct Lane<T, R> {
    thread: Thread<T>,
    job: Job<R>,
}

enum Thread<T> {
    Worker(Worker<T>),
    Inline(T),
}

enum Job<R> {
    None,
    Running(oneshot::Receiver<R>),
    Done(Result<R, Gone>),
}

impl<T, R> fmt::Debug for Lane<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let job = match &self.job {
            Job::None => "none",
            Job::Running(_) => "running",
            Job::Done(_) => "done",
        };
        f.debug_struct("Lane")
            .field("job", &job)
            .finish_non_exhaustive()
    }
}

impl<T: 'static, R: Send + 'static> Lane<T, R> {
    /// A lane on this worker's thread.
    pub fn new(worker: Worker<T>) -> Self {
        Self {
            thread: Thread::Worker(worker),
            job: Job::None,
        }
    }

    /// A lane without a thread: each job runs when it is started, so that the order of what several
    /// lanes do is always the same. For tests.
    pub fn inline(value: T) -> Self {
        Self {
            thread: Thread::Inline(value),
            job: Job::None,
        }
    }

    /// Whether a job can be started: none is under way, and none has ended that was not taken.
    pub fn is_free(&self) -> bool {
        matches!(self.job, Job::None)
    }

    /// Starts a job. One that is under way goes on, but nobody learns what it comes to.
    pub fn start(&mut self, job: impl FnOnce(&mut T) -> R + Send + 'static) {
        self.job = match &mut self.thread {
            Thread::Worker(worker) => Job::Running(worker.submit(job)),
            Thread::Inline(value) => Job::Done(Ok(job(value))),
        };
    }

    /// Ready when a job has ended that was not taken yet. Without a job it is pending, and wakes
    /// nobody.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Job::Running(outcome) = &mut self.job {
            let Poll::Ready(result) = outcome.poll_unpin(context) else {
                return Poll::Pending;
            };
            self.job = Job::Done(result.map_err(|_| Gone));
        }
        match self.job {
            Job::Done(_) => Poll::Ready(()),
            Job::None | Job::Running(_) => Poll::Pending,
        }
    }

    /// What the job came to, once it has ended; the next one can be started then.
    pub fn take(&mut self) -> Option<Result<R, Gone>> {
        let result = match std::mem::replace(&mut self.job, Job::None) {
            Job::None => return None,
            Job::Done(result) => result,
            Job::Running(mut outcome) => match outcome.try_recv() {
                Ok(Some(result)) => Ok(result),
                Ok(None) => {
                    self.job = Job::Running(outcome);
                    return None;
                }
                Err(oneshot::Canceled) => Err(Gone),
            },
        };
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io;

    use futures::executor::block_on;

    use super::*;

    fn lanes() -> [Lane<u32, u32>; 2] {
        let worker = Worker::spawn("lane", || Ok::<_, io::Error>(0)).unwrap();
        [Lane::new(worker), Lane::inline(0)]
    }

    fn count(lane: &mut Lane<u32, u32>) {
        lane.start(|count| {
            *count += 1;
            *count
        });
    }

    #[test]
    fn a_lane_does_one_job_after_another() {
        for mut lane in lanes() {
            for expected in 1..4 {
                assert!(lane.is_free());
                count(&mut lane);
                assert!(!lane.is_free());
                block_on(poll_fn(|context| lane.poll(context)));
                // Ready until it is taken.
                block_on(poll_fn(|context| lane.poll(context)));
                assert_eq!(lane.take(), Some(Ok(expected)));
                assert_eq!(lane.take(), None);
            }
        }
    }

    #[test]
    fn what_has_ended_can_be_taken_without_waiting() {
        for mut lane in lanes() {
            count(&mut lane);
            let taken = loop {
                match lane.take() {
                    Some(taken) => break taken,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(taken, Ok(1));
            assert!(lane.is_free());
        }
    }

    #[test]
    fn the_end_of_its_thread_is_what_a_job_comes_to() {
        let [mut lane, _] = lanes();
        lane.start(|_| panic!("on purpose"));
        block_on(poll_fn(|context| lane.poll(context)));
        assert_eq!(lane.take(), Some(Err(Gone)));
        count(&mut lane);
        block_on(poll_fn(|context| lane.poll(context)));
        assert_eq!(lane.take(), Some(Err(Gone)));
    }
}
