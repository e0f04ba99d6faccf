//! The thread that answers HTTP. It does no work for the kernel, so a probe is answered however
//! busy the daemon's loop is.

use std::io;

use tokio::runtime::{Builder, EnterGuard, Handle};
use tokio::sync::oneshot;

/// A thread with a runtime of its own. Dropping it ends the thread and everything that runs on it.
#[derive(Debug)]
pub struct HttpThread {
    runtime: Handle,
    /// Sender whose drop ends the thread.
    _running: oneshot::Sender<()>,
}

impl HttpThread {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The system has no thread for it, or no runtime.
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (running, ended) = oneshot::channel();
        let answer = move || {
            // Only the drop of the sender is awaited.
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

    /// Returns the runtime, for servers that start later.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Enters the runtime: servers that start while the guard lives run on this thread.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.runtime.enter()
    }
}
