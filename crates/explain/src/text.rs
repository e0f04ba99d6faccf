//! Renders an explanation as text: for each packet, the verdict, then the path step by step. Steps
//! that several paths share appear once, before the paths divide.

use std::fmt::Write as _;

use view::shown;
use view::{Explanation, Fate, Journey, Step, Walk};

use super::misdirection::NO_ENDPOINT;
use super::{fails, is_unsure};

/// Maximum number of branches that the text shows after a step, except in wide output.
const BRANCHES: usize = 4;
/// Maximum width of the column with the locations of steps, in characters.
const PLACE: usize = 34;

/// Options for the rendering of an explanation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Style {
    /// True to show only the verdicts, and no steps.
    pub is_brief: bool,
    /// True to also show rules, set members, the number of rules without effect, and every path.
    pub is_wide: bool,
    /// True to use terminal colours.
    pub has_colours: bool,
}

/// Renders an explanation as text that ends with a newline.
pub fn render(explanation: &Explanation, style: Style) -> String {
    let mut page = Page {
        text: String::new(),
        style,
    };
    for (number, journey) in explanation.journeys.iter().enumerate() {
        if number > 0 && !style.is_brief {
            page.text.push('\n');
        }
        page.journey(journey);
    }
    if style.is_brief && !explanation.journeys.is_empty() {
        page.line(
            "  ",
            "-v shows each step in the kernel; -o wide also shows the rules",
        );
    }
    for note in &explanation.notes {
        page.line("", &format!("note: {note}"));
    }
    page.text
}

struct Page {
    text: String,
    style: Style,
}

/// Paths that divide after a common step: the probability, the remaining steps, and the whole path.
type Ways<'a> = Vec<(f64, &'a [Step], &'a Walk)>;

impl Page {
    fn line(&mut self, indent: &str, text: &str) {
        self.text.push_str(indent);
        // Escapes control characters, because the text may come from another program's kernel
        // entries, and is printed to a terminal.
        self.text.push_str(&shown(text));
        self.text.push('\n');
    }

    fn coloured(&self, text: &str, colour: u8) -> String {
        if self.style.has_colours {
            format!("\u{1b}[{colour}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }

    fn journey(&mut self, journey: &Journey) {
        let Journey {
            from, to, protocol, ..
        } = journey;
        let of = journey.of.as_deref();
        let of = of.map_or_else(String::new, |of| format!(", {of}"));
        self.line("", &format!("{from} → {to}/{protocol}{of}"));
        let mark = if fails(journey) {
            self.coloured("FAILS", 31)
        } else if is_unsure(journey) {
            self.coloured("not sure", 33)
        } else {
            self.coloured("ok", 32)
        };
        let _ = write!(self.text, "  {mark}  ");
        self.line("", &journey.verdict);
        if self.style.is_brief {
            return;
        }
        let ways = journey.walks.iter();
        let ways: Ways<'_> = ways
            .map(|walk| (walk.chance.0, walk.steps.as_slice(), walk))
            .collect();
        let all: f64 = ways.iter().map(|(chance, ..)| chance).sum();
        self.ways(&ways, "    ", all);
    }

    /// Writes the steps that all `ways` share, then each branch. `all` is the sum of all
    /// probabilities.
    fn ways(&mut self, ways: &Ways<'_>, indent: &str, all: f64) {
        let common = common(ways);
        if let Some((_, steps, _)) = ways.first() {
            let mut before = "";
            for step in steps.iter().take(common) {
                self.step(indent, step, before);
                before = &step.origin;
            }
        }
        if let [(_, _, walk)] = &**ways {
            self.end(indent, walk);
        }
        if ways.len() < 2 {
            return;
        }
        let mut groups: Vec<Ways<'_>> = Vec::new();
        for (chance, steps, walk) in ways {
            let rest = steps.get(common..).unwrap_or_default();
            let group = groups.iter_mut().find(|group| {
                let first = group.first().and_then(|(_, known, _)| known.first());
                first.is_some() && first == rest.first()
            });
            match group {
                Some(group) => group.push((*chance, rest, walk)),
                None => groups.push(vec![(*chance, rest, walk)]),
            }
        }
        let most = if self.style.is_wide {
            groups.len()
        } else {
            BRANCHES
        };
        let more = groups.len().saturating_sub(most);
        for (number, group) in groups.iter().take(most).enumerate() {
            let is_last = number + 1 == groups.len();
            let chance: f64 = group.iter().map(|(chance, ..)| chance).sum();
            let share = if all > 0.0 { chance / all } else { 0.0 };
            let end = match &**group {
                [(_, _, walk)] => format!("  {}", end_of(walk)),
                _ => String::new(),
            };
            let fork = if is_last { "└─" } else { "├─" };
            self.line(indent, &format!("{fork} {:.1} %{end}", share * 100.0));
            let deeper = format!("{indent}{}", if is_last { "     " } else { "│    " });
            self.ways(group, &deeper, all);
        }
        if more > 0 {
            self.line(
                indent,
                &format!("└─ and {more} more ways: -o wide shows them"),
            );
        }
    }

    /// Writes the notes at the end of a path: steps of its reply, doubts, and the number of rules
    /// without effect.
    fn end(&mut self, indent: &str, walk: &Walk) {
        let mut at_odds = walk.unanswered.iter().chain(&walk.unsure);
        // The reply of a misdirected packet is not that of the Service.
        let is_at_odds = at_odds.any(|why| !why.starts_with(NO_ENDPOINT));
        if !walk.answer.is_empty() && (is_at_odds || self.style.is_wide) {
            self.line(indent, "its answer:");
            let mut before = "";
            for step in &walk.answer {
                self.step(indent, step, before);
                before = &step.origin;
            }
        }
        for doubt in walk.doubts.iter().chain(&walk.unsure) {
            self.line(indent, &format!("not sure: {doubt}"));
        }
        if self.style.is_wide && walk.rules_passed > 0 {
            let count = walk.rules_passed;
            self.line(
                indent,
                &format!("({count} rules were passed that do nothing to it)"),
            );
        }
    }

    /// Writes a step. Omits the step's origin if the previous step has the same (`before`).
    fn step(&mut self, indent: &str, step: &Step, before: &str) {
        let place = &step.place;
        let says = if step.says.is_empty() {
            &step.entry
        } else {
            &step.says
        };
        // A location that is wider than its column gets its own line.
        let mut line = if place.chars().count() > PLACE {
            self.line(indent, place);
            format!("{:<PLACE$}  {says}", "")
        } else {
            format!("{place:<PLACE$}  {says}")
        };
        if let Some(packets) = step.packets {
            let _ = write!(line, "  [{}]", counted(packets, step.bytes));
        }
        self.line(indent, &line);
        let under = " ".repeat(PLACE + 2);
        let is_said = !step.says.is_empty() && !step.entry.is_empty();
        if is_said && self.style.is_wide {
            self.line(&format!("{indent}{under}"), &step.entry);
        }
        if self.style.is_wide {
            for member in &step.members {
                self.line(&format!("{indent}{under}"), &format!("found: {member}"));
            }
        }
        if !step.origin.is_empty() && step.origin != before {
            self.line(&format!("{indent}{under}"), &format!("← {}", step.origin));
        }
    }
}

/// Returns the endpoint that the path reaches, or a text such as `dropped`.
fn end_of(walk: &Walk) -> &str {
    let word = match walk.fate {
        Fate::Delivered | Fate::Local => "",
        Fate::Refused => "refused",
        Fate::Unrouted => "no route",
        Fate::Dropped => "dropped",
        Fate::Reset => "reset",
        Fate::Forwarded => "sent on as it is",
        Fate::Unknown => "is unknown",
    };
    match walk.endpoint.as_deref() {
        Some(endpoint) if word.is_empty() => endpoint,
        _ => word,
    }
}

/// Returns the number of steps at the beginning of the paths that are equal in all of them.
fn common(ways: &Ways<'_>) -> usize {
    let Some(((_, first, _), others)) = ways.split_first() else {
        return 0;
    };
    let is_alike = |number: &usize| {
        let step = first.get(*number);
        step.is_some()
            && others
                .iter()
                .all(|(_, steps, _)| steps.get(*number) == step)
    };
    (0..first.len()).take_while(is_alike).count()
}

fn counted(packets: u64, bytes: Option<u64>) -> String {
    let plural = if packets == 1 { "" } else { "s" };
    match bytes {
        Some(bytes) => format!("{packets} packet{plural}, {bytes} bytes"),
        None => format!("{packets} packet{plural}"),
    }
}

#[cfg(test)]
mod tests;
