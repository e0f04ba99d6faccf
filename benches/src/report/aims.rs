//! What was to be reached, each with its figure from this run, met or not.

use super::axes::{COLD, FROM_EVENT, SHARE, SHOWN};
use super::point::{self, cell};
use super::table::{self, short};
use super::{anatomy, api};
use crate::objects::{Objects, changed};
use crate::schema::{Axis, Cell, Measured, Outcome, Report, Size};

/// A figure in words, and whether it is what was aimed at; some have no bound.
type Figure = (String, Option<bool>);

/// One aim: what it says, and its figure, if this run has it.
struct Aim {
    text: &'static str,
    figure: Option<Figure>,
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
                Some((figure, Some(true))) => (figure, "met"),
                Some((figure, Some(false))) => (figure, "**missed**"),
                Some((figure, None)) => (figure, "no bound"),
                None => ("–".to_owned(), "not measured"),
            };
            vec![aim.text.to_owned(), figure, verdict.to_owned()]
        })
        .collect();
    let head = ["Aim", "this run", ""].map(str::to_owned);
    format!("### Aims\n\n{}", table::table(&head, &rows))
}

fn aims(report: &Report) -> Vec<Aim> {
    let of =
        |axis, title: &str, subject: &str, size: &str| point(report, axis, title, subject, size);
    let median =
        |axis, title: &str, subject: &str, size: &str| of(axis, title, subject, size).median();
    let cold = |subject: &str, size| median(Axis::Cold, COLD, subject, size);
    let loaded = |subject: &str| median(Axis::Loaded, COLD, subject, "10000");
    let change = |title: &str, size| median(Axis::Change, title, "ipvs", size);
    let memory = |title: &str| median(Axis::Memory, title, "ipvs", "10000x50");
    let last = |subject: &str, size| median(Axis::First, "to the last Service", subject, size);
    let least = |subject: &str, size| {
        let title = "to the last Service, best block";
        of(Axis::First, title, subject, size).best()
    };
    // A virtual server comes to the head of its bucket.
    let deepest = |subject: &str, size| {
        let title = "to the first Service, best block";
        of(Axis::First, title, subject, size).best()
    };
    let answered = |subject: &str| {
        let title = "to the first Service, with its answer, best block";
        of(Axis::First, title, subject, "1").best()
    };
    let share = |axis, subject| of(axis, SHARE, subject, "10000");
    let idle = median(Axis::Idle, "processes started", "ipvs", "10000");
    let aim = |text, figure| Aim { text, figure };
    vec![
        aim(
            "Cold start at 10,000 × 2: at most 1.25 × the bare loader",
            ratio(cold("ipvs", "10000"), cold("floor", "10000"), 1.25),
        ),
        aim(
            "Cold start at 10,000 × 2 in nftables mode: at most 1.25 × the bare loader",
            ratio(cold("nftables", "10000"), cold("nft-floor", "10000"), 1.25),
        ),
        aim(
            "One endpoint changed at 50,000 in nftables mode, from the event that the API sends: at most 1.5 × the bare loader",
            ratio(
                median(Axis::Change, FROM_EVENT, "nftables", "50000"),
                median(Axis::Change, "median", "nft-floor", "50000"),
                1.5,
            ),
        ),
        aim(
            "One endpoint changed at 50,000 in nftables mode: what is our own, of that",
            own(
                median(Axis::Change, FROM_EVENT, "nftables", "50000"),
                median(Axis::Change, "median", "nft-floor", "50000"),
                5.0,
            ),
        ),
        aim(
            "Cold start at 10,000 × 2 in nftables mode's flat layout: at most 1.25 × the bare loader",
            ratio(
                cold("nftables-flat", "10000"),
                cold("nft-flat-floor", "10000"),
                1.25,
            ),
        ),
        aim(
            "One endpoint changed at 50,000 in the flat layout: what is our own",
            own(
                median(Axis::Change, FROM_EVENT, "nftables-flat", "50000"),
                median(Axis::Change, "median", "nft-flat-floor", "50000"),
                5.0,
            ),
        ),
        aim(
            "First packet at one Service with the shim of nftables: best at most that of iptables mode, in the same kernel (anatomy)",
            anatomy::against(report, "ipvs-nftables")
                .and_then(|found| ratio(Some(found.best), Some(found.base), 1.0))
                .or_else(|| ratio(least("ipvs-nftables", "1"), least("iptables", "1"), 1.0)),
        ),
        aim(
            "Cold start at 10,000 × 2 with all kernel modules loaded before: against the bare loader, which does not load them together as our daemon does",
            compared(loaded("ipvs"), loaded("floor")),
        ),
        aim(
            "Cold start at 10,000 × 2: faster than the bulk tools",
            ratio(cold("ipvs", "10000"), cold("tools", "10000"), 1.0),
        ),
        aim(
            "Cold start at 10,000 × 2 with routes: at most 1.5 × our iptables mode",
            ratio(cold("ipvs-route", "10000"), cold("iptables", "10000"), 1.5),
        ),
        aim(
            "Cold start at 10,000 × 2: what addresses cost more than routes",
            surplus(cold("ipvs", "10000"), cold("ipvs-route", "10000")),
        ),
        aim(
            "Cold start at 50,000 × 2: what addresses cost more than routes",
            surplus(cold("ipvs", "50000"), cold("ipvs-route", "50000")),
        ),
        aim(
            "Cold start at 50,000 × 2: what the kernel's own tables cost, by the bare loader",
            tables(report),
        ),
        aim(
            "One endpoint changed: median at 50,000 within 1.2 × of that at 100, from the request to the API",
            ratio(change("median", "50000"), change("median", "100"), 1.2),
        ),
        aim(
            "One endpoint changed: the same from the event that the API sends",
            ratio(change(FROM_EVENT, "50000"), change(FROM_EVENT, "100"), 1.2),
        ),
        aim(
            "One endpoint changed: what that grows by, and what the same messages do, sent by the bare loader",
            grown(
                ["100", "50000"].map(|size| change(FROM_EVENT, size)),
                ["100", "50000"].map(|size| median(Axis::Change, "median", "floor", size)),
            ),
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
            "One endpoint changed at 50,000: median below 2 ms, from the event that the API sends",
            below(change(FROM_EVENT, "50000"), "ms", 2.0),
        ),
        aim(
            "One endpoint replaced by another: a message for the one that comes, for the one that goes (weight 0) and when it has drained, and for a local one's entry in the loop-back set",
            writes_for_change(report),
        ),
        aim("Restart on a programmed kernel: no write", writes(report)),
        aim(
            "Idle at 10,000 × 2: at most the read-back of each family and resync period (30 s)",
            idle.map(|count| {
                let figure = format!("{} processes or threads per min", short(count));
                (figure, Some(count <= 4.0))
            }),
        ),
        aim(
            "Peak memory at 10,000 × 50: below 60 MB",
            below(memory("peak memory"), "MB", 60.0),
        ),
        aim(
            "Steady memory at 10,000 × 50: below 40 MB",
            below(memory("steady memory"), "MB", 40.0),
        ),
        aim(
            "What the API server sends on each occasion: no more bytes than to another kube-proxy in the same mode, within 5 %",
            api::bytes(report),
        ),
        aim(
            "First packet to the last of 10,000 Services: at most 1/5 of iptables mode's",
            ratio(last("ipvs", "10000"), last("iptables", "10000"), 0.2),
        ),
        aim(
            "First packet to the first Service made, best: its growth from 1 to 50,000 is that of bare virtual servers, within a half",
            growth(
                ["1", "50000"].map(|size| deepest("ipvs", size)),
                ["1", "50000"].map(|size| deepest("bare-ipvs", size)),
            ),
        ),
        aim(
            "First packet at one Service with the leaner shim: best at most 1.2 × iptables mode's best",
            ratio(least("ipvs-lean", "1"), least("iptables", "1"), 1.2),
        ),
        aim(
            "First packet with its answer at one Service with the leaner shim, best, against iptables mode's best",
            compared(answered("ipvs-lean"), answered("iptables")),
        ),
        aim(
            "First packet at one Service with upstream's shim, best, against iptables mode's best",
            compared(least("ipvs", "1"), least("iptables", "1")),
        ),
        aim(
            "Requests on a kept connection at 10,000, against direct: as in iptables mode, within the noise",
            equal(
                &share(Axis::Keptalive, "ipvs"),
                &share(Axis::Keptalive, "iptables"),
            ),
        ),
        aim(
            "Throughput at 10,000, against direct: as in iptables mode, within the noise",
            equal(
                &share(Axis::Throughput, "ipvs"),
                &share(Axis::Throughput, "iptables"),
            ),
        ),
    ]
}

/// A figure that has a table of its own, by its title there.
fn point(report: &Report, axis: Axis, title: &str, subject: &str, size: &str) -> point::Cell {
    let metric = SHOWN
        .iter()
        .find(|one| one.axis == axis && one.title == title);
    match (metric, size.parse::<Size>()) {
        (Some(metric), Ok(size)) => cell(report, metric, subject, size),
        _ => point::Cell::Absent,
    }
}

fn ratio(ours: Option<f64>, base: Option<f64>, most: f64) -> Option<Figure> {
    let (ours, base) = (ours?, base.filter(|base| *base > 0.0)?);
    let figure = format!(
        "{} × ({} to {})",
        short(ours / base),
        short(ours),
        short(base)
    );
    Some((figure, Some(ours / base <= most)))
}

/// A ratio without a bound.
fn compared(ours: Option<f64>, base: Option<f64>) -> Option<Figure> {
    ratio(ours, base, f64::INFINITY).map(|(figure, _)| (figure, None))
}

fn below(value: Option<f64>, unit: &str, most: f64) -> Option<Figure> {
    value.map(|value| (format!("{} {unit}", short(value)), Some(value < most)))
}

/// What is over the bare loader, in milliseconds.
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

/// The floor's own account at 50,000 Services.
fn tables(report: &Report) -> Option<Figure> {
    let part = |name: &'static str| {
        let of = |one: &Measured| one.figures.get(name).copied();
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

/// What both grow by, from the first to the second.
fn growth(ours: [Option<f64>; 2], bare: [Option<f64>; 2]) -> Option<Figure> {
    let by = |[from, to]: [Option<f64>; 2]| Some(to? - from?);
    let (ours, bare) = (by(ours)?, by(bare)?);
    let figure = format!("{} ns, bare {} ns", short(ours), short(bare));
    Some((figure, Some(ours <= 1.5 * bare.max(0.0))))
}

/// What ours and the kernel's own part of it grow by, in milliseconds.
fn grown(ours: [Option<f64>; 2], bare: [Option<f64>; 2]) -> Option<Figure> {
    let by = |[from, to]: [Option<f64>; 2]| Some(short(to? - from?));
    let figure = format!("{} ms, bare loader {} ms", by(ours)?, by(bare)?);
    Some((figure, None))
}

/// A ratio of rates that is 1, but for what the repeats of each differ by, or for 5 %.
fn equal(ours: &point::Cell, base: &point::Cell) -> Option<Figure> {
    let (point::Cell::Point(ours), point::Cell::Point(base)) = (ours, base) else {
        return None;
    };
    let noise = ours.spread.max(base.spread).max(0.05);
    let ratio = ours.median / base.median;
    let figure = format!("{} × (noise {:.0} %)", short(ratio), noise * 100.0);
    Some((figure, Some(ratio >= 1.0 - noise)))
}

/// What writes, of our IPVS mode, at the largest restart that was counted.
fn writes(report: &Report) -> Option<Figure> {
    let (_, measured) = counted(report, Axis::Restart)?;
    let counts = measured.counts.as_ref()?;
    let (writes, all) = (counts.netlink_writes, counts.netlink_messages);
    let tables = counts.table_writes;
    let figure = format!("{writes} of {all} messages, {tables} iptables tables");
    Some((figure, Some(writes + tables == 0)))
}

/// The messages for all endpoints that were replaced, by what they are.
fn writes_for_change(report: &Report) -> Option<Figure> {
    let (cell, measured) = counted(report, Axis::Change)?;
    let counts = measured.counts.as_ref()?;
    if counts.writes_by_name.is_empty() && counts.netlink_writes > 0 {
        // Of a run that did not name them.
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

/// What our IPVS mode did on an axis at the largest size that was counted.
fn counted(report: &Report, axis: Axis) -> Option<(&Cell, &Measured)> {
    let ours = report.measurements.iter().filter(|one| {
        one.cell.axis == axis && one.cell.is_counting && one.cell.subject.name == "ipvs"
    });
    ours.filter_map(|one| match &one.outcome {
        Outcome::Measured(measured) => Some((&one.cell, &**measured)),
        _ => None,
    })
    .max_by_key(|(cell, _)| cell.size.services)
}
