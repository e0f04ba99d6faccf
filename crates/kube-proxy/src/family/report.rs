//! Log lines about syncs. Each line reports a new fact. Retries of a reported failure log no line.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::{Duration, Instant, SystemTime};

use inspect::{DriftTotal, FamilyProblems};
use proxy::{Conflict, Drift, Failure, IpFamily, Model, Report, Standing, Unreadable};
use tracing::{debug, error, info, warn};

use crate::events::{Event, Recorder};

/// Largest number of failures listed by name. Without this limit, a kernel that refuses every write
/// would flood the log.
const NAMED_FAILURES_MAX: usize = 20;
/// Largest number of new conflicts listed by name, in the log and as events.
const NAMED_CONFLICTS_MAX: usize = 20;
/// Time after the last failure of an entry, after which the next failure counts as new. Retries
/// come at shorter intervals.
const FAILURE_MEMORY: Duration = Duration::from_mins(2);

/// Largest number of log lines about changes by other programs within a [`DRIFT_WINDOW`]. Without
/// this limit, another program that writes continuously, such as a second kube-proxy, would flood
/// the log.
const DRIFT_LINES_MAX: usize = 5;
const DRIFT_WINDOW: Duration = Duration::from_mins(1);

/// Reporter that logs new facts about the syncs of one IP family.
#[derive(Debug)]
pub(crate) struct Reporter {
    family: IpFamily,
    recorder: Recorder,
    failing: BTreeMap<Failure, FailureTimes>,
    conflicts: BTreeSet<Conflict>,
    /// Number of conflicts that exist but are not listed, because the list in a mode's report is
    /// limited.
    more_conflicts: usize,
    /// Unreadable parts of the kernel's state, each with the reason.
    unreadable: BTreeMap<&'static str, String>,
    /// Changes by other programs since the start of the process, by kind of entry.
    drift: BTreeMap<&'static str, DriftTotal>,
    /// Start of the current [`DRIFT_WINDOW`], and the number of reports in it about changes by
    /// other programs.
    drift_window: (Instant, usize),
    /// Start of the first sync, and its number of writes. `None` once that sync is complete.
    first: Option<(Instant, usize)>,
}

/// Times of the first and the last failure of one entry.
#[derive(Debug, Clone, Copy)]
struct FailureTimes {
    /// Time at which the entry first failed.
    since: Instant,
    /// Time at which the entry last failed.
    seen: Instant,
}

impl Reporter {
    /// Creates a reporter that has logged no facts yet.
    pub(crate) fn new(family: IpFamily, recorder: Recorder, now: Instant) -> Self {
        Self {
            family,
            recorder,
            failing: BTreeMap::new(),
            conflicts: BTreeSet::new(),
            more_conflicts: 0,
            unreadable: BTreeMap::new(),
            drift: BTreeMap::new(),
            drift_window: (now, 0),
            first: Some((now, 0)),
        }
    }

    /// Returns the logged facts that are still true, at most `most` of each kind.
    pub(crate) fn seen(&self, most: usize, now: Instant) -> FamilyProblems {
        let failures = self.failing.iter().take(most).map(|(failure, failing)| {
            let since = now.saturating_duration_since(failing.since);
            (failure.clone(), since)
        });
        let unreadable = self.unreadable.iter();
        let drift = self.drift.iter();
        FamilyProblems {
            failures: failures.collect(),
            conflicts: self.conflicts.iter().take(most).cloned().collect(),
            unreadable: unreadable
                .map(|(part, reason)| Unreadable::new(part, reason))
                .collect(),
            drift: drift.map(|(kind, of)| (*kind, of.clone())).collect(),
        }
    }

    /// Reports whether a part of the kernel's state cannot be read.
    pub(crate) fn has_unreadable(&self) -> bool {
        !self.unreadable.is_empty()
    }

    /// Logs the new facts in a mode's report. `standing` is the progress of the IP family after the
    /// work that the report describes.
    pub(crate) fn booked(
        &mut self,
        report: &Report,
        standing: &Standing,
        model: &Model,
        now: Instant,
    ) {
        self.readable(&report.readable);
        self.unreadable(&report.unreadable);
        self.failures(&report.failures, standing.failing, now);
        if let Some(conflicts) = &report.conflicts {
            self.conflicts(conflicts, report.more_conflicts, model);
        }
        // Adds no log line, because the log has already reported these virtual servers as failures.
        for (at, owner) in &report.foreign {
            self.recorder.record(Event::address_taken(at, owner, model));
        }
        for owner in &report.unmarked {
            self.recorder.record(Event::marks_exhausted(owner, model));
        }
        if !report.drift.is_empty() {
            self.tell_drift(&report.drift, now);
            self.drifted(&report.drift);
        }
        let (written, pending) = (report.written, standing.pending);
        match &mut self.first {
            Some((_, sum)) => *sum += written,
            None if written > 0 => debug!(family = %self.family, written, pending, "written"),
            None => {}
        }
    }

    /// Logs that the kernel has the first full set of objects.
    pub(crate) fn served(&mut self, standing: &Standing, now: Instant) {
        if let Some((began, written)) = self.first.take() {
            let took = now.saturating_duration_since(began);
            info!(family = %self.family, written, pending = standing.pending, ?took, "first sync \
                                                                                      done");
        }
    }

    /// Logs changes by another program, unless the log has had enough lines about such changes
    /// within this window. The last of these lines says so.
    fn tell_drift(&mut self, drift: &Drift, now: Instant) {
        let (began, reports) = &mut self.drift_window;
        if now.saturating_duration_since(*began) >= DRIFT_WINDOW {
            (*began, *reports) = (now, 0);
        }
        *reports += 1;
        let (family, drift) = (self.family, list(drift));
        match (*reports).cmp(&DRIFT_LINES_MAX) {
            Ordering::Less => warn!(%family, "another program has changed {drift}; it is repaired"),
            Ordering::Equal => warn!(
                %family,
                "another program has changed {drift}; it is repaired; further changes are logged \
                 in a minute, and counted in `kube-proxy status`: does a second kube-proxy run?"
            ),
            Ordering::Greater => debug!(%family, "another program has changed {drift}"),
        }
    }

    fn drifted(&mut self, drift: &Drift) {
        let last = SystemTime::now();
        for (kind, of) in drift.kinds() {
            let total = self.drift.entry(kind).or_insert_with(|| DriftTotal {
                count: 0,
                last,
                names: Vec::new(),
            });
            total.count += u64::try_from(of.count).unwrap_or(u64::MAX);
            total.last = last;
            total.names.clone_from(&of.first);
        }
    }

    fn failures(&mut self, failures: &[Failure], failing: usize, now: Instant) {
        let family = self.family;
        let told: BTreeSet<&Failure> = failures.iter().collect();
        let fresh: Vec<_> = told
            .iter()
            .filter(|failure| !self.failing.contains_key(**failure))
            .collect();
        for failure in fresh.iter().take(NAMED_FAILURES_MAX) {
            error!(%family, "cannot {failure}; it is tried again");
        }
        if fresh.len() > NAMED_FAILURES_MAX {
            error!(%family, count = fresh.len() - NAMED_FAILURES_MAX, "and more that could not be \
                                                                       done; it is tried again");
        }
        if failing == 0 && told.is_empty() && !self.failing.is_empty() {
            info!(%family, "all that had failed is done");
            self.failing.clear();
        }
        self.failing
            .retain(|_, of| now.saturating_duration_since(of.seen) < FAILURE_MEMORY);
        for failure in told {
            if let Some(known) = self.failing.get_mut(failure) {
                known.seen = now;
            } else {
                let (since, seen) = (now, now);
                self.failing
                    .insert(failure.clone(), FailureTimes { since, seen });
            }
        }
    }

    fn conflicts(&mut self, all: &[Conflict], unlisted: usize, model: &Model) {
        // Logs each conflict only once: a Service may claim thousands of addresses and ports that
        // belong to another Service.
        let is_new = |conflict: &&Conflict| !self.conflicts.contains(*conflict);
        let fresh: Vec<&Conflict> = all.iter().filter(is_new).collect();
        for conflict in fresh.iter().take(NAMED_CONFLICTS_MAX) {
            warn!(
                family = %self.family,
                "{} is claimed by Services {} and {}: the former has it, as the older one or the \
                 first by name",
                conflict.object, conflict.winner, conflict.loser
            );
            self.recorder
                .record(Event::address_conflict(conflict, model));
        }
        let unlisted_before = mem::replace(&mut self.more_conflicts, unlisted);
        let more = fresh.len().saturating_sub(NAMED_CONFLICTS_MAX)
            + unlisted.saturating_sub(unlisted_before);
        if more > 0 {
            warn!(
                family = %self.family,
                "and {more} more addresses and ports that two Services claim; kube-proxy status \
                 names the first"
            );
        }
        self.conflicts = all.iter().cloned().collect();
    }

    fn unreadable(&mut self, parts: &[Unreadable]) {
        for Unreadable { part, reason } in parts {
            if self.unreadable.get(part) == Some(reason) {
                continue;
            }
            error!(
                family = %self.family,
                "cannot read {part}: {reason}; programmed entries stay, independent writes \
                 continue, and the read is retried"
            );
            self.unreadable.insert(part, reason.clone());
        }
    }

    fn readable(&mut self, parts: &[&'static str]) {
        for part in parts {
            if self.unreadable.remove(part).is_some() {
                info!(family = %self.family, "{part} can be read again");
            }
        }
    }
}

/// Returns a text that lists drift, such as `20 virtual servers (10.96.0.1:443/TCP,
/// 10.96.0.10:53/UDP, ...) and 1 link (kube-ipvs0)`.
fn list(drift: &Drift) -> String {
    let kinds = drift.kinds().map(|(kind, of)| {
        let names = of.first.join(", ");
        let more = if of.count > of.first.len() {
            ", ..."
        } else {
            ""
        };
        let kind = match kind {
            kind if of.count == 1 => kind.to_owned(),
            "address" => "addresses".to_owned(),
            kind => format!("{kind}s"),
        };
        format!("{} {kind} ({names}{more})", of.count)
    });
    let kinds: Vec<_> = kinds.collect();
    match kinds.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        _ => kinds.concat(),
    }
}

#[cfg(test)]
mod tests {
    use proxy::{NamespacedName, Protocol, ServicePortName};

    use super::*;

    fn reporter(recorder: Recorder) -> Reporter {
        Reporter::new(IpFamily::V4, recorder, Instant::now())
    }

    #[test]
    fn a_failure_that_does_not_recur_is_forgotten() {
        let mut reporter = reporter(Recorder::off());
        let mut now = Instant::now();
        let standing = Standing {
            pending: 2,
            failing: 2,
            ..Standing::default()
        };
        for number in 0..1000 {
            now += Duration::from_secs(1);
            let failures = ["always".to_owned(), number.to_string()].map(|object| Failure {
                object,
                owner: None,
                reason: "busy".to_owned(),
            });
            let report = Report {
                failures: failures.into(),
                ..Report::default()
            };
            reporter.booked(&report, &standing, &Model::new(), now);
        }
        let remembered = reporter.failing.len();
        assert!(remembered <= 121, "{remembered} are remembered");
        let failing = reporter.seen(usize::MAX, now).failures;
        let always = failing
            .iter()
            .find(|(failure, _)| failure.object == "always");
        assert_eq!(always.unwrap().1, Duration::from_secs(999));
        assert_eq!(reporter.seen(7, now).failures.len(), 7);
        reporter.booked(&Report::default(), &Standing::default(), &Model::new(), now);
        assert!(reporter.failing.is_empty(), "all is done");
    }

    #[test]
    fn a_new_address_conflict_causes_an_event() {
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
        let mut reporter = reporter(recorder);
        let mut told = |conflicts: Option<&[Conflict]>| {
            let report = Report {
                conflicts: conflicts.map(<[Conflict]>::to_vec),
                ..Report::default()
            };
            reporter.booked(&report, &Standing::default(), &model, Instant::now());
            std::iter::from_fn(|| recorded.try_recv().ok())
                .map(|recorded| recorded.event)
                .collect::<Vec<_>>()
        };
        let event = |conflict: &Conflict| Event::address_conflict(conflict, &model);
        let (first, second) = (conflict("a", "b"), conflict("a", "c"));
        let one = std::slice::from_ref(&first);
        assert_eq!(told(Some(one)), [event(&first)]);
        assert_eq!(told(Some(one)), []);
        assert_eq!(told(None), [], "they are as before");
        let both = [first.clone(), second.clone()];
        assert_eq!(told(Some(&both)), [event(&second)]);
        assert_eq!(told(Some(&[second])), []);
        assert_eq!(told(Some(one)), [event(&first)]);
        let of_port = |port: u16| Conflict {
            object: format!("192.0.2.21:{port}/TCP"),
            ..conflict("a", "b")
        };
        let many: Vec<Conflict> = (1..=4_000).map(of_port).collect();
        assert_eq!(told(Some(&many)).len(), NAMED_CONFLICTS_MAX);
        assert_eq!(told(Some(&many)), [], "they are known");
    }

    #[test]
    fn each_unreadable_part_of_the_kernel_state_is_reported_separately() {
        let mut reporter = reporter(Recorder::off());
        let mut told = |unreadable: &[&'static str], readable: &[&'static str]| {
            let unreadable = unreadable.iter().map(|part| Unreadable {
                part,
                reason: "busy".to_owned(),
            });
            let report = Report {
                unreadable: unreadable.collect(),
                readable: readable.to_vec(),
                ..Report::default()
            };
            reporter.booked(&report, &Standing::default(), &Model::new(), Instant::now());
            reporter.unreadable.keys().copied().collect::<Vec<_>>()
        };
        assert_eq!(told(&["the iptables rules"], &[]), ["the iptables rules"]);
        assert_eq!(told(&[], &["the ipsets"]), ["the iptables rules"]);
        assert_eq!(
            told(&["the ipsets"], &[]),
            ["the ipsets", "the iptables rules"]
        );
        assert_eq!(told(&[], &["the iptables rules"]), ["the ipsets"]);
    }

    #[test]
    fn a_drift_report_lists_counts_and_first_names() {
        let mut drift = Drift::default();
        drift.add("link", || "kube-ipvs0".to_owned());
        assert_eq!(list(&drift), "1 link (kube-ipvs0)");
        for number in 1..=4 {
            drift.add("address", || format!("10.96.0.{number}"));
        }
        for _ in 0..2 {
            drift.add("set", || "KUBE-CLUSTER-IP".to_owned());
        }
        assert_eq!(
            list(&drift),
            "4 addresses (10.96.0.1, 10.96.0.2, 10.96.0.3, ...), 1 link (kube-ipvs0) and 2 sets \
             (KUBE-CLUSTER-IP, \
             KUBE-CLUSTER-IP)"
        );
    }
}
