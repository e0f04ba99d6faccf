//! Compares our daemon with other kube-proxies. Lists their versions, and all figures in which our
//! daemon is not ahead. The list is computed, so that no author can leave out an unfavourable
//! figure.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::point::{Cell, cell};
use super::table::{brief, short};
use super::{Figure, services};
use crate::schema::{Mode, Report, SubjectKind};

/// Relative difference up to which two figures count as equal, even if their repeats spread less.
const NOISE: f64 = 0.05;

/// Names of our daemon with default flags, and of another kube-proxy in the same mode.
pub(super) struct Pair<'a> {
    pub(super) ours: &'a str,
    pub(super) other: &'a str,
}

/// Result of comparing our figure with another kube-proxy's.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Ahead,
    /// The difference is no larger than the spread of the repeats or [`NOISE`].
    Equal,
    Behind,
    /// No comparison is possible: neither has a figure, or the other kube-proxy lacks it for
    /// another reason than the time limit.
    Unknown,
}

/// Returns a list of the figures in which our daemon is not ahead of another kube-proxy in the same
/// mode. Empty if no other kube-proxy was measured.
pub(super) fn not_ahead(report: &Report, figures: &[Figure]) -> String {
    let mut text = String::new();
    for Pair { ours, other } in pairs(report) {
        let (mut ahead, mut unknown, mut not_ahead) = (0, 0, Vec::new());
        for figure in figures {
            let of = |name| cell(report, figure.metric, name, figure.size);
            let (own, theirs) = (of(ours), of(other));
            let unit = figure.metric.unit;
            if theirs == Cell::Absent {
                continue;
            }
            let verdict = verdict(&own, &theirs, unit.is_rate());
            match verdict {
                Verdict::Ahead => ahead += 1,
                Verdict::Unknown => unknown += 1,
                Verdict::Equal | Verdict::Behind => {
                    let note = if verdict == Verdict::Equal {
                        " (equal)"
                    } else {
                        ""
                    };
                    not_ahead.push(format!(
                        "{} at {}: {} against {} {}{note}",
                        figure.title,
                        services(figure.size),
                        written(&own),
                        written(&theirs),
                        unit.name(),
                    ));
                }
            }
        }
        let all = ahead + not_ahead.len();
        if all == 0 {
            continue;
        }
        let more = if unknown > 0 {
            format!(" ({unknown} more cannot be compared)")
        } else {
            String::new()
        };
        let list = if not_ahead.is_empty() {
            " none.".to_owned()
        } else {
            format!("\n\n* {}", not_ahead.join("\n* "))
        };
        _ = write!(
            text,
            "`{ours}` compared with `{other}`: ahead in {ahead} of {all} figures{more}. **Not ahead** in:{list}\n\n"
        );
    }
    text
}

/// Returns a list of the other kube-proxies, with the version and the SHA-256 of each binary.
pub(super) fn files(report: &Report) -> String {
    let others = report.about.others.iter().map(|other| {
        let or = |text: &str| {
            if text.is_empty() {
                "unknown".into()
            } else {
                text.to_owned()
            }
        };
        let (version, sum) = (or(&other.version), or(&other.sha256));
        format!("{}: {version}, sha256 {sum}", other.name)
    });
    let others: Vec<String> = others.collect();
    if others.is_empty() {
        "none".into()
    } else {
        others.join("; ")
    }
}

/// Returns the names of the other kube-proxies in the run's plan, in the order of the columns.
pub(super) fn names(report: &Report) -> Vec<&str> {
    let names: BTreeSet<&str> = report
        .measurements
        .iter()
        .filter(|one| one.cell.subject.kind.is_other())
        .map(|one| one.cell.subject.name.as_str())
        .collect();
    let columns = report.about.subjects.iter().map(String::as_str);
    columns.filter(|name| names.contains(name)).collect()
}

/// Returns true if the run planned to measure another kube-proxy.
pub(super) fn are_there(report: &Report) -> bool {
    !names(report).is_empty()
}

/// Returns pairs of our daemon and another kube-proxy in the same mode, in the order of the
/// columns.
pub(super) fn pairs(report: &Report) -> Vec<Pair<'_>> {
    let mode = |name: &str| mode(report, |subject, kind| subject == name && kind.is_other());
    names(report)
        .into_iter()
        .filter_map(|other| {
            let mode = mode(other)?.1;
            let (ours, _) = self::mode(report, |_, kind| match kind {
                SubjectKind::KubeProxy {
                    is_ours: true,
                    mode: own,
                    flags,
                    ..
                } => *own == mode && flags.is_empty(),
                _ => false,
            })?;
            Some(Pair { ours, other })
        })
        .collect()
}

/// Returns the first kube-proxy that `is_it` accepts, by name and mode.
fn mode(report: &Report, is_it: impl Fn(&str, &SubjectKind) -> bool) -> Option<(&str, Mode)> {
    report.measurements.iter().find_map(|one| {
        let subject = &one.cell.subject;
        match &subject.kind {
            kind @ SubjectKind::KubeProxy { mode, .. } if is_it(&subject.name, kind) => {
                Some((subject.name.as_str(), *mode))
            }
            _ => None,
        }
    })
}

fn verdict(ours: &Cell, other: &Cell, is_rate: bool) -> Verdict {
    match (ours, other) {
        (Cell::Point(ours), Cell::Point(other)) => {
            let noise = ours.spread.max(other.spread).max(NOISE);
            let (better, worse) = if is_rate {
                (ours.median, other.median)
            } else {
                (other.median, ours.median)
            };
            if better > worse * (1.0 + noise) {
                Verdict::Ahead
            } else if worse > better * (1.0 + noise) {
                Verdict::Behind
            } else {
                Verdict::Equal
            }
        }
        (Cell::Point(_), Cell::Over(_)) => Verdict::Ahead,
        (_, Cell::Point(_)) => Verdict::Behind,
        (Cell::Over(_), Cell::Over(_)) => Verdict::Equal,
        (_, Cell::Over(_) | Cell::Wrong | Cell::Failed | Cell::Skipped | Cell::Absent) => {
            Verdict::Unknown
        }
    }
}

fn written(cell: &Cell) -> String {
    match cell {
        Cell::Point(point) => short(point.median),
        Cell::Absent => "nothing measured".into(),
        cell => brief(cell),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::axes::HEADLINE;
    use crate::report::point::Point;
    use crate::schema::{
        About, Axis, Cell as Asked, CellFigures, Measurement, Other, Outcome, Subject,
    };

    fn point(median: f64, spread: f64) -> Cell {
        Cell::Point(Point {
            median,
            best: median,
            worst: median,
            spread,
            repeats: 1,
            tried: 1,
        })
    }

    #[test]
    fn a_kube_proxy_with_a_shorter_time_or_higher_rate_is_ahead() {
        let of = |ours, other, is_rate| verdict(&point(ours, 0.0), &point(other, 0.0), is_rate);
        assert_eq!(of(1.0, 2.0, false), Verdict::Ahead);
        assert_eq!(of(1.0, 2.0, true), Verdict::Behind);
        assert_eq!(of(2.0, 1.0, true), Verdict::Ahead);
        assert_eq!(of(1.0, 1.04, false), Verdict::Equal);
        let noisy = verdict(&point(1.0, 0.3), &point(1.2, 0.0), false);
        assert_eq!(noisy, Verdict::Equal);
    }

    #[test]
    fn a_kube_proxy_without_a_figure_is_never_ahead() {
        let figure = point(1.0, 0.0);
        for cell in [
            Cell::Over(1),
            Cell::Wrong,
            Cell::Failed,
            Cell::Skipped,
            Cell::Absent,
        ] {
            assert_eq!(verdict(&cell, &figure, false), Verdict::Behind);
        }
        assert_eq!(verdict(&figure, &Cell::Over(1), false), Verdict::Ahead);
        assert_eq!(verdict(&figure, &Cell::Wrong, false), Verdict::Unknown);
        assert_eq!(
            verdict(&Cell::Over(1), &Cell::Over(1), false),
            Verdict::Equal
        );
    }

    fn subject(name: &str, is_ours: bool) -> Subject {
        Subject::kube_proxy(name, "kube-proxy", Mode::Ipvs, &[], is_ours)
    }

    fn cold(subject: &Subject, size: &str, outcome: Outcome) -> Measurement {
        Measurement {
            cell: Asked {
                axis: Axis::Cold,
                subject: subject.clone(),
                size: size.parse().unwrap(),
                repeat: 0,
                is_counting: false,
                limit_s: 120,
                changes: 1,
                idle_s: 1,
            },
            outcome,
            took_s: 1.0,
        }
    }

    fn took(seconds: f64) -> Outcome {
        Outcome::Measured(Box::new(CellFigures {
            wall_s: Some(seconds),
            ..CellFigures::default()
        }))
    }

    #[test]
    fn a_comparison_report_lists_figures_where_this_program_is_not_ahead() {
        let (ours, other) = (subject("ipvs", true), subject("upstream-ipvs", false));
        let over = Outcome::Skipped {
            why: "a cold start takes too long already".into(),
            cold_over_s: Some(120),
        };
        let report = Report {
            version: 1,
            about: About {
                subjects: vec!["ipvs".into(), "upstream-ipvs".into()],
                others: vec![Other {
                    name: "upstream-ipvs".into(),
                    version: "Kubernetes v1.36.2".into(),
                    sha256: "0123456789abcdef".into(),
                }],
                ..About::default()
            },
            measurements: vec![
                cold(&ours, "100", took(2.0)),
                cold(&other, "100", took(1.0)),
                cold(&ours, "1000", took(2.0)),
                cold(&other, "1000", took(30.0)),
                cold(&ours, "10000", took(3.0)),
                cold(&other, "10000", over),
                cold(&ours, "50000", took(3.0)),
                cold(&other, "50000", Outcome::skipped("no time")),
            ],
        };
        assert_eq!(
            files(&report),
            "upstream-ipvs: Kubernetes v1.36.2, sha256 0123456789abcdef"
        );
        let metric = HEADLINE.first().unwrap();
        let figures = ["100", "1000", "10000", "50000"].map(|size| Figure {
            title: metric.title.into(),
            metric,
            size: size.parse().unwrap(),
        });
        assert_eq!(
            not_ahead(&report, &figures),
            "`ipvs` compared with `upstream-ipvs`: ahead in 2 of 3 figures (1 more cannot be compared). **Not ahead** in:\n\n* \
             Cold start at 100 × 2: 2.00 against 1.00 s\n\n"
        );
    }
}
