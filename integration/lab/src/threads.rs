//! Background threads of a test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Running threads with results of type `T`. Dropping this value stops the threads, even during a
/// panic.
#[derive(Debug)]
pub struct Crew<T = ()> {
    over: StopSignal,
    threads: Vec<JoinHandle<T>>,
}

/// Stop signal for threads. Clones share the signal.
#[derive(Debug, Clone, Default)]
pub struct StopSignal(Arc<AtomicBool>);

impl StopSignal {
    /// Returns true once the threads must stop.
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
    /// Starts a thread. `work` must return soon after the stop signal.
    pub fn begin(&mut self, work: impl FnOnce(&StopSignal) -> T + Send + 'static) {
        let over = self.over.clone();
        self.threads.push(thread::spawn(move || work(&over)));
    }

    /// Stops all threads. Returns their results. If a thread has panicked, returns the first panic
    /// instead.
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
