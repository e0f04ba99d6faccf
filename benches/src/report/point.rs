//! Points of the report: each combines the repeats of one axis, subject and size.

use std::collections::BTreeSet;

use super::axes::FigureSource;
use crate::schema::{Axis, Measurement, Outcome, Report, Size, SubjectKind};

/// A figure of an axis (measured quantity), as the report shows it.
#[derive(Clone, Copy)]
pub(super) struct Metric {
    pub(super) axis: Axis,
    /// Title of the figure, which the report shows after the title of the axis.
    pub(super) title: &'static str,
    pub(super) unit: Unit,
    /// Place of the value in the results of a cell (benchmark run).
    pub(super) of: FigureSource,
}

/// Unit of a figure, which also tells whether higher or lower is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Seconds,
    Milliseconds,
    Nanoseconds,
    Megabytes,
    PerSecond,
    GigabitsPerSecond,
    PerMinute,
    MillisecondsPerMinute,
    /// Number of events. Higher is better.
    Count,
    /// Ratio to the value of a direct connection in the same VM. Higher is better.
    Share,
}

impl Unit {
    const NAMES: [(Self, &'static str); 10] = [
        (Self::Seconds, "s"),
        (Self::Milliseconds, "ms"),
        (Self::Nanoseconds, "ns"),
        (Self::Megabytes, "MB"),
        (Self::PerSecond, "per s"),
        (Self::GigabitsPerSecond, "Gbit/s"),
        (Self::PerMinute, "per min"),
        (Self::MillisecondsPerMinute, "ms per min"),
        (Self::Count, "number"),
        (Self::Share, "share"),
    ];

    pub(super) fn named(name: &str) -> Option<Self> {
        let mut names = Self::NAMES.iter();
        names
            .find(|(_, known)| *known == name)
            .map(|(unit, _)| *unit)
    }

    pub(super) fn name(self) -> &'static str {
        let mut names = Self::NAMES.iter();
        names
            .find(|(unit, _)| *unit == self)
            .map_or("", |(_, name)| name)
    }

    /// Returns true if a higher value of this unit is better.
    pub(super) fn is_rate(self) -> bool {
        matches!(
            self,
            Self::PerSecond | Self::GigabitsPerSecond | Self::Count | Self::Share
        )
    }
}

/// Summary of all repeats of one figure for a subject and a size.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Point {
    pub(super) median: f64,
    /// Value of the best repeat: the highest rate, or the lowest of any other figure.
    pub(super) best: f64,
    /// Value of the worst repeat: the lowest rate, or the highest of any other figure.
    pub(super) worst: f64,
    /// Spread of the repeats as a fraction: (max - min) / median.
    pub(super) spread: f64,
    pub(super) repeats: usize,
    /// Number of repeats, including those without a value.
    pub(super) tried: usize,
}

/// Content of a cell in a report table.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Cell {
    Point(Point),
    /// The measurement exceeded its time limit, which was this many seconds.
    Over(u64),
    /// The measured program left a wrong state in the kernel.
    Wrong,
    /// The measurement failed.
    Failed,
    /// The run skipped the measurement, for a reason that the end of the report gives.
    Skipped,
    /// The run did not plan this measurement.
    Absent,
}

impl Cell {
    pub(super) fn median(&self) -> Option<f64> {
        match self {
            Self::Point(point) => Some(point.median),
            _ => None,
        }
    }

    pub(super) fn best(&self) -> Option<f64> {
        match self {
            Self::Point(point) => Some(point.best),
            _ => None,
        }
    }

    pub(super) fn worst(&self) -> Option<f64> {
        match self {
            Self::Point(point) => Some(point.worst),
            _ => None,
        }
    }
}

/// Returns the names of the subjects measured on an axis, in the order of the columns.
pub(super) fn subjects(report: &Report, axis: Axis) -> Vec<&str> {
    let has = |name: &str| {
        report.measurements.iter().any(|one| {
            let is_begun = !matches!(one.outcome, Outcome::Skipped { .. });
            is_begun && one.cell.axis == axis && one.cell.subject.name == name
        })
    };
    let names = report.about.subjects.iter().map(String::as_str);
    names.filter(|name| has(name)).collect()
}

/// Returns the sizes for which the run measured an axis.
pub(super) fn sizes(report: &Report, axis: Axis) -> Vec<Size> {
    let of_axis = report
        .measurements
        .iter()
        .filter(|one| one.cell.axis == axis);
    let sizes: BTreeSet<Size> = of_axis.map(|one| one.cell.size).collect();
    let mut sizes: Vec<Size> = sizes.into_iter().collect();
    sizes.sort_by_key(|size| (size.endpoints, size.services));
    sizes
}

/// Returns the table cell of a metric for one subject and size, from all repeats.
pub(super) fn cell(report: &Report, metric: &Metric, subject: &str, size: Size) -> Cell {
    let all: Vec<&Measurement> = report
        .measurements
        .iter()
        .filter(|one| {
            let cell = &one.cell;
            // The subject `direct` is a connection to a pod. It does not depend on the number of
            // Services, so a run measures it at one size only.
            let is_size = cell.size == size || cell.subject.kind == SubjectKind::Direct;
            cell.axis == metric.axis && cell.subject.name == subject && is_size
        })
        .filter(|one| !one.cell.is_counting)
        .collect();
    let values: Vec<f64> = all
        .iter()
        .filter_map(|one| match &one.outcome {
            Outcome::Measured(measured) => metric.of.value(measured),
            _ => None,
        })
        .collect();
    let is_begun = |one: &&&Measurement| !matches!(one.outcome, Outcome::Skipped { .. });
    let begun = all.iter().filter(is_begun).count();
    if let Some(point) = point(values, begun, metric.unit) {
        return Cell::Point(point);
    }
    let mut outcome = if begun == 0 && !all.is_empty() {
        Cell::Skipped
    } else {
        Cell::Absent
    };
    for one in all {
        match &one.outcome {
            Outcome::Over { limit_s, .. }
            | Outcome::Skipped {
                cold_over_s: Some(limit_s),
                ..
            } => return Cell::Over(*limit_s),
            Outcome::Wrong { .. } => outcome = Cell::Wrong,
            Outcome::Failed { .. } if outcome == Cell::Absent => outcome = Cell::Failed,
            Outcome::Measured(_) | Outcome::Failed { .. } | Outcome::Skipped { .. } => {}
        }
    }
    outcome
}

fn point(mut values: Vec<f64>, tried: usize, unit: Unit) -> Option<Point> {
    values.sort_by(f64::total_cmp);
    let (min, max) = (*values.first()?, *values.last()?);
    let middle = |index: usize| values.get(index).copied();
    let upper = middle(values.len() / 2)?;
    let median = if values.len().is_multiple_of(2) {
        f64::midpoint(middle(values.len() / 2 - 1)?, upper)
    } else {
        upper
    };
    Some(Point {
        median,
        best: if unit.is_rate() { max } else { min },
        worst: if unit.is_rate() { min } else { max },
        spread: if median > 0.0 {
            (max - min) / median
        } else {
            0.0
        },
        repeats: values.len(),
        tried,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_benchmark_point_has_the_median_the_best_value_and_the_spread() {
        let point = point(vec![4.0, 2.0, 3.0, 9.0], 5, Unit::Seconds).unwrap();
        assert_eq!((point.median, point.best, point.spread), (3.5, 2.0, 2.0));
        assert_eq!((point.repeats, point.tried), (4, 5));
        assert_eq!(super::point(Vec::new(), 1, Unit::Seconds), None);
        let rate = super::point(vec![4.0, 2.0], 2, Unit::PerSecond).unwrap();
        assert_eq!((rate.median, rate.best), (3.0, 4.0));
    }
}
