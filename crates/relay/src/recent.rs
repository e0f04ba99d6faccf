//! A bounded map of recently used entries.
//!
//! All entries have the same time to live, so they expire in the order of one queue. The use of an
//! entry only records the time. When a used entry reaches the head of the queue, the map moves the
//! entry to the end. So each call costs O(1), and the map needs no timer.

use std::collections::VecDeque;
use std::hash::Hash;
use std::time::{Duration, Instant};

use hashbrown::HashMap;

/// Number of entries at the head of the queue that each insertion examines. Each insertion adds one
/// entry, so each insertion must examine at least two entries. Otherwise, the queue could grow
/// without limit.
const LOOKS: usize = 2;

/// Number of recently used entries that one eviction may skip.
const CHANCES: usize = 16;

struct Entry<V> {
    value: V,
    used: Instant,
    /// Number that identifies the entry's current position in the queue.
    number: u64,
}

/// Position of an entry in the queue.
struct QueueEntry<K> {
    key: K,
    number: u64,
    /// Time of the entry's last use before the entry got this position.
    seen: Instant,
}

/// A bounded map of recently used entries.
pub(crate) struct Recent<K, V> {
    entries: HashMap<K, Entry<V>>,
    queue: VecDeque<QueueEntry<K>>,
    /// Time without a use after which an entry expires.
    ttl: Duration,
    most: usize,
    next: u64,
}

impl<K: Clone + Eq + Hash, V> Recent<K, V> {
    /// Creates an empty map for at most `most` entries, at least one. An entry expires `ttl` after
    /// its last use.
    pub(crate) fn new(ttl: Duration, most: usize) -> Self {
        Self {
            entries: HashMap::new(),
            queue: VecDeque::new(),
            ttl,
            most: most.max(1),
            next: 0,
        }
    }

    /// Returns the number of entries, including expired entries that were not removed yet.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the value of a key, and records the use. Returns `None` if the entry is missing or
    /// has expired.
    pub(crate) fn get(&mut self, key: &K, now: Instant) -> Option<&V> {
        if now.saturating_duration_since(self.used(key)?) >= self.ttl {
            self.entries.remove(key);
            return None;
        }
        let entry = self.entries.get_mut(key)?;
        entry.used = now;
        Some(&entry.value)
    }

    /// Returns the time at which a key was last used, or `None` if the map lacks the key.
    pub(crate) fn used(&self, key: &K) -> Option<Instant> {
        Some(self.entries.get(key)?.used)
    }

    /// Inserts a value. If the map is full, evicts approximately the entry that was idle longest.
    pub(crate) fn insert(&mut self, key: K, value: V, now: Instant) {
        self.look(now);
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.value = value;
            entry.used = now;
            return;
        }
        while self.entries.len() >= self.most {
            if !self.give_way() {
                break;
            }
        }
        let number = self.next;
        self.next += 1;
        self.queue.push_back(QueueEntry {
            key: key.clone(),
            number,
            seen: now,
        });
        let used = now;
        self.entries.insert(
            key,
            Entry {
                value,
                used,
                number,
            },
        );
    }

    /// Removes a key, and returns its value.
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        Some(self.entries.remove(key)?.value)
    }

    /// Removes all entries for which `keeps` returns false. O(n).
    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(&K, &V) -> bool) {
        self.entries.retain(|key, entry| keeps(key, &entry.value));
    }

    /// Evicts approximately the entry that was idle longest. Returns false if the map is empty.
    pub(crate) fn give_way(&mut self) -> bool {
        let mut chances = CHANCES;
        while let Some(mut place) = self.queue.pop_front() {
            let Some(entry) = self.entries.get(&place.key) else {
                continue;
            };
            if entry.number != place.number {
                continue;
            }
            if entry.used > place.seen && chances > 0 {
                chances -= 1;
                place.seen = entry.used;
                self.queue.push_back(place);
                continue;
            }
            self.entries.remove(&place.key);
            return true;
        }
        false
    }

    /// Examines entries at the head of the queue: removes expired entries, and moves used entries
    /// to the end.
    fn look(&mut self, now: Instant) {
        for _ in 0..LOOKS {
            let Some(mut place) = self.queue.pop_front() else {
                return;
            };
            let Some(entry) = self.entries.get(&place.key) else {
                continue;
            };
            if entry.number != place.number {
                continue;
            }
            if now.saturating_duration_since(entry.used) >= self.ttl {
                self.entries.remove(&place.key);
            } else if entry.used > place.seen {
                place.seen = entry.used;
                self.queue.push_back(place);
            } else {
                self.queue.push_front(place);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    #[test]
    fn used_entries_of_a_recent_map_stay_and_unused_entries_expire() {
        let (mut recent, start) = (Recent::new(TTL, 100), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        recent.insert("a", 1, start);
        recent.insert("b", 2, start);
        assert_eq!(recent.get(&"a", at(9)), Some(&1));
        assert_eq!(recent.get(&"a", at(18)), Some(&1));
        assert_eq!(recent.get(&"b", at(10)), None);
        recent.insert("c", 3, at(28));
        assert_eq!(recent.len(), 1, "a has ended, and is gone");
    }

    #[test]
    fn a_full_recent_map_evicts_the_longest_idle_entry() {
        let (mut recent, start) = (Recent::new(TTL, 3), Instant::now());
        for (at, key) in ["a", "b", "c"].into_iter().enumerate() {
            recent.insert(key, at, start);
        }
        let later = start + Duration::from_secs(1);
        recent.get(&"a", later);
        recent.insert("d", 3, later);
        assert_eq!(recent.len(), 3);
        assert_eq!(recent.get(&"b", later), None);
        assert_eq!(recent.get(&"a", later), Some(&0));
    }

    #[test]
    fn a_recent_map_stays_within_its_limits() {
        let (mut recent, start) = (Recent::new(TTL, 64), Instant::now());
        for number in 0..100_000_u32 {
            let now = start + Duration::from_millis(u64::from(number));
            recent.insert(number % 1_000, number, now);
            recent.get(&(number % 7), now);
            if number % 3 == 0 {
                recent.remove(&(number % 1_000));
            }
        }
        assert!(recent.entries.len() <= 64, "{}", recent.entries.len());
        assert!(recent.queue.len() <= 256, "{}", recent.queue.len());
    }
}
