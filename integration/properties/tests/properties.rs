//! Runs a limited number of random event sequences, and all saved event sequences.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::time::Duration;

use properties::action::history;
use properties::campaign::{Campaign, Ground, family, go};
use properties::modes::FORMS;
use properties::regressions;
use properties::run::run;
use properties::stepped_threads::Threads;

#[test]
fn saved_event_sequences_no_longer_fail() {
    let threads = Threads::start();
    for kept in regressions::read(&regressions::folder()).unwrap() {
        let ran = run(
            kept.form.subject(kept.family),
            &kept.actions,
            &threads,
            false,
        );
        assert_eq!(ran.failure, None, "{}", kept.path.display());
    }
}

#[test]
fn equal_seeds_give_equal_event_sequences() {
    let threads = Threads::start();
    for (seed, form) in (1..).zip(FORMS) {
        let actions = history(seed);
        let actions = actions.get(..30).unwrap();
        let again = || run(form.subject(family(seed)), actions, &threads, true);
        let (one, other) = (again(), again());
        assert_eq!(one.log, other.log, "{}", form.name);
        assert_eq!((one.trace, one.failure), (other.trace, other.failure));
    }
}

#[test]
fn random_event_sequences_violate_no_property_in_each_mode() {
    let campaign = Campaign {
        histories: 250,
        limit: Some(Duration::from_secs(15)),
        seed: 1,
        forms: FORMS.iter().collect(),
        ground: Ground::Fakes,
    };
    let account = go(&campaign, &Threads::start());
    if let Some(failed) = account.failed {
        panic!("{failed}");
    }
    assert!(account.histories > 0);
}
