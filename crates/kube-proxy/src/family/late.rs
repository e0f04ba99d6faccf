//! What is late beside what the mode knows of: changes that it has not been told, and removals that
//! wait until every object can be read. A mode excuses the latter, as no client waits for them; who
//! looks at the node wants to know.

use std::time::Instant;

use proxy::{Changes, Model, Standing};

/// What is late.
#[derive(Debug, Default)]
pub(super) struct Late {
    /// How many Services have changed without that being handed out, and when the first was heard
    /// of.
    waiting: Option<(usize, Instant)>,
    /// When the first was heard of that the mode has not taken over.
    heard: Option<Instant>,
    /// Since when something stays that may not be removed.
    held_back: Option<Instant>,
}

impl Late {
    /// So many Services have changed since then, and nobody is told yet.
    pub(super) fn wait(&mut self, waiting: Option<(usize, Instant)>) {
        self.waiting = waiting;
    }

    /// Changes were handed out that were first heard of then.
    pub(super) fn add(&mut self, heard: Option<Instant>) {
        self.heard = self.heard.or(heard);
    }

    /// The mode has taken over all that was handed out.
    pub(super) fn taken(&mut self) {
        self.heard = None;
    }

    /// The mode has taken over a piece; the first of the others was heard of then, as far as is known.
    pub(super) fn go_on(&mut self, heard: Option<Instant>) {
        self.heard = heard.or(self.heard);
    }

    /// Looks whether something stays because objects cannot be read.
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

    /// How the family stands with all of this.
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
