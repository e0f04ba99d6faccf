//! Draining: when a TCP endpoint disappears, its destination gets weight 0. The proxy removes the
//! destination once its connections have ended.
//!
//! - **State**: a draining destination is an ordinary entry of the table, with the wanted weight 0.
//! - **Restart**: the kernel still has the destination, but no endpoint matches it. So its drain
//!   continues.
//! - **Return of the endpoint**: the destination gets its weight back and keeps its connections.
//!   (Upstream deletes the destination and adds it again.)
//! - **Queries**: the proxy queries only the connections of draining destinations: first soon after
//!   the endpoint's removal, then at growing intervals.
//! - **Protocols**: UDP and SCTP endpoints do not drain, as in upstream.
//!
//! `--ipvs-drain-timeout` ends a drain even if connections remain. It counts from the first query,
//! because the kernel does not record when the weight became 0. So a restart of the proxy restarts
//! the timeout.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use proxy::{DrainingEndpoint, Target};

use crate::server::VirtualServerKey;

const FIRST_LOOK: Duration = Duration::from_millis(250);
const LAST_LOOK: Duration = Duration::from_secs(8);
/// Maximum number of virtual servers in one query. The kernel dumps all destinations of each
/// virtual server, and other writes wait for that dump.
const LOOKS_AT_ONCE: usize = 64;

/// Draining destinations, by virtual server.
#[derive(Debug)]
pub(crate) struct Drains {
    servers: BTreeMap<VirtualServerKey, Drain>,
    total: Total,
    /// Maximum duration of a drain, or `None` for no limit.
    timeout: Option<Duration>,
}

#[derive(Debug, Default)]
struct Drain {
    /// Draining targets, sorted, each with the time of its first query (`None` before it).
    ///
    /// A list needs less memory than a map, because one endpoint may drain in thousands of virtual
    /// servers.
    targets: Vec<(Target, Option<Instant>)>,
    looks: u32,
    /// Time of the next query of connections. `None` means as soon as possible.
    due: Option<Instant>,
}

/// Totals over all drains. They are updated with each change, because every report contains them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Total {
    count: usize,
    /// Number of draining targets by the time of their first query.
    since: BTreeMap<Instant, usize>,
}

impl Drain {
    fn times(&self) -> impl Iterator<Item = Instant> {
        self.targets.iter().filter_map(|(_, since)| *since)
    }

    fn entry(&self, target: Target) -> Option<&(Target, Option<Instant>)> {
        let at = self.targets.binary_search_by_key(&target, |(of, _)| *of);
        self.targets.get(at.ok()?)
    }
}

impl Total {
    fn add(&mut self, drain: &Drain) {
        self.count += drain.targets.len();
        for since in drain.times() {
            self.looked_at(since);
        }
    }

    fn looked_at(&mut self, since: Instant) {
        *self.since.entry(since).or_default() += 1;
    }

    fn remove(&mut self, drain: &Drain) {
        self.count -= drain.targets.len();
        for since in drain.times() {
            if let Entry::Occupied(mut count) = self.since.entry(since) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
    }
}

impl Drains {
    /// Creates a table without drains. `timeout` limits the duration of a drain; `None` means no
    /// limit.
    pub(crate) fn new(timeout: Option<Duration>) -> Self {
        Self {
            servers: BTreeMap::new(),
            total: Total::default(),
            timeout,
        }
    }

    /// Replaces the draining targets of a virtual server by `targets`, which must be sorted. If one
    /// of them is new, the next query is due immediately.
    pub(crate) fn set(&mut self, key: VirtualServerKey, targets: &[Target]) {
        if targets.is_empty() {
            return self.forget(&key);
        }
        let drain = self.servers.entry(key).or_default();
        self.total.remove(drain);
        if targets.iter().any(|target| drain.entry(*target).is_none()) {
            (drain.looks, drain.due) = (0, None);
        }
        let targets = targets.iter();
        let targets =
            targets.map(|target| (*target, drain.entry(*target).and_then(|(_, since)| *since)));
        drain.targets = targets.collect();
        self.total.add(drain);
    }

    /// Makes the next query of a virtual server due immediately, because one of its destinations
    /// begins to drain.
    pub(crate) fn ask(&mut self, key: &VirtualServerKey) {
        if let Some(drain) = self.servers.get_mut(key) {
            (drain.looks, drain.due) = (0, None);
        }
    }

    /// Delays the next query of a virtual server from which the kernel has just refused to remove a
    /// drained destination. Otherwise the daemon would query and fail again in a busy loop.
    pub(crate) fn delay(&mut self, key: &VirtualServerKey, now: Instant) {
        if let Some(drain) = self.servers.get_mut(key) {
            let due = now + LAST_LOOK;
            drain.due = Some(drain.due.map_or(due, |planned| planned.max(due)));
        }
    }

    /// Removes all drains of a virtual server from this table.
    pub(crate) fn forget(&mut self, key: &VirtualServerKey) {
        if let Some(drain) = self.servers.remove(key) {
            self.total.remove(&drain);
        }
    }

    /// Returns true if the destination with this target drains.
    pub(crate) fn contains(&self, key: &VirtualServerKey, target: Target) -> bool {
        self.servers
            .get(key)
            .is_some_and(|drain| drain.entry(target).is_some())
    }

    /// Returns the virtual servers whose connections to query now, at most [`LOOKS_AT_ONCE`], and
    /// schedules their next query.
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<VirtualServerKey> {
        let mut keys = Vec::new();
        for (key, drain) in &mut self.servers {
            if keys.len() == LOOKS_AT_ONCE {
                break;
            }
            if drain.due.is_none_or(|due| due <= now) {
                let delay = FIRST_LOOK
                    .saturating_mul(1 << drain.looks.min(16))
                    .min(LAST_LOOK);
                let total = &mut self.total;
                let ends = drain.targets.iter_mut().filter_map(|(_, since)| {
                    let since = *since.get_or_insert_with(|| {
                        total.looked_at(now);
                        now
                    });
                    since.checked_add(self.timeout?).filter(|end| *end > now)
                });
                drain.due = ends.chain([now + delay]).min();
                drain.looks += 1;
                keys.push(*key);
            }
        }
        keys
    }

    /// Returns the targets whose drain at this virtual server has reached the timeout.
    pub(crate) fn expired(&self, key: &VirtualServerKey, now: Instant) -> BTreeSet<Target> {
        let has_expired = |since: Option<Instant>| {
            since
                .zip(self.timeout)
                .is_some_and(|(since, timeout)| now.saturating_duration_since(since) >= timeout)
        };
        let targets = self
            .servers
            .get(key)
            .into_iter()
            .flat_map(|drain| &drain.targets);
        targets
            .filter(|(_, since)| has_expired(*since))
            .map(|(target, _)| *target)
            .collect()
    }

    /// Returns all draining targets of a virtual server.
    pub(crate) fn targets(&self, key: &VirtualServerKey) -> impl Iterator<Item = Target> + use<'_> {
        self.servers
            .get(key)
            .into_iter()
            .flat_map(|drain| drain.targets.iter().map(|(target, _)| *target))
    }

    /// Returns a report with the totals and the first `named` drains.
    pub(crate) fn told(&self, named: usize) -> proxy::Drains {
        let all = self.servers.iter().flat_map(|(key, drain)| {
            let targets = drain.targets.iter();
            targets.filter_map(|(target, since)| {
                Some(DrainingEndpoint {
                    at: key.address()?,
                    target: *target,
                    since: *since,
                })
            })
        });
        proxy::Drains {
            count: self.total.count,
            oldest: self.total.since.keys().next().copied(),
            first: all.take(named).collect(),
            limit: self.timeout,
        }
    }

    /// Returns the time of the next scheduled query after `now`, if any.
    pub(crate) fn next_due(&self, now: Instant) -> Option<Instant> {
        let times = self.servers.values().filter_map(|drain| drain.due);
        times.filter(|due| *due > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u16) -> VirtualServerKey {
        proxy::ServiceAddress::new([10, 96, 0, 1].into(), port, proxy::Protocol::Tcp).into()
    }

    /// Computes the totals from all drains, for comparison with the stored totals.
    fn counted(drains: &Drains) -> Total {
        let mut total = Total::default();
        drains.servers.values().for_each(|drain| total.add(drain));
        total
    }

    #[test]
    fn many_drains_are_queried_in_batches() {
        let now = Instant::now();
        let mut drains = Drains::new(None);
        let target = Target {
            ip: [10, 244, 0, 1].into(),
            port: 80,
        };
        for port in 1..=150 {
            drains.set(key(port), &[target]);
        }
        let goes: Vec<usize> = (0..4).map(|_| drains.take_due(now).len()).collect();
        assert_eq!(goes, [64, 64, 22, 0]);
    }

    #[test]
    fn drain_totals_are_updated_with_each_change() {
        let targets = |ports: std::ops::Range<u16>| -> Vec<Target> {
            let target = |port| Target {
                ip: [10, 244, 0, 1].into(),
                port,
            };
            ports.map(target).collect()
        };
        let now = Instant::now();
        let later = now + Duration::from_secs(3);
        let mut drains = Drains::new(Some(Duration::from_mins(1)));
        drains.set(key(80), &targets(0..3));
        drains.set(key(81), &targets(0..2));
        let told = drains.told(0);
        assert_eq!((told.count, told.oldest), (5, None), "none is looked at");
        drains.take_due(now);
        drains.set(key(80), &targets(2..5));
        drains.take_due(later);
        let told = drains.told(0);
        assert_eq!((told.count, told.oldest), (5, Some(now)));
        assert_eq!(drains.total, counted(&drains));
        // Ends the drains that began first.
        drains.set(key(80), &targets(3..5));
        drains.forget(&key(81));
        let told = drains.told(0);
        assert_eq!((told.count, told.oldest), (2, Some(later)));
        assert_eq!(drains.total, counted(&drains));
        drains.set(key(80), &[]);
        assert_eq!(drains.total, Total::default());
    }
}
