//! The table of the entries that serve Services.

use std::collections::BinaryHeap;
use std::fmt::Display;
use std::hash::Hash;
use std::sync::Arc;

use hashbrown::HashMap;
use proxy::{Conflict, Owner};
use reconcile::{Rows, Table};

/// Maximum number of conflicts that a report lists for the Services of one namespace.
pub const CONFLICTS_MAX: usize = 256;

/// A table of entries that Service ports claim. If several ports claim an entry, only one of them
/// owns it.
pub trait Served: Rows {
    /// Returns the number of entries that are wanted or exist.
    fn len(&self) -> usize;

    /// Reports whether no entry is wanted or exists.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reports whether entries are wanted, but the kernel has none of them, not even one with a
    /// different value.
    fn serves_nobody(&self) -> bool;

    /// Reports whether the write of every wanted entry has failed, apart from `held` entries that
    /// another program owns. Returns false if another program owns all entries.
    fn is_all_refused(&self, held: usize) -> bool;

    /// Returns a version that changes whenever the result of [`conflicts`](Self::conflicts) may
    /// change.
    fn conflicts_version(&self) -> u64;

    /// Returns the claims that lost to another owner's claim, at most [`CONFLICTS_MAX`] per
    /// namespace, and the number of further lost claims.
    fn conflicts(&self) -> (Vec<Conflict>, usize);
}

impl<K, V> Served for Table<K, V, Arc<Owner>>
where
    K: Clone + Ord + Hash + Display,
    V: Clone + Eq,
{
    fn len(&self) -> usize {
        self.len()
    }

    fn serves_nobody(&self) -> bool {
        self.lacks_all_wanted()
    }

    fn is_all_refused(&self, held: usize) -> bool {
        let wanted = self.wanted_len().saturating_sub(held);
        wanted > 0 && self.failing_len().saturating_sub(held) >= wanted
    }

    fn conflicts_version(&self) -> u64 {
        self.contested_version()
    }

    fn conflicts(&self) -> (Vec<Conflict>, usize) {
        // Stores only the first conflicts of each namespace, because a namespace may have hundreds
        // of thousands.
        let mut first: HashMap<&str, BinaryHeap<(&K, &Owner, &Owner)>> = HashMap::new();
        let mut more = 0;
        for (key, claims) in self.contested() {
            let Some(((winner, _), losers)) = claims.split_first() else {
                continue;
            };
            for (loser, _) in losers {
                let kept = first.entry(loser.name.service.namespace()).or_default();
                let one = (key, &**loser, &**winner);
                if kept.len() < CONFLICTS_MAX {
                    kept.push(one);
                    continue;
                }
                more += 1;
                if let Some(mut last) = kept.peek_mut().filter(|last| **last > one) {
                    *last = one;
                }
            }
        }
        let all = first.into_values().flatten();
        let all = all.map(|(key, loser, winner)| Conflict {
            object: key.to_string(),
            winner: winner.name.clone(),
            loser: loser.name.clone(),
        });
        let mut conflicts: Vec<Conflict> = all.collect();
        conflicts.sort_by(|a, b| (&a.object, &a.loser).cmp(&(&b.object, &b.loser)));
        // Two entries may have keys with the same text. The report then lists their conflict only
        // once.
        conflicts.dedup();
        (conflicts, more)
    }
}
