//! The thread that responds to HTTP requests. It never reads or writes kernel entries, so it
//! responds to a probe even while the daemon's loop is busy.

use std::io;

use tokio::runtime::{Builder, EnterGuard, Handle};
use tokio::sync::oneshot;

/// A thread with its own tokio runtime, for HTTP servers. Dropping the value ends the thread and
/// all its tasks.
#[derive(Debug)]
pub struct HttpThread {
    runtime: Handle,
    /// Channel whose closing ends the thread.
    _running: oneshot::Sender<()>,
}

impl HttpThread {
    /// Starts an HTTP thread, on which later servers can run.
    ///
    /// # Errors
    ///
    /// Fails if the system cannot create the thread or the runtime.
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (running, ended) = oneshot::channel();
        let answer = move || {
            // The thread waits here until `_running` is dropped.
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

    /// Returns a handle to this thread's runtime, so that later servers can run on this thread.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Enters the runtime of the thread. A server that starts while the returned guard exists runs
    /// on this thread.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.runtime.enter()
    }
}
