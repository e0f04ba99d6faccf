//! Formats figures as text and as Markdown tables.

use std::fmt::Write as _;

use charts::grouped;
pub(super) use charts::short;

use super::point::Cell;

/// Formats a Markdown table, whose first column has text (left-aligned) and whose other columns
/// have figures (right-aligned).
pub(super) fn table(head: &[String], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule: Vec<&str> = (0..head.len())
        .map(|column| if column == 0 { "---" } else { "--:" })
        .collect();
    let mut text = line(head);
    _ = writeln!(text, "|{}|", rule.join("|"));
    for row in rows {
        text.push_str(&line(row));
    }
    text.push('\n');
    text
}

/// Formats a number with thousands separators, such as `10,000`.
pub(super) fn count(number: u32) -> String {
    grouped(f64::from(number))
}

/// Formats the median of a point. With several repeats, also the best repeat and the spread.
pub(super) fn full(cell: &Cell) -> String {
    let Cell::Point(point) = cell else {
        return brief(cell);
    };
    let mut text = short(point.median);
    if point.repeats > 1 {
        text = format!(
            "{text} (best of {} {}, spread {:.0} %)",
            point.repeats,
            short(point.best),
            point.spread * 100.0
        );
    }
    if point.repeats < point.tried {
        text = format!("{text}, {} of {} repeats", point.repeats, point.tried);
    }
    text
}

/// Formats the median of a point and the spread of its repeats, such as `24.2 (3 %)`.
pub(super) fn with_spread(cell: &Cell) -> String {
    match cell {
        Cell::Point(point) if point.repeats > 1 => {
            format!("{} ({:.0} %)", brief(cell), point.spread * 100.0)
        }
        _ => brief(cell),
    }
}

/// Formats the median of a point, without the spread.
pub(super) fn brief(cell: &Cell) -> String {
    match cell {
        Cell::Point(point) => short(point.median),
        Cell::Over(limit) => format!("over {limit} s"),
        Cell::Wrong => "**wrong state**".into(),
        Cell::Failed => "**failed**".into(),
        Cell::Skipped => "skipped".into(),
        Cell::Absent => "–".into(),
    }
}
