//! Sums that never fall. A Service port is counted at each of its addresses; when one of these goes,
//! or its entry in the kernel is made anew, the sum over them would fall, and a scraper would take
//! that for a start at 0, and all of the rest for new.

use std::collections::HashMap;
use std::hash::Hash;

use service_counters::{At, Count, Listener};

/// Where something was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// At an address.
    At(At),
    /// At a listening port of this process.
    Listener(Listener),
}

/// What was counted at several places.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    /// At places that are gone, or began anew.
    past: Count,
    last: HashMap<Source, Count>,
    /// Whether anything was counted when that was last looked at.
    is_told: bool,
}

impl Sum {
    /// Takes in what was counted at all places there are.
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

    /// Whether it is more than what is counted now: without it, what is told would fall.
    fn has_past(&self) -> bool {
        self.past != Count::default()
    }

    /// The sum; `None` if nothing was counted when that was last looked at.
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

/// Brings sums up to what was counted now. Of others, those are kept that may be counted again and
/// would fall then, and are not told meanwhile.
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
    fn a_sum_never_falls() {
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
        // One is gone, and the other was made anew.
        sum.update(&[(at(1), count(1, 1))]);
        assert_eq!(sum.count(), count(16, 1));
        sum.update(&[(at(1), count(3, 0)), (at(2), count(1, 1))]);
        assert_eq!(sum.count(), count(19, 1));
    }
}
