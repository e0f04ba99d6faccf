//! Counts the changes of a start by IP family and kind of entry.

use std::fmt::Write as _;

use modes::preview::Change;

/// Number of changes of each kind that the output without `-o wide` lists by name.
pub(super) const LISTED_PER_KIND: usize = 20;

/// Numbers of changes that the output has listed so far, by IP family and kind of entry.
#[derive(Debug, Default)]
pub(super) struct Listed<'a>(Vec<((&'a str, &'static str), usize)>);

impl<'a> Listed<'a> {
    /// Counts a change. Returns the number of changes so far with the same IP family and kind.
    pub(super) fn count(&mut self, change: &'a Change) -> usize {
        let key = (change.of.as_str(), change.kind);
        let of_key = self.0.iter_mut().find(|(known, _)| *known == key);
        if let Some((_, count)) = of_key {
            *count += 1;
            return *count;
        }
        self.0.push((key, 1));
        1
    }
}

/// Renders a table with the numbers of added, changed and removed entries, by IP family and kind.
pub(super) fn table(changes: &[Change]) -> String {
    let mut counts: Vec<((&str, &str), [usize; 3])> = Vec::new();
    for change in changes {
        let key = (change.of.as_str(), change.kind);
        let index = counts.iter().position(|(of, _)| *of == key);
        let index = index.unwrap_or_else(|| {
            counts.push((key, [0; 3]));
            counts.len() - 1
        });
        let count = counts.get_mut(index).map(|(_, count)| count);
        if let Some(count) = count.and_then(|count| count.get_mut(change.action as usize)) {
            *count += 1;
        }
    }
    let mut text = format!("{:<25}{:>7}{:>8}{:>8}\n", "", "add", "change", "remove");
    for ((of, kind), [add, change, remove]) in &counts {
        let _ = writeln!(text, "{of:<7}  {kind:<16}{add:>7}{change:>8}{remove:>8}");
    }
    text
}
