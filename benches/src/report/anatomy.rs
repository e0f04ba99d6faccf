//! Report tables about the first packet of a flow: the time that each part of a mode's rules adds,
//! and a comparison of complete modes.

use std::collections::BTreeMap;

use super::table::{short, table};
use super::{measured, services};
use crate::schema::{
    Axis, Cell, CellFigures, Distribution, NAT_ALONE, NATIVE, Outcome, Report, Size, WHOLE,
};

/// Name of the mode to which all other modes are compared.
const BASE: &str = "iptables";

/// Time per packet in the fastest block of a mode, and in the fastest block of iptables mode on the
/// same kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Against {
    pub(super) best: f64,
    pub(super) base: f64,
}

impl Against {
    pub(super) fn ratio(&self) -> f64 {
        self.best / self.base
    }
}

/// Compares a complete mode with iptables mode, with one Service. Of all kernels that ran both,
/// returns the one with the median ratio.
pub(super) fn against(report: &Report, subject: &str) -> Option<Against> {
    of_kernels(report, &format!("{WHOLE}{subject}"), |_| true)
}

fn of_kernels(report: &Report, name: &str, is_meant: fn(&Cell) -> bool) -> Option<Against> {
    let best = |measured: &CellFigures, name: &str| {
        let series = &measured.series;
        let found = series.iter().find(|(step, _)| title(step) == name)?;
        Some(found.1.min)
    };
    let base = format!("{WHOLE}{BASE}");
    let mut found: Vec<Against> = report
        .measurements
        .iter()
        .filter(|one| one.cell.axis == Axis::Anatomy && one.cell.size.services == 1)
        .filter(|one| is_meant(&one.cell))
        .filter_map(|one| match &one.outcome {
            Outcome::Measured(measured) => Some(Against {
                best: best(measured, name)?,
                base: best(measured, &base).filter(|base| *base > 0.0)?,
            }),
            _ => None,
        })
        .collect();
    found.sort_by(|one, other| one.ratio().total_cmp(&other.ratio()));
    found.get(found.len() / 2).copied()
}

/// Returns a table of all complete modes. The last row has the time without any rule.
pub(super) fn whole(report: &Report) -> String {
    let mut names: Vec<&str> = report
        .measurements
        .iter()
        .filter_map(|one| match &one.outcome {
            Outcome::Measured(measured) if one.cell.axis == Axis::Anatomy => Some(measured),
            _ => None,
        })
        .flat_map(|measured| measured.series.keys())
        .filter_map(|step| title(step).strip_prefix(WHOLE))
        .collect();
    names.sort_unstable();
    names.dedup();
    names.retain(|name| *name != BASE);
    let mut rows = Vec::new();
    for (name, found) in names.into_iter().map(|name| (name, against(report, name))) {
        rows.extend(found.map(|found| row(name.to_owned(), found)));
    }
    if rows.is_empty() {
        return String::new();
    }
    // The last row needs a kernel without iptables tables. IPVS mode with nftables rules runs on
    // such a kernel.
    let bare = of_kernels(report, NAT_ALONE, |cell| cell.subject.kind.has(NATIVE));
    let what = "IPVS, connection tracking and translation of addresses, no rule".to_owned();
    rows.extend(bare.map(|found| row(what, found)));
    let head = [
        "",
        "best block, ns",
        "iptables mode's in the same kernel",
        "×",
    ]
    .map(str::to_owned);
    format!(
        "### Whole modes at one Service\n\n{}Of the kernels that had both, the middle one.\n\n",
        table(&head, &rows)
    )
}

fn row(name: String, found: Against) -> Vec<String> {
    vec![
        name,
        short(found.best),
        short(found.base),
        format!("{:.2}", found.ratio()),
    ]
}

/// Returns the name of a series without the number at its start.
fn title(step: &str) -> &str {
    step.split_once(' ').map_or(step, |(_, name)| name)
}

/// Returns a table, and a chart if possible, of the time that each part of a mode's rules adds.
pub(super) fn pieces(report: &Report, subject: &str, size: Size) -> (String, Option<String>) {
    // Combines the repeats of a step, as if one run had measured all their blocks.
    let mut steps: BTreeMap<&str, Vec<&Distribution>> = BTreeMap::new();
    let of_both = measured(report, Axis::Anatomy, size);
    for (_, measured) in of_both.filter(|(name, _)| *name == subject) {
        for (step, values) in &measured.series {
            steps.entry(step).or_default().push(values);
        }
    }
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    let mut before: Option<(f64, f64)> = None;
    for (step, repeats) in steps {
        let of = |one: fn(&Distribution) -> f64| -> Vec<f64> {
            let mut values: Vec<f64> = repeats.iter().copied().map(one).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let least = of(|one| one.min).first().copied().unwrap_or_default();
        let medians = of(|one| one.p50);
        let median = medians.get(medians.len() / 2).copied().unwrap_or_default();
        // In the slowest tenth of the blocks, other work in the VM interrupted the packets. So the
        // highest shown value is the 90th percentile.
        let high = of(|one| one.p90).last().copied().unwrap_or_default();
        let added = |now: f64, before: Option<f64>| {
            before.map_or_else(|| "–".to_owned(), |before| format!("{:+.0}", now - before))
        };
        let name = title(step);
        if name.starts_with(WHOLE) {
            before = None;
        }
        rows.push(vec![
            name.to_owned(),
            short(least),
            added(least, before.map(|before| before.0)),
            short(median),
            added(median, before.map(|before| before.1)),
            format!("{:.0} %", (high - least) / median * 100.0),
        ]);
        bars.push((name.to_owned(), least));
        before = Some((least, median));
    }
    if rows.is_empty() {
        return (String::new(), None);
    }
    let head = ["+ piece", "min, ns", "adds", "median, ns", "adds", "spread"].map(str::to_owned);
    let text = format!(
        "### {subject}, {} Services × endpoints\n\n{}The spread is from the least to the 90th percentile.\n\n",
        services(size),
        table(&head, &rows)
    );
    let chart = charts::bars(
        &format!(
            "First packet of a flow, piece by piece: {subject}, {} Services × endpoints",
            services(size)
        ),
        "ns for a packet, minimum, all pieces up to this one",
        &bars,
    );
    (text, chart)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{About, Measurement};

    fn kernel(blocks: &[(&str, f64)]) -> Measurement {
        let cell = serde_json::from_str(
            r#"{"axis": "anatomy", "size": {"services": 1, "endpoints": 2}, "repeat": 0, "is_counting": false,
                "limit_s": 1, "changes": 1, "idle_s": 1, "subject": {"name": "ipvs-nftables", "kind": "kube-proxy",
                "path": "/x", "mode": "ipvs", "flags": ["--ipvs-shim=nftables"], "is_ours": true}}"#,
        );
        let mut measured = CellFigures::default();
        for (number, (name, least)) in blocks.iter().enumerate() {
            let values = Distribution::of("ns", vec![*least, least * 3.0]).unwrap();
            measured
                .series
                .insert(format!("{number:02} {name}"), values);
        }
        Measurement {
            cell: cell.unwrap(),
            outcome: Outcome::Measured(Box::new(measured)),
            took_s: 1.0,
        }
    }

    #[test]
    fn modes_are_compared_only_on_the_same_kernel() {
        let own = "by the daemon: ipvs-nftables";
        let base = "by the daemon: iptables";
        let report = Report {
            measurements: vec![
                kernel(&[(NAT_ALONE, 9.0), (own, 12.0), (base, 10.0)]),
                kernel(&[(NAT_ALONE, 16.0), (own, 22.0), (base, 20.0)]),
                kernel(&[(own, 50.0)]),
                kernel(&[(own, 13.0), (base, 10.0)]),
            ],
            version: 1,
            about: About::default(),
        };
        let found = against(&report, "ipvs-nftables").unwrap();
        assert_eq!((found.best, found.base), (12.0, 10.0));
        assert!(against(&report, "nftables").is_none());
        let text = whole(&report);
        assert!(
            text.contains("| ipvs-nftables | 12.0 | 10.0 | 1.20 |"),
            "{text}"
        );
        assert!(text.contains("no rule | 9.00 | 10.0 | 0.90 |"), "{text}");
    }
}
