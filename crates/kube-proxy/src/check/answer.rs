//! Result of `kube-proxy check`, and the formats in which it is printed.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;
use view::shown;

use super::counts::{LISTED_PER_KIND, Listed, table};
use super::finding::{self, Finding, Status};
use super::foresee::StartForecast;
use super::migration::Migration;
use crate::config::question::Output;

/// Result of the check. In JSON and YAML, the result has these fields:
///
/// - `preflight`: the findings; always present;
/// - `wouldChange`, `whole`, `warnings`, `writes` (by `node`, `IPv4` and `IPv6`), `changes`, `kept`
///   and `forms`: the forecast. Of each change, `of` is the IP family or `node`, and `write`
///   describes the change;
/// - `error`: the reason why there is no forecast; replaces the fields of the forecast;
/// - `migration`: present if a kube-proxy has programmed the node.
#[derive(Debug, Serialize)]
pub(super) struct CheckResult {
    #[serde(flatten)]
    pub(super) foreseen: Option<StartForecast>,
    /// Reason why the forecast is missing, or `None` if a forecast exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    pub(super) preflight: Vec<Finding>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) migration: Option<Migration>,
}

impl CheckResult {
    /// Reports whether a start would fail: there is no forecast, or a preflight check fails.
    pub(super) fn fails(&self) -> bool {
        self.error.is_some()
            || self
                .preflight
                .iter()
                .any(|finding| finding.status == Status::Fail)
    }

    pub(super) fn render(&self, output: Output) -> Result<String> {
        Ok(match output {
            Output::Text => self.lines(LISTED_PER_KIND),
            Output::Wide => self.lines(usize::MAX),
            Output::Json => serde_json::to_string_pretty(self)? + "\n",
            Output::Yaml => serde_saphyr::to_string(self)?,
        })
    }

    /// Formats the result as text, with at most `most` changes of each kind.
    fn lines(&self, most: usize) -> String {
        let mut text = String::new();
        if let Some(foreseen) = &self.foreseen {
            self.changes(foreseen, most, &mut text);
        }
        text.push_str("\nPreflight\n");
        text.push_str(&finding::lines(&self.preflight));
        if let Some(migration) = &self.migration {
            text.push_str("\nMigration\n");
            text.push_str(&migration.lines());
        }
        text
    }

    fn changes(&self, foreseen: &StartForecast, most: usize, text: &mut String) {
        let StartForecast {
            warnings, changes, ..
        } = foreseen;
        let is_told = |warning: &&String| {
            let mut findings = self.preflight.iter();
            !findings.any(|finding| finding.message == **warning)
        };
        for warning in warnings.iter().filter(is_told) {
            let _ = writeln!(text, "warning  {}", shown(warning));
        }
        let mut listed = Listed::default();
        for change in changes {
            let number = listed.count(change);
            if number <= most {
                let _ = writeln!(text, "{:<7}  {}", change.of, shown(&change.write));
            } else if number == most.saturating_add(1) {
                let _ = writeln!(text, "{:<7}  more {}: see -o wide", change.of, change.kind);
            }
        }
        if changes.is_empty() {
            let _ = writeln!(text, "nothing would change{}", foreseen.as_far_as_known());
            return;
        }
        let _ = write!(text, "\n{}", table(changes));
        let _ = match changes.len() {
            1 => writeln!(text, "1 change; nothing was written"),
            count => writeln!(text, "{count} changes; nothing was written"),
        };
    }
}

#[cfg(test)]
mod tests {
    use modes::preview::{Action, Change};

    use super::*;
    use crate::check::tests::foreseen;

    fn answer(changes: Vec<Change>) -> CheckResult {
        CheckResult {
            foreseen: Some(foreseen(changes)),
            error: None,
            preflight: vec![Finding::ok("modules", "available: ip_vs")],
            migration: None,
        }
    }

    fn member(port: u16) -> Change {
        Change {
            write: format!("add {port} to set KUBE-NODE-PORT-TCP"),
            ..crate::check::tests::change("set members", Action::Add, "KUBE-NODE-PORT-TCP 80")
        }
    }

    #[test]
    fn control_characters_in_findings_do_not_reach_the_terminal() {
        let ill = "\x1b[2J\n".to_owned();
        let mut answer = answer(vec![Change {
            write: ill.clone(),
            ..member(80)
        }]);
        answer.preflight = vec![Finding::warn("ports", ill.clone())];
        answer.foreseen.as_mut().unwrap().warnings = vec![format!("!{ill}")];
        let text = answer.render(Output::Text).unwrap();
        assert_eq!(text.matches("\u{fffd}[2J\u{fffd}\n").count(), 3, "{text}");
        assert!(!text.contains('\x1b'));
    }

    #[test]
    fn a_check_result_is_rendered_in_each_format() {
        let render = |answer: &CheckResult, output| answer.render(output).unwrap();
        let none = answer(Vec::new());
        assert_eq!(
            render(&none, Output::Text),
            "warning  look\nnothing would change\n\nPreflight\n[ok]   modules: available: ip_vs\n"
        );
        let one = answer(vec![member(80)]);
        assert_eq!(
            render(&one, Output::Text),
            "warning  look\nIPv4     add 80 to set KUBE-NODE-PORT-TCP\n\n\
             \x20                            add  change  remove\n\
             IPv4     set members           1       0       0\n1 change; nothing was written\n\
             \nPreflight\n[ok]   modules: available: ip_vs\n"
        );
        let wanted = serde_json::json!({
            "wouldChange": true,
            "whole": true,
            "warnings": ["look"],
            "writes": {"IPv4": 1},
            "changes": [{
                "of": "IPv4",
                "kind": "set members",
                "action": "add",
                "write": "add 80 to set KUBE-NODE-PORT-TCP",
                "lane": "services",
                "entry": "KUBE-NODE-PORT-TCP 80",
            }],
            "kept": [],
            "preflight": [{"name": "modules", "status": "ok", "message": "available: ip_vs"}],
        });
        let json: serde_json::Value = serde_json::from_str(&render(&one, Output::Json)).unwrap();
        let yaml: serde_json::Value = serde_saphyr::from_str(&render(&one, Output::Yaml)).unwrap();
        assert_eq!((&json, &yaml), (&wanted, &wanted));
    }

    #[test]
    fn a_check_lists_the_first_of_many_changes_and_counts_all() {
        let many = answer((1..=1000).map(member).collect());
        let text = many.render(Output::Text).unwrap();
        assert_eq!(
            text.matches("to set KUBE-NODE-PORT-TCP").count(),
            LISTED_PER_KIND
        );
        assert_eq!(text.matches("more set members: see -o wide").count(), 1);
        assert!(
            text.contains("set members        1000       0       0\n1000 changes;"),
            "{text}"
        );
        let wide = many.render(Output::Wide).unwrap();
        assert_eq!(wide.matches("to set KUBE-NODE-PORT-TCP").count(), 1000);
    }

    #[test]
    fn a_check_fails_if_the_kernel_is_unreadable_or_a_preflight_check_fails() {
        let mut answer = answer(Vec::new());
        assert!(!answer.fails());
        answer.preflight.push(Finding::warn("ports", "taken"));
        assert!(!answer.fails());
        answer.preflight.push(Finding::fail("scheduler", "look"));
        assert!(answer.fails());
        let text = answer.render(Output::Text).unwrap();
        assert_eq!(
            text.matches("look").count(),
            1,
            "once, where it fails: {text}"
        );
        let unread = CheckResult {
            foreseen: None,
            error: Some("no IPVS".to_owned()),
            preflight: Vec::new(),
            migration: None,
        };
        assert!(unread.fails());
        let json = unread.render(Output::Json).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            json,
            serde_json::json!({"error": "no IPVS", "preflight": []})
        );
    }
}
