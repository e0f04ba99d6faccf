//! Draining: a removed TCP endpoint gets weight 0, and goes when its connections have ended.
//!
//! A draining destination is wanted at weight 0. That makes it an ordinary entry of the table: after a restart the dump shows
//! it, it is still not among the endpoints, and so it goes on draining; an endpoint that returns is wanted at its weight
//! again and keeps its connections (upstream deletes and re-adds it). Only draining destinations are looked at, soon after
//! removal and then with back-off. UDP and SCTP are not drained, as upstream.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use proxy::Target;

use crate::server::VirtualServerKey;

const FIRST_LOOK: Duration = Duration::from_millis(250);
const LAST_LOOK: Duration = Duration::from_secs(8);

/// What drains, by virtual server.
#[derive(Debug, Default)]
pub(crate) struct Drains(BTreeMap<VirtualServerKey, Drain>);

#[derive(Debug, Default)]
struct Drain {
    targets: BTreeSet<Target>,
    looks: u32,
    /// `None`: at the next sync.
    due: Option<Instant>,
}

impl Drains {
    /// Makes `targets` all that drains at a virtual server. What is new among them is due for a look at once.
    pub(crate) fn set(&mut self, key: VirtualServerKey, targets: BTreeSet<Target>) {
        if targets.is_empty() {
            self.0.remove(&key);
            return;
        }
        let drain = self.0.entry(key).or_default();
        if !targets.is_subset(&drain.targets) {
            *drain = Drain::default();
        }
        drain.targets = targets;
    }

    /// Forgets a virtual server.
    pub(crate) fn forget(&mut self, key: &VirtualServerKey) {
        self.0.remove(key);
    }

    /// Whether a destination drains.
    pub(crate) fn contains(&self, key: &VirtualServerKey, target: Target) -> bool {
        self.0
            .get(key)
            .is_some_and(|drain| drain.targets.contains(&target))
    }

    /// The virtual servers to look at now; their next look is put off.
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<VirtualServerKey> {
        let mut keys = Vec::new();
        for (key, drain) in &mut self.0 {
            if drain.due.is_none_or(|due| due <= now) {
                let delay = FIRST_LOOK
                    .saturating_mul(1 << drain.looks.min(16))
                    .min(LAST_LOOK);
                drain.due = Some(now + delay);
                drain.looks += 1;
                keys.push(*key);
            }
        }
        keys
    }

    /// What drains at a virtual server.
    pub(crate) fn targets(&self, key: &VirtualServerKey) -> impl Iterator<Item = Target> + use<'_> {
        self.0
            .get(key)
            .into_iter()
            .flat_map(|drain| drain.targets.iter().copied())
    }

    /// When the next look is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.0.values().filter_map(|drain| drain.due).min()
    }
}
