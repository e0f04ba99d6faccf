use std::sync::Arc;

use super::retries::{FIRST_RETRY, LAST_RETRY};
use super::*;
use proptest::prelude::*;

type T = Table<u8, u8, u8>;

fn due(table: &T, now: Instant) -> Vec<u8> {
    let mut keys: Vec<_> = table.due(now).copied().collect();
    keys.sort_unstable();
    keys
}

#[test]
fn the_version_of_contested_keys_changes_only_with_their_owners() {
    let mut table = T::new();
    table.claim(&1, [(7, 1)]);
    let alone = table.contested_version();
    table.claim(&2, [(7, 2)]);
    let both = table.contested_version();
    assert_ne!(alone, both);
    table.claim(&1, [(7, 3)]);
    table.claim(&2, [(7, 4)]);
    assert_eq!(table.contested_version(), both);
    table.release(&1);
    assert_ne!(table.contested_version(), both);
    assert_eq!(table.contested().count(), 0);
}

#[test]
fn the_smallest_owner_of_a_key_wins_until_it_releases_the_key() {
    let mut table = T::new();
    table.claim(&2, [(1, 20)]);
    table.claim(&1, [(1, 10)]);
    assert_eq!((table.wanted(&1), table.owner(&1)), (Some(&10), Some(&1)));
    assert_eq!(table.contested().count(), 1);
    table.release(&1);
    assert_eq!(
        (table.wanted(&1), table.contested().count()),
        (Some(&20), 0)
    );
}

#[test]
fn retries_of_a_failed_write_back_off_until_the_wanted_value_changes() {
    let now = Instant::now();
    let mut table = T::new();
    table.claim(&1, [(1, 1), (2, 2)]);
    table.fail(&1, now);
    assert_eq!(due(&table, now), [2]);
    assert_eq!(table.next_retry(now), Some(now + FIRST_RETRY));
    assert_eq!(table.next_retry(now + FIRST_RETRY), None, "it is due");
    assert_eq!(due(&table, now + FIRST_RETRY), [1, 2]);
    table.fail(&1, now);
    assert_eq!(table.next_retry(now), Some(now + FIRST_RETRY * 2));
    for _ in 0..100 {
        table.fail(&1, now);
    }
    assert_eq!(table.next_retry(now), Some(now + LAST_RETRY));
    table.adjust(&1, &1, 4);
    assert_eq!(table.next_retry(now), Some(now + LAST_RETRY));
    table.claim(&1, [(1, 3), (2, 2)]);
    assert_eq!(due(&table, now), [1, 2]);
}

#[test]
fn drift_becomes_pending_and_removed_unwanted_entries_are_forgotten() {
    let now = Instant::now();
    let mut table = T::new();
    table.claim(&1, [(1, 1)]);
    table.set_actual(&1, Some(1));
    assert_eq!(table.pending_len(), 0);
    assert_eq!(table.observe([(1, 9), (7, 7)]), [1, 7]);
    assert_eq!(due(&table, now), [1, 7]);
    assert_eq!(table.observe([(1, 9), (7, 7)]), [0; 0]);
    table.set_actual(&7, None);
    table.set_actual(&1, Some(1));
    assert_eq!((table.pending_len(), table.rows.len()), (0, 1));
}

#[test]
fn a_value_that_is_wanted_and_actual_is_stored_once() {
    let mut table = Table::<u8, Arc<str>, u8>::new();
    table.claim(&1, [(1, "a".into())]);
    table.observe([(1, "a".into())]);
    let is_shared = |table: &Table<u8, Arc<str>, u8>| {
        let both = table.wanted(&1).zip(table.actual(&1));
        both.is_some_and(|(wanted, actual)| Arc::ptr_eq(wanted, actual))
    };
    assert!(is_shared(&table), "after a dump");
    table.claim(&1, [(1, "a".into())]);
    assert!(is_shared(&table), "after a claim of the same");
}

#[test]
fn pending_since_is_the_time_of_the_oldest_pending_row() {
    let start = Instant::now();
    let at = |count: u32| start + GRAIN * count;
    let mut table = T::new();
    table.begin(at(0));
    table.claim(&1, [(1, 1), (2, 2)]);
    table.begin(at(1).checked_sub(Duration::from_millis(1)).unwrap());
    table.claim(&2, [(3, 3)]);
    table.begin(at(1));
    table.claim(&3, [(4, 4)]);
    let since = |table: &T| table.pending_since();
    assert_eq!(since(&table), Some(at(0)));
    table.set_actual(&1, Some(1));
    table.excuse(&2, at(1));
    assert_eq!(since(&table), Some(at(0)), "the third came soon after");
    table.set_actual(&3, Some(3));
    assert_eq!(since(&table), Some(at(1)));
    table.fail(&4, at(1));
    assert_eq!(since(&table), Some(at(1)), "nothing excuses it");
    table.begin(at(2));
    table.claim(&3, [(4, 5)]);
    assert_eq!(since(&table), Some(at(1)), "it has not been there since");
    table.set_actual(&4, Some(5));
    assert_eq!((since(&table), table.pending_len()), (None, 1));
    table.begin(at(3));
    table.claim(&1, [(1, 1), (2, 3)]);
    assert_eq!(since(&table), Some(at(3)), "another origin is another try");
    table.claim(&1, []);
    assert_eq!(since(&table), Some(at(3)), "and what is to go is pending");
    table.set_actual(&1, None);
    assert_eq!(since(&table), None);
}

#[test]
fn removals_that_are_not_allowed_yet_do_not_count_as_overdue() {
    let now = Instant::now();
    let mut table = T::new();
    table.begin(now);
    table.count_removals(Removals::Excused);
    table.observe([(7, 7)]);
    table.claim(&1, [(1, 1)]);
    table.set_actual(&1, Some(1));
    table.release(&1);
    assert_eq!((table.pending_len(), table.pending_since()), (2, None));
    table.count_removals(Removals::Late);
    assert_eq!(table.pending_since(), Some(now));
    table.count_removals(Removals::Excused);
    assert_eq!(table.pending_since(), None);
}

#[test]
fn a_key_whose_write_has_an_unknown_outcome_waits_for_a_read_despite_new_claims() {
    let mut table = Table::new();
    let now = Instant::now();
    table.claim(&1, [(1, 1)]);
    table.doubt(&1, now);
    table.claim(&1, [(1, 2)]);
    assert_eq!(due(&table, now), []);
    table.observe([(1, 1)]);
    assert_eq!(due(&table, now), [1]);
    // After a failed write, a new claim makes the key due immediately.
    table.fail(&1, now);
    table.claim(&1, [(1, 3)]);
    assert_eq!(due(&table, now), [1]);
}

#[test]
fn an_entry_whose_write_has_an_unknown_outcome_is_retried_after_a_read() {
    let now = Instant::now();
    let mut table = T::new();
    table.claim(&1, [(1, 1), (2, 2)]);
    table.doubt(&1, now);
    table.fail(&2, now);
    assert_eq!(due(&table, now), [0; 0]);
    assert_eq!(table.observe([(7, 7)]), [7]);
    table.doubt(&7, now);
    assert_eq!(
        table.observe([]),
        [0; 0],
        "nobody believed that it was there"
    );
    assert_eq!(due(&table, now), [1]);
    table.doubt(&1, now);
    assert_eq!(due(&table, now + FIRST_RETRY), [1, 2]);
}

#[derive(Debug, Clone)]
enum Step {
    Begin(u64),
    Excuse(u8),
    Claim(u8, Vec<(u8, u8)>),
    Amend(u8, u8, u8),
    Adjust(u8, u8, u8),
    Observe(Vec<(u8, u8)>),
    SetActual(u8, Option<u8>),
    Fail(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let small = 0u8..6;
    let pairs = || proptest::collection::vec((0u8..6, 0u8..3), 0..5);
    prop_oneof![
        (small.clone(), pairs()).prop_map(|(o, e)| Step::Claim(o, e)),
        (small.clone(), small.clone(), 0u8..3).prop_map(|(o, k, v)| Step::Amend(o, k, v)),
        (small.clone(), small.clone(), 0u8..3).prop_map(|(o, k, v)| Step::Adjust(o, k, v)),
        pairs().prop_map(Step::Observe),
        (small.clone(), proptest::option::of(0u8..3)).prop_map(|(k, v)| Step::SetActual(k, v)),
        small.clone().prop_map(Step::Excuse),
        (0u64..300).prop_map(Step::Begin),
        small.prop_map(Step::Fail),
    ]
}

proptest! {
    /// Checks the invariant of [`Table`] after random steps, and compares the table with a simple
    /// model of claims and actual values.
    #[test]
    fn a_row_is_pending_if_wanted_and_actual_values_differ(steps in proptest::collection::vec(step(), 0..40)) {
        let mut now = Instant::now();
        let mut table = T::new();
        table.begin(now);
        let mut claims = BTreeMap::<(u8, u8), u8>::new();
        let mut actual = BTreeMap::<u8, u8>::new();
        for step in steps {
            let wanted_of = |claims: &BTreeMap<(u8, u8), u8>, key: u8| {
                claims.range((key, 0)..=(key, u8::MAX)).next().map(|(_, value)| *value)
            };
            match step {
                Step::Claim(owner, entries) => {
                    claims.retain(|(_, o), _| *o != owner);
                    for (key, value) in &entries {
                        claims.entry((*key, owner)).or_insert(*value);
                    }
                    table.claim(&owner, entries);
                }
                Step::Amend(owner, key, value) => {
                    claims.entry((key, owner)).and_modify(|v| *v = value);
                    table.amend(&owner, &key, value);
                }
                Step::Adjust(owner, key, value) => {
                    claims.entry((key, owner)).and_modify(|v| *v = value);
                    let was_failing = table.is_failing(&key);
                    table.adjust(&owner, &key, value);
                    let is_failing = table.is_failing(&key);
                    prop_assert_eq!(is_failing, was_failing && table.is_pending(&key));
                }
                Step::Observe(dump) => {
                    actual = dump.iter().copied().collect();
                    table.observe(dump);
                }
                Step::SetActual(key, value) => {
                    match value {
                        Some(value) => actual.insert(key, value),
                        None => actual.remove(&key),
                    };
                    table.set_actual(&key, value);
                }
                Step::Fail(key) => table.fail(&key, now),
                Step::Excuse(key) => table.excuse(&key, now),
                Step::Begin(millis) => {
                    now += Duration::from_millis(millis);
                    table.begin(now);
                }
            }
            let mut pending: Vec<u8> = table.pending().copied().collect();
            pending.sort_unstable();
            let differs = |key: &u8| wanted_of(&claims, *key) != actual.get(key).copied();
            prop_assert_eq!(&pending, &(0..6).filter(differs).collect::<Vec<_>>());
            prop_assert_eq!(table.pending_len(), pending.len());
            let counted = table.rows.values().filter(|row| row.since != 0);
            prop_assert!(counted.clone().all(|row| row.is_pending));
            let sum: usize = table.since.values().map(|(_, count)| count).sum();
            prop_assert_eq!(sum, counted.count());
            let wanted_len = (0..6).filter(|key| wanted_of(&claims, *key).is_some()).count();
            prop_assert_eq!(table.wanted_len(), wanted_len);
            let is_kept = |key: &u8| {
                let there = actual.get(key).copied();
                there.is_some() && wanted_of(&claims, *key) == there
            };
            prop_assert_eq!(table.as_wanted_len(), (0..6).filter(is_kept).count());
            for key in 0..6 {
                let wanted = wanted_of(&claims, key);
                prop_assert_eq!(table.wanted(&key).copied(), wanted);
                prop_assert_eq!(table.actual(&key).copied(), actual.get(&key).copied());
                prop_assert!(table.is_pending(&key) || !table.retries.contains_key(&key));
            }
        }
    }
}
