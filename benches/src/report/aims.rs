//! What was to be reached, each with its figure from this run, met or not.

use super::axes::{SHARE, SHOWN, last};
use super::point::{Metric, Unit, cell};
use super::table::{self, short};
use crate::schema::{Axis, Cell, Counts, Outcome, Report, Size};

/// One aim: what it says, its figure, and whether it is met; no figure if this run does not have it.
struct Aim {
    text: &'static str,
    figure: Option<(String, bool)>,
}

/// A table of all aims; empty if this run says nothing about any of them.
pub(super) fn table(report: &Report) -> String {
    let aims = aims(report);
    if aims.iter().all(|aim| aim.figure.is_none()) {
        return String::new();
    }
    let rows: Vec<Vec<String>> = aims
        .into_iter()
        .map(|aim| {
            let (figure, verdict) = match aim.figure {
                Some((figure, true)) => (figure, "met"),
                Some((figure, false)) => (figure, "**missed**"),
                None => ("–".to_owned(), "not measured"),
            };
            vec![aim.text.to_owned(), figure, verdict.to_owned()]
        })
        .collect();
    let head = ["Aim", "this run", ""].map(str::to_owned);
    format!("### Aims\n\n{}", table::table(&head, &rows))
}

fn aims(report: &Report) -> Vec<Aim> {
    let of = |axis, title: &str, subject: &str, size: &str| -> Option<f64> {
        let metric = SHOWN
            .iter()
            .find(|one| one.axis == axis && one.title == title)?;
        cell(report, metric, subject, size.parse::<Size>().ok()?).median()
    };
    let cold = |subject: &str| {
        of(
            Axis::Cold,
            "until the kernel holds everything",
            subject,
            "10000",
        )
    };
    let ratio = |ours: Option<f64>, base: Option<f64>, most: f64| {
        let ratio = ours? / base.filter(|base| *base > 0.0)?;
        Some((format!("{} ×", short(ratio)), ratio <= most))
    };
    let below = |value: Option<f64>, unit: &str, most: f64| {
        value.map(|value| (format!("{} {unit}", short(value)), value < most))
    };
    let change = |title: &str, size: &str| of(Axis::Change, title, "ipvs", size);
    let first = |subject: &str| {
        let metric = first_packet(last);
        cell(report, &metric, subject, "10000".parse().ok()?).median()
    };
    let least = |subject: &str| {
        let metric = first_packet(|one| {
            let series = one.series.get("last").or_else(|| one.series.get("first"));
            series.map(|series| series.min)
        });
        cell(report, &metric, subject, "1".parse().ok()?).best()
    };
    let lean = ["ipvs-lean", "ipvs"].into_iter().find_map(least);
    let requests = |axis: Axis, subject: &str| of(axis, SHARE, subject, "10000");
    let started_when_idle = of(Axis::Idle, "processes started", "ipvs", "10000");
    let aim = |text, figure| Aim { text, figure };
    vec![
        aim(
            "Cold start at 10,000 × 2: at most 1.25 × the bare loader",
            ratio(cold("ipvs"), cold("floor"), 1.25),
        ),
        aim(
            "Cold start at 10,000 × 2: faster than the bulk tools",
            ratio(cold("ipvs"), cold("tools"), 1.0),
        ),
        aim(
            "Cold start at 10,000 × 2 with routes: at most 1.5 × our iptables mode",
            ratio(cold("ipvs-route"), cold("iptables"), 1.5),
        ),
        aim(
            "One endpoint changed: median at 50,000 within 1.2 × of that at 100",
            ratio(change("median", "50000"), change("median", "100"), 1.2),
        ),
        aim(
            "One endpoint changed: 99th percentile at 50,000 within 2 × of that at 100",
            ratio(
                change("99th percentile", "50000"),
                change("99th percentile", "100"),
                2.0,
            ),
        ),
        aim(
            "One endpoint changed at 50,000: median below 2 ms, the API's part included",
            below(change("median", "50000"), "ms", 2.0),
        ),
        aim(
            "One endpoint replaced by another: one message for each that comes and each that goes",
            writes_for_change(report),
        ),
        aim("Restart on a programmed kernel: no write", writes(report)),
        aim(
            "Idle at 10,000 × 2: at most the read-back of each family and resync period (30 s)",
            started_when_idle.map(|count| {
                let figure = format!("{} processes or threads per min", short(count));
                (figure, count <= 4.0)
            }),
        ),
        aim(
            "Peak memory at 10,000 × 50: below 60 MB",
            below(
                of(Axis::Memory, "peak memory", "ipvs", "10000x50"),
                "MB",
                60.0,
            ),
        ),
        aim(
            "Steady memory at 10,000 × 50: below 40 MB",
            below(
                of(Axis::Memory, "steady memory", "ipvs", "10000x50"),
                "MB",
                40.0,
            ),
        ),
        aim(
            "First packet to the last of 10,000 Services: at most 1/5 of iptables mode's",
            ratio(first("ipvs"), first("iptables"), 0.2),
        ),
        aim(
            "First packet at one Service with the leaner shim: best at most 1.2 × iptables mode's",
            ratio(lean, least("iptables"), 1.2),
        ),
        aim(
            "Requests on a kept connection at 10,000, against direct: at least 0.95 × iptables mode's",
            rate(
                requests(Axis::Keptalive, "ipvs"),
                requests(Axis::Keptalive, "iptables"),
            ),
        ),
        aim(
            "Throughput at 10,000, against direct: at least 0.95 × iptables mode's",
            rate(
                requests(Axis::Throughput, "ipvs"),
                requests(Axis::Throughput, "iptables"),
            ),
        ),
    ]
}

/// A ratio of rates, which must not be less than 0.95.
fn rate(ours: Option<f64>, base: Option<f64>) -> Option<(String, bool)> {
    let ratio = ours? / base.filter(|base| *base > 0.0)?;
    Some((format!("{} ×", short(ratio)), ratio >= 0.95))
}

fn first_packet(of: fn(&crate::schema::Measured) -> Option<f64>) -> Metric {
    Metric {
        axis: Axis::First,
        title: "",
        unit: Unit::Nanoseconds,
        of,
    }
}

/// The netlink messages that write, of our IPVS mode, at the largest restart that was counted.
fn writes(report: &Report) -> Option<(String, bool)> {
    let (_, counts) = counted(report, Axis::Restart)?;
    let (writes, all) = (counts.netlink_writes, counts.netlink_messages);
    Some((format!("{writes} of {all} messages"), writes == 0))
}

/// Those for each endpoint that was replaced.
fn writes_for_change(report: &Report) -> Option<(String, bool)> {
    let (cell, counts) = counted(report, Axis::Change)?;
    let writes = f64::from(u32::try_from(counts.netlink_writes).ok()?) / f64::from(cell.changes);
    // One in a hundred endpoints is local, and has an entry of its own.
    Some((format!("{} messages", short(writes)), writes <= 2.05))
}

/// What our IPVS mode did on an axis at the largest size that was counted.
fn counted(report: &Report, axis: Axis) -> Option<(&Cell, &Counts)> {
    let ours = report.measurements.iter().filter(|one| {
        one.cell.axis == axis && one.cell.is_counting && one.cell.subject.name == "ipvs"
    });
    ours.filter_map(|one| match &one.outcome {
        Outcome::Measured(measured) => Some((&one.cell, measured.counts.as_ref()?)),
        _ => None,
    })
    .max_by_key(|(cell, _)| cell.size.services)
}
