//! Compares the figures of a run with the performance aims.

use std::fmt::Write as _;

use super::axes::{COLD, SHOWN};
use super::point::{self, Metric, cell};
use super::table::{self, short};
use super::{anatomy, api};
use crate::objects::{Objects, changed};
use crate::schema::{Axis, Cell, CellFigures, Outcome, Report, Size};

/// Performance aims, one in each paragraph. The first line is the aim's text. The second has the
/// kind of comparison and its bound. The other lines name figures of `axes.txt` to compare.
const AIMS: &str = include_str!("aims.txt");

/// Figure for an aim as text, and true if it meets the aim. `None` if the aim has no bound.
type Figure = (String, Option<bool>);

/// A performance aim, and its figure if this run measured it.
struct Aim {
    text: &'static str,
    figure: Option<Figure>,
}

/// Returns a table of the aims for which this run has figures. Empty if there are none.
pub(super) fn table(report: &Report) -> String {
    let aims = aims(report);
    let all = aims.len();
    let rows: Vec<Vec<String>> = aims
        .into_iter()
        .filter_map(|aim| {
            let (figure, is_met) = aim.figure?;
            let result = match is_met {
                Some(true) => "met",
                Some(false) => "**missed**",
                None => "comparison only",
            };
            Some(vec![aim.text.to_owned(), figure, result.to_owned()])
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let head = [
        "Aim or comparison (N × M: N Services with M endpoints each)",
        "measured in this run",
        "result",
    ]
    .map(str::to_owned);
    let mut text = format!("### Aims\n\n{}", table::table(&head, &rows));
    let missing = all - rows.len();
    if missing > 0 {
        _ = write!(
            text,
            "This run did not measure {missing} of {all} aims (benches/src/report/aims.txt).\n\n"
        );
    }
    text
}

fn aims(report: &Report) -> Vec<Aim> {
    let aim = |text: &'static str| {
        let mut lines = text.lines();
        let text = lines.next()?;
        let kind: Vec<&str> = lines.next()?.split(' ').collect();
        let figure = figure(report, &kind, &lines.collect::<Vec<_>>());
        Some(Aim { text, figure })
    };
    AIMS.split("\n\n").filter_map(aim).collect()
}

/// Computes the figure for an aim of this kind from the figures that `rows` name.
fn figure(report: &Report, kind: &[&str], rows: &[&str]) -> Option<Figure> {
    let cell = |at: usize| {
        let mut words = rows.get(at).map_or("", |row| row).split(" | ");
        let mut word = || words.next().unwrap_or_default();
        let (axis, title, subject, size) = (word(), word(), word(), word());
        let cell = axis.parse().map_or(point::Cell::Absent, |axis| {
            point(report, axis, title, subject, size)
        });
        (cell, word() == "best")
    };
    let value = |at| match cell(at) {
        (cell, true) => cell.best(),
        (cell, false) => cell.median(),
    };
    let bound = kind.get(1).and_then(|most| most.parse().ok());
    let most = bound.unwrap_or(f64::INFINITY);
    let unit = rows.first().map_or("", |row| unit_of(row));
    match *kind.first()? {
        "ratio" => ratio(value(0), value(1), unit, most),
        "compared" => compared(value(0), value(1), unit),
        "own" => own(value(0), value(1), most),
        "surplus" => surplus(value(0), value(1)),
        "below" => below(value(0), kind.get(2)?, most),
        "equal" => equal(&cell(0).0, &cell(1).0),
        "growth" => growth([value(0), value(1)], [value(2), value(3)]),
        "grown" => grown([value(0), value(1)], [value(2), value(3)]),
        "in-anatomy" => anatomy::against(report, "ipvs-nftables")
            .and_then(|found| ratio(Some(found.best), Some(found.base), unit, most))
            .or_else(|| ratio(value(0), value(1), unit, most)),
        "idle" => value(0).map(|count| {
            let figure = format!("{} processes or threads per min", short(count));
            (figure, Some(count <= most))
        }),
        "tables" => tables(report),
        "writes" => writes(report),
        "writes-for-change" => writes_for_change(report),
        "api-bytes" => api::bytes(report),
        other => unreachable!("aims.txt has no kind {other}"),
    }
}

/// Returns the value of the figure `title` of an axis, for one subject and size.
fn point(report: &Report, axis: Axis, title: &str, subject: &str, size: &str) -> point::Cell {
    match (metric(axis, title), size.parse::<Size>()) {
        (Some(metric), Ok(size)) => cell(report, metric, subject, size),
        _ => point::Cell::Absent,
    }
}

/// Returns the unit of the figure that a row of `aims.txt` names.
fn unit_of(row: &str) -> &'static str {
    let mut words = row.split(" | ");
    let mut word = || words.next().unwrap_or_default();
    let (axis, title) = (word(), word());
    let found = axis.parse().ok().and_then(|axis| metric(axis, title));
    found.map_or("", |one| one.unit.name())
}

/// Returns the metric with this title of an axis.
fn metric(axis: Axis, title: &str) -> Option<&'static Metric> {
    let mut all = SHOWN.iter();
    all.find(|one| one.axis == axis && one.title == title)
}

/// Returns our figure divided by another, with both as text. It meets the aim if the ratio is at
/// most `most`.
fn ratio(ours: Option<f64>, base: Option<f64>, unit: &str, most: f64) -> Option<Figure> {
    let (ours, base) = (ours?, base.filter(|base| *base > 0.0)?);
    let figure = format!(
        "{} × ({} against {} {unit})",
        short(ours / base),
        short(ours),
        short(base)
    );
    Some((figure, Some(ours / base <= most)))
}

/// Returns our figure divided by another, for an aim without a bound.
fn compared(ours: Option<f64>, base: Option<f64>, unit: &str) -> Option<Figure> {
    ratio(ours, base, unit, f64::INFINITY).map(|(figure, _)| (figure, None))
}

fn below(value: Option<f64>, unit: &str, most: f64) -> Option<Figure> {
    value.map(|value| (format!("{} {unit}", short(value)), Some(value < most)))
}

/// Returns the time by which our daemon takes longer than the bare loader, in milliseconds. It
/// meets the aim if it is at most `most`.
fn own(ours: Option<f64>, floor: Option<f64>, most: f64) -> Option<Figure> {
    let own = ours? - floor?;
    Some((format!("{} ms", short(own)), Some(own <= most)))
}

fn surplus(addresses: Option<f64>, routes: Option<f64>) -> Option<Figure> {
    let (addresses, routes) = (addresses?, routes.filter(|routes| *routes > 0.0)?);
    let more = addresses - routes;
    let percent = more / routes * 100.0;
    Some((format!("{} s ({percent:+.0} %)", short(more)), None))
}

/// Returns the time of the bare loader for 50,000 Services: in total, and for its largest parts.
fn tables(report: &Report) -> Option<Figure> {
    let part = |name: &'static str| {
        let of = |one: &CellFigures| one.figures.get(name).copied();
        let values: Vec<f64> = report
            .measurements
            .iter()
            .filter(|one| {
                let cell = &one.cell;
                let is_size = (cell.size.services, cell.size.endpoints) == (50_000, 2);
                cell.axis == Axis::Cold && is_size && cell.subject.name == "floor"
            })
            .filter_map(|one| match &one.outcome {
                Outcome::Measured(measured) => of(measured),
                _ => None,
            })
            .collect();
        values.into_iter().min_by(f64::total_cmp)
    };
    let all = point(report, Axis::Cold, COLD, "floor", "50000").median()?;
    let text = format!(
        "{} s, of it addresses {}, virtual servers {}, set members {}",
        short(all),
        short(part("write_addresses_s")?),
        short(part("write_servers_s")?),
        short(part("write_members_s")?)
    );
    Some((text, None))
}

/// Compares how much the time of a packet grows from one size to a larger one (in nanoseconds):
/// with our daemon, and with bare IPVS.
fn growth(ours: [Option<f64>; 2], bare: [Option<f64>; 2]) -> Option<Figure> {
    let by = |[from, to]: [Option<f64>; 2]| Some(to? - from?);
    let (ours, bare) = (by(ours)?, by(bare)?);
    let figure = format!("{} ns, bare {} ns", short(ours), short(bare));
    Some((figure, Some(ours <= 1.5 * bare.max(0.0))))
}

/// Compares how much the time grows from one size to a larger one (in milliseconds): of our daemon,
/// and of the bare loader.
fn grown(ours: [Option<f64>; 2], bare: [Option<f64>; 2]) -> Option<Figure> {
    let by = |[from, to]: [Option<f64>; 2]| Some(short(to? - from?));
    let figure = format!("{} ms, bare loader {} ms", by(ours)?, by(bare)?);
    Some((figure, None))
}

/// Compares two rates. Ours may be lower by 5 %, or by the spread of the repeats if this is larger.
fn equal(ours: &point::Cell, base: &point::Cell) -> Option<Figure> {
    let (point::Cell::Point(ours), point::Cell::Point(base)) = (ours, base) else {
        return None;
    };
    let noise = ours.spread.max(base.spread).max(0.05);
    let ratio = ours.median / base.median;
    let figure = format!("{} × (noise {:.0} %)", short(ratio), noise * 100.0);
    Some((figure, Some(ratio >= 1.0 - noise)))
}

/// Returns the number of netlink messages by which IPVS mode writes to the kernel during a restart,
/// at the largest size for which they were counted.
fn writes(report: &Report) -> Option<Figure> {
    let (_, measured) = counted(report, Axis::Restart)?;
    let counts = measured.counts.as_ref()?;
    let (writes, all) = (counts.netlink_writes, counts.netlink_messages);
    let tables = counts.table_writes;
    let figure = format!("{writes} of {all} messages, {tables} iptables tables");
    Some((figure, Some(writes + tables == 0)))
}

/// Returns the number of netlink messages by which IPVS mode writes to the kernel for each replaced
/// endpoint, by type of message.
fn writes_for_change(report: &Report) -> Option<Figure> {
    let (cell, measured) = counted(report, Axis::Change)?;
    let counts = measured.counts.as_ref()?;
    if counts.writes_by_name.is_empty() && counts.netlink_writes > 0 {
        // This run is from a version that counted only the total number of messages.
        return None;
    }
    let of_step = |turn: &u32| {
        let steps = measured.figures.get("steps");
        steps.is_none_or(|steps| f64::from(*turn) < *steps)
    };
    let turns: Vec<u32> = (0..cell.changes).filter(of_step).collect();
    let objects = Objects::new(cell.size);
    let local = turns.iter().filter(|turn| {
        let (service, index) = changed(cell.size, **turn);
        let old = objects.endpoints(service);
        old.get(index).is_some_and(|endpoint| endpoint.is_local)
    });
    let (steps, local) = (turns.len() as u64, local.count() as u64);
    let of = |name: &str| counts.writes_by_name.get(name).copied().unwrap_or(0);
    let kinds = ["NEW_DEST", "SET_DEST", "DEL_DEST"];
    let numbers = kinds.map(|kind| of(&format!("IPVS_CMD_{kind}")));
    let others = counts.netlink_writes - numbers.iter().sum::<u64>();
    let figure = format!(
        "{steps} changes, {local} of them local: {}, {others} others",
        kinds
            .iter()
            .zip(numbers)
            .map(|(kind, number)| format!("{number} {kind}"))
            .collect::<Vec<_>>()
            .join(", ")
    );
    let is_met = numbers.iter().all(|number| *number <= steps) && others <= local;
    Some((figure, Some(is_met)))
}

/// Returns the cell (benchmark run) of IPVS mode in which strace counted on this axis, with its
/// figures. Of several sizes, takes the one with the most Services.
fn counted(report: &Report, axis: Axis) -> Option<(&Cell, &CellFigures)> {
    let ours = report.measurements.iter().filter(|one| {
        one.cell.axis == axis && one.cell.is_counting && one.cell.subject.name == "ipvs"
    });
    ours.filter_map(|one| match &one.outcome {
        Outcome::Measured(measured) => Some((&one.cell, &**measured)),
        _ => None,
    })
    .max_by_key(|(cell, _)| cell.size.services)
}
