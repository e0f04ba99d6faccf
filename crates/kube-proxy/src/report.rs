//! What the log says about syncs: what is new, once, by name; not the same failure at every retry.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use proxy::{Failure, IpFamily, Model, SyncReport};
use tracing::{debug, error, info, warn};

use crate::events::{Event, Recorder};

/// How many failures are named one by one; a kernel that refuses everything must not flood the log.
const MAX_NAMED: usize = 20;
/// A failure that was not seen for so long is new again. What fails is tried again more often.
const REMEMBERED: Duration = Duration::from_mins(2);

/// Says what is new in each report of one family.
#[derive(Debug)]
pub(crate) struct Reporter {
    family: IpFamily,
    recorder: Recorder,
    /// With when each was last seen.
    failing: BTreeMap<String, Instant>,
    conflicts: BTreeSet<String>,
    unreadable: Option<String>,
    has_synced: bool,
}

impl Reporter {
    /// A reporter that has said nothing yet.
    pub(crate) fn new(family: IpFamily, recorder: Recorder) -> Self {
        Self {
            family,
            recorder,
            failing: BTreeMap::new(),
            conflicts: BTreeSet::new(),
            unreadable: None,
            has_synced: false,
        }
    }

    /// After a sync of what the model says, at `now`.
    pub(crate) fn synced(&mut self, report: &SyncReport, model: &Model, now: Instant) {
        let family = self.family;
        let failing: BTreeSet<String> = report.failures.iter().map(ToString::to_string).collect();
        let fresh: Vec<_> = failing
            .iter()
            .filter(|failure| !self.failing.contains_key(*failure))
            .collect();
        for failure in fresh.iter().take(MAX_NAMED) {
            error!(%family, "cannot {failure}; it is tried again");
        }
        if fresh.len() > MAX_NAMED {
            error!(%family, count = fresh.len() - MAX_NAMED, "and more that could not be done; it is tried again");
        }
        if failing.is_empty() && !self.failing.is_empty() && report.pending == 0 {
            info!(%family, "all that had failed is done");
            self.failing.clear();
        }
        self.failing
            .retain(|_, seen| now.saturating_duration_since(*seen) < REMEMBERED);
        self.failing
            .extend(failing.into_iter().map(|failure| (failure, now)));
        let mut conflicts = BTreeSet::new();
        for conflict in &report.conflicts {
            let text = format!(
                "{} is claimed by Services {} and {}: the former has it, as the older one or the first by name",
                conflict.object, conflict.winner, conflict.loser
            );
            if !self.conflicts.contains(&text) {
                warn!(%family, "{text}");
                self.recorder
                    .record(Event::address_conflict(conflict, model));
            }
            conflicts.insert(text);
        }
        self.conflicts = conflicts;
        let (written, pending, took) = (report.written, report.pending, report.took);
        if !self.has_synced {
            info!(%family, written, pending, ?took, "first sync done");
            self.has_synced = true;
        } else if written > 0 {
            debug!(%family, written, pending, ?took, "synced");
        }
    }

    /// The kernel could not be read.
    pub(crate) fn unreadable(&mut self, failure: &Failure) {
        let text = failure.to_string();
        if self.unreadable.as_ref() != Some(&text) {
            error!(family = %self.family, "{text}; what is programmed stays, and it is tried again");
            self.unreadable = Some(text);
        }
    }

    /// The kernel could be read.
    pub(crate) fn readable(&mut self) {
        if self.unreadable.take().is_some() {
            info!(family = %self.family, "the kernel can be read again");
        }
    }
}

#[cfg(test)]
mod tests {
    use proxy::{Conflict, NamespacedName, Protocol, ServicePortName};

    use super::*;

    #[test]
    fn failures_are_not_remembered_for_ever() {
        let mut reporter = Reporter::new(IpFamily::V4, Recorder::off());
        let mut now = Instant::now();
        for number in 0..1000 {
            now += Duration::from_secs(1);
            let failures = ["always".to_owned(), number.to_string()].map(|object| Failure {
                object,
                owner: None,
                reason: "busy".to_owned(),
            });
            let report = SyncReport {
                failures: failures.into(),
                pending: 2,
                ..SyncReport::default()
            };
            reporter.synced(&report, &Model::new(), now);
        }
        let remembered = reporter.failing.len();
        assert!(remembered <= 121, "{remembered} are remembered");
        assert!(reporter.failing.contains_key("always: busy"));
    }

    #[test]
    fn a_new_conflict_is_an_event() {
        let name = |name| ServicePortName {
            service: NamespacedName::new("default", name),
            port: "".into(),
            protocol: Protocol::Tcp,
        };
        let conflict = |winner, loser| Conflict {
            object: "192.0.2.20:80/TCP".to_owned(),
            winner: name(winner),
            loser: name(loser),
        };
        let model = Model::new();
        let (recorder, mut recorded) = Recorder::queued();
        let mut reporter = Reporter::new(IpFamily::V4, recorder);
        let mut told = |conflicts: &[Conflict]| {
            let conflicts = conflicts.to_vec();
            let report = SyncReport {
                conflicts,
                ..SyncReport::default()
            };
            reporter.synced(&report, &model, Instant::now());
            std::iter::from_fn(|| recorded.try_recv().ok())
                .map(|recorded| recorded.event)
                .collect::<Vec<_>>()
        };
        let event = |conflict: &Conflict| Event::address_conflict(conflict, &model);
        let (first, second) = (conflict("a", "b"), conflict("a", "c"));
        assert_eq!(told(std::slice::from_ref(&first)), [event(&first)]);
        assert_eq!(told(std::slice::from_ref(&first)), []);
        assert_eq!(told(&[first.clone(), second.clone()]), [event(&second)]);
        assert_eq!(told(&[second]), []);
        assert_eq!(told(std::slice::from_ref(&first)), [event(&first)]);
    }
}
