//! Being asked to end.

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT, from when it is made: what comes before it is asked is not lost.
#[derive(Debug)]
pub struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    /// Listens, within a runtime of tokio.
    ///
    /// # Errors
    ///
    /// The system does not let it.
    pub fn subscribe() -> Result<Self> {
        let subscribe = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            terminate: subscribe(SignalKind::terminate())?,
            interrupt: subscribe(SignalKind::interrupt())?,
        })
    }

    pub(super) async fn requested(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
