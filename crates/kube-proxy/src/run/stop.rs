//! Being asked to end.

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT.
pub(super) struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    pub(super) fn subscribe() -> Result<Self> {
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
