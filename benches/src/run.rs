//! Runs all cells (benchmark runs) one after another on the host, each in a VM, and writes the
//! report.

use std::collections::BTreeMap;
use std::ffi::OsString;
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
use crate::plan::{AxisChoice, Plan};
use crate::report;
use crate::schema::{
    About, Axis, Cell, EXACT, FLAT, LEAN, Measurement, Mode, NATIVE, NO_TIME, Other, Outcome,
    RANGE, ROUTE, Report, SERVICE_CIDRS, Size, Subject, SubjectKind, UPSTREAM_LAYOUT,
};
use crate::stage::beside;

/// Version of the format of `report.json`.
const VERSION: u32 = 1;
/// Time that a cell may take besides its limits: for the VM's boot, the setup of the node, the
/// start of the fake API server, and a last read of the kernel.
const AROUND: Duration = Duration::from_mins(2);
/// Time limit for another kube-proxy to print its version, including the VM's boot.
const VERSION_LIMIT: Duration = Duration::from_secs(30);
/// Default time limit of a run in minutes. With the build, a run takes at most an hour.
const MINUTES: u64 = 48;
/// Additional minutes for each other kube-proxy, which upstream's IPVS mode needs for the main
/// table.
const MINUTES_FOR_ANOTHER: u64 = 10;

/// Measures all cells, and writes report.json, report.md and charts.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Services, or Services x endpoints (default: 2): 100,10000x50 [default: by axis, up to 50000]
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<Size>,
    /// Axes to measure, at all sizes or at one size: cold,change@50000 [default: cold,
    /// loaded, restart, add, change, rolling, delete, idle, memory, big, api, first, connect,
    /// keptalive, udp, throughput, anatomy]
    #[arg(long, value_delimiter = ',')]
    axes: Vec<AxisChoice>,
    /// Repeats of each measurement, without the additional repeat that counts system calls
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Time limit of the run; cells that would not finish in time are skipped [default: 48, and 10
    /// for each other kube-proxy; with --full none]
    #[arg(long, value_name = "MINUTES", conflicts_with = "full")]
    minutes: Option<u64>,
    /// Names of the subjects to measure. The name of another kube-proxy is NAME-MODE
    #[arg(long, value_delimiter = ',')]
    subjects: Vec<String>,
    /// Another kube-proxy to measure, as NAME=PATH:MODE (repeatable)
    #[arg(long = "kube-proxy", value_name = "NAME=PATH:MODE", value_parser = other)]
    others: Vec<Subject>,
    /// Lift the limits: every size on every axis, idle for ten minutes
    #[arg(long)]
    full: bool,
    /// Print the planned cells with their expected minutes, and exit
    #[arg(long)]
    plan: bool,
    /// Do not count system calls and messages
    #[arg(long)]
    no_counting: bool,
    /// Time limit of a measurement in seconds, doubled for counting and for other kube-proxies at
    /// up to 1,000 Services [default: 120, with --full 1800]
    #[arg(long, value_name = "SECS")]
    limit: Option<u64>,
    /// Endpoints that the axis `change` replaces
    #[arg(long, default_value_t = 1_000)]
    changes: u32,
    /// Memory of each VM [default: by the number of Services]
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Lane (kind of VM) of the lab, as in `lab run --lane`
    #[arg(long)]
    lane: Option<Lane>,
    /// Kernel of the VMs, as in `lab run --kernel`
    #[arg(long, value_name = "PATH")]
    kernel: Option<PathBuf>,
    /// Directory for the report [default: bench/TIME in the target directory]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Parses another kube-proxy, such as `upstream=/usr/bin/kube-proxy:ipvs` (NAME=PATH:MODE).
fn other(text: &str) -> Result<Subject, String> {
    let wrong =
        || format!("{text:?}: write NAME=PATH:MODE, with the mode ipvs, iptables or nftables");
    let (name, rest) = text.split_once('=').ok_or_else(wrong)?;
    let (path, mode) = rest.rsplit_once(':').ok_or_else(wrong)?;
    let mode = match mode {
        "ipvs" => Mode::Ipvs,
        "iptables" => Mode::Iptables,
        "nftables" => Mode::Nftables,
        _ => return Err(wrong()),
    };
    let name = format!("{name}-{}", mode.name());
    Ok(Subject::kube_proxy(&name, path, mode, &[], false))
}

impl Run {
    /// Measures all cells of the run, and writes the report.
    pub(crate) fn run(&self) -> Result<()> {
        let started = (SystemTime::now(), Instant::now());
        let (subjects, not_named) = self.chosen_subjects()?;
        for name in &not_named {
            println!("{name} is left out: --kube-proxy gives it, and --subjects does not name it");
        }
        let cells = self.cells(&subjects);
        ensure!(
            !cells.is_empty(),
            "nothing is to be measured with these arguments"
        );
        let minutes = self
            .minutes
            .or((!self.full).then(|| default_minutes(&subjects)));
        if self.plan {
            print!("{}", planned(&cells));
            return Ok(());
        }
        let all: f64 = foreseen(&cells)
            .iter()
            .filter_map(|(_, seconds)| *seconds)
            .sum();
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
            about: About {
                others: self.others(&subjects, &folder),
                not_named,
                ..self.about(started.0, &subjects, cells.len())
            },
            measurements: Vec::new(),
        };
        for other in &report.about.others {
            println!("{}: {}", other.name, other.version);
        }
        if !self.no_counting && said("strace", &["-V"]).is_empty() {
            bail!("counting needs strace: apt-get install -y strace, or pass --no-counting");
        }
        let end = minutes.map(|minutes| started.1 + Duration::from_secs(minutes * 60));
        let mut left_out = SkippedCells::default();
        let mut budget = Budget::default();
        let shows = std::io::stderr().is_terminal();
        for (index, cell) in cells.iter().enumerate() {
            let title = format!("{}/{} {}", index + 1, cells.len(), title(cell));
            if shows {
                eprint!("\r\x1b[K{title}");
            }
            let expected = Duration::from_secs_f64(budget.expected(cell));
            let measurement = match left_out.why(cell, end, expected) {
                Some(outcome) => Measurement {
                    cell: cell.clone(),
                    outcome,
                    took_s: 0.0,
                },
                None => match self.measure(cell, &folder, end) {
                    Ok(measurement) => measurement,
                    Err(error) => {
                        // Writes the report from the cells that were measured before the error.
                        report::draw(&report, &folder, true)?;
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
            // Writes the file after each cell, so that an interrupted run keeps its results.
            let json = folder.join("report.json");
            fs::write(&json, serde_json::to_vec_pretty(&report)?)
                .with_context(|| format!("cannot write {}", json.display()))?;
        }
        report::draw(&report, &folder, true)?;
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
            let target = target.context("this program's file is in no target directory")?;
            target.join("bench").join(utc(now).replace(':', ""))
        };
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(folder.canonicalize()?)
    }

    /// Returns the subjects to measure, and the names of other kube-proxies that `--kube-proxy`
    /// gives but `--subjects` excludes.
    fn chosen_subjects(&self) -> Result<(Vec<Subject>, Vec<String>)> {
        self.chosen_from(&beside("kube-proxy")?)
    }

    /// Returns the subjects like [`Self::chosen_subjects`], with the binary `daemon` as our
    /// kube-proxy.
    fn chosen_from(&self, daemon: &Path) -> Result<(Vec<Subject>, Vec<String>)> {
        let ours =
            |name: &str, mode, flags: &[&str]| Subject::kube_proxy(name, daemon, mode, flags, true);
        let plain = |name: &str, kind| Subject {
            name: name.to_owned(),
            kind,
        };
        // A build may lack one of these features. Then the first cell that needs it fails with the
        // reason.
        let mut all = vec![
            ours("ipvs", Mode::Ipvs, &[]),
            ours("ipvs-route", Mode::Ipvs, &[ROUTE]),
            ours("ipvs-range", Mode::Ipvs, &[RANGE, SERVICE_CIDRS]),
            ours("ipvs-lean", Mode::Ipvs, &[LEAN]),
            ours("ipvs-nftables", Mode::Ipvs, &[NATIVE]),
            ours("ipvs-exact", Mode::Ipvs, &[NATIVE, EXACT]),
            ours("iptables", Mode::Iptables, &[]),
            ours("nftables", Mode::Nftables, &[UPSTREAM_LAYOUT]),
            ours("nftables-flat", Mode::Nftables, &[FLAT]),
            ours("userspace", Mode::Userspace, &[]),
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
        all.extend([
            plain("floor", SubjectKind::Floor),
            plain("nft-floor", SubjectKind::NftFloor),
            plain("nft-flat-floor", SubjectKind::NftFlatFloor),
            plain("tools", SubjectKind::Tools),
            plain("bare-ipvs", SubjectKind::BareIpvs),
            plain("direct", SubjectKind::Direct),
        ]);
        let mut known: Vec<&str> = Vec::new();
        for subject in &all {
            ensure!(
                !known.contains(&subject.name.as_str()),
                "there are two subjects `{}`: give another name, --kube-proxy NAME=PATH:MODE",
                subject.name
            );
            known.push(&subject.name);
        }
        for name in &self.subjects {
            ensure!(
                known.contains(&name.as_str()),
                "no subject `{name}`: there are {}",
                known.join(", ")
            );
        }
        let is_asked =
            |one: &Subject| self.subjects.is_empty() || self.subjects.contains(&one.name);
        let (asked, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(is_asked);
        let others = rest.into_iter().filter(|one| one.kind.is_other());
        Ok((asked, others.map(|one| one.name).collect()))
    }

    /// Returns the other kube-proxies among the subjects, with the versions that they print.
    fn others(&self, subjects: &[Subject], folder: &Path) -> Vec<Other> {
        let mut others = Vec::new();
        for subject in subjects {
            if let SubjectKind::KubeProxy {
                path,
                is_ours: false,
                ..
            } = &subject.kind
            {
                let sum = said("sha256sum", &[&path.display().to_string()]);
                others.push(Other {
                    name: subject.name.clone(),
                    version: self.version(path, folder),
                    sha256: sum.split(' ').next().unwrap_or_default().to_owned(),
                });
            }
        }
        others
    }

    /// Returns the output of a kube-proxy's `--version`. Runs it in a VM, because a program that
    /// ignores the flag would start to work on the host.
    fn version(&self, path: &Path, folder: &Path) -> String {
        let into = folder.join("version");
        let script = "exec \"$1\" --version > \"$2\" 2>&1";
        let mut argv: Vec<OsString> = ["sh", "-c", script, "sh"].map(Into::into).into();
        argv.extend([path.into(), into.clone().into()]);
        let options = Options {
            timeout: VERSION_LIMIT,
            ..self.options(folder)
        };
        if lab::run(&argv, &options) != 0 {
            eprintln!("{} does not say its version", path.display());
        }
        let text = fs::read_to_string(&into).unwrap_or_default();
        let _ = fs::remove_file(&into);
        let line = text.lines().map(str::trim).find(|line| !line.is_empty());
        line.unwrap_or_default().to_owned()
    }

    /// Returns the lab's options for all VMs of the run.
    fn options(&self, folder: &Path) -> Options {
        let given = Options::from_env();
        Options {
            lane: self.lane.or(given.lane),
            kernel: self.kernel.clone().or(given.kernel.clone()),
            keep: vec![folder.to_owned()],
            ..given
        }
    }

    /// Measures a cell in its own VM.
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
        // Twice the limit: it applies to the preparation and to the measurement, and reading a
        // wrong state takes long.
        let limit = Duration::from_secs(cell.limit_s * 2 + cell.idle_s) + AROUND;
        let rest = end.map(|end| end.saturating_duration_since(Instant::now()));
        let is_cut = rest.is_some_and(|rest| rest < limit);
        let limit = rest.unwrap_or(limit).min(limit);
        let endpoints = u64::from(cell.size.services) * u64::from(cell.size.endpoints);
        let memory = if endpoints > 150_000 { "4G" } else { "2G" };
        let options = Options {
            timeout: limit,
            memory: self.memory.clone().unwrap_or_else(|| memory.to_owned()),
            ..self.options(folder)
        };
        let started = Instant::now();
        let status = lab::run(&argv, &options);
        let took_s = started.elapsed().as_secs_f64();
        // These statuses mean that a signal (SIGHUP, SIGINT, SIGTERM) has ended the VM. It also
        // ends the run.
        ensure!(
            ![129, 130, 143].contains(&status),
            "interrupted; what was measured is in {}",
            folder.join("report.json").display()
        );
        let outcome = match fs::read(&into) {
            Ok(text) => {
                serde_json::from_slice(&text).context("the cell's outcome is not understood")?
            }
            Err(_) if status == 124 && is_cut => Outcome::skipped(NO_TIME),
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
            ..About::default()
        }
    }
}

/// Outcomes of earlier cells because of which a run skips later cells.
#[derive(Debug, Default)]
struct SkippedCells {
    /// Subjects that do not know their mode or a flag, with the reason.
    refused: BTreeMap<String, String>,
    /// Cells that exceeded their time limit.
    over: Vec<Cell>,
}

impl SkippedCells {
    /// Returns the outcome of a cell that must be skipped, or `None` if the cell must run.
    /// `expected` is its expected duration, `end` the end of the whole run.
    fn why(&self, cell: &Cell, end: Option<Instant>, expected: Duration) -> Option<Outcome> {
        let is_repeat_of = |one: &Cell| {
            let counts = one.is_counting == cell.is_counting;
            counts && (one.axis, one.size, &one.subject) == (cell.axis, cell.size, &cell.subject)
        };
        // Every measurement includes a cold start. So the cell cannot finish if a cold start of
        // this or a smaller size has exceeded its limit.
        let begins_with = |one: &Cell| {
            let is_as_large = one.size.services <= cell.size.services
                && one.size.endpoints <= cell.size.endpoints;
            one.axis == Axis::Cold && !one.is_counting && one.subject == cell.subject && is_as_large
        };
        if let Some(why) = self.refused.get(&cell.subject.name) {
            Some(Outcome::skipped(why))
        } else if self.over.iter().any(is_repeat_of) {
            Some(Outcome::skipped("it took too long before"))
        } else if let Some(cold) = self.over.iter().find(|one| begins_with(one)) {
            Some(Outcome::Skipped {
                why: format!("a cold start of {} takes too long already", cold.size),
                cold_over_s: Some(cold.limit_s),
            })
        } else if end.is_some_and(|end| Instant::now() + expected > end) {
            Some(Outcome::skipped(NO_TIME))
        } else {
            None
        }
    }

    fn learn(&mut self, measurement: &Measurement) {
        match &measurement.outcome {
            Outcome::Skipped { why, .. } if measurement.took_s > 0.0 && why != NO_TIME => {
                let name = measurement.cell.subject.name.clone();
                self.refused.insert(name, why.clone());
            }
            Outcome::Over { .. } => self.over.push(measurement.cell.clone()),
            _ => {}
        }
    }
}

/// Returns the title of a cell, such as `cold 10000x2 ipvs #0` (axis, size, subject, repeat).
fn title(cell: &Cell) -> String {
    let counting = if cell.is_counting { " counting" } else { "" };
    let (axis, size, name) = (cell.axis, cell.size, &cell.subject.name);
    format!("{axis} {size} {name} #{}{counting}", cell.repeat)
}

/// Returns the default time limit of a run with these subjects, in minutes.
pub(crate) fn default_minutes(subjects: &[Subject]) -> u64 {
    let others = subjects.iter().filter(|one| one.kind.is_other());
    MINUTES + MINUTES_FOR_ANOTHER * others.count() as u64
}

/// Returns the cells of a run, each with its expected duration in seconds. `None` if the run would
/// skip the cell, because an earlier one is expected to exceed its limit.
pub(crate) fn foreseen(cells: &[Cell]) -> Vec<(&Cell, Option<f64>)> {
    let mut left_out = SkippedCells::default();
    let mut foreseen = Vec::new();
    for cell in cells {
        let is_begun = left_out.why(cell, None, Duration::ZERO).is_none();
        if is_begun && budget::is_over(cell) {
            left_out.over.push(cell.clone());
        }
        foreseen.push((cell, is_begun.then(|| budget::seconds(cell))));
    }
    foreseen
}

/// Lists the cells of a run, one per line: expected minutes from the start to the cell's end,
/// expected seconds, and title.
fn planned(cells: &[Cell]) -> String {
    let (mut text, mut until) = (String::new(), 0.0);
    for (cell, seconds) in foreseen(cells) {
        until += seconds.unwrap_or_default();
        let minutes = until / 60.0;
        let takes = seconds.map_or("left out".to_owned(), |seconds| format!("{seconds:6.0} s"));
        _ = writeln!(text, "{minutes:5.1} min  {takes}  {}", title(cell));
    }
    text
}

/// Returns an outcome in short form, for the progress of a run.
fn short(outcome: &Outcome) -> String {
    let measured = match outcome {
        Outcome::Measured(measured) => measured,
        Outcome::Over { limit_s, reached } => return format!("over {limit_s} s: {reached}"),
        Outcome::Wrong { differences } => return format!("WRONG: {differences}"),
        Outcome::Failed { why } => return format!("FAILED: {why}"),
        Outcome::Skipped { why, .. } => return format!("skipped: {why}"),
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
    for (occasion, cost) in &measured.server {
        let (name, kb) = (occasion.name(), cost.bytes / 1_000);
        words.push(format!("{name} {kb} kB in {} requests", cost.requests));
    }
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

/// Returns the output of a program, or an empty string if it cannot be run.
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

/// Formats a time in UTC, such as `2026-11-21T11:45:00Z`.
fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH);
    let seconds = i64::try_from(seconds.unwrap_or_default().as_secs()).unwrap_or_default();
    jiff::Timestamp::from_second(seconds).map_or_else(|_| String::new(), |at| at.to_string())
}

/// Returns the command line for the report, without this machine's directories, which do not affect
/// the measurement.
fn command(arguments: impl Iterator<Item = String>) -> String {
    let mut words = Vec::new();
    let mut before = String::new();
    for argument in arguments {
        let (flag, value) = match argument.split_once('=') {
            Some((flag, value)) if flag.starts_with("--") => (flag, Some(value)),
            _ => ("", None),
        };
        let is_place = before == "--out" || flag == "--out" || argument == "--out";
        if !is_place {
            words.push(match value {
                Some(value) => format!("{flag}={}", without_folder(flag, value)),
                None => without_folder(&before, &argument),
            });
        }
        before = argument;
    }
    words.join(" ")
}

/// Returns the value of a flag for the report. Of a path, keeps only the file name.
fn without_folder(flag: &str, value: &str) -> String {
    let (name, path) = match flag {
        "--kernel" => ("", value),
        "--kube-proxy" => value.split_at(value.find('=').map_or(0, |at| at + 1)),
        _ => return value.to_owned(),
    };
    let file = Path::new(path).file_name().unwrap_or_default();
    format!("{name}{}", file.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_command_omits_the_report_path() {
        for text in ["run --out /x --minutes 3", "run --minutes 3 --out=/x"] {
            let words = text.split(' ').map(str::to_owned);
            assert_eq!(command(words), "run --minutes 3");
        }
    }

    #[test]
    fn a_recorded_command_omits_program_paths() {
        let text = "run --kube-proxy a=/x/kube-proxy:ipvs --kube-proxy=b=y/other:iptables --kernel /x/linux --kernel=/y/l --axes cold";
        let wanted = "run --kube-proxy a=kube-proxy:ipvs --kube-proxy=b=other:iptables --kernel linux --kernel=l --axes cold";
        assert_eq!(command(text.split(' ').map(str::to_owned)), wanted);
    }

    /// Returns the names of the subjects that a command line selects, and of the kube-proxies that
    /// it excludes. An existing file takes the place of our kube-proxy.
    fn chosen(arguments: &str) -> Result<(Vec<String>, Vec<String>)> {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            run: Run,
        }
        let own = std::env::current_exe()?;
        let text = arguments.replace("FILE", &own.display().to_string());
        let line = <Line as clap::Parser>::try_parse_from(text.split(' '))?;
        let (subjects, not_named) = line.run.chosen_from(&own)?;
        Ok((
            subjects.into_iter().map(|one| one.name).collect(),
            not_named,
        ))
    }

    #[test]
    fn a_kube_proxy_that_the_command_line_does_not_use_is_reported() {
        let given = "run --kube-proxy up=FILE:ipvs --kube-proxy up=FILE:iptables";
        let (all, not_named) = chosen(given).unwrap();
        assert_eq!(all.get(10..12).unwrap(), ["up-ipvs", "up-iptables"]);
        assert_eq!((all.len(), not_named.len()), (18, 0));
        let (some, not_named) = chosen(&format!("{given} --subjects ipvs,up-ipvs")).unwrap();
        assert_eq!(
            (some, not_named),
            (
                vec!["ipvs".into(), "up-ipvs".into()],
                vec!["up-iptables".into()]
            )
        );
        let error = chosen("run --subjects up").unwrap_err().to_string();
        assert!(
            error.starts_with("no subject `up`: there are ipvs,"),
            "{error}"
        );
        let twice = chosen(&format!("{given} --kube-proxy up=FILE:ipvs"));
        assert!(
            twice
                .unwrap_err()
                .to_string()
                .starts_with("there are two subjects `up-ipvs`")
        );
    }

    #[test]
    fn times_are_formatted_as_utc() {
        let at = |seconds| utc(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(1_709_210_096), "2024-02-29T12:34:56Z");
    }

    #[test]
    fn a_kube_proxy_to_compare_with_is_parsed_from_the_command_line() {
        let subject = other("upstream=/opt/kube-proxy:iptables").unwrap();
        assert_eq!(subject.name, "upstream-iptables");
        assert!(other("upstream=/opt/kube-proxy").is_err());
        let subject = other("upstream=/opt/kube-proxy:nftables").unwrap();
        assert_eq!(subject.name, "upstream-nftables");
        assert!(other("upstream=/opt/kube-proxy:userspace").is_err());
    }
}
