//! The host's side: cells one after another, within the limits, and the report of what came of them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use lab::{Lane, Options};

use crate::budget::{self, Budget};
use crate::plan::{Asked, Plan};
use crate::report;
use crate::schema::{
    About, Axis, Cell, LEAN, Measurement, Mode, NO_TIME, Outcome, ROUTE, Report, Size, Subject,
    SubjectKind,
};
use crate::stage::beside;

/// What `report.json` says its version is.
const VERSION: u32 = 1;
/// What a cell may take on top of its limits: boot, surroundings, the fixture's start and a last look.
const AROUND: Duration = Duration::from_mins(2);
/// When all is over, of the hour that it may take with the build.
const MINUTES: u64 = 48;

/// Measures, and writes report.json, report.md and charts.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Services, or Services x endpoints (2 if not said): 100,10000x50 [default: by axis, up to 50000]
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<Size>,
    /// Only these axes, at the sizes or at one of their own: cold,change@50000 [default: cold, loaded, restart, add, change, rolling,
    /// delete, idle, memory, big, first, connect, keptalive, udp, throughput, anatomy]
    #[arg(long, value_delimiter = ',')]
    axes: Vec<Asked>,
    /// How often each is measured; counting is once more
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// When all is over; what would not be done by then is not begun [default: 48, with --full none]
    #[arg(long, value_name = "MINUTES", conflicts_with = "full")]
    minutes: Option<u64>,
    /// Only these subjects, by name
    #[arg(long, value_delimiter = ',')]
    subjects: Vec<String>,
    /// One more kube-proxy, NAME=PATH:MODE; may be repeated
    #[arg(long = "kube-proxy", value_name = "NAME=PATH:MODE", value_parser = other)]
    others: Vec<Subject>,
    /// Lift the limits: every size on every axis, idle for ten minutes
    #[arg(long)]
    full: bool,
    /// Only print the cells, in their order, with the minutes that they take by experience
    #[arg(long)]
    plan: bool,
    /// Do not count system calls and messages
    #[arg(long)]
    no_counting: bool,
    /// Seconds that what is measured may take [default: 120, with --full 1800]
    #[arg(long, value_name = "SECS")]
    limit: Option<u64>,
    /// How many endpoints the axis change replaces
    #[arg(long, default_value_t = 1_000)]
    changes: u32,
    /// Memory of a guest [default: by size]
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// As `lab run --lane`
    #[arg(long)]
    lane: Option<Lane>,
    /// As `lab run --kernel`
    #[arg(long, value_name = "PATH")]
    kernel: Option<PathBuf>,
    /// Folder for the report [default: bench/TIME in the target folder]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// `upstream=/usr/bin/kube-proxy:ipvs`
fn other(text: &str) -> Result<Subject, String> {
    let wrong = || format!("{text:?}: write NAME=PATH:MODE, with the mode ipvs or iptables");
    let (name, rest) = text.split_once('=').ok_or_else(wrong)?;
    let (path, mode) = rest.rsplit_once(':').ok_or_else(wrong)?;
    let mode = match mode {
        "ipvs" => Mode::Ipvs,
        "iptables" => Mode::Iptables,
        _ => return Err(wrong()),
    };
    Ok(Subject {
        name: format!("{name}-{}", mode.name()),
        kind: SubjectKind::KubeProxy {
            path: path.into(),
            mode,
            flags: Vec::new(),
            is_ours: false,
        },
    })
}

impl Run {
    /// Measures all, and writes the report.
    pub(crate) fn run(&self) -> Result<()> {
        let started = (SystemTime::now(), Instant::now());
        let subjects = self.chosen_subjects()?;
        let cells = self.cells(&subjects);
        ensure!(
            !cells.is_empty(),
            "nothing is to be measured with these arguments"
        );
        let minutes = self.minutes.or((!self.full).then_some(MINUTES));
        if self.plan {
            print!("{}", planned(&cells));
            return Ok(());
        }
        let all: f64 = cells.iter().map(budget::seconds).sum();
        println!(
            "{} cells, some {:.0} min on a quiet machine{}",
            cells.len(),
            all / 60.0,
            minutes.map_or_else(String::new, |minutes| format!(
                "; {minutes} min are to be had, the most telling first"
            ))
        );
        let folder = self.folder(started.0)?;
        let mut report = Report {
            version: VERSION,
            about: self.about(started.0, &subjects, cells.len()),
            measurements: Vec::new(),
        };
        if !self.no_counting && said("strace", &["-V"]).is_empty() {
            bail!("counting needs strace: apt-get install -y strace, or pass --no-counting");
        }
        let end = minutes.map(|minutes| started.1 + Duration::from_secs(minutes * 60));
        let mut left_out = LeftOut::default();
        let mut budget = Budget::default();
        let shows = std::io::stderr().is_terminal();
        for (index, cell) in cells.iter().enumerate() {
            let title = format!("{}/{} {}", index + 1, cells.len(), title(cell));
            if shows {
                eprint!("\r\x1b[K{title}");
            }
            let expected = Duration::from_secs_f64(budget.expected(cell));
            let measurement = match left_out.why(cell, end, expected) {
                Some(why) => Measurement {
                    cell: cell.clone(),
                    outcome: Outcome::Skipped { why },
                    took_s: 0.0,
                },
                None => match self.measure(cell, &folder, end) {
                    Ok(measurement) => measurement,
                    Err(error) => {
                        // What there is by now is a report, too.
                        report::draw(&report, &folder)?;
                        return Err(error);
                    }
                },
            };
            left_out.learn(&measurement);
            if matches!(measurement.outcome, Outcome::Measured(_)) {
                budget.learn(cell, measurement.took_s);
            }
            let line = format!("{title}: {}", short(&measurement.outcome));
            if shows {
                eprint!("\r\x1b[K");
            }
            println!("{line} ({:.0} s)", measurement.took_s);
            report.measurements.push(measurement);
            report.about.seconds = started.1.elapsed().as_secs();
            // After each cell, so that nothing is lost with an interrupted run.
            let json = folder.join("report.json");
            fs::write(&json, serde_json::to_vec_pretty(&report)?)
                .with_context(|| format!("cannot write {}", json.display()))?;
        }
        report::draw(&report, &folder)?;
        println!("{}", folder.join("report.md").display());
        let bad = |one: &&Measurement| {
            matches!(one.outcome, Outcome::Failed { .. } | Outcome::Wrong { .. })
        };
        let bad = report.measurements.iter().filter(bad).count();
        ensure!(
            bad == 0,
            "{bad} of {} cells failed or came out wrong: the end of the report says why",
            cells.len()
        );
        Ok(())
    }

    fn cells(&self, subjects: &[Subject]) -> Vec<Cell> {
        let plan = Plan {
            axes: &self.axes,
            sizes: &self.sizes,
            subjects,
            repeats: self.repeats,
            is_counted: !self.no_counting,
            is_full: self.full,
            limit_s: self.limit.unwrap_or(if self.full { 1800 } else { 120 }),
            changes: self.changes,
        };
        plan.cells()
    }

    fn folder(&self, now: SystemTime) -> Result<PathBuf> {
        let folder = if let Some(folder) = &self.out {
            folder.clone()
        } else {
            let own = std::env::current_exe()?;
            let target = own.parent().and_then(Path::parent);
            let target = target.context("this program's file is in no target folder")?;
            target.join("bench").join(utc(now).replace(':', ""))
        };
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(folder.canonicalize()?)
    }

    fn chosen_subjects(&self) -> Result<Vec<Subject>> {
        let ours = |name: &str, mode, flags: &[&str]| -> Result<Subject> {
            Ok(Subject {
                name: name.to_owned(),
                kind: SubjectKind::KubeProxy {
                    path: beside("kube-proxy")?,
                    mode,
                    flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
                    is_ours: true,
                },
            })
        };
        let plain = |name: &str, kind| Subject {
            name: name.to_owned(),
            kind,
        };
        // What this build cannot do yet it says itself, in the first cell that asks it to.
        let mut all = vec![
            ours("ipvs", Mode::Ipvs, &[])?,
            ours("ipvs-route", Mode::Ipvs, &[ROUTE])?,
            ours("ipvs-lean", Mode::Ipvs, &[LEAN])?,
            ours("iptables", Mode::Iptables, &[])?,
            plain("floor", SubjectKind::Floor),
            plain("tools", SubjectKind::Tools),
            plain("bare-ipvs", SubjectKind::BareIpvs),
            plain("direct", SubjectKind::Direct),
        ];
        for other in &self.others {
            let mut other = other.clone();
            if let SubjectKind::KubeProxy { path, .. } = &mut other.kind {
                *path = path
                    .canonicalize()
                    .with_context(|| format!("--kube-proxy {}", path.display()))?;
            }
            all.push(other);
        }
        for name in &self.subjects {
            let known: Vec<&str> = all.iter().map(|subject| subject.name.as_str()).collect();
            if !known.contains(&name.as_str()) {
                bail!("no subject `{name}`: there are {}", known.join(", "));
            }
        }
        if !self.subjects.is_empty() {
            all.retain(|subject| self.subjects.contains(&subject.name));
        }
        Ok(all)
    }

    /// Measures a cell in a guest of its own.
    fn measure(&self, cell: &Cell, folder: &Path, end: Option<Instant>) -> Result<Measurement> {
        let into = folder.join("cell.json");
        let _ = fs::remove_file(&into);
        let argv = [
            std::env::current_exe()?.into_os_string(),
            "cell".into(),
            serde_json::to_string(cell)?.into(),
            "--into".into(),
            into.clone().into(),
        ];
        let given = Options::from_env();
        // What comes before, what is measured, and a whole second time for a state that comes out wrong.
        let limit = Duration::from_secs(cell.limit_s * 2 + cell.idle_s) + AROUND;
        let rest = end.map(|end| end.saturating_duration_since(Instant::now()));
        let is_cut = rest.is_some_and(|rest| rest < limit);
        let limit = rest.unwrap_or(limit).min(limit);
        let endpoints = u64::from(cell.size.services) * u64::from(cell.size.endpoints);
        let memory = if endpoints > 150_000 { "4G" } else { "2G" };
        let options = Options {
            timeout: limit,
            memory: self.memory.clone().unwrap_or_else(|| memory.to_owned()),
            lane: self.lane.or(given.lane),
            kernel: self.kernel.clone().or(given.kernel.clone()),
            keep: vec![folder.to_owned()],
            ..given
        };
        let started = Instant::now();
        let status = lab::run(&argv, &options);
        let took_s = started.elapsed().as_secs_f64();
        // SIGINT, SIGTERM and SIGHUP end the whole run.
        ensure!(
            ![129, 130, 143].contains(&status),
            "interrupted; what was measured is in {}",
            folder.join("report.json").display()
        );
        let outcome = match fs::read(&into) {
            Ok(text) => {
                serde_json::from_slice(&text).context("the cell's outcome is not understood")?
            }
            Err(_) if status == 124 && is_cut => Outcome::Skipped {
                why: NO_TIME.to_owned(),
            },
            Err(_) if status == 124 => Outcome::Over {
                limit_s: limit.as_secs(),
                reached: "the guest's time was over".into(),
            },
            Err(_) => Outcome::Failed {
                why: format!("the lab ended with status {status}"),
            },
        };
        let _ = fs::remove_file(&into);
        Ok(Measurement {
            cell: cell.clone(),
            outcome,
            took_s,
        })
    }

    fn about(&self, started: SystemTime, subjects: &[Subject], cells: usize) -> About {
        let options = Options::from_env();
        let lane = self.lane.or(options.lane);
        let kernel = self.kernel.as_ref().or(options.kernel.as_ref());
        About {
            started: utc(started),
            seconds: 0,
            cells,
            commit: said("git", &["describe", "--always", "--dirty", "--abbrev=12"]),
            command: command(std::env::args().skip(1)),
            lane: lane.map_or_else(|| "default".to_owned(), |lane| lane.to_string()),
            kernel: kernel.map_or_else(
                || "the packaged User Mode Linux, or the host's own kernel".to_owned(),
                |path| path.file_name().unwrap_or_default().display().to_string(),
            ),
            cpu: cpu(),
            memory: self
                .memory
                .clone()
                .unwrap_or_else(|| "2G, 4G above 150,000 endpoints".into()),
            load: fs::read_to_string("/proc/loadavg")
                .ok()
                .and_then(|text| text.split_whitespace().next().map(ToOwned::to_owned))
                .unwrap_or_default(),
            is_full: self.full,
            subjects: subjects
                .iter()
                .map(|subject| subject.name.clone())
                .collect(),
        }
    }
}

/// What is not begun, and why.
#[derive(Debug, Default)]
struct LeftOut {
    /// Subjects that do not know their mode or flags.
    refused: BTreeMap<String, String>,
    /// Cells that took too long.
    over: Vec<Cell>,
}

impl LeftOut {
    /// Why a cell is not to be begun.
    fn why(&self, cell: &Cell, end: Option<Instant>, expected: Duration) -> Option<String> {
        let is_repeat_of = |one: &Cell| {
            let counts = one.is_counting == cell.is_counting;
            counts && (one.axis, one.size, &one.subject) == (cell.axis, cell.size, &cell.subject)
        };
        // Every axis begins with a cold start.
        let begins_with = |one: &Cell| {
            let is_as_large = one.size.services <= cell.size.services
                && one.size.endpoints <= cell.size.endpoints;
            one.axis == Axis::Cold && !one.is_counting && one.subject == cell.subject && is_as_large
        };
        if let Some(why) = self.refused.get(&cell.subject.name) {
            Some(why.clone())
        } else if self.over.iter().any(is_repeat_of) {
            Some("it took too long before".to_owned())
        } else if let Some(cold) = self.over.iter().find(|one| begins_with(one)) {
            Some(format!(
                "a cold start of {} takes too long already",
                cold.size
            ))
        } else if end.is_some_and(|end| Instant::now() + expected > end) {
            Some(NO_TIME.to_owned())
        } else {
            None
        }
    }

    fn learn(&mut self, measurement: &Measurement) {
        match &measurement.outcome {
            Outcome::Skipped { why } if measurement.took_s > 0.0 && why != NO_TIME => {
                let name = measurement.cell.subject.name.clone();
                self.refused.insert(name, why.clone());
            }
            Outcome::Over { .. } => self.over.push(measurement.cell.clone()),
            _ => {}
        }
    }
}

/// `cold 10000x2 ipvs #0`
fn title(cell: &Cell) -> String {
    let counting = if cell.is_counting { " counting" } else { "" };
    let (axis, size, name) = (cell.axis, cell.size, &cell.subject.name);
    format!("{axis} {size} {name} #{}{counting}", cell.repeat)
}

/// The cells, a line for each, with the minutes until it is done.
fn planned(cells: &[Cell]) -> String {
    let (mut text, mut until) = (String::new(), 0.0);
    for cell in cells {
        let seconds = budget::seconds(cell);
        until += seconds;
        let minutes = until / 60.0;
        _ = writeln!(text, "{minutes:5.1} min  {seconds:4.0} s  {}", title(cell));
    }
    text
}

/// What came of a cell, in a few words.
fn short(outcome: &Outcome) -> String {
    let measured = match outcome {
        Outcome::Measured(measured) => measured,
        Outcome::Over { limit_s, reached } => return format!("over {limit_s} s: {reached}"),
        Outcome::Wrong { differences } => return format!("WRONG: {differences}"),
        Outcome::Failed { why } => return format!("FAILED: {why}"),
        Outcome::Skipped { why } => return format!("skipped: {why}"),
    };
    let mut words = Vec::new();
    words.extend(measured.wall_s.map(|wall| format!("{wall:.3} s")));
    words.extend(measured.cpu_s.map(|cpu| format!("cpu {cpu:.2} s")));
    words.extend(
        measured
            .fixture_cpu_s
            .map(|cpu| format!("fixture {cpu:.2} s")),
    );
    words.extend(
        measured
            .peak_kib
            .map(|kib| format!("peak {} MB", kib / 1024)),
    );
    words.extend(
        measured
            .steady_kib
            .map(|kib| format!("steady {} MB", kib / 1024)),
    );
    for (name, series) in &measured.series {
        words.push(format!(
            "{name} p50 {:.2} p99 {:.2} max {:.2} {}",
            series.p50, series.p99, series.max, series.unit
        ));
    }
    for (name, value) in &measured.figures {
        words.push(format!("{name} {value:.3}"));
    }
    if let Some(counts) = &measured.counts {
        words.push(format!(
            "{} system calls, {} netlink messages, {} writing, {} tables replaced, {} processes",
            counts.system_calls,
            counts.netlink_messages,
            counts.netlink_writes,
            counts.table_writes,
            counts.processes
        ));
    }
    words.join(", ")
}

/// What a program says; empty if it cannot be run.
fn said(program: &str, arguments: &[&str]) -> String {
    Command::new(program)
        .args(arguments)
        .output()
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_default()
}

fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let models: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map(|(_, model)| model)
        .collect();
    let model = models.first().copied().unwrap_or("unknown");
    format!("{} × {model}", models.len())
}

/// `2026-11-21T11:45:00Z`
fn utc(time: SystemTime) -> String {
    let seconds = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant's days-to-civil, for days from 1970 on.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 {
        month_index + 3
    } else {
        month_index - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        rest / 3_600,
        rest / 60 % 60,
        rest % 60
    )
}

/// The command line without `--out`, which says nothing about what was measured.
fn command(arguments: impl Iterator<Item = String>) -> String {
    let mut is_place = false;
    let said = arguments.filter(|one| {
        let was_place = std::mem::replace(&mut is_place, one == "--out");
        !(was_place || is_place || one.starts_with("--out="))
    });
    said.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_report_goes_is_not_in_it() {
        for text in ["run --out /x --minutes 3", "run --minutes 3 --out=/x"] {
            let words = text.split(' ').map(str::to_owned);
            assert_eq!(command(words), "run --minutes 3");
        }
    }

    #[test]
    fn times_are_written_as_utc() {
        let at = |seconds| utc(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(1_709_210_096), "2024-02-29T12:34:56Z");
    }

    #[test]
    fn another_kube_proxy_is_read_from_the_command_line() {
        let subject = other("upstream=/opt/kube-proxy:iptables").unwrap();
        assert_eq!(subject.name, "upstream-iptables");
        assert!(other("upstream=/opt/kube-proxy").is_err());
        assert!(other("upstream=/opt/kube-proxy:nftables").is_err());
    }
}
