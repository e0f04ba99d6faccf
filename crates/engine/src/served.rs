//! The table of what Services are served by, whatever that is in a mode.

use std::collections::BinaryHeap;
use std::fmt::Display;
use std::hash::Hash;
use std::sync::Arc;

use hashbrown::HashMap;
use proxy::{Conflict, Owner};
use reconcile::{Rows, Table};

/// The most conflicts of the Services of a namespace that are told one by one.
pub const CONFLICTS_MAX: usize = 256;

/// A table of entries that Service ports claim, of which only one can have each.
pub trait Served: Rows {
    /// How many entries are wanted, there, or both.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether entries are wanted, and none of them is there in any form.
    fn serves_nobody(&self) -> bool;

    /// True if at least as many could not be written as are wanted, without the `held` ones that
    /// another program has. False if these are all.
    fn is_all_refused(&self, held: usize) -> bool;

    /// Another number than before if [`conflicts`](Self::conflicts) may tell something else.
    fn conflicts_version(&self) -> u64;

    /// Returns who claims an entry without having it: of the Services of a namespace, the first
    /// [`CONFLICTS_MAX`]; and how many more there are.
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
        // A namespace can have hundreds of thousands: only the first ones are kept while all are looked at.
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
        // Two entries may be one to those who are told.
        conflicts.dedup();
        (conflicts, more)
    }
}
