//! The answer of `kube-proxy check`, and its forms.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;

use crate::modes::preview::Change;

/// How many changes of one kind are listed for people.
const LISTED_PER_KIND: usize = 20;

/// The form of the answer (`-o`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Output {
    /// Lines for people.
    #[default]
    Text,
    /// A JSON object: `wouldChange`, `warnings`, `writes` (how many the kernel would see, by
    /// `node`, `IPv4` and `IPv6`), and `changes`, each with `of`, `kind`, `action` (`add`, `change`
    /// or `remove`) and `write`, the same in words.
    Json,
    /// The same as YAML.
    Yaml,
}

/// The answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Answer {
    pub(super) would_change: bool,
    pub(super) warnings: Vec<String>,
    /// By `node`, `IPv4` and `IPv6`. All rules of a family are one write.
    pub(super) writes: BTreeMap<String, usize>,
    pub(super) changes: Vec<Change>,
}

impl Answer {
    pub(super) fn render(&self, output: Output) -> Result<String> {
        Ok(match output {
            Output::Text => self.lines(),
            Output::Json => serde_json::to_string_pretty(self)? + "\n",
            Output::Yaml => serde_saphyr::to_string(self)?,
        })
    }

    fn lines(&self) -> String {
        let mut text = String::new();
        for warning in &self.warnings {
            let _ = writeln!(text, "warning  {warning}");
        }
        let mut counts: Vec<((&str, &str), [usize; 3])> = Vec::new();
        for change in &self.changes {
            let key = (change.of.as_str(), change.kind);
            let index = counts.iter().position(|(of, _)| *of == key);
            let index = index.unwrap_or_else(|| {
                counts.push((key, [0; 3]));
                counts.len() - 1
            });
            let Some((_, count)) = counts.get_mut(index) else {
                continue;
            };
            let listed: usize = count.iter().sum();
            if let Some(count) = count.get_mut(change.action as usize) {
                *count += 1;
            }
            let _ = match listed {
                ..LISTED_PER_KIND => writeln!(text, "{:<7}  {}", change.of, change.write),
                LISTED_PER_KIND => {
                    writeln!(text, "{:<7}  more {}: see -o yaml", change.of, change.kind)
                }
                _ => Ok(()),
            };
        }
        if self.changes.is_empty() {
            text.push_str("nothing would change\n");
            return text;
        }
        let _ = writeln!(
            text,
            "\n{:<25}{:>7}{:>8}{:>8}",
            "", "add", "change", "remove"
        );
        for ((of, kind), [add, change, remove]) in &counts {
            let _ = writeln!(text, "{of:<7}  {kind:<16}{add:>7}{change:>8}{remove:>8}");
        }
        let _ = match self.changes.len() {
            1 => writeln!(text, "1 change; nothing was written"),
            count => writeln!(text, "{count} changes; nothing was written"),
        };
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modes::preview::Action;

    fn answer(changes: Vec<Change>) -> Answer {
        Answer {
            would_change: !changes.is_empty(),
            warnings: vec!["look".to_owned()],
            writes: [("IPv4".to_owned(), changes.len())].into(),
            changes,
        }
    }

    fn member(port: u16) -> Change {
        Change {
            of: "IPv4".to_owned(),
            kind: "set members",
            action: Action::Add,
            write: format!("add {port} to set NodePortTcp"),
        }
    }

    #[test]
    fn an_answer_reads_well_in_each_form() {
        let render = |answer: &Answer, output| answer.render(output).unwrap();
        let none = answer(Vec::new());
        assert_eq!(
            render(&none, Output::Text),
            "warning  look\nnothing would change\n"
        );
        let one = answer(vec![member(80)]);
        assert_eq!(
            render(&one, Output::Text),
            "warning  look\nIPv4     add 80 to set NodePortTcp\n\n\
             \x20                            add  change  remove\n\
             IPv4     set members           1       0       0\n1 change; nothing was written\n"
        );
        let wanted = serde_json::json!({
            "wouldChange": true,
            "warnings": ["look"],
            "writes": {"IPv4": 1},
            "changes": [{
                "of": "IPv4",
                "kind": "set members",
                "action": "add",
                "write": "add 80 to set NodePortTcp",
            }],
        });
        let json: serde_json::Value = serde_json::from_str(&render(&one, Output::Json)).unwrap();
        let yaml: serde_json::Value = serde_saphyr::from_str(&render(&one, Output::Yaml)).unwrap();
        assert_eq!((&json, &yaml), (&wanted, &wanted));
    }

    #[test]
    fn of_many_changes_some_are_listed_and_all_are_counted() {
        let text = answer((1..=1000).map(member).collect()).lines();
        assert_eq!(text.matches("to set NodePortTcp").count(), LISTED_PER_KIND);
        assert_eq!(text.matches("more set members: see -o yaml").count(), 1);
        assert!(
            text.contains("set members        1000       0       0\n1000 changes;"),
            "{text}"
        );
    }
}
