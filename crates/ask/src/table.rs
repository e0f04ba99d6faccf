//! Formats tables like those of kubectl. Each column is as wide as its widest cell. Columns are
//! three spaces apart.

use std::fmt::Write as _;

pub(super) use view::shown;

/// Number of spaces between two columns.
const GAP: usize = 3;

/// Meaning of a table cell, which determines the cell's colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Tone {
    /// Text without a special meaning, in the default colour.
    #[default]
    Plain,
    /// A good state such as `ready`, shown in green.
    Good,
    /// An unusual state such as `draining`, shown in yellow.
    Odd,
    /// A problem, shown in red.
    Bad,
    /// Less important text, shown faintly.
    Faint,
}

impl Tone {
    /// Returns this tone if `is_so` is true, and [`Tone::Plain`] otherwise.
    pub(super) fn when(self, is_so: bool) -> Self {
        if is_so { self } else { Self::Plain }
    }
}

/// A table cell: its text, and the tone that determines its colour.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Cell {
    text: String,
    tone: Tone,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::of(text, Tone::Plain)
    }
}

impl Cell {
    /// Creates a table cell. The tone determines its colour.
    pub(super) fn of(text: impl Into<String>, tone: Tone) -> Self {
        Self {
            text: shown(&text.into()),
            tone,
        }
    }
}

/// A table as rows of cells, for printing as text.
#[derive(Debug, Default)]
pub(super) struct TextTable {
    rows: Vec<Vec<Cell>>,
}

impl TextTable {
    /// Creates a table with these column headers. Without headers, the table has no header line.
    pub(super) fn new<'a>(heads: impl IntoIterator<Item = &'a str>) -> Self {
        let heads: Vec<Cell> = heads.into_iter().map(Cell::from).collect();
        let rows = if heads.is_empty() {
            Vec::new()
        } else {
            vec![heads]
        };
        Self { rows }
    }

    /// Adds a row to the table.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Renders the table, with `indent` before each line. No line ends with a space.
    pub(super) fn render(&self, indent: &str, has_colours: bool) -> String {
        let mut widths: Vec<usize> = Vec::new();
        for row in &self.rows {
            for (column, cell) in row.iter().enumerate() {
                let width = cell.text.chars().count();
                match widths.get_mut(column) {
                    Some(widest) => *widest = width.max(*widest),
                    None => widths.push(width),
                }
            }
        }
        let mut text = String::new();
        for row in &self.rows {
            text.push_str(indent);
            // Stops at the last non-empty cell, so that the line does not end with spaces.
            let last = row
                .iter()
                .rposition(|cell| !cell.text.trim_end().is_empty());
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                text.push_str(&coloured(cell.text.trim_end(), cell.tone, has_colours));
                if last.is_some_and(|last| column < last) {
                    let pad = width + GAP - cell.text.trim_end().chars().count();
                    let _ = write!(text, "{:pad$}", "");
                }
            }
            text.push('\n');
        }
        text
    }
}

/// Adds the colour of a tone to a text if `has_colours` is true.
pub(super) fn coloured(text: &str, tone: Tone, has_colours: bool) -> String {
    let code = match tone {
        Tone::Plain => return text.to_owned(),
        Tone::Good => 32,
        Tone::Odd => 33,
        Tone::Bad => 31,
        Tone::Faint => 2,
    };
    if has_colours && !text.is_empty() {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}

/// Formats an age like kubectl: `45s`, `12m`, `5h12m` or `3d4h`.
pub(super) fn age(seconds: f64) -> String {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number of seconds; as saturates, and fractions are not shown"
    )]
    let whole = seconds.max(0.0) as u64;
    let (minutes, hours, days) = (whole / 60, whole / 3_600, whole / 86_400);
    match whole {
        0 if seconds > 0.0 => format!("{:.0}ms", seconds * 1_000.0),
        ..120 => format!("{whole}s"),
        120..7_200 => format!("{minutes}m"),
        7_200..172_800 => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

/// Abbreviates a number: `999`, `12.3k` or `4.5M`.
pub(super) fn short(number: u64) -> String {
    let mut units = ["k", "M", "G", "T", "P"].into_iter();
    if number < 10_000 {
        return number.to_string();
    }
    // Counts in tenths of the unit, because the text has one decimal.
    let mut tenths = u128::from(number) * 10 / 1_000;
    let mut unit = units.next().unwrap_or_default();
    for next in units {
        if tenths < 10_000 {
            break;
        }
        tenths /= 1_000;
        unit = next;
    }
    if tenths < 1_000 {
        format!("{}.{}{unit}", tenths / 10, tenths % 10)
    } else {
        format!("{}{unit}", tenths / 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_columns_are_as_wide_as_their_widest_cell() {
        let mut table = TextTable::new(["NAME", "STATE"]);
        table.row(["a-long-name".into(), Cell::of("synced", Tone::Good)]);
        table.row(["é".into(), "x".into(), "more".into()]);
        assert_eq!(
            table.render("", false),
            "NAME          STATE\na-long-name   synced\né             x        more\n"
        );
        assert_eq!(
            table.render("  ", true),
            "  NAME          STATE\n  a-long-name   \x1b[32msynced\x1b[0m\n  é             x        more\n"
        );
    }

    #[test]
    fn table_lines_end_without_spaces_and_have_no_escape_codes() {
        let mut table = TextTable::new(["NAME", ""]);
        table.row(["a".into(), "".into()]);
        table.row(["b ".into()]);
        table.row(["".into(), "".into()]);
        table.row(["\x1b[2J\u{202e}x\n".into(), "more".into()]);
        let text = table.render("", false);
        assert_eq!(text, "NAME\na\nb\n\n\u{fffd}[2J\u{fffd}x\u{fffd}   more\n");
    }

    #[test]
    fn times_and_numbers_are_abbreviated() {
        for (seconds, wanted) in [
            (0.0, "0s"),
            (0.25, "250ms"),
            (45.9, "45s"),
            (119.0, "119s"),
            (720.0, "12m"),
            (18_720.0, "5h12m"),
            (270_000.0, "3d3h"),
        ] {
            assert_eq!(age(seconds), wanted);
        }
        for (number, wanted) in [
            (0, "0"),
            (9_999, "9999"),
            (10_000, "10.0k"),
            (123_456, "123k"),
            (4_567_890, "4.5M"),
            (u64::MAX, "18446P"),
        ] {
            assert_eq!(short(number), wanted);
        }
    }
}
