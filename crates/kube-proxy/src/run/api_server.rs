//! Keeps the API server reachable at a start.
//!
//! At a start, the kernel still has the entries of the previous process. One of these entries may
//! redirect the API server's address to a Service. Only the API server can report that this Service
//! is deleted or wrong. So this process must reach the API server at its address:
//!
//! 1. Before the first connection to an address, this module removes the entries that redirect the
//!    address.
//! 2. Once the first lists are complete, the model rejects a Service with such an address, and only
//!    the mode writes.
//! 3. The API server's name may later resolve to a new address. The connection then waits a moment
//!    until the mode has removed the Services' entries at the address. Otherwise the connection
//!    could reach a Service's endpoint, which would not reply until the timeout.

use std::collections::BTreeMap;
use std::mem;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex as Lock, PoisonError};

use ::cleanup::withdraw;
use ipnet::IpNet;
use proxy::AddressRules;
use source::ConnectHooks;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{Duration, Instant, sleep_until};
use tracing::{error, warn};

use modes::footprints;

/// Time that a connection to a new address of the API server waits, so that the mode can remove the
/// Services' entries at the address.
const GRACE: Duration = Duration::from_secs(1);

/// Remover of the entries that redirect the API server's addresses, with the list of addresses that
/// it has cleared.
#[derive(Clone)]
pub(super) struct Clearing {
    rules: AddressRules,
    excluded: Vec<IpNet>,
    known: Arc<Mutex<ClearAddresses>>,
    /// Warnings that wait for the log's first line. `None` after that line.
    untold: Arc<Lock<Option<Vec<String>>>>,
}

/// Addresses of the API server to which this process may connect. No entry of a Service redirects
/// such an address, or the mode is about to remove the entry.
#[derive(Default)]
struct ClearAddresses {
    /// Earliest time at which the process may connect to each address.
    from: BTreeMap<SocketAddr, Instant>,
    /// True once the mode itself writes to the kernel.
    is_serving: bool,
}

impl Clearing {
    /// Creates a remover that has cleared no address yet. A removal keeps these entries:
    ///
    /// - entries at an address that `rules` allows with a network of one address (`/32` or `/128`);
    /// - virtual servers whose address lies in `excluded`.
    pub(super) fn new(rules: AddressRules, excluded: Vec<IpNet>) -> Self {
        Self {
            rules,
            excluded,
            known: Arc::default(),
            untold: Arc::new(Lock::new(Some(Vec::new()))),
        }
    }

    /// Returns the hooks that run before each connection to the API server.
    pub(super) fn way(&self) -> ConnectHooks {
        let this = self.clone();
        ConnectHooks::default().cleared_by(Arc::new(move |addresses| {
            let clearing = this.clone().clear(addresses);
            // Uses a task, because a task completes its work even if the request is cancelled.
            let task = tokio::spawn(clearing);
            Box::pin(async move {
                if let Err(error) = task.await {
                    error!(%error, "cannot remove redirections of the API server's addresses");
                }
            })
        }))
    }

    async fn clear(self, mut addresses: Vec<SocketAddr>) {
        addresses.retain(|at| !self.rules.names(at.ip()));
        let mut known = self.known.lock().await;
        let now = Instant::now();
        if known.is_serving {
            let from = addresses.iter();
            let from = from.map(|at| *known.from.entry(*at).or_insert(now + GRACE));
            let from = from.max();
            drop(known);
            if let Some(from) = from {
                sleep_until(from).await;
            }
            return;
        }
        addresses.retain(|at| known.from.insert(*at, now).is_none());
        if addresses.is_empty() {
            return;
        }
        let excluded = self.excluded.clone();
        // Uses a blocking thread, because the removal waits for the kernel and for programs.
        let blocking = move || withdraw(footprints::ALL, &addresses, &excluded);
        match spawn_blocking(blocking).await {
            Ok(found) => {
                let removed = found.removed.iter().map(|line| {
                    format!(
                        "removed a Service's entries at the API server's address, which was \
                         unreachable: {line}; the Service \
                         is named once it is known"
                    )
                });
                let left = found.left.iter().map(|line| {
                    format!(
                        "cannot search for a Service's entries at the API server's address: \
                         {line}; if the API server stays unreachable, search manually"
                    )
                });
                removed.chain(left).for_each(|line| self.tell(line));
            }
            Err(error) => {
                error!(%error, "cannot remove redirections of the API server's addresses");
            }
        }
    }

    fn tell(&self, line: String) {
        let mut untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(untold) = &mut *untold {
            untold.push(line);
        } else {
            warn!("{line}");
        }
    }

    /// Logs the waiting warnings. After this call, each new warning is logged immediately.
    pub(super) fn speak(&self) {
        let mut untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        for line in mem::take(&mut *untold).unwrap_or_default() {
            warn!("{line}");
        }
    }

    /// Waits for removals in progress. After this call, only the mode writes to the kernel.
    pub(super) async fn end(&self) {
        self.known.lock().await.is_serving = true;
    }
}
