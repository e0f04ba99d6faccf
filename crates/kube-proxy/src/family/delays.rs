//! Delays of changes that a mode does not know about:
//!
//! - changes that the mode has not received yet;
//! - removals that wait until every object has been readable once. No client waits for these
//!   removals.
//!
//! The status shows both kinds of delays to operators.

use std::time::Instant;

use proxy::{Changes, Model, Standing};

/// Delays in one IP family that its mode does not know about.
#[derive(Debug, Default)]
pub(super) struct Delays {
    /// Number of changed Services that no IP family has received yet, with the arrival time of the
    /// oldest change. `None` if no Service waits.
    waiting: Option<(usize, Instant)>,
    /// Arrival time of the oldest change that the mode has not received. `None` if the mode has
    /// received all changes.
    heard: Option<Instant>,
    /// Start of the current delay of removals. `None`: removals are not held back.
    held_back: Option<Instant>,
}

impl Delays {
    /// Records the number of changed Services that no IP family has received yet, with the arrival
    /// time of the oldest change.
    pub(super) fn wait(&mut self, waiting: Option<(usize, Instant)>) {
        self.waiting = waiting;
    }

    /// Records that the IP family received changes. `heard` is the arrival time of the oldest
    /// change.
    pub(super) fn add(&mut self, heard: Option<Instant>) {
        self.heard = self.heard.or(heard);
    }

    /// Records that the mode has received all changes of its IP family.
    pub(super) fn taken(&mut self) {
        self.heard = None;
    }

    /// Records that the mode has received a batch of changes. `heard` is the arrival time of the
    /// oldest remaining change, if known.
    pub(super) fn go_on(&mut self, heard: Option<Instant>) {
        self.heard = heard.or(self.heard);
    }

    /// Records whether removals are held back, because the lists are incomplete or an object has
    /// never been readable.
    pub(super) fn look(
        &mut self,
        model: &Model,
        standing: impl FnOnce() -> Standing,
        now: Instant,
    ) {
        let may_remove = model.is_complete() && model.is_whole();
        let stays = || {
            let standing = standing();
            standing.pending > standing.failing
        };
        self.held_back = (!may_remove && stays()).then(|| self.held_back.unwrap_or(now));
    }

    /// Returns `standing`, the progress of the mode, with these delays added.
    pub(super) fn added_to(&self, mut standing: Standing, changes: &Changes) -> Standing {
        if !changes.is_empty() {
            standing.pending += changes.services.len().max(1);
        }
        if let Some((count, _)) = self.waiting {
            standing.pending += count;
        }
        let waiting = self.waiting.map(|(_, since)| since);
        let since = [standing.pending_since, self.heard, waiting, self.held_back];
        standing.pending_since = since.into_iter().flatten().min();
        standing
    }
}
