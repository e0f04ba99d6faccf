//! Background threads that stop together, for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Running threads, each with a result of type `T`. Dropping this value stops them, even while a
/// test panics.
#[derive(Debug)]
pub struct Crew<T = ()> {
    over: StopSignal,
    threads: Vec<JoinHandle<T>>,
}

/// Signal that tells threads to stop. Clones share the signal.
#[derive(Debug, Clone, Default)]
pub struct StopSignal(Arc<AtomicBool>);

impl StopSignal {
    /// Returns true if the threads must stop.
    pub fn is_over(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn end(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl<T> Default for Crew<T> {
    fn default() -> Self {
        Self {
            over: StopSignal::default(),
            threads: Vec::new(),
        }
    }
}

impl<T: Send + 'static> Crew<T> {
    /// Starts a thread that runs `work`, which must return soon after the stop signal.
    pub fn begin(&mut self, work: impl FnOnce(&StopSignal) -> T + Send + 'static) {
        let over = self.over.clone();
        self.threads.push(thread::spawn(move || work(&over)));
    }

    /// Sends the stop signal, waits for all threads, and returns their results. If threads have
    /// panicked, returns the first panic as an error.
    pub fn stop(&mut self) -> thread::Result<Vec<T>> {
        self.over.end();
        self.threads.drain(..).map(JoinHandle::join).collect()
    }
}

impl<T> Drop for Crew<T> {
    fn drop(&mut self) {
        self.over.end();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
