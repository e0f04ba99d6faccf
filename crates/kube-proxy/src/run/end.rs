//! Ends the daemon: waits for kernel work in progress.

use std::future::poll_fn;
use std::mem;
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::{info, warn};

use super::daemon::{Daemon, poll_finished};
use crate::family::Family;

/// Longest time that the ending daemon waits for kernel work in progress. Longer than iptables
/// waits for the xtables lock.
pub(super) const END_PATIENCE: Duration = Duration::from_secs(6);

impl Daemon {
    /// Waits for the current jobs of the worker threads (kernel I/O), for a limited time. Without
    /// this wait, an iptables program could still write rules while the next kube-proxy already
    /// runs. The time limit also ends the wait for a program that hangs.
    pub(super) async fn end(mut self) {
        let finish = async {
            while !self.families.iter().all(Family::is_idle) {
                let families = &mut self.families;
                poll_fn(|context| poll_finished(families, context)).await;
                for family in families {
                    family.book(&self.model, Instant::now()).await;
                }
            }
        };
        let finished = timeout(END_PATIENCE, finish).await;
        if let Some(ending) = self.ending.take()
            && let Ok(Some(line)) = spawn_blocking(ending).await
        {
            info!("{line}");
        }
        if finished.is_err() {
            warn!("the process ends while kernel work is in progress");
            // Leaks the daemon, because dropping a worker thread would wait for its job.
            mem::forget(self);
        }
    }
}
