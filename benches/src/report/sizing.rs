//! Writes the tables of docs/sizing.md: memory and CPU time by number of Services and endpoints,
//! and the resource requests that follow from them.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};

use super::axes::SHOWN;
use super::point::{Cell, Metric, cell, sizes, subjects};
use super::table::{brief, table, with_spread};
use super::{about, services};
use crate::schema::{Axis, Report, Size, SubjectKind};

/// Lines of the page before and after the generated tables.
const MARKERS: [&str; 2] = [
    "<!-- begin: `bench sizing` writes these tables -->\n",
    "<!-- end -->",
];
/// Tables of the page, each with its heading, its axis and the start of the figure's title. The
/// first table's figure determines the memory requests.
const FIGURES: [(&str, Axis, &str); 4] = [
    ("Peak memory, MB", Axis::Cold, "peak memory"),
    ("CPU time of a cold start, s", Axis::Cold, CPU),
    ("CPU time of one changed endpoint, ms", Axis::Change, CPU),
    ("CPU time when idle, ms per min", Axis::Idle, "CPU time"),
];
/// Start of the titles of all figures about CPU time.
const CPU: &str = "CPU time of the program";
/// Ratio of the memory request to the highest measured peak.
const RESERVE: f64 = 1.25;
/// Memory requests are multiples of this number of MB.
const STEP: f64 = 16.0;

/// Returns `page` with this report's tables between its [`MARKERS`].
///
/// # Errors
///
/// Returns an error if the page has no markers, or the report has no memory figure.
pub(crate) fn page(report: &Report, page: &str) -> Result<String> {
    let [begin, end] = MARKERS;
    let (head, rest) = page
        .split_once(begin)
        .with_context(|| format!("the page has no line {begin:?}"))?;
    let (_, tail) = rest
        .split_once(end)
        .with_context(|| format!("the page has no line {end:?}"))?;
    let tables = tables(report)?;
    Ok(format!("{head}{begin}\n{tables}{end}{tail}"))
}

fn tables(report: &Report) -> Result<String> {
    let mut text = requests(report)?;
    text.push_str(
        "The next tables show medians of the repeats, with the spread in parentheses.\n\n",
    );
    for (heading, axis, title) in FIGURES {
        let rows = Rows::of(report, axis, title)?;
        if !rows.sizes.is_empty() {
            let figures = rows.table(
                &format!("{heading} (spread), by Services × endpoints"),
                services,
                with_spread,
            );
            _ = write!(text, "### {heading}\n\n{figures}");
        }
    }
    _ = write!(text, "### The run\n\n{}", about(report));
    Ok(text)
}

/// Rows of a table: one for each size, with a column for each kube-proxy. Sizes without figures
/// have no row.
struct Rows<'a> {
    report: &'a Report,
    metric: &'static Metric,
    names: Vec<&'a str>,
    sizes: Vec<Size>,
}

impl<'a> Rows<'a> {
    fn of(report: &'a Report, axis: Axis, title: &str) -> Result<Self> {
        let mut all = SHOWN.iter();
        let metric = all
            .find(|one| one.axis == axis && one.title.starts_with(title))
            .with_context(|| format!("axes.txt has no figure {title:?} of axis {axis}"))?;
        let is_kube_proxy = |name: &&str| {
            let mut cells = report.measurements.iter().map(|one| &one.cell.subject);
            cells.any(|subject| {
                subject.name == *name && matches!(subject.kind, SubjectKind::KubeProxy { .. })
            })
        };
        let names: Vec<&str> = subjects(report, axis)
            .into_iter()
            .filter(is_kube_proxy)
            .collect();
        let has_figure = |size: &Size| {
            let mut cells = names.iter().map(|name| cell(report, metric, name, *size));
            cells.any(|cell| matches!(cell, Cell::Point(_)))
        };
        let sizes = sizes(report, axis).into_iter().filter(has_figure).collect();
        Ok(Self {
            report,
            metric,
            names,
            sizes,
        })
    }

    fn table(
        &self,
        corner: &str,
        row: impl Fn(Size) -> String,
        figure: impl Fn(&Cell) -> String,
    ) -> String {
        let names = self.names.iter().map(|&name| name.to_owned());
        let head: Vec<String> = std::iter::once(corner.to_owned()).chain(names).collect();
        let of = |size: Size| {
            let cells = self.names.iter();
            let cells = cells.map(|name| cell(self.report, self.metric, name, size));
            let figures = cells.map(|cell| figure(&cell));
            std::iter::once(row(size)).chain(figures).collect()
        };
        let rows: Vec<Vec<String>> = self.sizes.iter().map(|&size| of(size)).collect();
        table(&head, &rows)
    }
}

/// Returns a table of memory requests by size and kube-proxy.
fn requests(report: &Report) -> Result<String> {
    let [(_, axis, title), ..] = FIGURES;
    let rows = Rows::of(report, axis, title)?;
    ensure!(!rows.sizes.is_empty(), "the report has no memory figure");
    let request = |cell: &Cell| {
        let request = |peak: f64| format!("{:.0} MB", (peak * RESERVE / STEP).ceil() * STEP);
        cell.worst().map_or_else(|| brief(cell), request)
    };
    Ok(format!(
        "### Memory requests\n\nA request is 25 % more than the highest peak of all repeats, rounded up to a multiple of {STEP} MB:\n\n{}",
        rows.table(
            "memory request, by maximum Services × endpoints",
            services,
            request
        )
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let measurement = |repeat: u32, peak_kib: u64| {
            serde_json::json!({
                "axis": "cold", "size": {"services": 1000, "endpoints": 2}, "repeat": repeat,
                "is_counting": false, "limit_s": 1, "changes": 1, "idle_s": 1,
                "subject": {"name": "ipvs", "kind": "kube-proxy", "path": "/x", "mode": "ipvs",
                    "flags": [], "is_ours": true},
                "outcome": "measured", "peak_kib": peak_kib, "took_s": 1.0,
            })
        };
        serde_json::from_value(serde_json::json!({
            "version": 1,
            "about": {"subjects": ["ipvs"]},
            "measurements": [measurement(0, 20_000), measurement(1, 24_000)],
        }))
        .unwrap()
    }

    #[test]
    fn the_sizing_page_keeps_its_text_around_the_tables() {
        let [begin, end] = MARKERS;
        let before = format!("# Sizing\n\n{begin}earlier{end}\n\nLast.\n");
        let after = page(&report(), &before).unwrap();
        assert!(
            after.starts_with("# Sizing\n\n") && after.ends_with("\n\nLast.\n"),
            "{after}"
        );
        assert!(!after.contains("earlier"), "{after}");
        // 24,000 KiB are 24.6 MB. With a reserve of 25 %, this is 30.7 MB, rounded up to 32 MB.
        assert!(after.contains("| 1,000 × 2 | 32 MB |"), "{after}");
        assert_eq!(page(&report(), &after).unwrap(), after);
        assert!(page(&report(), "# Sizing\n").is_err());
    }
}
