//! The thread that answers HTTP. It computes nothing for the kernel, so a probe is answered however
//! much the daemon's loop has to do.

use std::io;

use tokio::runtime::{Builder, EnterGuard, Handle};
use tokio::sync::oneshot;

/// A thread with a runtime of its own; it ends when this is dropped, and all that it runs.
#[derive(Debug)]
pub struct HttpThread {
    runtime: Handle,
    /// Its end is the thread's.
    _running: oneshot::Sender<()>,
}

impl HttpThread {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// There is no thread, or no runtime, to be had.
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (running, ended) = oneshot::channel();
        let answer = move || {
            // Only its end is told.
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        };
        std::thread::Builder::new()
            .name("http".to_owned())
            .spawn(answer)?;
        Ok(Self {
            runtime: handle,
            _running: running,
        })
    }

    /// The runtime, for servers that are started later.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Has servers that are started meanwhile run on this thread.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.runtime.enter()
    }
}
