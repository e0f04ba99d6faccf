//! Removes the entries of modes that served on this node before the current mode.

use std::time::{Duration, Instant};

use ::cleanup::{
    Cleanup, Drain, ServingMode, clean_up_beside, disarm_ended, drain_beside, foresee_beside,
};
use ipnet::IpNet;
use proxy::IpFamily;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::sleep;
use tracing::{error, info, warn};

use super::preview::{Change, NODE, Preview};
use crate::footprints;

/// Delay before the first read of the draining virtual servers. It doubles after each read.
const FIRST_LOOK: Duration = Duration::from_millis(250);
/// Longest delay between two reads of the draining virtual servers. Only a very slow read makes the
/// delay longer.
const LAST_LOOK: Duration = Duration::from_secs(8);

/// Cleanup of the kernel entries of modes that served on this node before.
pub struct Predecessor {
    /// The current mode, whose entries the cleanup keeps.
    pub(super) serving: ServingMode,
    /// Networks whose virtual servers belong to other programs. The cleanup keeps these virtual
    /// servers.
    pub(super) excluded: Vec<IpNet>,
    /// Longest time for which virtual servers with open connections drain, or `None` for no limit.
    pub(super) drain_timeout: Option<Duration>,
}

/// Draining virtual servers of earlier modes: they keep their open connections, and get no new
/// ones.
#[must_use]
pub struct PredecessorDrain {
    drain: Drain,
    serving: ServingMode,
    excluded: Vec<IpNet>,
    timeout: Option<Duration>,
}

impl Predecessor {
    /// Removes the entries of other modes, and logs the result. Virtual servers with open
    /// connections stay, and are returned as a drain. Returns `None` if none has an open
    /// connection.
    pub async fn clear(self) -> Option<PredecessorDrain> {
        let (serving, excluded) = (self.serving.clone(), self.excluded.clone());
        // Runs on a blocking thread, because the cleanup waits for the kernel and for other
        // programs.
        let clear = move || drain_beside(footprints::ALL, &serving, &excluded);
        let cleanup = tell(spawn_blocking(clear).await)?;
        let drain = Drain::of(footprints::ALL, &cleanup)?;
        let (servers, connections) = counts(&drain);
        info!(
            servers,
            connections,
            limit = ?self.drain_timeout,
            "virtual servers of another mode keep their open connections and get no new ones; they are removed with the last connection"
        );
        for family in drain.families_with_all_addresses() {
            info!(
                %family,
                "all service addresses of this family stay local during the drain, because no set names the firewall mark of a virtual server: --ipvs-drain-timeout limits the time"
            );
        }
        Some(PredecessorDrain {
            drain,
            serving: self.serving,
            excluded: self.excluded,
            timeout: self.drain_timeout,
        })
    }

    /// Returns the removals that [`clear`](Self::clear) would make. Writes nothing.
    pub async fn preview(self) -> Result<Preview, JoinError> {
        let Self {
            serving, excluded, ..
        } = self;
        let foresee = move || foresee_beside(footprints::ALL, &serving, &excluded);
        let found = spawn_blocking(foresee).await?;
        let removed = found.removed.iter();
        Ok(Preview {
            writes: vec![(NODE.to_owned(), found.removed.len())],
            changes: removed.map(|line| Change::left_by_another(line)).collect(),
            warnings: found.left,
            ..Preview::default()
        })
    }
}

impl PredecessorDrain {
    /// Waits until the last connection has ended or the drain timeout is over. Then removes all
    /// remaining entries of other modes, and logs the result.
    ///
    /// Calls `count` for each IP family with the numbers of draining virtual servers and of their
    /// connections: at the start, after each read, and with zeros at the end.
    pub async fn finish(self, count: impl Fn(IpFamily, (u64, u64))) {
        let (mut drain, start) = (self.drain, Instant::now());
        let end = self.timeout.and_then(|timeout| start.checked_add(timeout));
        let count_all = |drain: &Drain| {
            for family in IpFamily::ALL {
                count(family, drain.counts(family));
            }
        };
        let mut delay = FIRST_LOOK;
        count_all(&drain);
        loop {
            let now = Instant::now();
            let left = end.map_or(delay, |end| end.saturating_duration_since(now));
            sleep(delay.min(left)).await;
            let began = Instant::now();
            let look = move || {
                let is_over = drain.look();
                (drain, is_over)
            };
            let is_over = match spawn_blocking(look).await {
                Ok((looked, is_over)) => {
                    drain = looked;
                    count_all(&drain);
                    is_over
                }
                Err(error) => {
                    return error!(%error, "virtual servers of another mode stay");
                }
            };
            match is_over {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) => warn!(%error, "virtual servers of another mode stay for now"),
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                let (servers, connections) = counts(&drain);
                info!(
                    servers,
                    connections,
                    "the time limit of the drain is over, and the connections end (--ipvs-drain-timeout)"
                );
                break;
            }
            // Waits at least 20 times as long as this read took. So the reads need at most a
            // twentieth of the time, even with many virtual servers.
            let cost = began.elapsed().saturating_mul(20);
            delay = delay.saturating_mul(2).min(LAST_LOOK).max(cost);
        }
        let (serving, excluded) = (self.serving, self.excluded);
        let clear = move || clean_up_beside(footprints::ALL, &serving, &excluded);
        tell(spawn_blocking(clear).await);
        for family in IpFamily::ALL {
            count(family, (0, 0));
        }
    }
}

/// Returns the number of draining virtual servers and the number of their connections, in both IP
/// families together.
fn counts(drain: &Drain) -> (u64, u64) {
    let families = IpFamily::ALL.map(|family| drain.counts(family));
    let [(servers, connections), (more_servers, more_connections)] = families;
    (servers + more_servers, connections + more_connections)
}

/// Makes packets bypass rules of other modes that lead to ports of an ended process. `serving` is
/// the name of the current mode.
pub async fn disarm(serving: &'static str) {
    // Runs on a blocking thread, because the cleanup waits for the kernel and for other programs.
    let disarm = move || disarm_ended(footprints::ALL, serving);
    tell(spawn_blocking(disarm).await);
}

fn tell(cleanup: Result<Cleanup, JoinError>) -> Option<Cleanup> {
    match cleanup {
        Ok(cleanup) => {
            for line in &cleanup.removed {
                info!("removed leftovers of another mode: {line}");
            }
            for line in &cleanup.left {
                warn!("left by another mode: {line}");
            }
            Some(cleanup)
        }
        Err(error) => {
            error!(%error, "leftovers of another mode stay");
            None
        }
    }
}
