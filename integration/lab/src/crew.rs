//! Threads that work beside a story until the story ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Threads at work, each with a result of type `T`. They stop when this is dropped, also by a panic.
#[derive(Debug)]
pub struct Crew<T = ()> {
    over: Over,
    threads: Vec<JoinHandle<T>>,
}

/// Signal to threads to end. Clones share the signal.
#[derive(Debug, Clone, Default)]
pub struct Over(Arc<AtomicBool>);

impl Over {
    /// Returns true once the threads have to end.
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
            over: Over::default(),
            threads: Vec::new(),
        }
    }
}

impl<T: Send + 'static> Crew<T> {
    /// Starts a thread, whose `work` must return soon after `Over`.
    pub fn begin(&mut self, work: impl FnOnce(&Over) -> T + Send + 'static) {
        let over = self.over.clone();
        self.threads.push(thread::spawn(move || work(&over)));
    }

    /// Ends all threads, and returns their results, or the first panic.
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
