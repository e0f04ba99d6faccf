//! Sums that never fall. A Service port is counted at each of its addresses; when one of these goes,
//! or its entry in the kernel is made anew, the sum over them would fall, and a scraper would take
//! that for a start at 0, and all of the rest for new.

use std::collections::HashMap;
use std::hash::Hash;

use crate::modes::counters::{At, Count};

/// Where something was counted; `None` where a mode counts by Service port.
pub(crate) type Source = Option<At>;

/// What was counted at several places.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    /// At places that are gone, or began anew.
    past: Count,
    last: HashMap<Source, Count>,
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
    }

    /// The sum.
    pub(crate) fn count(&self) -> Count {
        let mut sum = self.past;
        for count in self.last.values() {
            sum.add(count);
        }
        sum
    }
}

/// Brings sums up to what was counted now, and forgets those of which nothing was.
pub(crate) fn update<K: Clone + Eq + Hash>(
    sums: &mut HashMap<K, Sum>,
    counted: &HashMap<K, Vec<(Source, Count)>>,
) {
    sums.retain(|key, _| counted.contains_key(key));
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
            Some(At {
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
