//! Changes that are due, by owner, in the order in which they are written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use proxy::{Owner, Rank, Share, Shares};
use reconcile::Table as Entries;

use crate::plan::{Part, Stale};

/// With more Service ports than this in one transaction, a Service or a namespace comes after the
/// others: they do not wait for it.
pub(crate) const SHARE: usize = 256;

/// What is due, by whose it is.
#[derive(Default)]
pub(crate) struct Due<'a> {
    pub(crate) owned: BTreeMap<(Rank, &'a Arc<Owner>), Part>,
    /// What nobody wants of what Service ports share.
    pub(crate) unowned: Vec<Part>,
    pub(crate) stale: Vec<Stale>,
}

impl<'a> Due<'a> {
    pub(crate) fn part(&mut self, owner: &'a Arc<Owner>) -> &mut Part {
        self.owned.entry((owner.rank, owner)).or_default()
    }

    /// The same plan for the same state, whatever the order in which tables tell what is due.
    pub(crate) fn sort(&mut self) {
        for part in self.owned.values_mut() {
            part.affinity
                .sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
            part.slots.sort_unstable_by_key(|change| change.slot);
            part.members.sort_unstable();
        }
        let key = |part: &Part| {
            let slot = part.slots.first().map(|change| change.slot);
            (slot, part.members.first().copied())
        };
        self.unowned.sort_by_key(key);
    }
}

/// What is due in the order in which it is written. A Service or a namespace with very many ports
/// comes after the others with all but its share, so that none of these waits for it.
pub(crate) fn in_turns(due: BTreeMap<(Rank, &Arc<Owner>), Part>) -> Vec<(&Arc<Owner>, Part)> {
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

/// Whether something that is wanted is not there, and not to be written yet.
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

/// Whether an entry is to be written, and has not failed.
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
