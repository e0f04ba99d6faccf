//! Clears the way to the API server.
//!
//! The kernel goes on with what the process before has written. A Service may have the API server's
//! address there, which this process has to reach to hear of that. So before the first connection to
//! each address, what leads it to a Service is taken out of the kernel.
//!
//! Once the first lists are there, the model refuses such an address, and the mode alone writes. An
//! address that is new then, as the server's name has another, is connected to a moment later: a
//! connection to the Service's endpoint would stay silent until it times out.

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

/// How long the mode has to take an address back from a Service.
const GRACE: Duration = Duration::from_secs(1);

/// Clears the way to addresses, and knows which are clear.
#[derive(Clone)]
pub(super) struct Clearing {
    rules: AddressRules,
    excluded: Vec<IpNet>,
    known: Arc<Mutex<Known>>,
    /// Warnings that wait for the log's first line; `None` once that is there.
    untold: Arc<Lock<Option<Vec<String>>>>,
}

/// The addresses that are cleared, or soon are.
#[derive(Default)]
struct Known {
    /// When each may be connected to.
    from: BTreeMap<SocketAddr, Instant>,
    /// Whether the mode writes.
    is_serving: bool,
}

impl Clearing {
    /// Nothing is cleared yet. Addresses that `rules` name stay as they are, and virtual servers
    /// within `excluded`.
    pub(super) fn new(rules: AddressRules, excluded: Vec<IpNet>) -> Self {
        Self {
            rules,
            excluded,
            known: Arc::default(),
            untold: Arc::new(Lock::new(Some(Vec::new()))),
        }
    }

    /// The way that a source connects in.
    pub(super) fn way(&self) -> ConnectHooks {
        let this = self.clone();
        ConnectHooks::default().cleared_by(Arc::new(move |addresses| {
            let clearing = this.clone().clear(addresses);
            // A request that is given up leaves nothing half done.
            let task = tokio::spawn(clearing);
            Box::pin(async move {
                if let Err(error) = task.await {
                    error!(%error, "the way to the API server is not cleared");
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
        // Blocks on the kernel and on programs.
        let blocking = move || withdraw(footprints::ALL, &addresses, &excluded);
        match spawn_blocking(blocking).await {
            Ok(found) => {
                let removed = found.removed.iter().map(|line| {
                    format!(
                        "removed what a Service had at the API server's address, which was out of reach: {line}; the Service \
                         is named once it is known"
                    )
                });
                let left = found.left.iter().map(|line| {
                    format!(
                        "cannot look for what a Service has at the API server's address: {line}; if the API server stays out of \
                         reach, look for it by hand"
                    )
                });
                removed.chain(left).for_each(|line| self.tell(line));
            }
            Err(error) => error!(%error, "the way to the API server is not cleared"),
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

    /// Tells what waited, and from here on at once.
    pub(super) fn speak(&self) {
        let mut untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
        for line in mem::take(&mut *untold).unwrap_or_default() {
            warn!("{line}");
        }
    }

    /// Leaves the kernel to the mode, after what is under way.
    pub(super) async fn end(&self) {
        self.known.lock().await.is_serving = true;
    }
}
