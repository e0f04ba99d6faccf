//! Golden tests: our daemon must leave the same kernel state as upstream's kube-proxy 1.36.2.
//!
//! ```text
//!  golden ─┬▶ golden --part ─┬▶ VM: for each case a process in a network namespace ─▶ result
//!          │                 └▶ VM for each case in the initial network namespace ────▶ result
//!          └▶ … one part for each CPU
//! ```
//!
//! A result is `passed`, or the differences.
//!
//! - `case.rs` reads a case from its directory.
//! - `node.rs` creates the environment of a case: the one in which upstream's dumps were made.
//! - `table.rs` compares dumps of the kernel state, without their random parts.
//! - `differences.rs` lists the intended differences between the daemon and upstream.

mod case;
mod differences;
mod kernel;
mod nft;
mod node;
mod record;
mod scratch;
mod table;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use case::{Case, Phase};
use clap::Parser;
use differences::InitialState;
use kernel::Monitor;
use lab::{Lane, Options, Running};
use node::{Check, NFTABLES, Node, Program};
use table::{Dumps, Table};

/// Maximum number of differing lines that the program prints for a table.
const SHOWN: usize = 6;
/// Maximum number of lines that the program prints of an error, which may contain the daemon's
/// whole log.
pub(crate) const SAID: usize = 20;
/// Time limit for a case, which usually takes a second.
const CASE_LIMIT: Duration = Duration::from_mins(2);
/// Time limit for booting a VM, in addition to the time limits of its cases.
const BOOT_LIMIT: Duration = Duration::from_mins(1);

/// Compares the kernel state that the daemon leaves with the state that upstream's kube-proxy left,
/// case by case.
#[allow(clippy::struct_excessive_bools, reason = "one bool is one flag")]
#[derive(Debug, Parser)]
struct Arguments {
    /// The kube-proxy binary to run
    #[arg(long, value_name = "PATH")]
    kube_proxy: PathBuf,
    /// Proxy mode of the run
    #[arg(long, default_value = "ipvs")]
    mode: String,
    /// Directory with the cases
    #[arg(long, value_name = "DIR")]
    cases: PathBuf,
    /// Start the daemon on upstream's state, which it must leave unchanged. Every second node then
    /// gets the next case, and the daemon must make the changes that `kube-proxy check` listed
    #[arg(long)]
    adopt: bool,
    /// With --adopt: the dumps are recordings of an earlier version, so no further case follows
    #[arg(long, requires = "adopt")]
    recorded: bool,
    /// With --adopt: run this kube-proxy first, and start the daemon on the state that it leaves,
    /// instead of on the case's dumps
    #[arg(long, value_name = "PATH", requires = "adopt", conflicts_with_all = ["recorded", "upstream"])]
    after: Option<PathBuf>,
    /// Write the state that the daemon leaves to a case of the same name in this directory, instead of
    /// a comparison
    #[arg(long, value_name = "DIR", conflicts_with_all = ["adopt", "upstream"])]
    record: Option<PathBuf>,
    /// Case that follows the adopted state (internal: passed to the run inside the VM)
    #[arg(long, value_name = "CASE", hide = true)]
    next: Option<String>,
    /// Expect upstream's kube-proxy, which lacks our flags and logs no line after its first sync
    #[arg(long)]
    upstream: bool,
    /// Cases to run
    names: Vec<String>,
    /// File for the results (internal: passed to the run inside the VM)
    #[arg(long, value_name = "FILE", hide = true)]
    verdicts: Option<PathBuf>,
    /// Run one case in this network namespace, and print the differences (internal)
    #[arg(long, hide = true)]
    here: bool,
    /// Print no summary, because this is one of several VMs (internal)
    #[arg(long, hide = true)]
    part: bool,
    /// Run the case in this network namespace, the VM's initial one (internal)
    #[arg(long, hide = true)]
    initial: bool,
}

fn main() -> ExitCode {
    lab::maybe_init();
    let mut arguments = Arguments::parse();
    if let Some(folder) = &mut arguments.record {
        // Makes paths absolute, because the process in the lab has another working directory.
        let absolute = fs::create_dir_all(&*folder).and_then(|()| folder.canonicalize());
        match absolute {
            Ok(absolute) => *folder = absolute,
            Err(error) => {
                eprintln!("golden: --record={}: {error}", folder.display());
                return ExitCode::from(2);
            }
        }
    }
    let is_well = match &arguments.verdicts {
        Some(_) | None if arguments.here => arguments.here(),
        Some(verdicts) => arguments.in_lab(verdicts).map(|()| true),
        None => arguments.compare(),
    };
    match is_well {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("golden: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Number of cases that passed, were skipped or failed.
#[derive(Debug, Default)]
struct Score {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        match self.skipped {
            0 => Ok(()),
            skipped => write!(f, ", {skipped} skipped"),
        }
    }
}

impl Arguments {
    /// Runs all cases in the lab. This process is outside of it. Returns true if all have passed.
    fn compare(&self) -> Result<bool> {
        let cases = self
            .cases
            .canonicalize()
            .with_context(|| format!("no directory of cases {}", self.cases.display()))?;
        let names = if self.names.is_empty() {
            Case::names(&cases)?
        } else {
            self.names.clone()
        };
        let guests = std::thread::available_parallelism().map_or(1, NonZero::get);
        if !self.part && guests > 1 && names.len() > guests {
            return self.part_by_part(&names, guests);
        }
        let mut shared = Vec::new();
        let mut alone = Vec::new();
        for name in names {
            // A directory that is no valid case is sent to the lab like any other: its run fails
            // there, and names the directory.
            let is_alone =
                Case::read(&cases.join(&name)).is_ok_and(|case| case.needs_initial_namespace());
            if is_alone { &mut alone } else { &mut shared }.push(name);
        }
        let mut score = Score::default();
        if !shared.is_empty() {
            self.send(&self.place()?, &cases, &shared, false, &mut score)?;
        }
        let throw_away = throw_away_kernel();
        for name in &alone {
            match &throw_away {
                Ok(options) => self.send(
                    options,
                    &cases,
                    std::slice::from_ref(name),
                    true,
                    &mut score,
                )?,
                Err(reason) => {
                    println!(
                        "skipped {name}: it needs the initial network namespace of a throw-away kernel, and {reason}"
                    );
                    score.skipped += 1;
                }
            }
        }
        if !self.part {
            println!("{score}");
        }
        Ok(score.failed == 0)
    }

    /// Returns the flags that this program passes on to each process that it starts for cases.
    fn further(&self) -> Vec<OsString> {
        let mut flags: Vec<OsString> = Vec::new();
        flags.extend(self.adopt.then(|| "--adopt".into()));
        flags.extend(self.upstream.then(|| "--upstream".into()));
        flags.extend(self.recorded.then(|| "--recorded".into()));
        if let Some(folder) = &self.record {
            flags.extend(["--record".into(), folder.into()]);
        }
        if let Some(program) = &self.after {
            flags.extend(["--after".into(), program.into()]);
        }
        flags
    }

    /// Returns the options for runs in the lab. nftables mode needs a kernel with nf_tables.
    fn place(&self) -> Result<Options> {
        let given = Options::from_env();
        if self.mode != NFTABLES {
            return Ok(given);
        }
        let options = given.with_nftables();
        ensure!(
            options.lane.is_some_and(|lane| lane != Lane::A) || options.kernel.is_some(),
            "nftables mode needs a kernel with nf_tables: run as root on one that has it and `nft`, or with LAB_LANE=B and LAB_KERNEL"
        );
        Ok(options)
    }

    /// Distributes the cases over `guests` processes, each of which boots its own VM, because a VM
    /// uses only one CPU. Returns true if all cases have passed.
    fn part_by_part(&self, names: &[String], guests: usize) -> Result<bool> {
        // Each process gets an even number of cases, so that pairs of cases (see [`Self::next`])
        // stay together.
        let size = names.len().div_ceil(guests).next_multiple_of(2);
        let mut parts = Vec::new();
        for names in names.chunks(size) {
            let mut part = Command::new(std::env::current_exe()?);
            part.arg("--part").arg("--kube-proxy").arg(&self.kube_proxy);
            part.args(["--mode", &self.mode])
                .arg("--cases")
                .arg(&self.cases);
            part.args(self.further()).arg("--").args(names);
            let mut part = part.stdout(Stdio::piped()).spawn()?;
            let stdout = part.stdout.take().context("standard output")?;
            let lines = std::thread::spawn(move || {
                let mut score = Score::default();
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    match line.split(' ').next() {
                        Some("passed") => score.passed += 1,
                        Some("skipped") => score.skipped += 1,
                        _ => {}
                    }
                    println!("{line}");
                }
                score
            });
            parts.push((part, lines, names.len()));
        }
        let mut score = Score::default();
        for (mut part, lines, count) in parts {
            part.wait()?;
            let of_part = lines.join().unwrap_or_default();
            score.passed += of_part.passed;
            score.skipped += of_part.skipped;
            // A case for which the process has printed no result has failed.
            score.failed += count - of_part.passed - of_part.skipped;
        }
        println!("{score}");
        Ok(score.failed == 0)
    }

    /// Runs cases in one VM of the lab, and adds their results to `score`.
    fn send(
        &self,
        options: &Options,
        cases: &Path,
        names: &[String],
        is_initial: bool,
        score: &mut Score,
    ) -> Result<()> {
        let folder = std::env::temp_dir().join(format!("golden-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let verdicts = folder.join("verdicts");
        let mut argv = vec![
            std::env::current_exe()?.into_os_string(),
            "--kube-proxy".into(),
        ];
        argv.push(
            self.kube_proxy
                .canonicalize()
                .with_context(|| self.kube_proxy.display().to_string())?
                .into(),
        );
        argv.extend([
            "--mode".into(),
            self.mode.clone().into(),
            "--cases".into(),
            cases.into(),
        ]);
        argv.extend(["--verdicts".into(), verdicts.clone().into()]);
        argv.extend(is_initial.then(|| "--initial".into()));
        argv.extend(self.further());
        argv.push("--".into());
        argv.extend(names.iter().map(Into::into));
        let limit = CASE_LIMIT * u32::try_from(names.len()).unwrap_or(u32::MAX) + BOOT_LIMIT;
        let options = Options {
            timeout: limit,
            keep: [folder.clone()]
                .into_iter()
                .chain(self.record.clone())
                .collect(),
            ..options.clone()
        };
        let status = lab::run(&argv, &options);
        let told = fs::read_to_string(&verdicts).unwrap_or_default();
        let _ = fs::remove_dir_all(&folder);
        for name in names {
            if told
                .lines()
                .any(|line| line.strip_prefix("passed ") == Some(name))
            {
                score.passed += 1;
            } else {
                score.failed += 1;
                if !told
                    .lines()
                    .any(|line| line.strip_prefix("FAILED ") == Some(name))
                {
                    println!("FAILED {name}\n  the lab ended before it (status {status})");
                }
            }
        }
        Ok(())
    }

    /// Runs each case in its own process, so that no case affects another. This process is already
    /// in the lab.
    fn in_lab(&self, verdicts: &Path) -> Result<()> {
        ensure!(lab::in_lab(), "--verdicts is for the lab");
        let mut file = fs::File::options()
            .create(true)
            .append(true)
            .open(verdicts)?;
        for (index, name) in self.names.iter().enumerate() {
            let differing = self
                .apart(name, self.next(index))
                .unwrap_or_else(|error| indented(&format!("{error:#}")));
            let verdict = if differing.is_empty() {
                "passed"
            } else {
                "FAILED"
            };
            println!("{verdict} {name}");
            print!("{differing}");
            writeln!(file, "{verdict} {name}").with_context(|| verdicts.display().to_string())?;
        }
        Ok(())
    }

    /// Returns the case that runs after the case at `index` on the same node, if any. With
    /// `--adopt`, cases form pairs: the first starts on upstream's state, the second on the state
    /// that the first leaves.
    fn next(&self, index: usize) -> Option<&str> {
        // A pair must not contain a case that creates kernel state before the daemon starts.
        let is_plain = |name: &&String| {
            Case::read(&self.cases.join(name)).is_ok_and(|case| case.pre.is_none())
        };
        let [own, next] = self.names.chunks(2).nth(index / 2)? else {
            return None;
        };
        let is_given = self.adopt
            && !self.recorded
            && self.after.is_none()
            && index.is_multiple_of(2)
            && is_plain(&own)
            && is_plain(&next);
        is_given.then_some(next.as_str())
    }

    /// Runs a case in its own process and network namespace. Returns the differences that the
    /// process prints.
    fn apart(&self, name: &str, next: Option<&str>) -> Result<String> {
        let own = std::env::current_exe()?;
        let mut command = if self.initial {
            Command::new(own)
        } else {
            let mut command = Command::new("unshare");
            command.arg("--net").arg(own);
            command
        };
        command
            .arg("--here")
            .arg("--kube-proxy")
            .arg(&self.kube_proxy)
            .args(["--mode", &self.mode]);
        command
            .arg("--cases")
            .arg(&self.cases)
            .args(self.initial.then_some("--initial"))
            .args(self.further())
            .args(next.map(|next| format!("--next={next}")))
            .arg("--")
            .arg(name);
        let mut running = Running::start(command)?;
        let output = running.wait(CASE_LIMIT)?;
        ensure!(
            output.status.code().is_some_and(|code| code <= 1),
            "{}",
            output.stderr.trim_end()
        );
        Ok(output.stdout)
    }

    /// Runs one case in the network namespace of this process. Prints the differences, and returns
    /// true if there are none.
    fn here(&self) -> Result<bool> {
        ensure!(lab::in_lab(), "--here is for the lab");
        let read = |name: &String| Case::read(&self.cases.join(name));
        let case = read(self.names.first().context("no case is named")?)?;
        let program = Program {
            file: &self.kube_proxy,
            mode: &self.mode,
            is_upstream: self.upstream,
        };
        let is_nft = self.mode == NFTABLES;
        let node = Node::new(program, self.initial)?;
        if let Some(folder) = &self.record {
            return record::record(&node, &case, folder).map(|()| true);
        }
        case.ensure_comparable()?;
        // With node ports in only one IP family, our daemon intentionally leaves another state than
        // upstream.
        let is_otherwise = case.has_no_node_ports().contains(&true);
        let (mut before, check, phases) = if self.adopt {
            // Upstream's dumps show the state after the last phase, so only this phase runs.
            let last = case.phases.len().saturating_sub(1);
            let check = if self.upstream {
                Check::Unasked
            } else if is_otherwise {
                Check::Any
            } else if case.writes > 0 {
                Check::Writes(case.writes)
            } else {
                Check::Nothing
            };
            let state = match &self.after {
                Some(earlier) => node.run_before(earlier, &case)?,
                None => node.load(&case)?,
            };
            (state, check, case.phases.get(last..))
        } else {
            (node.prepare(&case)?, Check::Unasked, Some(&*case.phases))
        };
        let phases = phases.unwrap_or_default();
        let judge = |before: &InitialState| {
            let before = before.clone();
            let node = &node;
            move |phase: &Phase, found: &Dumps| match check {
                // The daemon must change the recorded state, so its dumps cannot equal the
                // recording. The test compares only the number of writes.
                Check::Writes(_) => String::new(),
                _ if self.after.is_some() => changes(&before.dumps, found),
                _ => differing(node, phase, &before, found),
            }
        };
        let is_silent = check == Check::Nothing && is_nft && kernel::is_reference()?;
        let mut monitor = is_silent.then(Monitor::start).transpose()?;
        let (found, mut differing) = node.serve(&case, phases, check, &judge(&before))?;
        if let Some(monitor) = &mut monitor {
            let heard = monitor.heard()?;
            if !heard.is_empty() {
                differing.push_str("  written where upstream left all that is wanted:\n");
                let heard = heard.iter().take(SHOWN);
                differing.extend(heard.flat_map(|line| ["    ", line, "\n"]));
            }
        }
        drop(monitor);
        if let (true, Some(name)) = (differing.is_empty(), &self.next) {
            let next = read(name)?;
            before.dumps = found;
            before.has_no_node_ports = next.has_no_node_ports();
            node.settle(Some(&case), &next)?;
            let (_, this) = node
                .serve(&next, &next.phases, Check::Any, &judge(&before))
                .with_context(|| format!("given {name} then"))?;
            if !this.is_empty() {
                differing = format!("  given {name} then:\n{this}");
            }
        }
        print!("{differing}");
        Ok(differing.is_empty())
    }
}

/// Returns the differences between two dumps of the proxy's own tables, table by table.
fn changes(before: &Dumps, after: &Dumps) -> String {
    let mut text = String::new();
    for (table, after) in after.iter().filter(|(table, _)| table.is_recorded()) {
        let before = before.get(table).map(|dump| table.clean(dump));
        add_lines(
            &mut text,
            *table,
            &table::differing(&before.unwrap_or_default(), &table.clean(after)),
        );
    }
    text
}

/// Appends `lines`, the differing lines of a table, to `text`. Appends at most [`SHOWN`] lines.
fn add_lines(text: &mut String, table: Table, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    text.extend(["  ", table.file(), ":\n"]);
    for line in lines.iter().take(SHOWN) {
        text.extend(["    ", line, "\n"]);
    }
    if lines.len() > SHOWN {
        let _ = writeln!(text, "    and {} more", lines.len() - SHOWN);
    }
}

/// Returns the differences between the dumps `found` and the expected state of a phase, table by
/// table.
fn differing(node: &Node<'_>, phase: &Phase, before: &InitialState, found: &Dumps) -> String {
    let mut expected = BTreeMap::new();
    for (table, dump) in &phase.expected {
        match node.relisted(*table, dump) {
            Ok(listing) => expected.insert(*table, table.clean(&listing)),
            Err(error) => return format!("  {error:#}\n"),
        };
    }
    // The daemon must not change nf_tables tables of other programs.
    if let Some(others) = before.dumps.get(&Table::NftOthers) {
        expected.insert(Table::NftOthers, Table::NftOthers.clean(others));
    }
    let mut text = String::new();
    if !node.is_upstream() {
        expected = differences::ours(before, expected);
    }
    for (table, expected) in expected {
        let found = found
            .get(&table)
            .map(|found| table.clean(found))
            .unwrap_or_default();
        add_lines(&mut text, table, &table::differing(&expected, &found));
    }
    text
}

/// Returns the last [`SAID`] lines of a text, indented.
fn indented(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let first = lines.len().saturating_sub(SAID);
    let last = lines.iter().skip(first);
    last.flat_map(|line| {
        [
            "  ", *line, "
",
        ]
    })
    .collect()
}

/// Returns options for the lab that select a VM, because the test changes the kernel's state.
/// Returns the reason if there is no VM.
fn throw_away_kernel() -> Result<Options, String> {
    let given = Options::from_env();
    let options = match given.lane {
        Some(Lane::A | Lane::B) => given,
        None if given.kernel.is_some() => given,
        Some(Lane::Host) | None => Options {
            lane: Some(Lane::A),
            kernel: None,
            ..given
        },
    };
    match lab::doctor(&options)
        .into_iter()
        .find(|finding| finding.what == "kernel")
        .map(|finding| finding.found)
    {
        Some(Err(reason)) => Err(reason),
        _ => Ok(options),
    }
}
