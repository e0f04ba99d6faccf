//! Threads that work beside a story until it ends: clients that ask, objects that change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Threads at work, each with what it brings back; dropped, they stop. The story that they work
/// beside may panic.
#[derive(Debug)]
pub struct Crew<T = ()> {
    over: Over,
    threads: Vec<JoinHandle<T>>,
}

/// Says to threads that they may end. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Over(Arc<AtomicBool>);

impl Over {
    /// True from the end on.
    pub fn is_over(&self) -> bool {
        self.0.load(Ordering::SeqCst)
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
    /// Begins a work, which is to return soon after the end.
    pub fn begin(&mut self, work: impl FnOnce(&Over) -> T + Send + 'static) {
        let over = self.over.clone();
        self.threads.push(thread::spawn(move || work(&over)));
    }

    /// Ends all work, and waits for it. A thread that panicked brings back nothing but its panic.
    pub fn stop(&mut self) -> thread::Result<Vec<T>> {
        self.over.0.store(true, Ordering::SeqCst);
        self.threads.drain(..).map(JoinHandle::join).collect()
    }
}

impl<T> Drop for Crew<T> {
    fn drop(&mut self) {
        self.over.0.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
