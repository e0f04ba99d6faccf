//! Writes the report (`report.md`) and its charts (SVG) from the data in `report.json`.
//!
//! Each figure is the median of the repeats, with the best repeat and the spread. If a cell (one
//! benchmark run) took too long, left a wrong kernel state or failed, the report says so instead.
//! Reasons are at its end.

mod aims;
mod anatomy;
mod api;
mod axes;
mod comparison;
mod point;
pub(crate) mod sizing;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::plan::is_main;
use crate::schema::{Axis, CellFigures, Measurement, NO_TIME, Outcome, Report, Size};
use axes::{HEADLINE, SHOWN};
use charts::Line;
use point::{Cell, Metric, Unit, cell, sizes, subjects};
use table::{brief, count, full, short, table};

/// Names of the subjects with which the report compares our daemon, besides other kube-proxies.
const BASES: [&str; 4] = ["floor", "tools", "iptables", "bare-ipvs"];

/// Headings of columns, each with the explanation that the report prints.
const COLUMNS: [(&str, &str); 16] = [
    ("ipvs", "our daemon in IPVS mode"),
    ("ipvs-route", "IPVS mode with `--ipvs-vip-mode=route`"),
    ("ipvs-range", "IPVS mode with `--ipvs-vip-mode=range`"),
    ("ipvs-lean", "IPVS mode with `--ipvs-shim=lean`"),
    ("ipvs-nftables", "IPVS mode with `--ipvs-shim=nftables`"),
    (
        "ipvs-exact",
        "IPVS mode with `--ipvs-semantics=exact` and `--ipvs-shim=nftables`",
    ),
    ("iptables", "our daemon in iptables mode"),
    (
        "nftables",
        "nftables mode with `--nftables-layout=upstream`",
    ),
    (
        "nftables-flat",
        "nftables mode with `--nftables-layout=flat`",
    ),
    ("userspace", "our daemon in userspace mode"),
    (
        "nft-floor",
        "a program that only writes the state of `nftables`, prepared before the start",
    ),
    (
        "nft-flat-floor",
        "a program that only writes the state of `nftables-flat`, prepared before the start",
    ),
    (
        "floor",
        "a program that only writes IPVS mode's state, prepared before the start (the lower bound)",
    ),
    (
        "tools",
        "`ipvsadm -R`, `ipset restore`, `iptables-restore` and `ip -batch` write IPVS mode's state",
    ),
    (
        "bare-ipvs",
        "a node with virtual servers, but without sets and rules",
    ),
    (
        "direct",
        "the client connects to the pod's address, without a Service",
    ),
];

/// Returns the heading of a subject's column. Usually, it is the name that `--subjects` accepts.
fn heading(name: &str) -> &str {
    match name {
        "floor" => "bare-loader",
        "nft-floor" => "bare-loader-nft",
        "nft-flat-floor" => "bare-loader-nft-flat",
        "tools" => "ipvsadm+ipset",
        name => name,
    }
}

/// Text above the list of those figures in which our daemon is not ahead.
const BESIDE: &str = "The comparison covers the main figure of each section. *Ahead* means better by more than 5 %, and by more than the \
    spread of the repeats.\n\n";

/// Reason why the report has no column for a kube-proxy of the command line.
const NOT_NAMED: &str = "it was given by --kube-proxy, and --subjects does not name it";

/// A figure that the report shows for one size.
struct Figure {
    /// Title of the figure, without its unit.
    title: String,
    metric: &'static Metric,
    size: Size,
}

/// Introduction of the published page, which has only the main figures.
const MAIN_FIGURES: &str = "For readers who compare the speed of kube-proxies. [The last section](#the-run) explains the cells. \
    [report.json](report.json) has the data.\n\n";

/// Writes `report.md` and its charts to `folder`. Without `is_whole`, writes only the main figures,
/// for publishing.
pub(crate) fn draw(report: &Report, folder: &Path, is_whole: bool) -> Result<()> {
    let write = |name: &str, text: &str| {
        let file = folder.join(name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    };
    let mut text = "# How fast it is\n\n".to_owned();
    if is_whole {
        text.push_str(&about(report));
        text.push_str(&not_shown(report));
    } else {
        text.push_str(MAIN_FIGURES);
    }
    let (short, aims) = (main_table(report), aims::table(report));
    if !short.is_empty() || !aims.is_empty() {
        _ = write!(text, "## In short\n\n{short}{aims}");
    }
    let beside = comparison::not_ahead(report, &first_figures(report));
    if !beside.is_empty() {
        _ = write!(
            text,
            "### Where our daemon is not ahead\n\n{BESIDE}{beside}"
        );
    }
    for axis in Axis::all() {
        let metrics: Vec<&Metric> = SHOWN.iter().filter(|one| one.axis == axis).collect();
        if subjects(report, axis).is_empty() {
            continue;
        }
        _ = write!(
            text,
            "## {}\n\n{}\n\n",
            axes::title(axis),
            axes::explained(axis)
        );
        if let Some(metric) = metrics.first()
            && let Some(chart) = chart(report, metric)
        {
            let name = format!("{axis}.svg");
            write(&name, &chart)?;
            _ = write!(text, "![{}]({name})\n\n", axes::title(axis));
        }
        for (index, metric) in metrics.into_iter().enumerate() {
            let is_first = index == 0;
            let has_figures = is_whole || !(is_first && is_in_main_table(report, metric));
            if is_whole || is_first || is_of_use(metric) {
                text.push_str(&figures(report, metric, has_figures, is_first));
            }
        }
        if axis == Axis::Anatomy {
            text.push_str(&anatomy::whole(report));
            for (subject, size) in pairs(subjects(report, axis), &sizes(report, axis)) {
                let (table, chart) = anatomy::pieces(report, subject, size);
                if is_whole {
                    text.push_str(&table);
                }
                if let Some(chart) = chart {
                    let name = format!("anatomy-{subject}-{size}.svg");
                    write(&name, &chart)?;
                    _ = write!(text, "![What each piece adds]({name})\n\n");
                }
            }
        }
        if axis == Axis::Cold && is_whole {
            text.push_str(&surplus(report));
        }
        if axis == Axis::Api {
            text.push_str(&api::tables(report));
        }
        if is_whole {
            text.push_str(&parts(report, axis));
        }
    }
    if is_whole {
        text.push_str(&counted(report));
        text.push_str(&not_measured(report));
    } else {
        _ = write!(text, "## The run\n\n{}{}", about(report), not_shown(report));
    }
    write("report.md", &lab::pages::wrapped(&text))
}

/// Returns true if the published report has a table of this secondary figure, because operators
/// need it. Other parts of the documents have the rest: docs/sizing.md the memory of a cold start
/// and the CPU time of an idle daemon, and the aims the processes that it starts. Latencies are measured from the API request.
fn is_of_use(metric: &Metric) -> bool {
    let figures: &[&str] = match metric.axis {
        Axis::Idle => return metric.title == "wake-ups",
        Axis::Loaded | Axis::Restart => return false,
        Axis::Cold => &["CPU time of the program"],
        _ => &["memory", "CPU time of the program", "99th percentile"],
    };
    let mut figures = figures.iter();
    !metric.title.starts_with("from the API event")
        && figures.any(|words| metric.title.starts_with(words) || metric.title.ends_with(words))
}

fn repeats(report: &Report) -> u32 {
    let counted = report
        .measurements
        .iter()
        .filter(|one| !one.cell.is_counting && !matches!(one.outcome, Outcome::Skipped { .. }));
    counted.map(|one| one.cell.repeat + 1).max().unwrap_or(0)
}

/// Returns the versions of the kernels that the VMs reported, usually one.
fn kernel(report: &Report) -> String {
    let kernels: BTreeSet<&str> = report
        .measurements
        .iter()
        .filter_map(|one| match &one.outcome {
            Outcome::Measured(measured) => measured.kernel.as_deref(),
            _ => None,
        })
        .collect();
    let kernels: Vec<&str> = kernels.into_iter().collect();
    if kernels.is_empty() {
        report.about.kernel.clone()
    } else {
        format!("Linux {}", kernels.join(", "))
    }
}

fn about(report: &Report) -> String {
    let about = &report.about;
    let rows = [
        ("Started", about.started.clone()),
        ("Duration", format!("{} min", about.seconds.div_ceil(60))),
        ("Commit", about.commit.clone()),
        ("Command", format!("`bench {}`", about.command)),
        ("Kernel", format!("{} ({})", kernel(report), about.kernel)),
        ("Lab kernel, selected by `LAB_LANE`", about.lane.clone()),
        ("CPU", format!("{}; each guest is pinned to one", about.cpu)),
        ("Memory of a guest", about.memory.clone()),
        ("Load of the host at the start", about.load.clone()),
        ("Repeats", format!("up to {}", repeats(report))),
        (
            "Limits of time and sizes",
            if about.is_full {
                "lifted"
            } else {
                "those of `make bench`"
            }
            .into(),
        ),
        ("Other measured kube-proxies", comparison::files(report)),
    ];
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .map(|(name, value)| vec![name.to_owned(), value])
        .collect();
    table(&["Benchmark run".into(), "value".into()], &rows)
}

fn not_shown(report: &Report) -> String {
    let mut text = "* *100 × 2*: 100 Services with 2 endpoints each.\n\
        * Each cell has a fresh kernel. A figure counts only if the benchmark reads the expected state back from the kernel.\n\
        * Figures are medians of the repeats. *Best* is the shortest time, or the highest rate. *Spread* is (max − min) / \
        median.\n\
        * *Over 120 s*: incomplete after 120 s. *Skipped*: planned, but not run. *–*: not planned, or no ratio.\n\n\
        **Limits of these figures:**\n\n"
        .to_owned();
    if report.about.lane != "host" {
        text.push_str(
            "* User Mode Linux computes as fast as the host. But system calls, new memory pages and process starts take many \
             times as long as on a real machine. So programs with many such operations (`ipvsadm+ipset`, iptables) look \
             slower than they are, and programs that batch look faster.\n",
        );
    }
    text.push_str(
        "* The measured program, the API server fixture and the packets share one CPU. So times of kube-proxies include \
         the fixture's work, nothing runs in parallel, and no program waits for a lock.\n\
         * Without a network card, throughput is the speed of memory copies.\n\nCompare ratios, not figures.\n\n",
    );
    for name in &report.about.not_named {
        _ = write!(text, "**{name} was left out:** {NOT_NAMED}.\n\n");
    }
    let left_out = left_out(report);
    for subject in &report.about.subjects {
        let is_begun = |one: &Measurement| {
            one.cell.subject.name == *subject && !matches!(one.outcome, Outcome::Skipped { .. })
        };
        if !report.measurements.iter().any(is_begun) {
            for ((_, why), _) in left_out.iter().filter(|((name, _), _)| *name == subject) {
                _ = write!(text, "**{subject} was skipped:** {why}\n\n");
            }
        }
    }
    let is_late = left_out.keys().any(|(_, why)| *why == NO_TIME);
    if is_late {
        text.push_str("**Skipped cells:** the run reached its time limit.\n\n");
    }
    if report.measurements.len() < report.about.cells {
        text.push_str("**Missing cells:** the run was interrupted.\n\n");
    }
    text
}

/// Returns the main table: a row for each figure and size, a column for each subject.
fn main_table(report: &Report) -> String {
    let names: Vec<&str> = report
        .about
        .subjects
        .iter()
        .map(String::as_str)
        .filter(|name| {
            HEADLINE
                .iter()
                .any(|metric| subjects(report, metric.axis).contains(name))
        })
        .collect();
    let mut head = vec!["Figure".to_owned(), "Services × endpoints".to_owned()];
    head.extend(names.iter().map(|&name| heading(name).to_owned()));
    let mut rows = Vec::new();
    for Figure { metric, size, .. } in main_figures(report) {
        if !has_figure(report, metric, &names, size) {
            continue;
        }
        let cells = names.iter().map(|name| cell(report, metric, name, size));
        let title = format!("{}, {}", metric.title, metric.unit.name());
        let mut row = vec![title, services(size)];
        row.extend(cells.map(|cell| brief(&cell)));
        rows.push(row);
    }
    if rows.is_empty() {
        return String::new();
    }
    let mut text = table(&head, &rows);
    for (name, subject) in COLUMNS.iter().filter(|(name, _)| names.contains(name)) {
        _ = writeln!(text, "- `{}`: {subject}", heading(name));
    }
    let others = comparison::names(report).into_iter();
    let others: Vec<String> = others
        .filter(|name| names.contains(name))
        .map(|name| format!("`{name}`"))
        .collect();
    if !others.is_empty() {
        _ = writeln!(
            text,
            "- {}: another kube-proxy, in the mode at the end of the name",
            others.join(", ")
        );
    }
    text + "\n"
}

/// Returns the figures in the main table, by size.
fn main_figures(report: &Report) -> Vec<Figure> {
    let are_others = comparison::are_there(report);
    let mut figures = Vec::new();
    for metric in HEADLINE.iter() {
        let mut sizes = sizes(report, metric.axis);
        // Without another kube-proxy, figures for 1,000 Services would only repeat other tables.
        let is_main =
            |&size: &Size| is_main(metric.axis, size) && (are_others || size.services != 1_000);
        if sizes.iter().any(is_main) {
            sizes.retain(is_main);
        }
        figures.extend(sizes.into_iter().map(|size| Figure {
            title: metric.title.to_owned(),
            metric,
            size,
        }));
    }
    figures
}

/// Returns the first figure of each axis for all its sizes.
fn first_figures(report: &Report) -> Vec<Figure> {
    let first = |axis| SHOWN.iter().find(|one| one.axis == axis);
    let mut figures = Vec::new();
    for metric in Axis::all().filter_map(first) {
        let sizes = sizes(report, metric.axis).into_iter();
        figures.extend(sizes.map(|size| Figure {
            title: format!("{}, {}", axes::title(metric.axis), metric.title),
            metric,
            size,
        }));
    }
    figures
}

fn services(size: Size) -> String {
    format!("{} × {}", count(size.services), count(size.endpoints))
}

/// Returns true if a table cell has a figure, or says that the state was wrong or the run failed.
fn has_result(cell: &Cell) -> bool {
    matches!(cell, Cell::Point(_) | Cell::Wrong | Cell::Failed)
}

/// Returns true if a program has a figure at this size. Ignores direct connections to a pod, which
/// have the same figure at all sizes.
fn has_figure(report: &Report, metric: &Metric, names: &[&str], size: Size) -> bool {
    let mut names = names.iter().filter(|name| **name != "direct");
    names.any(|name| has_result(&cell(report, metric, name, size)))
}

/// Returns true if the main table has all values of a metric, so that the metric needs no table of
/// its own. With several repeats it does, for the best repeat and the spread.
fn is_in_main_table(report: &Report, metric: &Metric) -> bool {
    let main = main_figures(report);
    let has_row = |size: Size| {
        let of = |one: &Figure| (one.metric.axis, one.metric.of, one.size);
        main.iter()
            .any(|one| of(one) == (metric.axis, metric.of, size))
    };
    let names = subjects(report, metric.axis);
    let mut sizes = sizes(report, metric.axis)
        .into_iter()
        .filter(|&size| has_figure(report, metric, &names, size));
    repeats(report) <= 1 && sizes.all(has_row)
}

/// Returns a table of one metric by size and subject, and a table of ratios. Omits sizes without
/// results.
fn figures(report: &Report, metric: &Metric, has_figures: bool, has_ratios: bool) -> String {
    let names = subjects(report, metric.axis);
    let sizes = sizes(report, metric.axis);
    let of = |name: &str, size| cell(report, metric, name, size);
    // Omits subjects without a figure at any size. The end of the report has the reasons.
    let has_figure = |name: &str, size| {
        !matches!(of(name, size), Cell::Absent | Cell::Skipped)
            && (has_ratios || !matches!(of(name, size), Cell::Over(_)))
    };
    let names: Vec<&str> = names
        .into_iter()
        .filter(|name| sizes.iter().any(|&size| has_figure(name, size)))
        .collect();
    // A direct connection to a pod does not depend on the number of Services, so a run measures it
    // at one size only.
    let is_direct_alone = names == ["direct"];
    let sizes: Vec<Size> = sizes
        .into_iter()
        .filter(|&size| {
            let mut names = names
                .iter()
                .filter(|name| is_direct_alone || **name != "direct");
            names.any(|name| has_result(&of(name, size)))
        })
        .collect();
    if sizes.is_empty() {
        return String::new();
    }
    let axis = axes::title(metric.axis);
    let title = format!(
        "**{axis}, {}** ({}), by Services × endpoints",
        metric.title,
        metric.unit.name()
    );
    let row = |texts: &dyn Fn(Size) -> Vec<String>| -> Vec<Vec<String>> {
        let rows = sizes.iter().map(|&size| {
            let mut row = vec![services(size)];
            row.extend(texts(size));
            row
        });
        rows.collect()
    };
    let mut text = String::new();
    if has_figures {
        let mut head = vec![title];
        head.extend(names.iter().map(|&name| heading(name).to_owned()));
        let cells = |size| -> Vec<String> {
            let cells = names.iter().map(|name| full(&of(name, size)));
            cells.collect()
        };
        text.push_str(&table(&head, &row(&cells)));
    }

    // Returns true if the table of ratios has a column for `ours` divided by `base`.
    let others = comparison::names(report);
    let counterparts = comparison::pairs(report);
    let is_base = |ours: &str, base: &str| match ours {
        "ipvs" => BASES.contains(&base) || others.contains(&base),
        "iptables" => counterparts
            .iter()
            .any(|pair| (pair.ours, pair.other) == (ours, base)),
        "nftables" => base == "nft-floor" || others.contains(&base),
        "nftables-flat" => base == "nft-flat-floor" || others.contains(&base),
        _ => ours.starts_with("ipvs") && base != "tools" && BASES.contains(&base),
    };
    let ratio = |ours: &str, base: &str, size| {
        let (ours, base) = (of(ours, size).median()?, of(base, size).median()?);
        (base > 0.0).then_some(ours / base)
    };
    let pairs: Vec<(&str, &str)> = names
        .iter()
        .filter(|_| has_ratios)
        .flat_map(|&ours| names.iter().map(move |&base| (ours, base)))
        .filter(|(ours, base)| is_base(ours, base))
        .filter(|(ours, base)| sizes.iter().any(|&size| ratio(ours, base, size).is_some()))
        .collect();
    if !pairs.is_empty() {
        let better = if metric.unit.is_rate() {
            "higher"
        } else {
            "lower"
        };
        let mut head = vec![format!(
            "**{axis}, ratio** ({better} is better), by Services × endpoints"
        )];
        let ratios = pairs
            .iter()
            .map(|(ours, base)| format!("{}/{}", heading(ours), heading(base)));
        head.extend(ratios);
        let mut rows = row(&|size| {
            let ratios = pairs
                .iter()
                .map(|(ours, base)| ratio(ours, base, size).map_or_else(|| "–".to_owned(), short));
            ratios.collect()
        });
        rows.retain(|cells| cells.iter().skip(1).any(|cell| cell != "–"));
        text.push_str(&table(&head, &rows));
    }
    text
}

/// Returns a chart of a metric over the number of Services, with a line for each subject. Uses only
/// sizes with the fewest endpoints per Service.
fn chart(report: &Report, metric: &Metric) -> Option<String> {
    let all = sizes(report, metric.axis);
    let endpoints = all.iter().map(|size| size.endpoints).min()?;
    let sizes: Vec<Size> = all
        .into_iter()
        .filter(|size| size.endpoints == endpoints)
        .collect();
    if sizes.len() < 2 {
        return None;
    }
    let mut lines = Vec::new();
    for name in subjects(report, metric.axis) {
        let columns = &report.about.subjects;
        let mut line = Line {
            name: heading(name).to_owned(),
            look: columns
                .iter()
                .position(|column| column == name)
                .unwrap_or(0),
            ..Line::default()
        };
        for &size in &sizes {
            let services = f64::from(size.services);
            match cell(report, metric, name, size) {
                Cell::Point(point) => line.points.push((services, point.median)),
                Cell::Over(limit) if metric.unit == Unit::Seconds => line
                    .over
                    .push((services, f64::from(u32::try_from(limit).ok()?))),
                _ => {}
            }
        }
        lines.push(line);
    }
    let title = format!(
        "{}: {} ({} endpoints each)",
        axes::title(metric.axis),
        metric.title,
        endpoints
    );
    charts::lines(&title, metric.unit.name(), &lines)
}

/// Returns all pairs of a subject and a size.
fn pairs<'a>(subjects: Vec<&'a str>, sizes: &[Size]) -> impl Iterator<Item = (&'a str, Size)> {
    subjects
        .into_iter()
        .flat_map(|subject| sizes.iter().map(move |size| (subject, *size)))
}

/// Returns the subjects measured on an axis at one size, each with its figures.
fn measured(report: &Report, axis: Axis, size: Size) -> impl Iterator<Item = (&str, &CellFigures)> {
    let of_axis = report
        .measurements
        .iter()
        .filter(move |one| one.cell.axis == axis && one.cell.size == size && !one.cell.is_counting);
    of_axis.filter_map(|one| match &one.outcome {
        Outcome::Measured(measured) => Some((one.cell.subject.name.as_str(), &**measured)),
        _ => None,
    })
}

/// Returns a table of the time that the bare loader and the kernel's tools spend on each part
/// (`write_NAME_s` in their output).
fn parts(report: &Report, axis: Axis) -> String {
    let mut values: BTreeMap<(&str, Size), BTreeMap<&str, Vec<f64>>> = BTreeMap::new();
    for one in &report.measurements {
        if let (true, false, Outcome::Measured(measured)) =
            (one.cell.axis == axis, one.cell.is_counting, &one.outcome)
        {
            for (name, value) in &measured.figures {
                if let Some(part) = name
                    .strip_prefix("write_")
                    .and_then(|name| name.strip_suffix("_s"))
                {
                    let point = values.entry((&one.cell.subject.name, one.cell.size));
                    point.or_default().entry(part).or_default().push(*value);
                }
            }
        }
    }
    if values.is_empty() {
        return String::new();
    }
    let names: BTreeSet<&str> = values
        .values()
        .flat_map(|parts| parts.keys().copied())
        .collect();
    let mut head = vec![
        "**where it goes**, s".to_owned(),
        "Services × endpoints".into(),
    ];
    head.extend(names.iter().map(|&name| name.to_owned()));
    let rows: Vec<Vec<String>> = values
        .iter()
        .map(|((subject, size), parts)| {
            let mut row = vec![heading(subject).to_owned(), services(*size)];
            row.extend(names.iter().map(|name| {
                let mut values = parts.get(name).cloned().unwrap_or_default();
                values.sort_by(f64::total_cmp);
                let median = values.get(values.len() / 2);
                median.map_or_else(|| "–".to_owned(), |value| short(*value))
            }));
            row
        })
        .collect();
    table(&head, &rows)
}

/// Returns a table of the system calls and messages that strace counted.
fn counted(report: &Report) -> String {
    let number = |value: u64| count(u32::try_from(value).unwrap_or(u32::MAX));
    let mut rows = Vec::new();
    for axis in Axis::all() {
        for one in report
            .measurements
            .iter()
            .filter(|one| one.cell.axis == axis)
        {
            if let Outcome::Measured(measured) = &one.outcome
                && let Some(counts) = &measured.counts
            {
                rows.push(vec![
                    axis.to_string(),
                    services(one.cell.size),
                    axes::counted(&one.cell, measured),
                    one.cell.subject.name.clone(),
                    number(counts.system_calls),
                    number(counts.netlink_messages),
                    number(counts.netlink_writes),
                    number(counts.table_writes),
                    number(counts.processes),
                ]);
            }
        }
    }
    if rows.is_empty() {
        return String::new();
    }
    let head = [
        "axis",
        "Services × endpoints",
        "counted",
        "subject",
        "system calls",
        "netlink messages",
        "of them writes",
        "iptables tables replaced",
        "programs started",
    ]
    .map(str::to_owned);
    format!(
        "## What was done, counted\n\nIn a repeat of its own under `strace -f`, whose times mean nothing and are not shown.\n\n{}",
        table(&head, &rows)
    )
}

/// Returns a list of the cells (benchmark runs) without figures, with the reasons.
fn not_measured(report: &Report) -> String {
    let mut rows = Vec::new();
    for one in &report.measurements {
        let why = match &one.outcome {
            Outcome::Measured(_) | Outcome::Skipped { .. } => continue,
            Outcome::Over { limit_s, reached } => format!("over {limit_s} s; then: {reached}"),
            Outcome::Wrong { differences } => format!("wrong state: {differences}"),
            Outcome::Failed { why } => format!("failed: {why}"),
        };
        let why: Vec<&str> = why.split_whitespace().collect();
        rows.push(vec![
            one.cell.axis.to_string(),
            services(one.cell.size),
            one.cell.subject.name.clone(),
            if one.cell.is_counting {
                "counting".into()
            } else {
                (one.cell.repeat + 1).to_string()
            },
            why.join(" "),
        ]);
    }
    let head = ["axis", "Services × endpoints", "subject", "repeat", "why"].map(str::to_owned);
    let mut text = String::new();
    if !rows.is_empty() {
        _ = write!(text, "## Cells without a figure\n\n{}", table(&head, &rows));
    }
    let left_out = left_out(report);
    if !(left_out.is_empty() && report.about.not_named.is_empty()) {
        let mut rows: Vec<Vec<String>> = left_out
            .into_iter()
            .map(|((subject, why), cells)| {
                let points: BTreeSet<String> = cells
                    .iter()
                    .map(|cell| format!("{}@{}", cell.axis, cell.size))
                    .collect();
                let points: Vec<String> = points.into_iter().collect();
                let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
                vec![
                    subject.to_owned(),
                    cells.len().to_string(),
                    points.join(", "),
                    why,
                ]
            })
            .collect();
        let not_named = report.about.not_named.iter();
        rows.extend(not_named.map(|name| {
            let texts = [name.as_str(), "all", "–", NOT_NAMED];
            texts.map(str::to_owned).into()
        }));
        let head = ["subject", "cells", "of", "why"].map(str::to_owned);
        _ = write!(
            text,
            "## Cells that were left out\n\n{}",
            table(&head, &rows)
        );
    }
    let (done, planned) = (report.measurements.len(), report.about.cells);
    if done < planned {
        _ = writeln!(
            text,
            "The run was interrupted after {done} of {planned} cells."
        );
    } else if text.is_empty() {
        text = format!("All {done} cells were measured.\n");
    }
    text
}

/// Returns the skipped cells (benchmark runs), grouped by subject and reason.
fn left_out(report: &Report) -> BTreeMap<(&str, &str), Vec<&crate::schema::Cell>> {
    let mut left_out: BTreeMap<(&str, &str), Vec<&crate::schema::Cell>> = BTreeMap::new();
    for one in &report.measurements {
        if let Outcome::Skipped { why, .. } = &one.outcome {
            let cells = left_out.entry((&one.cell.subject.name, why));
            cells.or_default().push(&one.cell);
        }
    }
    left_out
}

/// Returns a table of the time that Service addresses on a link take longer than local routes. This
/// time is spent in the kernel.
fn surplus(report: &Report) -> String {
    let Some(metric) = HEADLINE.iter().find(|one| one.axis == Axis::Cold) else {
        return String::new();
    };
    let of = |name, size| cell(report, metric, name, size).median();
    let rows: Vec<Vec<String>> = sizes(report, Axis::Cold)
        .into_iter()
        .filter_map(|size| {
            let (addresses, routes) = (of("ipvs", size)?, of("ipvs-route", size)?);
            Some(vec![
                services(size),
                short(addresses),
                short(routes),
                short(addresses - routes),
            ])
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let head = [
        "**additional time of addresses instead of routes** (s), by Services × endpoints",
        "ipvs",
        "ipvs-route",
        "difference",
    ]
    .map(str::to_owned);
    table(&head, &rows)
}
