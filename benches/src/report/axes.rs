//! Reads the descriptions of axes (measured quantities) and of their figures from `axes.txt`.

use std::sync::LazyLock;

use super::point::{Metric, Unit};
use crate::schema::{Axis, Cell, CellFigures, Distribution, RequestOccasion};

const TEXT: &str = include_str!("axes.txt");

/// Returns an axis's section of `axes.txt`: its title, and its text with the list of figures.
fn section(axis: Axis) -> (&'static str, &'static str) {
    let mut sections = TEXT.split("\n\n").filter_map(|text| text.split_once(": "));
    let (_, section) = sections
        .find(|(name, _)| name.parse() == Ok(axis))
        .expect("each axis has a section");
    section.split_once('\n').expect("a section has two lines")
}

/// Returns the title of an axis, for its heading.
pub(super) fn title(axis: Axis) -> &'static str {
    section(axis).0
}

/// Returns the explanation of an axis as Markdown, without its list of figures.
pub(super) fn explained(axis: Axis) -> String {
    let lines = section(axis).1.lines();
    let lines: Vec<&str> = lines.take_while(|line| !line.starts_with("- ")).collect();
    lines.join("\n")
}

/// Describes what the subject did while strace counted its system calls, such as `100 changes`.
pub(super) fn counted(cell: &Cell, measured: &CellFigures) -> String {
    match (cell.axis, measured.figures.get("steps")) {
        (Axis::Add, Some(steps)) => format!("{steps:.0} Services more"),
        (Axis::Change, Some(steps)) => format!("{steps:.0} changes"),
        (Axis::Rolling, _) => "100 changes".into(),
        (Axis::Delete, _) => "all deleted".into(),
        (Axis::Restart, _) => "the start, nothing missing".into(),
        _ => "the start".into(),
    }
}

/// Title of the figure with the duration of a cold start.
pub(super) const COLD: &str = "time until the kernel has all entries";

/// All figures that can have a table of their own, by axis. The first of each axis also gets a
/// chart.
pub(super) static SHOWN: LazyLock<Vec<Metric>> = LazyLock::new(|| {
    let of_axis = |axis| {
        let rows = section(axis).1.lines();
        rows.filter_map(move |row| Some(metric(axis, row.strip_prefix("- ")?)))
    };
    Axis::all().flat_map(of_axis).collect()
});

/// Figures in the main table of the report.
pub(super) static HEADLINE: LazyLock<Vec<Metric>> = LazyLock::new(|| {
    let rows = TEXT.lines().filter_map(|row| row.strip_prefix("= "));
    let rows = rows.filter_map(|row| row.split_once(" | "));
    rows.map(|(axis, row)| metric(axis.parse().expect("an axis"), row))
        .collect()
});

fn metric(axis: Axis, row: &'static str) -> Metric {
    let [title, unit, of] = *row.split(" | ").collect::<Vec<_>>().as_slice() else {
        unreachable!("a row of axes.txt has three parts: {row}");
    };
    Metric {
        axis,
        title,
        unit: Unit::named(unit).expect("a unit of axes.txt"),
        of: FigureSource::read(of),
    }
}

/// Place of a figure's value in the results of a cell (benchmark run).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct FigureSource {
    statistic: &'static str,
    /// Names of series or figures, separated by `/`. The first that the cell has counts.
    names: &'static str,
}

impl FigureSource {
    fn read(text: &'static str) -> Self {
        let (statistic, names) = text.split_once(' ').unwrap_or((text, ""));
        Self { statistic, names }
    }

    /// Returns the value of this figure in the results of a cell, or `None` if it has none.
    pub(super) fn value(self, one: &CellFigures) -> Option<f64> {
        let mut names = self.names.split('/');
        let mut series =
            |of: fn(&Distribution) -> f64| names.find_map(|name| one.series.get(name)).map(of);
        match self.statistic {
            "wall" => one.wall_s,
            "wall-less-fixture" => Some(one.wall_s? - one.fixture_cpu_s.unwrap_or(0.0)),
            "cpu" => one.cpu_s,
            "peak" => megabytes(one.peak_kib?, 1024.0),
            "steady" => megabytes(one.steady_kib?, 1024.0),
            "first-list" => megabytes(one.server.get(&RequestOccasion::First)?.bytes, 1.0),
            "figure" => one.figures.get(self.names).copied(),
            "p50" => series(|of| of.p50),
            "p99" => series(|of| of.p99),
            "min" => series(|of| of.min),
            "n" => one.series.get(self.names)?.n.to_string().parse().ok(),
            "share" => Some(series(|of| of.p50)? / one.series.get("direct")?.p50),
            other => unreachable!("axes.txt has no statistic {other}"),
        }
    }
}

fn megabytes(count: u64, bytes: f64) -> Option<f64> {
    Some(f64::from(u32::try_from(count).ok()?) * bytes / 1e6)
}
