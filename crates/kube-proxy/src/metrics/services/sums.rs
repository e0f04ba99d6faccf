//! Sums of counters. A sum never falls, even if one of its counters disappears or restarts.
//!
//! A Service port has a counter at each of its addresses. A plain sum would fall when an address is
//! removed, or when its kernel entry is created again. A scraper would take the lower sum for a
//! restart from 0, and count the whole sum as new traffic.

use std::collections::HashMap;
use std::hash::Hash;

use service_counters::{At, Count, Listener};

/// Source of a count: an address or a listening port, each with its own counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// A service address and port, with the kernel's counter.
    At(At),
    /// A listening port of this process, with the relay's counter (userspace mode).
    Listener(Listener),
}

/// Sum of the counters of all sources of one Service port or endpoint.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    /// Sum of the counts of sources that were removed, or whose counters restarted from 0.
    past: Count,
    last: HashMap<Source, Count>,
    /// True if the last read contained a count of any source.
    is_told: bool,
}

impl Sum {
    /// Updates the sum with the counts of the last read, one for each source.
    pub(crate) fn update(&mut self, counts: &[(Source, Count)]) {
        let counts: HashMap<Source, Count> = counts.iter().copied().collect();
        for (source, last) in &self.last {
            let has_begun_anew = counts.get(source).is_none_or(|now| {
                now.connections < last.connections
                    || now.packets_in < last.packets_in
                    || now.bytes_in < last.bytes_in
            });
            if has_begun_anew {
                self.past.add(&Count {
                    active: None,
                    inactive: None,
                    persistent: None,
                    ..*last
                });
            }
        }
        self.last = counts;
        self.is_told = true;
    }

    /// Reports whether the sum includes past counts, which would be lost if the sum were removed.
    fn has_past(&self) -> bool {
        self.past != Count::default()
    }

    /// Returns the sum, or `None` if the last read had no count for it.
    pub(crate) fn told(&self) -> Option<Count> {
        self.is_told.then(|| self.count())
    }

    fn count(&self) -> Count {
        let mut sum = self.past;
        for count in self.last.values() {
            sum.add(count);
        }
        sum
    }
}

/// Updates all sums with the counts of the last read. The metrics omit a sum that has no count in
/// this read. A sum with past counts stays in memory if `may_return` is true for its key. Its value
/// then does not fall when the count returns.
pub(crate) fn update<K: Clone + Eq + Hash>(
    sums: &mut HashMap<K, Sum>,
    counted: &HashMap<K, Vec<(Source, Count)>>,
    may_return: impl Fn(&K) -> bool,
) {
    sums.retain(|key, sum| {
        sum.is_told = counted.contains_key(key);
        sum.is_told || (sum.has_past() && may_return(key))
    });
    for (key, counts) in counted {
        if let Some(sum) = sums.get_mut(key) {
            sum.update(counts);
        } else {
            let mut sum = Sum::default();
            sum.update(counts);
            sums.insert(key.clone(), sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use proxy::Protocol;

    use super::*;

    #[test]
    fn a_service_counter_never_decreases() {
        let at = |port| {
            Source::At(At {
                address: [10, 96, 0, 1].into(),
                port,
                protocol: Protocol::Tcp,
            })
        };
        let count = |connections, active| Count {
            connections,
            active: Some(active),
            ..Count::default()
        };
        let mut sum = Sum::default();
        sum.update(&[(at(1), count(10, 1)), (at(2), count(5, 2))]);
        assert_eq!(sum.count(), count(15, 3));
        // Source 2 is removed, and the counter of source 1 starts again.
        sum.update(&[(at(1), count(1, 1))]);
        assert_eq!(sum.count(), count(16, 1));
        sum.update(&[(at(1), count(3, 0)), (at(2), count(1, 1))]);
        assert_eq!(sum.count(), count(19, 1));
    }
}
