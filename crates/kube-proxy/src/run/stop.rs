//! The signals that stop the daemon: SIGTERM and SIGINT.

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Subscription to SIGTERM and SIGINT. A signal is not lost if it arrives before the daemon waits
/// for it.
#[derive(Debug)]
pub struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    /// Subscribes to SIGTERM and SIGINT. Needs a tokio runtime.
    ///
    /// # Errors
    ///
    /// Fails if the operating system refuses the subscription.
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
