//! The table of what Services are served by, whatever that is in a mode.

use std::fmt::Display;
use std::hash::Hash;
use std::sync::Arc;

use proxy::{Conflict, Owner};
use reconcile::{Rows, Table};

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

    /// Who claims an entry without having it.
    fn conflicts(&self) -> Vec<Conflict>;
}

impl<K, V> Served for Table<K, V, Arc<Owner>>
where
    K: Clone + Eq + Hash + Display,
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

    fn conflicts(&self) -> Vec<Conflict> {
        let mut conflicts = Vec::new();
        for (key, claims) in self.contested() {
            let Some(((winner, _), losers)) = claims.split_first() else {
                continue;
            };
            conflicts.extend(losers.iter().map(|(loser, _)| Conflict {
                object: key.to_string(),
                winner: winner.name.clone(),
                loser: loser.name.clone(),
            }));
        }
        conflicts.sort_by(|a, b| (&a.object, &a.loser).cmp(&(&b.object, &b.loser)));
        // Two entries may be one to those who are told.
        conflicts.dedup();
        conflicts
    }
}
