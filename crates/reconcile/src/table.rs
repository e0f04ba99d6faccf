//! The table of one kind of entries: claims, actual values and pending keys.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use hashbrown::hash_map::Entry;
use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;

use crate::row::Row;

mod retries;

use retries::Retry;

/// Largest number of claimed keys among which a table finds duplicates by comparing pairs. With
/// more keys, the table hashes them.
const FEW: usize = 8;
/// Precision of the time at which a row became pending: rows of one interval share the time.
const GRAIN: Duration = Duration::from_millis(100);
/// Largest number of pending keys that the table always stores as a list, even if most of its keys
/// are pending.
const MANY: usize = if cfg!(test) { 2 } else { 1024 };

/// Choice whether unwanted entries that still exist count as overdue changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Removals {
    /// An unwanted entry counts as overdue until it is removed.
    #[default]
    Late,
    /// Unwanted entries do not count as overdue, because the caller may not remove them yet, or
    /// need not.
    Excused,
}

/// The wanted and the actual entries of one kind, with the owners that claim the wanted entries.
#[derive(Debug)]
pub struct Table<K, V, O> {
    rows: HashMap<K, Row<V, O>>,
    keys_of: HashMap<O, Box<[K]>>,
    pending: PendingRows<K>,
    contested: HashSet<K>,
    contested_version: u64,
    retries: HashMap<K, Retry>,
    wanted_len: usize,
    /// Number and start of the current epoch, a time interval. Rows that become pending in it share
    /// its start. The number is 0 before the first [`Table::begin`].
    epoch: (u32, Option<Instant>),
    /// Epochs that still have pending rows, by number: start of the epoch, and number of these
    /// rows.
    since: BTreeMap<u32, (Instant, usize)>,
    /// Choice whether unwanted entries count as overdue changes.
    removals: Removals,
}

/// The pending rows, as a list of keys. If most rows are pending, as at the daemon's start, only
/// their number is stored, because a scan of all rows costs less than the list.
#[derive(Debug)]
enum PendingRows<K> {
    Listed(HashSet<K>),
    /// Number of pending rows. Each row itself stores whether it is pending.
    Counted(usize),
}

impl<K> PendingRows<K> {
    fn len(&self) -> usize {
        match self {
            Self::Listed(keys) => keys.len(),
            Self::Counted(count) => *count,
        }
    }
}

/// Reason why an owner's claimed value changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClaimOrigin {
    /// The owner wants a different value.
    New,
    /// The new value follows from a write or from an observed entry, not from the owner.
    Follows,
}

impl<K, V, O> Default for Table<K, V, O> {
    fn default() -> Self {
        Self {
            rows: HashMap::new(),
            keys_of: HashMap::new(),
            pending: PendingRows::Listed(HashSet::new()),
            contested: HashSet::new(),
            contested_version: 0,
            retries: HashMap::new(),
            wanted_len: 0,
            epoch: (0, None),
            since: BTreeMap::new(),
            removals: Removals::default(),
        }
    }
}

impl<K, V, O> Table<K, V, O>
where
    K: Clone + Eq + Hash,
    V: Clone + Eq,
    O: Clone + Eq + Hash + Ord,
{
    /// Creates an empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the current time, for all rows that become pending until the next call.
    pub fn begin(&mut self, now: Instant) {
        let (number, at) = self.epoch;
        if at.is_none_or(|at| now.saturating_duration_since(at) >= GRAIN) {
            self.epoch = (number.wrapping_add(1).max(1), Some(now));
        }
    }

    /// Returns the time at which the oldest pending row became pending, with a precision of 0.1 s.
    /// Ignores rows that are [excused](Self::excuse) or became pending before the first
    /// [`begin`](Self::begin).
    pub fn pending_since(&self) -> Option<Instant> {
        self.since.first_key_value().map(|(_, (at, _))| *at)
    }

    /// Sets whether [`pending_since`](Self::pending_since) considers unwanted entries. It should
    /// not while the caller may not remove entries.
    pub fn count_removals(&mut self, removals: Removals) {
        if std::mem::replace(&mut self.removals, removals) == removals {
            return;
        }
        let unwanted = self.pending().filter(|key| self.wanted(key).is_none());
        let unwanted: Vec<K> = unwanted.cloned().collect();
        for key in unwanted {
            self.recount(&key);
        }
    }

    /// Reserves memory for `owners` more owners with one entry each.
    pub fn reserve(&mut self, owners: usize) {
        self.rows.reserve(owners);
        self.keys_of.reserve(owners);
    }

    /// Replaces all claims of `owner` by `entries`. If several entries have the same key, the first
    /// one wins. Costs O(entries of this owner).
    pub fn claim(&mut self, owner: &O, entries: impl IntoIterator<Item = (K, V)>) {
        let mut fresh: SmallVec<[(K, V); 2]> = SmallVec::new();
        let mut seen = HashSet::new();
        for (key, value) in entries {
            // Most owners claim only a few entries.
            let is_new = if fresh.len() < FEW {
                fresh.iter().all(|(other, _)| *other != key)
            } else {
                if seen.is_empty() {
                    seen.extend(fresh.iter().map(|(key, _)| key.clone()));
                }
                seen.insert(key.clone())
            };
            if is_new {
                fresh.push((key, value));
            }
        }
        if fresh.is_empty() && self.keys_of.is_empty() {
            return;
        }
        let before = if fresh.is_empty() {
            self.keys_of.remove(owner)
        } else {
            let keys = fresh.iter().map(|(key, _)| key.clone());
            self.keys_of.insert(owner.clone(), keys.collect())
        };
        let is_kept = |key: &K| {
            if seen.is_empty() {
                fresh.iter().any(|(other, _)| other == key)
            } else {
                seen.contains(key)
            }
        };
        for key in before.into_iter().flatten().filter(|key| !is_kept(key)) {
            self.set_claim(&key, owner, None, ClaimOrigin::New);
        }
        for (key, value) in fresh {
            self.set_claim(&key, owner, Some(value), ClaimOrigin::New);
        }
    }

    /// Removes all claims of `owner`.
    pub fn release(&mut self, owner: &O) {
        self.claim(owner, []);
    }

    /// Replaces the value that `owner` claims for a key. Has no effect if `owner` does not claim
    /// the key.
    pub fn amend(&mut self, owner: &O, key: &K, value: V) {
        if self.is_claimed_by(key, owner) {
            self.set_claim(key, owner, Some(value), ClaimOrigin::New);
        }
    }

    /// Replaces a claimed value by a value that follows from a write or from an observed entry. A
    /// scheduled retry stays, because the new value does not remove the reason of the failure.
    pub fn adjust(&mut self, owner: &O, key: &K, value: V) {
        if self.is_claimed_by(key, owner) {
            self.set_claim(key, owner, Some(value), ClaimOrigin::Follows);
        }
    }

    fn is_claimed_by(&self, key: &K, owner: &O) -> bool {
        let row = self.rows.get(key);
        row.is_some_and(|row| row.owners().any(|of| of == owner))
    }

    fn set_claim(&mut self, key: &K, owner: &O, value: Option<V>, origin: ClaimOrigin) {
        let (before, claims, is_other) = match (self.rows.entry(key.clone()), value) {
            (Entry::Vacant(_), None) => return,
            (Entry::Vacant(vacant), Some(value)) => {
                vacant.insert(Row::of_claim(owner.clone(), value));
                self.wanted_len += 1;
                self.settle(key);
                return;
            }
            (Entry::Occupied(row), value) => {
                let row = row.into_mut();
                let (was_wanted, before) = (row.wanted().is_some(), row.claims_len());
                let is_other = row.set_claim(owner, value);
                self.wanted_len =
                    self.wanted_len + usize::from(row.wanted().is_some()) - usize::from(was_wanted);
                (before, row.claims_len(), is_other)
            }
        };
        // Callers read only the owners of contested keys. So a change to the value alone leaves the
        // version unchanged.
        if claims > 1 && claims != before {
            self.contested.insert(key.clone());
            self.contested_version += 1;
        } else if claims <= 1 && before > 1 {
            self.contested.remove(key);
            self.contested_version += 1;
        }
        let is_new = is_other && origin == ClaimOrigin::New;
        // The retry delay belonged to the previous value, so the new value is due immediately,
        // unless the actual value is unknown.
        if is_new && !self.is_doubted(key) {
            self.forgive(key);
        }
        self.settle(key);
        if is_new {
            self.recount(key);
        }
    }

    /// Updates pending rows, counts and retries after the row of `key` has changed.
    fn settle(&mut self, key: &K) {
        let Some(row) = self.rows.get_mut(key) else {
            return;
        };
        let is_pending = !row.is_as_wanted();
        let was_pending = std::mem::replace(&mut row.is_pending, is_pending);
        let since = if is_pending {
            0
        } else {
            std::mem::take(&mut row.since)
        };
        let is_gone = !is_pending && row.wanted().is_none();
        match (&mut self.pending, was_pending, is_pending) {
            (PendingRows::Listed(keys), false, true) => {
                keys.insert(key.clone());
            }
            (PendingRows::Listed(keys), true, false) => {
                keys.remove(key);
            }
            (PendingRows::Counted(count), false, true) => *count += 1,
            (PendingRows::Counted(count), true, false) => *count -= 1,
            _ => {}
        }
        if is_gone {
            self.rows.remove(key);
        }
        self.count_out(since);
        if is_pending != was_pending {
            self.list_or_count();
        }
        if !is_pending {
            self.forgive(key);
        } else if !was_pending {
            self.count_in(key);
        }
    }

    /// Counts a row as pending since the current epoch, unless it is excused or already counted.
    fn count_in(&mut self, key: &K) {
        let (number, Some(at)) = self.epoch else {
            return;
        };
        let removals = self.removals;
        let counts = |row: &&mut Row<V, O>| {
            let is_counted = removals == Removals::Late || row.wanted().is_some();
            row.is_pending && row.since == 0 && is_counted
        };
        if let Some(row) = self.rows.get_mut(key).filter(counts) {
            row.since = number;
            self.since.entry(number).or_insert((at, 0)).1 += 1;
        }
    }

    /// Counts a row as pending again, after a change of its wanted value or of `removals`.
    fn recount(&mut self, key: &K) {
        if self.removals == Removals::Excused
            && let Some(row) = self.rows.get_mut(key)
            && row.wanted().is_none()
        {
            let since = std::mem::take(&mut row.since);
            self.count_out(since);
        }
        self.count_in(key);
    }

    fn count_out(&mut self, since: u32) {
        if let Some((_, count)) = self.since.get_mut(&since) {
            *count -= 1;
            if *count == 0 {
                self.since.remove(&since);
            }
        }
    }

    /// Replaces the list of pending keys by their number once more than half of all rows are
    /// pending, and the number by the list once fewer than an eighth are. Building the list scans
    /// all rows, but many changes lie between two switches.
    fn list_or_count(&mut self) {
        let rows = self.rows.len();
        match &self.pending {
            PendingRows::Listed(keys) if keys.len() > MANY && keys.len() > rows / 2 => {
                self.pending = PendingRows::Counted(keys.len());
            }
            PendingRows::Counted(count) if *count <= MANY / 2 || *count < rows / 8 => {
                let rows = self.rows.iter().filter(|(_, row)| row.is_pending);
                self.pending = PendingRows::Listed(rows.map(|(key, _)| key.clone()).collect());
            }
            PendingRows::Listed(keys) if keys.is_empty() && keys.capacity() > MANY => {
                self.pending = PendingRows::Listed(HashSet::new());
            }
            _ => {}
        }
    }

    fn forgive(&mut self, key: &K) {
        // Checks for an empty map first: retries are rare, and each lookup hashes a key.
        if !self.retries.is_empty() {
            self.retries.remove(key);
        }
    }

    /// Replaces all actual values by a dump of the kernel's entries. Keys that the dump lacks
    /// become absent. Returns the keys whose actual value the dump changed, except keys whose last
    /// write had an unknown outcome.
    pub fn observe(&mut self, dump: impl IntoIterator<Item = (K, V)>) -> Vec<K> {
        let doubted = self
            .retries
            .extract_if(|_, retry| retry.is_until_observed)
            .map(|(key, _)| key);
        let doubted: HashSet<K> = doubted.collect();
        let mut gone: HashSet<K> = self
            .rows
            .iter()
            .filter(|(_, row)| row.actual().is_some())
            .map(|(key, _)| key.clone())
            .collect();
        let mut other = Vec::new();
        for (key, value) in dump {
            gone.remove(&key);
            if self.actual(&key) != Some(&value) {
                self.set_actual(&key, Some(value));
                other.push(key);
            }
        }
        for key in gone {
            self.set_actual(&key, None);
            other.push(key);
        }
        if !doubted.is_empty() {
            other.retain(|key| !doubted.contains(key));
        }
        other
    }

    /// Sets the actual value of one key, after a write or a read. `None` means that the entry is
    /// absent.
    pub fn set_actual(&mut self, key: &K, actual: Option<V>) {
        match (self.rows.get_mut(key), actual) {
            (Some(row), actual) => row.set_actual(actual),
            (None, Some(actual)) => {
                self.rows.insert(key.clone(), Row::of_actual(actual));
            }
            (None, None) => {}
        }
        self.settle(key);
    }

    /// Returns the wanted value of a key, or `None` if no owner claims the key.
    pub fn wanted(&self, key: &K) -> Option<&V> {
        self.rows.get(key)?.wanted()
    }

    /// Returns the actual value of a key, or `None` if the entry is absent.
    pub fn actual(&self, key: &K) -> Option<&V> {
        self.rows.get(key)?.actual()
    }

    /// Returns the owners that claim a key, sorted. The first owner's value is wanted.
    pub fn owners(&self, key: &K) -> impl Iterator<Item = &O> {
        let row = self.rows.get(key).into_iter();
        row.flat_map(Row::owners)
    }

    /// Returns the owner whose value is wanted for a key.
    pub fn owner(&self, key: &K) -> Option<&O> {
        self.rows.get(key)?.owners().next()
    }

    /// Returns all keys that an owner claims, including keys for which another owner's value is
    /// wanted.
    pub fn keys_of(&self, owner: &O) -> &[K] {
        self.keys_of.get(owner).map_or(&[], |keys| keys)
    }

    /// Returns the pending keys that the caller may write now, unordered.
    pub fn due(&self, now: Instant) -> impl Iterator<Item = &K> {
        self.pending()
            .filter(move |key| self.retries.get(*key).is_none_or(|retry| retry.due <= now))
    }

    /// Returns true if a key is pending and does not wait for a retry.
    pub fn is_due(&self, key: &K, now: Instant) -> bool {
        let retry = self.retries.get(key);
        self.is_pending(key) && retry.is_none_or(|retry| retry.due <= now)
    }

    /// Returns all pending keys, unordered, including those that wait for a retry.
    pub fn pending(&self) -> impl Iterator<Item = &K> {
        let (listed, rows) = match &self.pending {
            PendingRows::Listed(keys) => (Some(keys), None),
            PendingRows::Counted(_) => (None, Some(&self.rows)),
        };
        let counted = rows.into_iter().flatten();
        let counted = counted.filter_map(|(key, row)| row.is_pending.then_some(key));
        listed.into_iter().flatten().chain(counted)
    }

    /// Returns true if the wanted value of a key differs from the actual value.
    pub fn is_pending(&self, key: &K) -> bool {
        self.rows.get(key).is_some_and(|row| row.is_pending)
    }

    /// Returns true if a key waits for a retry: its last write failed, or had an unknown outcome.
    pub fn is_failing(&self, key: &K) -> bool {
        !self.retries.is_empty() && self.retries.contains_key(key)
    }

    /// Returns true if the actual value of a key is unknown: its last write had an [unknown
    /// outcome](Self::doubt), and no dump followed.
    pub fn is_doubted(&self, key: &K) -> bool {
        let is_doubted = |retry: &Retry| retry.is_until_observed;
        !self.retries.is_empty() && self.retries.get(key).is_some_and(is_doubted)
    }

    /// Returns true if the last write of a key failed for a [reason that concerns only this
    /// key](Self::excuse).
    pub fn is_excused(&self, key: &K) -> bool {
        self.is_failing(key) && self.rows.get(key).is_some_and(|row| row.since == 0)
    }

    /// Returns the number of pending keys, including those that wait for a retry.
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// Returns the number of keys whose last write failed or had an unknown outcome.
    pub fn failing_len(&self) -> usize {
        self.retries.len()
    }

    /// Returns the number of keys that have a wanted value, an actual value, or both.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the number of keys whose actual value equals the wanted value.
    pub fn as_wanted_len(&self) -> usize {
        // Every row has a wanted or an actual value. So a row that is not pending has both, and
        // they are equal.
        self.rows.len() - self.pending.len()
    }

    /// Returns the number of keys with a wanted value.
    pub fn wanted_len(&self) -> usize {
        self.wanted_len
    }

    /// Returns true if owners claim at least one key, but none of the claimed keys has an actual
    /// value.
    pub fn lacks_all_wanted(&self) -> bool {
        let is_lacking = |row: &Row<V, O>| row.wanted().is_none() || row.actual().is_none();
        self.wanted_len > 0 && self.as_wanted_len() == 0 && self.rows.values().all(is_lacking)
    }

    /// Returns true if no key has a wanted or an actual value.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the keys that several owners claim, each with all claims, sorted by owner. The first
    /// claim is wanted.
    pub fn contested(&self) -> impl Iterator<Item = (&K, &[(O, V)])> {
        self.contested
            .iter()
            .filter_map(|key| Some((key, self.rows.get(key)?.contest())))
    }

    /// Returns a number that changes whenever the keys of [`contested`](Self::contested) or their
    /// owners may change.
    pub fn contested_version(&self) -> u64 {
        self.contested_version
    }

    /// Returns all wanted entries, unordered.
    pub fn iter_wanted(&self) -> impl Iterator<Item = (&K, &V)> {
        self.rows
            .iter()
            .filter_map(|(key, row)| row.wanted().map(|value| (key, value)))
    }

    /// Returns all actual entries, unordered.
    pub fn iter_actual(&self) -> impl Iterator<Item = (&K, &V)> {
        self.rows
            .iter()
            .filter_map(|(key, row)| row.actual().map(|value| (key, value)))
    }
}

#[cfg(test)]
mod tests;
