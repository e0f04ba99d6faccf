//! Figures as text, and Markdown tables.

use std::fmt::Write as _;

use super::point::Cell;

/// A Markdown table; the first column is text, the others are figures.
pub(super) fn table(head: &[String], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule: Vec<&str> = (0..head.len())
        .map(|column| if column == 0 { "---" } else { "--:" })
        .collect();
    let mut text = line(head);
    _ = writeln!(text, "| {} |", rule.join(" | "));
    for row in rows {
        text.push_str(&line(row));
    }
    text.push('\n');
    text
}

/// Three digits that count: `0.0123`, `1.23`, `12.3`, `12,345`.
pub(super) fn short(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let magnitude = value.abs();
    if magnitude >= 99.95 {
        return grouped(value);
    }
    // From the left: 99.9, 9.99, 0.999, 0.0999, ...
    let mut decimals = 1;
    let mut bound = 9.995;
    while magnitude < bound && decimals < 6 {
        decimals += 1;
        bound /= 10.0;
    }
    format!("{value:.decimals$}")
}

/// `12,345`
fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 {
        format!("−{text}")
    } else {
        text
    }
}

/// A number of Services: `10,000`.
pub(super) fn count(number: u32) -> String {
    grouped(f64::from(number))
}

/// Median, with the best and the spread if there was more than one.
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

/// The median only.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_count() {
        let texts = [0.012_345, 1.234, 12.34, 123.4, 12_345.6, 0.999_9, 0.0].map(short);
        let wanted = ["0.0123", "1.23", "12.3", "123", "12,346", "1.00", "0"];
        assert_eq!(texts, wanted);
        assert_eq!(short(-1_234.0), "−1,234");
    }
}
