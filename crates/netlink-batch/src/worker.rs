//! A thread that owns sockets and makes their blocking calls for async callers.
//!
//! The kernel does its work within the system call `send`, on the sender's thread. A large batch
//! would therefore block an async runtime, so a [`Worker`] runs closures on another thread.
//!
//! If a closure panics, the thread drops the value and ends, because a half-finished operation
//! leaves a socket in an unknown state. All later calls return [`WorkerEnded`].

use std::fmt;
use std::future::Future;
use std::io;
use std::panic::resume_unwind;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use futures::channel::oneshot;

/// Closure that a worker runs on its value.
pub type Job<T> = Box<dyn FnOnce(&mut T) + Send>;

/// Error of a call to a worker whose thread has ended because a closure panicked. The closure's
/// writes may be incomplete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the worker thread has ended by a panic; its cause is on standard error")]
pub struct WorkerEnded;

/// A thread that owns a `T` and runs closures on it, in the order of the calls.
///
/// When a `Worker` is dropped, it runs the queued closures, and then ends the thread.
pub struct Worker<T> {
    jobs: Option<mpsc::Sender<Job<T>>>,
    thread: Option<JoinHandle<()>>,
}

/// Queue of closures for a worker without a thread ([`Worker::handing_out`]).
pub struct JobQueue<T>(mpsc::Receiver<Job<T>>);

impl<T> JobQueue<T> {
    /// Returns the next queued closure, if any.
    pub fn next_job(&mut self) -> Option<Job<T>> {
        self.0.try_recv().ok()
    }
}

impl<T> fmt::Debug for JobQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("JobQueue").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Worker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("thread", &self.thread)
            .finish_non_exhaustive()
    }
}

impl<T: 'static> Worker<T> {
    /// Starts a thread with the name `name`, of which `top` shows 15 bytes. Builds the value on
    /// this thread, and waits until it is built. The thread belongs to the caller's network
    /// namespace.
    ///
    /// # Errors
    ///
    /// Returns the error of `build`, or an I/O error if the system cannot create a thread.
    ///
    /// # Panics
    ///
    /// Panics if `build` panics.
    pub fn spawn<E, F>(name: &str, build: F) -> Result<Self, E>
    where
        F: FnOnce() -> Result<T, E> + Send + 'static,
        E: From<io::Error> + Send + 'static,
    {
        let (jobs, queue) = mpsc::channel::<Job<T>>();
        let (built, verdict) = mpsc::channel();
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let mut value = match build() {
                    Ok(value) => value,
                    Err(error) => return drop(built.send(Err(error))),
                };
                // This send cannot fail, because the caller still waits for the message.
                let _ = built.send(Ok(()));
                for job in queue {
                    job(&mut value);
                }
            })?;
        match verdict.recv() {
            Ok(Ok(())) => Ok(Self {
                jobs: Some(jobs),
                thread: Some(thread),
            }),
            Ok(Err(error)) => Err(error),
            Err(_) => match thread.join() {
                Err(panic) => resume_unwind(panic),
                Ok(()) => unreachable!("the thread ends without a verdict only by a panic"),
            },
        }
    }

    /// Creates a worker without a thread or a value, for tests that control the order of events.
    /// The returned queue hands out the closures in the order of the calls. The test decides when
    /// each closure runs, and on which value.
    ///
    /// If the test drops a closure, its caller gets the same error as after the end of a thread.
    pub fn handing_out() -> (Self, JobQueue<T>) {
        let (jobs, queue) = mpsc::channel();
        let worker = Self {
            jobs: Some(jobs),
            thread: None,
        };
        (worker, JobQueue(queue))
    }

    /// Runs `f` on the worker's value. The call queues the closure immediately. The worker runs the
    /// closure even if the caller drops the future.
    pub fn call<R, F>(
        &self,
        f: F,
    ) -> impl Future<Output = Result<R, WorkerEnded>> + Send + use<R, F, T>
    where
        R: Send + 'static,
        F: FnOnce(&mut T) -> R + Send + 'static,
    {
        let outcome = self.submit(f);
        async move { outcome.await.map_err(|_| WorkerEnded) }
    }

    /// Queues `f`. Returns a receiver for its result. The receiver fails if the worker's thread has
    /// ended.
    pub(crate) fn submit<R, F>(&self, f: F) -> oneshot::Receiver<R>
    where
        R: Send + 'static,
        F: FnOnce(&mut T) -> R + Send + 'static,
    {
        let (done, outcome) = oneshot::channel();
        let job: Job<T> = Box::new(move |value| drop(done.send(f(value))));
        // If the thread has ended, the send fails and drops the job with its result sender. The
        // caller's receiver then fails.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
        outcome
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // Ignores a panic of the thread: the panic hook has already reported it.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures::executor::block_on;
    use futures::future::join;

    use super::*;

    #[test]
    fn a_worker_runs_calls_in_order() {
        let worker = Worker::spawn("count", || Ok::<_, io::Error>(Rc::new(Cell::new(0)))).unwrap();
        let calls: Vec<_> = (0..100)
            .map(|_| worker.call(|n| n.replace(n.get() + 1)))
            .collect();
        for (expected, call) in calls.into_iter().enumerate() {
            assert_eq!(block_on(call), Ok(expected));
        }
    }

    #[test]
    fn an_error_of_a_workers_constructor_is_returned_to_the_caller() {
        let failed = Worker::<()>::spawn("fails", || Err(io::Error::other("no socket")));
        assert_eq!(failed.unwrap_err().to_string(), "no socket");
    }

    #[test]
    #[should_panic(expected = "built on sand")]
    fn a_panic_of_a_workers_constructor_reaches_the_caller() {
        let _ = Worker::<()>::spawn("panics", || -> io::Result<()> { panic!("built on sand") });
    }

    #[test]
    fn a_panic_on_the_worker_fails_all_waiting_callers() {
        let worker = Worker::spawn("panics", || Ok::<_, io::Error>(())).unwrap();
        let first = worker.call(|()| panic!("on purpose"));
        let second = worker.call(|()| 2);
        assert_eq!(
            block_on(join(first, second)),
            (Err::<(), _>(WorkerEnded), Err(WorkerEnded))
        );
        assert_eq!(block_on(worker.call(|()| 3)), Err(WorkerEnded));
    }

    #[test]
    fn queued_jobs_can_be_run_by_a_test() {
        let (worker, mut jobs) = Worker::<u32>::handing_out();
        assert!(jobs.next_job().is_none());
        let (first, second) = (worker.call(|n| *n + 1), worker.call(|n| *n + 2));
        jobs.next_job().unwrap()(&mut 10);
        assert_eq!(block_on(first), Ok(11));
        drop(jobs);
        assert_eq!(block_on(second), Err(WorkerEnded));
    }

    #[test]
    fn a_dropped_worker_finishes_its_queued_calls() {
        let done = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&done);
        let worker = Worker::spawn("drops", || Ok::<_, io::Error>(counter)).unwrap();
        for _ in 0..10 {
            drop(worker.call(|done| done.fetch_add(1, Ordering::Relaxed)));
        }
        drop(worker);
        assert_eq!(done.load(Ordering::Relaxed), 10);
    }
}
