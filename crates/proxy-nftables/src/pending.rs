//! Pending changes, grouped by owner and in the order of writes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use proxy::{Owner, Rank, Share, Shares};
use reconcile::Table as Entries;

use crate::plan::{PortChanges, StaleObject};

/// Number of ports up to which a Service or namespace keeps its place in the order of writes. Its
/// further ports follow the ports of all other Services.
pub(crate) const SHARE: usize = 256;

/// Pending changes, grouped by the Service port that owns them.
#[derive(Default)]
pub(crate) struct PendingChanges<'a> {
    pub(crate) owned: BTreeMap<(Rank, &'a Arc<Owner>), PortChanges>,
    /// Deletions of elements in shared sets and maps that no Service port wants.
    pub(crate) unowned: Vec<PortChanges>,
    pub(crate) stale: Vec<StaleObject>,
}

impl<'a> PendingChanges<'a> {
    pub(crate) fn part(&mut self, owner: &'a Arc<Owner>) -> &mut PortChanges {
        self.owned.entry((owner.rank, owner)).or_default()
    }

    /// Sorts the changes. Otherwise, the plan would depend on the order of hash tables.
    pub(crate) fn sort(&mut self) {
        for part in self.owned.values_mut() {
            part.affinity
                .sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
            part.slots.sort_unstable_by_key(|change| change.slot);
            part.members.sort_unstable();
        }
        let key = |part: &PortChanges| {
            let slot = part.slots.first().map(|change| change.slot);
            (slot, part.members.first().copied())
        };
        self.unowned.sort_by_key(key);
    }
}

/// Returns the pending changes in the order of writes. If a Service or namespace has more ports
/// than [`SHARE`], its further ports are last.
pub(crate) fn in_turns(
    due: BTreeMap<(Rank, &Arc<Owner>), PortChanges>,
) -> Vec<(&Arc<Owner>, PortChanges)> {
    let is_little = due.len() <= SHARE;
    let mut shares = Shares::new(SHARE);
    let placed = due.into_iter().map(|((rank, owner), part)| {
        let share = if is_little || rank < Rank::Other {
            Share::Within
        } else {
            shares.of(&owner.name.service, 1)
        };
        (share, owner, part)
    });
    let mut placed: Vec<_> = placed.collect();
    placed.sort_by_key(|(share, ..)| *share);
    let placed = placed.into_iter();
    placed.map(|(_, owner, part)| (owner, part)).collect()
}

/// Returns true if a wanted entry is pending and waits for the retry of a failed write.
pub(crate) fn has_later<K, V, O>(entries: &Entries<K, V, O>, now: Instant) -> bool
where
    K: Clone + Eq + std::hash::Hash,
    V: Clone + Eq,
    O: Clone + Eq + std::hash::Hash + Ord,
{
    if entries.failing_len() == 0 {
        return false;
    }
    let count = |key: &&K| entries.wanted(key).is_some();
    entries.due(now).filter(count).count() < entries.pending().filter(count).count()
}

/// Returns true if an entry is pending and its last write did not fail.
pub(crate) fn is_due<K, V, O>(entries: &Entries<K, V, O>, key: &K) -> bool
where
    K: Clone + Eq + std::hash::Hash,
    V: Clone + Eq,
    O: Clone + Eq + std::hash::Hash + Ord,
{
    entries.is_pending(key) && !entries.is_failing(key)
}

#[cfg(test)]
mod tests;
