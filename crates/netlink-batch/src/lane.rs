//! A lane: a worker thread that runs one job at a time, for a caller that must not block.
//!
//! ```text
//!   start(job) ─▶ Worker ─▶ poll: ready ─▶ take
//! ```
//!
//! The caller must never run two jobs on the same kernel objects at the same time. Then jobs on
//! several lanes need no lock.

use std::fmt;
use std::task::{Context, Poll};

use futures::FutureExt as _;
use futures::channel::oneshot;

use crate::worker::{Worker, WorkerEnded};

/// A [`Worker`] that runs one job at a time. `R` is the result type of a job.
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
    Done(Result<R, WorkerEnded>),
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
    /// Creates a lane that runs its jobs on the thread of `worker`.
    pub fn new(worker: Worker<T>) -> Self {
        Self {
            thread: Thread::Worker(worker),
            job: Job::None,
        }
    }

    /// Creates a lane without a thread, for tests. Each job runs inside [`start`](Self::start), so
    /// jobs on several lanes have a fixed order.
    pub fn inline(value: T) -> Self {
        Self {
            thread: Thread::Inline(value),
            job: Job::None,
        }
    }

    /// Returns true if the caller may start a job: no job is running, and no result waits for
    /// [`take`](Self::take).
    pub fn is_free(&self) -> bool {
        matches!(self.job, Job::None)
    }

    /// Starts a job. If an earlier job still runs, that job continues, but its result is lost.
    pub fn start(&mut self, job: impl FnOnce(&mut T) -> R + Send + 'static) {
        self.job = match &mut self.thread {
            Thread::Worker(worker) => Job::Running(worker.submit(job)),
            Thread::Inline(value) => Job::Done(Ok(job(value))),
        };
    }

    /// Becomes ready when a job's result can be taken. If there is no job, returns `Pending` and
    /// wakes no task.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Job::Running(outcome) = &mut self.job {
            let Poll::Ready(result) = outcome.poll_unpin(context) else {
                return Poll::Pending;
            };
            self.job = Job::Done(result.map_err(|_| WorkerEnded));
        }
        match self.job {
            Job::Done(_) => Poll::Ready(()),
            Job::None | Job::Running(_) => Poll::Pending,
        }
    }

    /// Takes the result of a finished job, after which the caller may start the next job. Returns
    /// `None` if no job has finished.
    pub fn take(&mut self) -> Option<Result<R, WorkerEnded>> {
        let result = match std::mem::replace(&mut self.job, Job::None) {
            Job::None => return None,
            Job::Done(result) => result,
            Job::Running(mut outcome) => match outcome.try_recv() {
                Ok(Some(result)) => Ok(result),
                Ok(None) => {
                    self.job = Job::Running(outcome);
                    return None;
                }
                Err(oneshot::Canceled) => Err(WorkerEnded),
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
    fn a_lane_runs_its_jobs_one_after_another() {
        for mut lane in lanes() {
            for expected in 1..4 {
                assert!(lane.is_free());
                count(&mut lane);
                assert!(!lane.is_free());
                block_on(poll_fn(|context| lane.poll(context)));
                // The lane stays ready until the caller takes the job's result.
                block_on(poll_fn(|context| lane.poll(context)));
                assert_eq!(lane.take(), Some(Ok(expected)));
                assert_eq!(lane.take(), None);
            }
        }
    }

    #[test]
    fn a_finished_job_can_be_taken_without_waiting() {
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
    fn a_job_fails_if_its_thread_ends() {
        let [mut lane, _] = lanes();
        lane.start(|_| panic!("on purpose"));
        block_on(poll_fn(|context| lane.poll(context)));
        assert_eq!(lane.take(), Some(Err(WorkerEnded)));
        count(&mut lane);
        block_on(poll_fn(|context| lane.poll(context)));
        assert_eq!(lane.take(), Some(Err(WorkerEnded)));
    }
}
