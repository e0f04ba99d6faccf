//! `kube-proxy plan`: lists the kernel writes that a start of the daemon would make, in their
//! order, and the total number of these writes. The command writes nothing.

use std::fmt::Write as _;

use anyhow::Result;
use view::shown;

use super::counts::{LISTED_PER_KIND, Listed, table};
use super::foresee::StartForecast;
use crate::config::question::Output;

/// Renders the planned writes in the output format that the user chose.
///
/// # Errors
///
/// Fails if the plan cannot be converted to JSON or YAML.
pub(super) fn render(foreseen: &StartForecast, output: Output) -> Result<String> {
    Ok(match output {
        Output::Text => lines(foreseen, LISTED_PER_KIND),
        Output::Wide => lines(foreseen, usize::MAX),
        Output::Json => serde_json::to_string_pretty(foreseen)? + "\n",
        Output::Yaml => serde_saphyr::to_string(foreseen)?,
    })
}

/// Renders the plan as text, with at most `most` writes of each kind.
fn lines(foreseen: &StartForecast, most: usize) -> String {
    let StartForecast {
        writes, changes, ..
    } = foreseen;
    let mut text = foreseen.heading();
    if changes.is_empty() {
        let _ = writeln!(
            text,
            "nothing would be written{}",
            foreseen.as_far_as_known()
        );
        return text;
    }
    text.push_str(&table(changes));
    let counts: Vec<String> = writes
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(of, count)| format!("{of} {count}"))
        .collect();
    let _ = writeln!(
        text,
        "{} changes in {} writes: {}",
        changes.len(),
        writes.values().sum::<usize>(),
        counts.join(", ")
    );
    let (mut group, mut step) = (None, 0);
    let mut listed = Listed::default();
    for change in changes {
        let of = (change.of.as_str(), change.lane);
        if group.replace(of) != Some(of) {
            step += 1;
            let _ = writeln!(text, "\n{step}. {}, {}", change.of, change.lane);
        }
        let number = listed.count(change);
        if number <= most {
            let _ = write!(text, "   {}", shown(&change.write));
            let _ = match &change.service {
                Some(service) => writeln!(text, "   # {}", shown(service)),
                None => writeln!(text),
            };
        } else if number == most.saturating_add(1) {
            let _ = writeln!(text, "   more {}: see -o wide", change.kind);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use modes::preview::{Action, Change};

    use super::*;
    use crate::check::tests::{change, foreseen};

    #[test]
    fn a_plan_counts_writes_and_lists_them_in_order() {
        let server = |number: usize| change("virtual servers", Action::Add, &format!("{number}"));
        let rule = Change {
            lane: "rules",
            service: Some("default/web".to_owned()),
            ..change("rules", Action::Remove, "one")
        };
        let mut changes = vec![server(0), rule];
        changes.extend((1..=30).map(server));
        let foreseen = foreseen(changes);
        let text = render(&foreseen, Output::Text).unwrap();
        for part in [
            "warning  look\n",
            "IPv4     virtual servers      31       0       0\n",
            "IPv4     rules                 0       0       1\n",
            "\n32 changes in 32 writes: IPv4 32\n",
            "\n1. IPv4, services\n   add 0\n\n2. IPv4, rules\n   remove one   # default/web\n\n3. IPv4, services\n   add 1\n",
            "   add 19\n   more virtual servers: see -o wide\n",
        ] {
            assert!(text.contains(part), "{part}\n---\n{text}");
        }
        assert_eq!(text.matches("\n   add ").count(), LISTED_PER_KIND);
        let wide = render(&foreseen, Output::Wide).unwrap();
        assert_eq!(wide.matches("\n   add ").count(), 31);
        let json = render(&foreseen, Output::Json).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["changes"].as_array().unwrap().len(), 32);
        assert_eq!(json["changes"][1]["lane"], "rules");
    }

    #[test]
    fn control_characters_in_a_plan_do_not_reach_the_terminal() {
        let ill = "\x1b[2J\n";
        let change = Change {
            service: Some(ill.to_owned()),
            ..change("rules", Action::Remove, ill)
        };
        let mut foreseen = foreseen(vec![change]);
        foreseen.warnings = vec![ill.to_owned()];
        let text = render(&foreseen, Output::Text).unwrap();
        assert_eq!(text.matches("\u{fffd}[2J\u{fffd}").count(), 3, "{text}");
        assert!(!text.contains('\x1b'));
    }

    #[test]
    fn a_plan_without_writes_reports_that_nothing_would_be_written() {
        let text = render(&foreseen(Vec::new()), Output::Text).unwrap();
        assert_eq!(text, "warning  look\nnothing would be written\n");
        let partial = StartForecast {
            whole: false,
            ..foreseen(Vec::new())
        };
        let text = render(&partial, Output::Text).unwrap();
        let wanted = "warning  look\nnothing would be written, as far as the objects can be read\n";
        assert_eq!(text, wanted);
    }
}
