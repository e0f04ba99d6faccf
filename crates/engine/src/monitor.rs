//! Facts for reports that the engine derives from a mode's state: conflicts, repaired drift, and
//! late changes.

use std::mem;
use std::time::Instant;

use proxy::Standing;
use reconcile::Rows;

use crate::kinds::Part as _;
use crate::scheme::{Concern, PartOf, Scheme};
use crate::served::Served;
use crate::state::State;

/// State from which the engine derives conflicts, drift and lateness.
#[derive(Default)]
pub(crate) struct Monitor {
    /// Time since which the kernel has had none of the wanted entries. `None` if it has at least
    /// one of them, or if no entry is wanted.
    unserved: Option<Instant>,
    /// Value of [`Served::conflicts_version`] when the engine last reported conflicts.
    conflicts_version: u64,
}

impl Monitor {
    /// Updates `unserved`, the time since which the kernel has had none of the wanted entries. This
    /// period begins when entries are first wanted, not when the kernel refuses them.
    pub(crate) fn note_unserved(&mut self, now: Instant, served: &dyn Served) {
        let since = self.unserved.unwrap_or(now);
        self.unserved = served.serves_nobody().then_some(since);
    }

    /// Adds settled Services, conflicts and drift to the report.
    pub(crate) fn conclude<S: Scheme>(&mut self, state: &mut State<S::Kinds>, scheme: &S) {
        state
            .news
            .settle(&mut state.report, |service| scheme.is_settled(service));
        let disputed = scheme.disputed();
        let version = disputed.conflicts_version();
        if mem::replace(&mut self.conflicts_version, version) != version {
            let (conflicts, more) = disputed.conflicts();
            state.report.conflicts = Some(conflicts);
            state.report.more_conflicts = more;
        }
        let parts = PartOf::<S>::ALL.iter();
        let is_repaired = parts
            .flat_map(|part| scheme.tables(*part))
            .all(|table| table.pending_len() == table.failing_len());
        state.report.drift = state.news.take_drift(state.now, is_repaired);
        self.note_unserved(state.now, scheme.served());
    }

    /// Sets in `standing` the time of the oldest pending change, and the time since which the mode
    /// has made no progress.
    pub(crate) fn note_lateness<S: Scheme>(
        &self,
        state: &State<S::Kinds>,
        scheme: &S,
        standing: &mut Standing,
    ) {
        let earlier = |one: &mut Option<Instant>, other: Instant| {
            *one = Some(one.map_or(other, |one| one.min(other)));
        };
        for &part in PartOf::<S>::ALL {
            let concern = scheme.concern(state, part);
            let tables = scheme.tables(part);
            let since = tables
                .filter_map(Rows::pending_since)
                .chain(state.look(part).unknown_since())
                .min();
            let Some(since) = since.filter(|_| concern != Concern::Nobody) else {
                continue;
            };
            earlier(&mut standing.pending_since, since);
            if concern == Concern::Clients {
                let written = state.last_written(part);
                let stuck = written.map_or(since, |at| at.max(since));
                earlier(&mut standing.stuck_since, stuck);
            }
        }
        // If the kernel refuses only some entries, these entries may be invalid. If it refuses all,
        // there must be a common cause, and the mode counts as stuck.
        let is_all_refused = |_: &Instant| {
            let held = scheme.held_by_others().len();
            scheme.served().is_all_refused(held)
        };
        if let Some(since) = self.unserved.filter(is_all_refused) {
            earlier(&mut standing.pending_since, since);
            earlier(&mut standing.stuck_since, since);
        }
    }
}
