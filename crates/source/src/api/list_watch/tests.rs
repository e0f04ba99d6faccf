use std::collections::BTreeSet;

use super::*;

#[test]
fn watch_durations_are_random() {
    let lengths: BTreeSet<_> = (0..1000).map(|_| any_of(WATCH_SECONDS)).collect();
    assert!(lengths.iter().all(|length| WATCH_SECONDS.contains(length)));
    assert!(lengths.len() > 50, "{lengths:?}");
    assert_eq!(any_of(7..=7), 7);
}

#[test]
fn a_list_older_than_the_last_seen_version_is_rejected() {
    let age = |version: &str| Age::NotOlderThan(version.to_owned());
    assert!(is_older(&age("10"), Some("9")));
    for (age, version) in [
        (age("10"), Some("10")),
        (age("9"), Some("10")),
        (age("10"), None),
        (age("10"), Some("a")),
        (Age::Newest, Some("1")),
        (Age::Any, Some("1")),
    ] {
        assert!(!is_older(&age, version));
    }
}
