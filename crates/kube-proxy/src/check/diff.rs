//! `kube-proxy diff`: compares the kernel with the desired state. Prints one line per entry.

use std::fmt::Write as _;

use anyhow::Result;
use modes::preview::{Action, Change};
use serde::Serialize;
use view::shown;

use super::foresee::StartForecast;
use crate::config::question::Output;

/// Use of colours in the output of `kube-proxy diff`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Colour {
    /// Coloured output, for a terminal.
    On,
    /// Plain output, for a pipe.
    Off,
}

/// Object that `kube-proxy diff` prints as JSON or YAML.
#[derive(Serialize)]
struct Difference<'a> {
    differs: bool,
    /// True if all objects could be read. Otherwise some differences may be missing.
    whole: bool,
    warnings: &'a [String],
    /// Variant of each IP family's entries, such as `IPv4: layout flat`. Empty in a mode with only
    /// one variant.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    forms: &'a [String],
    entries: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    /// Sign of a change: `-` removes, `+` adds, and `~` changes an entry.
    sign: char,
    #[serde(flatten)]
    change: &'a Change,
}

/// Renders the differences between the kernel and the desired state. Returns an empty text if there
/// are none.
///
/// # Errors
///
/// Fails if the differences cannot be converted to JSON or YAML.
pub(super) fn render(foreseen: &StartForecast, output: Output, colour: Colour) -> Result<String> {
    let difference = || Difference {
        differs: foreseen.would_change,
        whole: foreseen.whole,
        warnings: &foreseen.warnings,
        forms: &foreseen.forms,
        entries: sorted(&foreseen.changes)
            .map(|change| Entry {
                sign: sign(change),
                change,
            })
            .collect(),
    };
    Ok(match output {
        Output::Text | Output::Wide => lines(&foreseen.changes, colour),
        Output::Json => serde_json::to_string_pretty(&difference())? + "\n",
        Output::Yaml => serde_saphyr::to_string(&difference())?,
    })
}

/// Sorts changes by IP family and kind, and then by Service. Families and kinds keep their order of
/// first appearance.
fn sorted(changes: &[Change]) -> impl Iterator<Item = &Change> {
    let mut kinds: Vec<(&str, &str)> = Vec::new();
    let mut placed: Vec<(usize, &Change)> = Vec::new();
    for change in changes {
        let kind = (change.of.as_str(), change.kind);
        let place = kinds.iter().position(|known| *known == kind);
        let place = place.unwrap_or_else(|| {
            kinds.push(kind);
            kinds.len() - 1
        });
        placed.push((place, change));
    }
    // Uses a stable sort, so that changes of one Service stay in order.
    placed.sort_by_key(|(place, change)| (*place, &change.service));
    placed.into_iter().map(|(_, change)| change)
}

fn sign(change: &Change) -> char {
    match change.action {
        Action::Add => '+',
        Action::Change => '~',
        Action::Remove => '-',
    }
}

fn lines(changes: &[Change], colour: Colour) -> String {
    let mut text = String::new();
    let mut group = None;
    for change in sorted(changes) {
        let of = (change.of.as_str(), change.kind);
        if group.replace(of) != Some(of) {
            let gap = if text.is_empty() { "" } else { "\n" };
            let _ = writeln!(text, "{gap}{} {}", change.of, change.kind);
        }
        let (on, off) = match (colour, change.action) {
            (Colour::Off, _) => ("", ""),
            (Colour::On, Action::Add) => ("\x1b[32m", "\x1b[0m"),
            (Colour::On, Action::Change) => ("\x1b[33m", "\x1b[0m"),
            (Colour::On, Action::Remove) => ("\x1b[31m", "\x1b[0m"),
        };
        let _ = write!(text, "{on}{} {}", sign(change), shown(&change.entry));
        let [before, after] = [&change.before, &change.after].map(|of| of.as_deref().map(shown));
        let _ = match (before, after) {
            (Some(before), Some(after)) => write!(text, ": {before} => {after}"),
            (Some(one), None) | (None, Some(one)) => write!(text, " {one}"),
            (None, None) => Ok(()),
        };
        if let Some(service) = &change.service {
            let _ = write!(text, "   # {}", shown(service));
        }
        let _ = writeln!(text, "{off}");
        for rule in &change.rules {
            let _ = writeln!(text, "    {}", shown(rule));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tests::{change, foreseen};

    fn told(changes: Vec<Change>, colour: Colour) -> String {
        render(&foreseen(changes), Output::Text, colour).unwrap()
    }

    #[test]
    fn a_diff_without_changes_is_empty() {
        assert_eq!(told(Vec::new(), Colour::Off), "");
        let json = render(&foreseen(Vec::new()), Output::Json, Colour::Off).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let wanted = serde_json::json!({"differs": false, "whole": true, "warnings": ["look"], "entries": []});
        assert_eq!(json, wanted);
    }

    #[test]
    fn each_diff_line_has_a_sign_both_values_and_the_service() {
        let changes = || {
            vec![
                Change {
                    before: Some("rr".to_owned()),
                    after: Some("mh".to_owned()),
                    service: Some("default/web:http".to_owned()),
                    ..change("virtual servers", Action::Change, "10.96.0.9:80/TCP")
                },
                change(
                    "rules",
                    Action::Add,
                    "table nat: -A OUTPUT -j KUBE-SERVICES",
                ),
                Change {
                    rules: vec!["- -A KUBE-SVC-A -j ONE".to_owned()],
                    ..change("rules", Action::Change, "chain KUBE-SVC-A of table nat")
                },
                Change {
                    before: Some("rr".to_owned()),
                    ..change("virtual servers", Action::Remove, "10.96.0.1:81/TCP")
                },
            ]
        };
        assert_eq!(
            told(changes(), Colour::Off),
            "IPv4 virtual servers\n\
             - 10.96.0.1:81/TCP rr\n\
             ~ 10.96.0.9:80/TCP: rr => mh   # default/web:http\n\n\
             IPv4 rules\n\
             + table nat: -A OUTPUT -j KUBE-SERVICES\n\
             ~ chain KUBE-SVC-A of table nat\n\
             \x20   - -A KUBE-SVC-A -j ONE\n"
        );
        assert!(told(changes(), Colour::On).contains("\x1b[31m- 10.96.0.1:81/TCP rr\x1b[0m\n"));
        let yaml = render(&foreseen(changes()), Output::Yaml, Colour::Off).unwrap();
        let yaml: serde_json::Value = serde_saphyr::from_str(&yaml).unwrap();
        assert_eq!(yaml["entries"][0]["sign"], "-");
        assert_eq!(yaml["entries"][1]["service"], "default/web:http");
    }

    #[test]
    fn control_characters_in_a_diff_do_not_reach_the_terminal() {
        let ill = || "\x1b[2J\n".to_owned();
        let change = Change {
            before: Some(ill()),
            after: Some(ill()),
            service: Some(ill()),
            rules: vec![ill()],
            ..change("rules", Action::Change, &ill())
        };
        let text = told(vec![change], Colour::Off);
        assert_eq!(text.matches("\u{fffd}[2J\u{fffd}").count(), 5, "{text}");
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(!text.contains('\x1b'));
    }
}
