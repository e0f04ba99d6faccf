//! The table: claims, what is there, and what is pending.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use hashbrown::hash_map::Entry;
use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;

use crate::row::Row;

/// The delay after a first failed write; it doubles with each further one.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// The longest delay between two tries.
const LAST_RETRY: Duration = Duration::from_secs(30);

/// Among so many keys each is compared with the others; more are hashed.
const FEW: usize = 8;
/// Rows that become pending within so long have been pending for equally long.
const GRAIN: Duration = Duration::from_millis(100);
/// So many pending keys are listed, whatever their part of all.
const MANY: usize = if cfg!(test) { 2 } else { 1024 };

/// Whether what is there and nobody wants counts as late.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Removals {
    /// It is to go.
    #[default]
    Late,
    /// It may not go yet, or need not.
    Excused,
}

/// What is wanted by whom, and what is there, for one kind of kernel entry.
#[derive(Debug)]
pub struct Table<K, V, O> {
    rows: HashMap<K, Row<V, O>>,
    keys_of: HashMap<O, Box<[K]>>,
    pending: Pending<K>,
    contested: HashSet<K>,
    contested_version: u64,
    retries: HashMap<K, Retry>,
    wanted_len: usize,
    /// The number of the time that is, and what it was when that began; 0 before a first one was
    /// told.
    epoch: (u32, Option<Instant>),
    /// How many rows have been pending since then, by the number of that time.
    since: BTreeMap<u32, (Instant, usize)>,
    /// Whether rows that nobody wants count for that, too.
    removals: Removals,
}

/// Which rows are pending. A list of nearly all, as at a start, would cost more than to look at
/// all.
#[derive(Debug)]
enum Pending<K> {
    Listed(HashSet<K>),
    /// So many; the rows say which.
    Counted(usize),
}

impl<K> Pending<K> {
    fn len(&self) -> usize {
        match self {
            Self::Listed(keys) => keys.len(),
            Self::Counted(count) => *count,
        }
    }
}

/// Where another value that is claimed comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    /// From whoever claims it.
    New,
    /// From what was written, or was found.
    Follows,
}

#[derive(Debug, Clone, Copy)]
struct Retry {
    failures: u32,
    due: Instant,
    /// Whether the next look at what is there makes it due.
    is_until_observed: bool,
}

impl<K, V, O> Default for Table<K, V, O> {
    fn default() -> Self {
        Self {
            rows: HashMap::new(),
            keys_of: HashMap::new(),
            pending: Pending::Listed(HashSet::new()),
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
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says what time it is: what becomes pending from now on has been so since then.
    pub fn begin(&mut self, now: Instant) {
        let (number, at) = self.epoch;
        if at.is_none_or(|at| now.saturating_duration_since(at) >= GRAIN) {
            self.epoch = (number.wrapping_add(1).max(1), Some(now));
        }
    }

    /// Since when the row has been pending that has been so for longest, to within a tenth of a
    /// second; rows that are [excused](Self::excuse) and those that became pending before a first
    /// [`begin`](Self::begin) are left out.
    pub fn pending_since(&self) -> Option<Instant> {
        self.since.first_key_value().map(|(_, (at, _))| *at)
    }

    /// Says whether what nobody wants counts for [`pending_since`](Self::pending_since): not while
    /// it may not be removed.
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

    /// Makes room for so many owners more, each with one entry.
    pub fn reserve(&mut self, owners: usize) {
        self.rows.reserve(owners);
        self.keys_of.reserve(owners);
    }

    /// Makes `entries` all that `owner` claims. Of two entries with one key the first counts. Costs
    /// O(entries of this owner).
    pub fn claim(&mut self, owner: &O, entries: impl IntoIterator<Item = (K, V)>) {
        let mut fresh: SmallVec<[(K, V); 2]> = SmallVec::new();
        let mut seen = HashSet::new();
        for (key, value) in entries {
            // An owner mostly has one entry, or few.
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
            self.set_claim(&key, owner, None, Wish::New);
        }
        for (key, value) in fresh {
            self.set_claim(&key, owner, Some(value), Wish::New);
        }
    }

    /// Drops all that `owner` claims.
    pub fn release(&mut self, owner: &O) {
        self.claim(owner, []);
    }

    /// Replaces the value that `owner` claims for one key, if it claims it.
    pub fn amend(&mut self, owner: &O, key: &K, value: V) {
        if self.is_claimed_by(key, owner) {
            self.set_claim(key, owner, Some(value), Wish::New);
        }
    }

    /// The same, for a value that follows from what was written, or was found: what failed of the one
    /// before fails with this one, too, so that its next try comes no sooner.
    pub fn adjust(&mut self, owner: &O, key: &K, value: V) {
        if self.is_claimed_by(key, owner) {
            self.set_claim(key, owner, Some(value), Wish::Follows);
        }
    }

    fn is_claimed_by(&self, key: &K, owner: &O) -> bool {
        let row = self.rows.get(key);
        row.is_some_and(|row| row.owners().any(|of| of == owner))
    }

    fn set_claim(&mut self, key: &K, owner: &O, value: Option<V>, wish: Wish) {
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
        // Who claims it is told, not what.
        if claims > 1 && claims != before {
            self.contested.insert(key.clone());
            self.contested_version += 1;
        } else if claims <= 1 && before > 1 {
            self.contested.remove(key);
            self.contested_version += 1;
        }
        let is_new = is_other && wish == Wish::New;
        // What failed was the old value: the new one deserves a try at once, unless nobody knows
        // what is there.
        if is_new && !self.is_doubted(key) {
            self.forgive(key);
        }
        self.settle(key);
        if is_new {
            self.recount(key);
        }
    }

    /// Restores the invariant for one key.
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
            (Pending::Listed(keys), false, true) => {
                keys.insert(key.clone());
            }
            (Pending::Listed(keys), true, false) => {
                keys.remove(key);
            }
            (Pending::Counted(count), false, true) => *count += 1,
            (Pending::Counted(count), true, false) => *count -= 1,
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

    /// Counts a pending row among those that have been so since now, unless it is counted already.
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

    /// The same for a row of which something else is wanted, or that counts otherwise, now.
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

    /// Counts when more than half of all rows are pending, and lists when less than an eighth is:
    /// between the two lie as many changes as it costs to go through the rows.
    fn list_or_count(&mut self) {
        let rows = self.rows.len();
        match &self.pending {
            Pending::Listed(keys) if keys.len() > MANY && keys.len() > rows / 2 => {
                self.pending = Pending::Counted(keys.len());
            }
            Pending::Counted(count) if *count <= MANY / 2 || *count < rows / 8 => {
                let rows = self.rows.iter().filter(|(_, row)| row.is_pending);
                self.pending = Pending::Listed(rows.map(|(key, _)| key.clone()).collect());
            }
            Pending::Listed(keys) if keys.is_empty() && keys.capacity() > MANY => {
                self.pending = Pending::Listed(HashSet::new());
            }
            _ => {}
        }
    }

    fn forgive(&mut self, key: &K) {
        // Hardly ever is there one, and to look costs a hash.
        if !self.retries.is_empty() {
            self.retries.remove(key);
        }
    }

    /// Takes a dump for what is there: keys it does not hold are not there. Returns the keys of
    /// which something else was believed, without doubt.
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

    /// Says what is now there for one key, after a write or a look at it.
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

    /// Says that the write of a key failed: it stays pending, and is due again after a delay that
    /// doubles each time.
    pub fn fail(&mut self, key: &K, now: Instant) {
        self.put_off(key, now, false);
        self.count_in(key);
    }

    /// The same for a key that cannot be written for a reason of its own: it does not count for
    /// [`pending_since`](Self::pending_since) until something else is wanted for it.
    pub fn excuse(&mut self, key: &K, now: Instant) {
        self.put_off(key, now, false);
        if let Some(row) = self.rows.get_mut(key) {
            let since = std::mem::take(&mut row.since);
            self.count_out(since);
        }
    }

    /// Says that nobody knows whether a key was written: it is due again when that was [looked
    /// at](Self::observe), or after a delay as any that failed.
    pub fn doubt(&mut self, key: &K, now: Instant) {
        self.put_off(key, now, true);
    }

    fn put_off(&mut self, key: &K, now: Instant, is_until_observed: bool) {
        if !self.is_pending(key) {
            return;
        }
        let retry = self.retries.entry(key.clone()).or_insert(Retry {
            failures: 0,
            due: now,
            is_until_observed,
        });
        retry.is_until_observed = is_until_observed;
        let delay = FIRST_RETRY
            .saturating_mul(1 << retry.failures.min(16))
            .min(LAST_RETRY);
        retry.failures = retry.failures.saturating_add(1);
        retry.due = now + delay;
    }

    /// The value wanted for a key.
    pub fn wanted(&self, key: &K) -> Option<&V> {
        self.rows.get(key)?.wanted()
    }

    /// The value that is there.
    pub fn actual(&self, key: &K) -> Option<&V> {
        self.rows.get(key)?.actual()
    }

    /// All who claim a key, the one whose claim is the wanted value first.
    pub fn owners(&self, key: &K) -> impl Iterator<Item = &O> {
        let row = self.rows.get(key).into_iter();
        row.flat_map(Row::owners)
    }

    /// Whose claim is the wanted value.
    pub fn owner(&self, key: &K) -> Option<&O> {
        self.rows.get(key)?.owners().next()
    }

    /// The keys that an owner claims, whether or not it wins them.
    pub fn keys_of(&self, owner: &O) -> &[K] {
        self.keys_of.get(owner).map_or(&[], |keys| keys)
    }

    /// Keys whose wanted value is not the actual one and whose next try is due, in no order.
    pub fn due(&self, now: Instant) -> impl Iterator<Item = &K> {
        self.pending()
            .filter(move |key| self.retries.get(*key).is_none_or(|retry| retry.due <= now))
    }

    /// Whether a key is one of those.
    pub fn is_due(&self, key: &K, now: Instant) -> bool {
        let retry = self.retries.get(key);
        self.is_pending(key) && retry.is_none_or(|retry| retry.due <= now)
    }

    /// Keys whose wanted value is not the actual one, due or not, in no order.
    pub fn pending(&self) -> impl Iterator<Item = &K> {
        let (listed, rows) = match &self.pending {
            Pending::Listed(keys) => (Some(keys), None),
            Pending::Counted(_) => (None, Some(&self.rows)),
        };
        let counted = rows.into_iter().flatten();
        let counted = counted.filter_map(|(key, row)| row.is_pending.then_some(key));
        listed.into_iter().flatten().chain(counted)
    }

    /// Whether the wanted value of a key is not the actual one.
    pub fn is_pending(&self, key: &K) -> bool {
        self.rows.get(key).is_some_and(|row| row.is_pending)
    }

    /// Whether a key could not be written when that was last tried.
    pub fn is_failing(&self, key: &K) -> bool {
        !self.retries.is_empty() && self.retries.contains_key(key)
    }

    /// Whether nobody knows what is there for a key, as its last write was [doubted](Self::doubt), and it
    /// was not looked at since.
    pub fn is_doubted(&self, key: &K) -> bool {
        let is_doubted = |retry: &Retry| retry.is_until_observed;
        !self.retries.is_empty() && self.retries.get(key).is_some_and(is_doubted)
    }

    /// Whether a key could not be written for a [reason of its own](Self::excuse) when that was
    /// last tried.
    pub fn is_excused(&self, key: &K) -> bool {
        self.is_failing(key) && self.rows.get(key).is_some_and(|row| row.since == 0)
    }

    /// How many keys are pending, due or not.
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// How many pending keys could not be written when that was last tried.
    pub fn failing_len(&self) -> usize {
        self.retries.len()
    }

    /// How many keys are wanted, there, or both.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// How many keys are there as they are wanted.
    pub fn as_wanted_len(&self) -> usize {
        // A row of which nothing is wanted nor there is none.
        self.rows.len() - self.pending.len()
    }

    /// How many keys are wanted.
    pub fn wanted_len(&self) -> usize {
        self.wanted_len
    }

    /// Whether entries are wanted, and nothing is there for any of them.
    pub fn lacks_all_wanted(&self) -> bool {
        let is_lacking = |row: &Row<V, O>| row.wanted().is_none() || row.actual().is_none();
        self.wanted_len > 0 && self.as_wanted_len() == 0 && self.rows.values().all(is_lacking)
    }

    /// Whether nothing is wanted and nothing is there.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// When the next failed write is due again, of those that are not due yet.
    pub fn next_retry(&self, now: Instant) -> Option<Instant> {
        let times = self.retries.values().map(|retry| retry.due);
        times.filter(|due| *due > now).min()
    }

    /// Keys that more than one owner claims, with the claims, the winner's first.
    pub fn contested(&self) -> impl Iterator<Item = (&K, &[(O, V)])> {
        self.contested
            .iter()
            .filter_map(|key| Some((key, self.rows.get(key)?.contest())))
    }

    /// Another number than before if [`contested`](Self::contested) may tell something else.
    pub fn contested_version(&self) -> u64 {
        self.contested_version
    }

    /// All that is wanted, in no order.
    pub fn iter_wanted(&self) -> impl Iterator<Item = (&K, &V)> {
        self.rows
            .iter()
            .filter_map(|(key, row)| row.wanted().map(|value| (key, value)))
    }

    /// All that is there, in no order.
    pub fn iter_actual(&self) -> impl Iterator<Item = (&K, &V)> {
        self.rows
            .iter()
            .filter_map(|(key, row)| row.actual().map(|value| (key, value)))
    }
}

#[cfg(test)]
mod tests;
