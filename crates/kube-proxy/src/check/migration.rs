//! Effects of a start on a node that a kube-proxy (upstream's or this one) has already programmed:
//! kept, changed and removed entries, and the effect on open connections.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use modes::preview::{Action, CurrentEntryCount, OTHER_MODES};
use serde::Serialize;
use view::shown;

use super::foresee::StartForecast;

/// Effects of a start on the entries of an earlier kube-proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Migration {
    /// Modes that have programmed this node.
    pub(super) from: Vec<&'static str>,
    /// Mode that kube-proxy would choose at its start.
    pub(super) to: &'static str,
    /// Numbers of entries that already have their desired state. The start keeps these entries.
    pub(super) kept: Vec<CurrentEntryCount>,
    /// Number of entries that the start adds, by kind.
    pub(super) added: BTreeMap<&'static str, usize>,
    /// Number of entries that the start changes, by kind.
    pub(super) changed: BTreeMap<&'static str, usize>,
    /// Number of entries that the start removes, by kind, without leftovers of other modes.
    pub(super) removed: BTreeMap<&'static str, usize>,
    /// Leftovers of other modes. The daemon removes the leftovers once the chosen mode serves.
    pub(super) left: Vec<String>,
    /// Effect of the start on open connections, as text for the operator.
    pub(super) connections: &'static str,
}

impl Migration {
    /// Creates the report from the modes that have programmed the node, the chosen mode and the
    /// forecast. Returns `None` if no kube-proxy has programmed the node.
    pub(super) fn report(
        from: Vec<&'static str>,
        to: &'static str,
        foreseen: &StartForecast,
    ) -> Option<Self> {
        if from.is_empty() {
            return None;
        }
        let mut counts: [BTreeMap<&'static str, usize>; 3] = Default::default();
        let [added, changed, removed] = &mut counts;
        let mut left = Vec::new();
        for change in &foreseen.changes {
            let count = match change.action {
                _ if change.kind == OTHER_MODES => {
                    left.push(format!("{}: {}", change.of, change.entry));
                    continue;
                }
                Action::Add => &mut *added,
                Action::Change => &mut *changed,
                Action::Remove => &mut *removed,
            };
            *count.entry(change.kind).or_default() += 1;
        }
        let [added, changed, removed] = counts;
        let kept = foreseen.kept.iter().filter(|kept| kept.entries > 0);
        Some(Self {
            kept: kept.cloned().collect(),
            added,
            changed,
            removed,
            left,
            connections: connections(&from, to),
            from,
            to,
        })
    }

    /// Renders the migration report as lines of text.
    pub(super) fn lines(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "Programmed by: {} (upstream's kube-proxy or this one); to be served by: {}",
            self.from.join(", "),
            self.to
        );
        let kept: Vec<String> = self
            .kept
            .iter()
            .map(|CurrentEntryCount { of, part, entries }| {
                let part = part.strip_prefix("the ").unwrap_or(part);
                // Prints no number for the rules of IPVS mode (the shim). They count as one entry,
                // because a single write contains all of them.
                match entries {
                    1 if part.starts_with("rules") => format!("{of} {part}"),
                    _ => format!("{of} {part} {entries}"),
                }
            })
            .collect();
        let counts = |of: &BTreeMap<&'static str, usize>| {
            let counts = of.iter().map(|(kind, count)| format!("{count} {kind}"));
            counts.collect::<Vec<_>>()
        };
        for (what, told) in [
            ("stays as it is", kept),
            ("is made", counts(&self.added)),
            ("is changed", counts(&self.changed)),
            ("is removed", counts(&self.removed)),
            ("is removed once this mode serves", self.left.clone()),
        ] {
            if !told.is_empty() {
                let _ = writeln!(text, "  {what}: {}", shown(&told.join(", ")));
            }
        }
        let _ = writeln!(text, "  connections: {}", self.connections);
        text
    }
}

/// Describes how a change to mode `to` affects connections that the modes in `from` opened.
fn connections(from: &[&str], to: &str) -> &'static str {
    if from.contains(&"userspace") {
        "connections of userspace mode end with its process; all others continue"
    } else if from.contains(&"ipvs") && to != "ipvs" {
        "open ones go on; IPVS keeps its own until they end or --ipvs-drain-timeout is over; new \
         ones are served throughout"
    } else if from.contains(&to) {
        "open ones go on, and new ones are served throughout"
    } else {
        "open ones go on, as connection tracking holds them; new ones are served throughout"
    }
}

#[cfg(test)]
mod tests {
    use modes::preview::Change;

    use super::*;
    use crate::check::tests::{change, foreseen};

    fn report(from: &[&'static str], to: &'static str, changes: Vec<Change>) -> Option<Migration> {
        let mut foreseen = foreseen(changes);
        foreseen.kept = vec![
            CurrentEntryCount {
                of: "IPv4".to_owned(),
                part: "the virtual servers",
                entries: 12,
            },
            CurrentEntryCount {
                of: "IPv6".to_owned(),
                part: "the virtual servers",
                entries: 0,
            },
        ];
        Migration::report(from.to_vec(), to, &foreseen)
    }

    #[test]
    fn a_migration_report_counts_kept_changed_and_removed_entries() {
        assert_eq!(report(&[], "ipvs", Vec::new()), None);
        let changes = vec![
            change("rules", Action::Add, "a"),
            change("rules", Action::Add, "b"),
            change("destinations", Action::Change, "c"),
            change("set members", Action::Remove, "d"),
            change(
                OTHER_MODES,
                Action::Remove,
                "12 chains of the iptables mode",
            ),
        ];
        let report = report(&["ipvs", "iptables"], "ipvs", changes).unwrap();
        assert_eq!(
            report.lines(),
            "Programmed by: ipvs, iptables (upstream's kube-proxy or this one); to be served by: \
             ipvs\n\
             \x20 stays as it is: IPv4 virtual servers 12\n\
             \x20 is made: 2 rules\n\
             \x20 is changed: 1 destinations\n\
             \x20 is removed: 1 set members\n\
             \x20 is removed once this mode serves: IPv4: 12 chains of the iptables mode\n\
             \x20 connections: open ones go on, and new ones are served throughout\n"
        );
    }

    #[test]
    fn only_connections_through_userspace_mode_end_with_a_mode_change() {
        let told = |from: &[&'static str], to| report(from, to, Vec::new()).unwrap().connections;
        for (from, to) in [
            ("ipvs", "ipvs"),
            ("iptables", "ipvs"),
            ("nftables", "iptables"),
            ("iptables", "nftables"),
        ] {
            assert!(
                told(&[from], to).starts_with("open ones go on"),
                "{from} {to}"
            );
        }
        for to in ["iptables", "nftables", "userspace"] {
            assert!(told(&["ipvs"], to).contains("IPVS keeps its own"), "{to}");
        }
        assert!(told(&["userspace"], "ipvs").contains("with its process"));
    }
}
