//! Log line about syncs that changed the kernel: the kinds and numbers of entries, and the syncs'
//! duration. A sync without changes logs nothing. Each IP family logs at most one such line per
//! second, which covers all syncs since the previous line.

use std::time::{Duration, Instant};

use proxy::{Fate, IpFamily, NamespacedName, Report, Standing, Writes};
use tracing::{debug, field, info};

/// Shortest time between two log lines about syncs.
const PAUSE: Duration = Duration::from_secs(1);

/// Summary of one IP family's syncs since the last log line.
#[derive(Debug)]
pub(crate) struct Story {
    family: IpFamily,
    done: WorkSums,
    /// Time of the last log line, or `None` before the first line.
    told: Option<Instant>,
}

/// Sums over the work since the last log line. The sums need little memory, even after much work.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct WorkSums {
    writes: Writes,
    /// Number of times that a Service became complete in the kernel.
    services: usize,
    /// Name of the Service, if `services` counts a single Service.
    only: Option<NamespacedName>,
    /// Number of syncs since the last log line that wrote an entry.
    syncs: usize,
    /// Total duration of the syncs since the last log line.
    took: Duration,
}

impl WorkSums {
    /// Reports whether a Service became complete in the kernel. All other changes are housekeeping,
    /// such as deleting unused chains or drained endpoints.
    fn is_of_services(&self) -> bool {
        self.services > 0
    }
}

impl Story {
    /// Creates a summary of no syncs.
    pub(crate) fn new(family: IpFamily) -> Self {
        Self {
            family,
            done: WorkSums::default(),
            told: None,
        }
    }

    /// Adds the results of finished jobs, which worker threads (kernel I/O) ran.
    pub(crate) fn booked(&mut self, report: &Report) {
        let done = &mut self.done;
        done.writes.extend(&report.writes);
        if done.writes == Writes::default() {
            // Skips the report: no write was needed, because the kernel already had all entries.
            return;
        }
        for service in &report.settled {
            done.services += 1;
            match &done.only {
                _ if done.services == 1 => done.only = Some(service.clone()),
                Some(only) if only != service => done.only = None,
                _ => {}
            }
        }
    }

    /// Adds a finished sync that wrote or tried to write.
    pub(crate) fn synced(&mut self, took: Duration) {
        self.done.syncs += 1;
        self.done.took += took;
    }

    /// Discards the sums of the first sync, because a separate line reports it.
    pub(crate) fn begin(&mut self) {
        self.done = WorkSums::default();
    }

    /// Logs a line about the finished syncs, unless the last line was logged less than a second
    /// ago.
    pub(crate) fn tell(&mut self, standing: &Standing, now: Instant) {
        let Some(done) = self.take(now) else { return };
        let failed = done.writes.sum(Fate::Refused) + done.writes.sum(Fate::Unknown);
        macro_rules! say {
            ($level:ident) => {
                $level!(
                    family = %self.family,
                    service = done.only.as_ref().map(field::display),
                    services = (done.only.is_none() && done.services > 0).then_some(done.services),
                    written = list(&done.writes),
                    failed = (failed > 0).then_some(failed),
                    pending = (standing.pending > 0).then_some(standing.pending),
                    syncs = (done.syncs > 1).then_some(done.syncs),
                    took = ?done.took,
                    "synced"
                )
            };
        }
        if done.is_of_services() {
            say!(info);
        } else {
            say!(debug);
        }
    }

    /// Returns the sums and resets them, if a log line is due.
    fn take(&mut self, now: Instant) -> Option<WorkSums> {
        if self.next_due(now)? > now {
            return None;
        }
        let done = std::mem::take(&mut self.done);
        if done.writes.sum(Fate::Done) == 0 {
            // Logs nothing, because each failed write already has a log line.
            return None;
        }
        self.told = Some(now);
        Some(done)
    }

    /// Returns the time at which the next line may be logged, or `None` if there is nothing to log.
    pub(crate) fn next_due(&self, now: Instant) -> Option<Instant> {
        let due = self.told.map_or(now, |told| now.max(told + PAUSE));
        (self.done.syncs > 0).then_some(due)
    }
}

/// Returns the completed writes as text, such as `1 virtual server, 2 destinations`.
fn list(writes: &Writes) -> String {
    let done = writes.iter().filter(|(_, fate, _)| *fate == Fate::Done);
    let each = done.map(|(subject, _, count)| {
        let [one, many] = subject.words();
        format!("{count} {}", if count == 1 { one } else { many })
    });
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use proxy::EntryKind;

    use super::*;

    fn report(services: &[&str], writes: &[(EntryKind, Fate, usize)]) -> Report {
        let mut report = Report {
            settled: services
                .iter()
                .map(|name| NamespacedName::new("default", name))
                .collect(),
            ..Report::default()
        };
        for (subject, fate, count) in writes {
            report.writes.add(*subject, *fate, *count);
        }
        report
    }

    const ONE: (EntryKind, Fate, usize) = (EntryKind::Destinations, Fate::Done, 1);

    #[test]
    fn the_sync_log_names_one_service_or_counts_several() {
        let mut story = Story::new(IpFamily::V4);
        let now = Instant::now();
        story.booked(&report(&["web"], &[ONE]));
        story.booked(&report(
            &["web"],
            &[(EntryKind::VirtualServers, Fate::Done, 2)],
        ));
        assert_eq!(story.take(now), None, "it goes on");
        story.synced(Duration::from_millis(2));
        let done = story.take(now).unwrap();
        assert_eq!(done.only, Some(NamespacedName::new("default", "web")));
        assert_eq!(list(&done.writes), "2 virtual servers, 1 destination");
        story.booked(&report(&["web", "db", "web"], &[ONE]));
        story.synced(Duration::from_millis(2));
        let done = story.take(now + PAUSE).unwrap();
        assert_eq!((done.only, done.services), (None, 3));
    }

    #[test]
    fn a_sync_log_line_shows_whether_a_service_was_written() {
        let mut story = Story::new(IpFamily::V4);
        let now = Instant::now();
        story.booked(&report(&[], &[(EntryKind::Table, Fate::Done, 1)]));
        story.synced(Duration::from_millis(2));
        assert!(!story.take(now).unwrap().is_of_services());
        story.booked(&report(&["web"], &[(EntryKind::Table, Fate::Done, 1)]));
        story.synced(Duration::from_millis(2));
        assert!(story.take(now + PAUSE).unwrap().is_of_services());
    }

    #[test]
    fn services_that_needed_no_write_are_not_counted_in_the_next_log_line() {
        let mut story = Story::new(IpFamily::V4);
        story.booked(&report(&["web", "db"], &[]));
        story.booked(&report(&["cache"], &[ONE]));
        story.synced(Duration::from_millis(2));
        let done = story.take(Instant::now()).unwrap();
        assert_eq!(done.only, Some(NamespacedName::new("default", "cache")));
        assert_eq!(done.services, 1);
    }

    #[test]
    fn many_syncs_cause_one_log_line_per_second() {
        let mut story = Story::new(IpFamily::V4);
        let start = Instant::now();
        let mut lines = Vec::new();
        for millisecond in 0..3_000 {
            let now = start + Duration::from_millis(millisecond);
            for _ in 0..10 {
                story.booked(&report(&["web", "db"], &[ONE]));
                story.synced(Duration::from_micros(50));
            }
            lines.extend(story.take(now));
        }
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[1].syncs, 10_000);
        assert_eq!(lines[1].took, Duration::from_millis(500));
        assert_eq!(list(&lines[1].writes), "10000 destinations");
        let due = story.next_due(start + 2 * PAUSE).unwrap();
        assert_eq!(due, start + 3 * PAUSE, "the rest is not forgotten");
        assert_eq!(story.take(due).unwrap().syncs, 9_990);
        assert_eq!(story.next_due(due), None, "and then all is said");
    }

    #[test]
    fn a_sync_without_completed_writes_is_not_logged() {
        let mut story = Story::new(IpFamily::V4);
        story.booked(&report(&["web"], &[(EntryKind::Sets, Fate::Refused, 3)]));
        story.synced(Duration::from_millis(2));
        let now = Instant::now();
        assert_eq!(story.take(now), None);
        assert_eq!(story.next_due(now), None);
    }
}
