//! Functions that several tests of this module use.

use modes::preview::{Action, Change};

use super::diff::{Colour, render};
use super::finding::Finding;
use super::foresee::StartForecast;
use crate::config::question::Output;

/// Returns a change of an IPv4 entry, as the worker thread for virtual servers reports it.
pub(super) fn change(kind: &'static str, action: Action, entry: &str) -> Change {
    let verb = match action {
        Action::Add => "add",
        Action::Change => "change",
        Action::Remove => "remove",
    };
    Change {
        of: "IPv4".to_owned(),
        kind,
        action,
        write: format!("{verb} {entry}"),
        lane: "services",
        entry: entry.to_owned(),
        before: None,
        after: None,
        rules: Vec::new(),
        service: None,
    }
}

/// Returns the output of `kube-proxy diff` for these changes.
pub(crate) fn diff(changes: Vec<Change>) -> String {
    render(&foreseen(changes), Output::Text, Colour::Off).unwrap()
}

/// Returns a forecast with these changes and one warning.
pub(super) fn foreseen(changes: Vec<Change>) -> StartForecast {
    StartForecast {
        would_change: !changes.is_empty(),
        whole: true,
        warnings: vec!["look".to_owned()],
        writes: [("IPv4".to_owned(), changes.len())].into(),
        changes,
        kept: Vec::new(),
        forms: Vec::new(),
        guarded: Vec::new(),
        obstacles: Vec::new(),
        would_fail: false,
    }
}

#[test]
fn exit_status_0_means_no_change_and_all_objects_readable() {
    let one = || vec![change("rules", Action::Add, "one")];
    for (changes, whole, status) in [
        (Vec::new(), true, 0),
        (Vec::new(), false, 2),
        (one(), true, 1),
        (one(), false, 1),
    ] {
        let foreseen = StartForecast {
            whole,
            ..foreseen(changes)
        };
        assert_eq!(foreseen.status(), status, "{foreseen:?}");
    }
}

#[test]
fn exit_status_2_means_that_a_preflight_check_fails() {
    let findings = [
        Finding::warn("ports", "taken"),
        Finding::fail("scheduler", "look"),
        Finding::fail("modules", "missing"),
    ];
    for changes in [Vec::new(), vec![change("rules", Action::Add, "one")]] {
        let mut foreseen = foreseen(changes);
        foreseen.note_failures(&findings[..1]);
        assert_ne!(foreseen.status(), 2);
        foreseen.note_failures(&findings);
        assert_eq!(foreseen.status(), 2);
        // The forecast already has the warning `look`, so the finding about the scheduler adds no
        // second one.
        assert_eq!(foreseen.warnings, ["look", "modules: missing"]);
    }
}
