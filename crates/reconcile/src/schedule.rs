//! Decides when to read one part of the kernel's state, such as all virtual servers.

use std::time::{Duration, Instant};

/// Delay before the first retry of a failed read. The delay doubles with each further failure.
const FIRST: Duration = Duration::from_secs(1);

/// Schedule for reads of one part of the kernel's state, such as all virtual servers.
#[derive(Debug, Clone)]
pub struct ReadSchedule {
    /// Start of the period in which this part's content is unknown, or `None` after the first
    /// successful read.
    unknown: Option<Instant>,
    is_under_way: bool,
    /// Time of the request for another read, or `None` without a request.
    asked: Option<Instant>,
    /// Earliest time at which the next read may begin, or `None` if it may begin immediately.
    not_before: Option<Instant>,
    /// Delay of the current retry, or `None` if the last read succeeded.
    delay: Option<Duration>,
    /// Time of the last successful read, or `None` before the first one.
    known: Option<Instant>,
    longest: Duration,
}

impl ReadSchedule {
    /// Creates a schedule whose first read is due immediately. `longest` limits the delay after
    /// failed reads.
    pub fn new(now: Instant, longest: Duration) -> Self {
        Self {
            unknown: Some(now),
            is_under_way: false,
            asked: Some(now),
            not_before: None,
            delay: None,
            known: None,
            longest,
        }
    }

    /// Requests a read as soon as possible. If a read is running, a second read follows, because
    /// the running read may miss the latest changes.
    pub fn ask(&mut self, now: Instant) {
        self.asked.get_or_insert(now);
    }

    /// Requests a read after `pause`. This read also answers requests that arrive during the pause.
    pub fn ask_after(&mut self, now: Instant, pause: Duration) {
        if self.asked.is_none() {
            self.put_off(now + pause);
        }
        self.ask(now);
    }

    /// Requests a read that begins at least `pause` after the last read, so that repeated requests
    /// cannot cause a busy loop.
    pub fn ask_apart(&mut self, now: Instant, pause: Duration) {
        if let Some(known) = self.known {
            self.put_off(known + pause);
        }
        self.ask(now);
    }

    fn put_off(&mut self, until: Instant) {
        self.not_before = Some(self.not_before.map_or(until, |before| before.max(until)));
    }

    /// Returns true if a read should begin now.
    pub fn is_due(&self, now: Instant) -> bool {
        let may = self.not_before.is_none_or(|at| at <= now);
        self.asked.is_some() && !self.is_under_way && may
    }

    /// Records that a read has begun.
    pub fn begin(&mut self) {
        self.is_under_way = true;
        self.asked = None;
    }

    /// Records that the current read has succeeded.
    pub fn succeed(&mut self, now: Instant) {
        self.unknown = None;
        self.is_under_way = false;
        self.known = Some(now);
        self.not_before = None;
        self.delay = None;
    }

    /// Records that the current read has failed, and schedules a retry with back-off.
    pub fn fail(&mut self, now: Instant) {
        let delay = self.delay.map_or(FIRST, |delay| delay * 2);
        let delay = delay.min(self.longest);
        self.is_under_way = false;
        self.delay = Some(delay);
        self.not_before = Some(now + delay);
        self.asked.get_or_insert(now);
    }

    /// Returns true while a read is requested or running. A retry after a failure does not count.
    pub fn is_awaited(&self) -> bool {
        self.is_under_way || (self.asked.is_some() && self.delay.is_none())
    }

    /// Returns true while a read is requested, running or waiting for a retry. Until the read ends,
    /// the content may have changed unnoticed.
    pub fn is_owed(&self) -> bool {
        self.is_under_way || self.asked.is_some()
    }

    /// Returns true after the first successful read.
    pub fn is_known(&self) -> bool {
        self.unknown.is_none()
    }

    /// Returns true once a read has ended, successfully or not.
    pub fn is_tried(&self) -> bool {
        self.is_known() || self.delay.is_some()
    }

    /// Returns the time of the last successful read, or `None` before the first one.
    pub fn last_known(&self) -> Option<Instant> {
        self.known
    }

    /// Returns the start of the period in which this part's content is unknown, or `None` after the
    /// first successful read.
    pub fn unknown_since(&self) -> Option<Instant> {
        self.unknown
    }

    /// Returns the time of a requested read, if that time is after `now`.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        let is_awaited = self.asked.is_some() && !self.is_under_way;
        self.not_before.filter(|at| is_awaited && *at > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_reads_are_retried_with_back_off() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut look = ReadSchedule::new(start, Duration::from_secs(4));
        assert!(!look.is_tried());
        for (failed, due) in [(0, 1), (1, 3), (3, 7), (7, 11)] {
            assert!(look.is_due(at(failed)));
            look.begin();
            assert!(!look.is_due(at(failed)), "one at a time");
            look.fail(at(failed));
            assert!(look.is_owed() && !look.is_awaited());
            let before = at(due).checked_sub(Duration::from_millis(1));
            assert!(!look.is_due(before.unwrap()));
            assert_eq!(look.next_due(at(failed)), Some(at(due)));
            assert_eq!(look.unknown_since(), Some(start));
        }
        look.begin();
        look.succeed(at(11));
        assert!(look.is_known() && !look.is_owed() && !look.is_due(at(99)));
        assert_eq!(look.next_due(start), None);
    }

    #[test]
    fn a_read_request_during_a_read_causes_a_second_read() {
        let now = Instant::now();
        let mut look = ReadSchedule::new(now, Duration::from_secs(4));
        look.begin();
        look.ask(now);
        look.succeed(now);
        assert!(look.is_due(now) && look.is_owed());
        look.begin();
        look.succeed(now);
        assert!(!look.is_due(now));
    }

    #[test]
    fn repeated_read_requests_wait_for_a_pause() {
        let (now, pause) = (Instant::now(), Duration::from_millis(100));
        let mut look = ReadSchedule::new(now, Duration::from_secs(4));
        look.ask_apart(now, pause);
        assert!(look.is_due(now), "it was never looked at");
        look.begin();
        look.succeed(now);
        look.ask_apart(now, pause);
        assert!(!look.is_due(now) && look.is_due(now + pause));
        look.begin();
        look.succeed(now);
        look.ask_after(now + pause, pause);
        look.ask_after(now + pause * 2, pause);
        assert_eq!(look.next_due(now), Some(now + pause * 2));
    }
}
