//! When a part of what is there is to be looked at.

use std::time::{Duration, Instant};

/// The first delay before what could not be read is read again; it doubles with each further
/// failure.
const FIRST: Duration = Duration::from_secs(1);

/// Whether a part of what is there is known, and when it is looked at next.
#[derive(Debug, Clone)]
pub struct Look {
    /// Since when nothing is known; `None` once it is.
    unknown: Option<Instant>,
    is_under_way: bool,
    /// Since when it has been waiting for a look.
    asked: Option<Instant>,
    /// No look before this.
    not_before: Option<Instant>,
    /// After failures: the delay after the last one.
    delay: Option<Duration>,
    /// When it was last known.
    known: Option<Instant>,
    longest: Duration,
}

impl Look {
    /// Nothing is known, and it is to be looked at now. `longest` is the longest delay after a
    /// failure.
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

    /// Asks for a look, as soon as may be. One that is under way may have begun too early, and
    /// another one follows.
    pub fn ask(&mut self, now: Instant) {
        self.asked.get_or_insert(now);
    }

    /// The same no earlier than `pause` from now: more may come.
    pub fn ask_after(&mut self, now: Instant, pause: Duration) {
        if self.asked.is_none() {
            self.put_off(now + pause);
        }
        self.ask(now);
    }

    /// The same no earlier than `pause` after the last look, so that what keeps asking does not
    /// turn in a circle.
    pub fn ask_apart(&mut self, now: Instant, pause: Duration) {
        if let Some(known) = self.known {
            self.put_off(known + pause);
        }
        self.ask(now);
    }

    fn put_off(&mut self, until: Instant) {
        self.not_before = Some(self.not_before.map_or(until, |before| before.max(until)));
    }

    /// Whether to look now.
    pub fn is_due(&self, now: Instant) -> bool {
        let may = self.not_before.is_none_or(|at| at <= now);
        self.asked.is_some() && !self.is_under_way && may
    }

    /// Says that the look has begun.
    pub fn begin(&mut self) {
        self.is_under_way = true;
        self.asked = None;
    }

    /// Says that it is over, and that all is known.
    pub fn succeed(&mut self, now: Instant) {
        self.unknown = None;
        self.is_under_way = false;
        self.known = Some(now);
        self.not_before = None;
        self.delay = None;
    }

    /// Says that it is over, and that nothing was learnt: it is tried again later.
    pub fn fail(&mut self, now: Instant) {
        let delay = self.delay.map_or(FIRST, |delay| delay * 2);
        let delay = delay.min(self.longest);
        self.is_under_way = false;
        self.delay = Some(delay);
        self.not_before = Some(now + delay);
        self.asked.get_or_insert(now);
    }

    /// Whether a look is asked for or under way. One that has just failed is not awaited.
    pub fn is_awaited(&self) -> bool {
        self.is_under_way || (self.asked.is_some() && self.delay.is_none())
    }

    /// Whether a look is asked for or under way, also where it is put off after a failure: there may
    /// be something that was not seen.
    pub fn is_owed(&self) -> bool {
        self.is_under_way || self.asked.is_some()
    }

    /// Whether it was looked at once.
    pub fn is_known(&self) -> bool {
        self.unknown.is_none()
    }

    /// Whether it was looked at once, or that was tried and failed.
    pub fn is_tried(&self) -> bool {
        self.is_known() || self.delay.is_some()
    }

    /// When it was last looked at with success.
    pub fn last_known(&self) -> Option<Instant> {
        self.known
    }

    /// Since when it has been unknown; `None` once it was looked at.
    pub fn unknown_since(&self) -> Option<Instant> {
        self.unknown
    }

    /// When to look again, if that is later than now.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        let is_awaited = self.asked.is_some() && !self.is_under_way;
        self.not_before.filter(|at| is_awaited && *at > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_read_again_later_and_later() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut look = Look::new(start, Duration::from_secs(4));
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
    fn what_is_asked_for_during_a_look_is_looked_at_again() {
        let now = Instant::now();
        let mut look = Look::new(now, Duration::from_secs(4));
        look.begin();
        look.ask(now);
        look.succeed(now);
        assert!(look.is_due(now) && look.is_owed());
        look.begin();
        look.succeed(now);
        assert!(!look.is_due(now));
    }

    #[test]
    fn what_keeps_asking_has_to_wait() {
        let (now, pause) = (Instant::now(), Duration::from_millis(100));
        let mut look = Look::new(now, Duration::from_secs(4));
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
