//! Golden equality: what our daemon leaves in the kernel is what kube-proxy 1.36.2 leaves there.
//!
//! ```text
//!  golden ──▶ lab ──▶ one process for each case, in a network namespace of its own ──▶ `passed`, or the differing lines
//!     └─────▶ one more guest for each case that needs the kernel's initial network namespace
//! ```
//!
//! A case is a folder (`case.rs`), its surroundings are those in which the dumps were made (`node.rs`), what is compared
//! and what is chance is in `table.rs`, and where we differ on purpose in `differences.rs`.

mod case;
mod differences;
mod node;
mod table;

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use case::Case;
use clap::Parser;
use lab::{Lane, Options, Running};

/// How many differing lines of a table are shown.
const SHOWN: usize = 6;
/// How many lines of an error are shown: it may hold all that the daemon said.
const SAID: usize = 20;
/// The longest that one case may take; it takes about a second.
const CASE_LIMIT: Duration = Duration::from_mins(2);
/// What the boot of a guest may take on top.
const BOOT_LIMIT: Duration = Duration::from_mins(1);

/// Compares what the daemon leaves in the kernel with what kube-proxy left there, case by case.
#[derive(Debug, Parser)]
struct Arguments {
    /// The kube-proxy binary to run
    #[arg(long, value_name = "PATH")]
    kube_proxy: PathBuf,
    /// How Services are carried: --proxy-mode
    #[arg(long, default_value = "ipvs")]
    mode: String,
    /// The folder of cases
    #[arg(long, value_name = "DIR")]
    cases: PathBuf,
    /// The daemon finds what upstream left for the case, and changes nothing; and then what it left for the case before it
    /// in the list, and does what `kube-proxy check` has foretold
    #[arg(long)]
    adopt: bool,
    /// In the lab: the daemon finds what upstream left for this case
    #[arg(long, value_name = "CASE", hide = true)]
    start: Option<String>,
    /// Only these cases
    names: Vec<String>,
    /// In the lab: run the cases, and append their verdicts to this file
    #[arg(long, value_name = "FILE", hide = true)]
    verdicts: Option<PathBuf>,
    /// In the lab: run the one case in this network namespace, and print what differs
    #[arg(long, hide = true)]
    here: bool,
    /// In the lab: this network namespace is the kernel's initial one, and the case is to run there
    #[arg(long, hide = true)]
    initial: bool,
}

fn main() -> ExitCode {
    lab::maybe_init();
    let arguments = Arguments::parse();
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

/// What came of the cases.
#[derive(Debug, Default)]
struct Score {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Arguments {
    /// Outside the lab: all cases, and whether they passed.
    fn compare(&self) -> Result<bool> {
        let cases = self
            .cases
            .canonicalize()
            .with_context(|| format!("no folder of cases {}", self.cases.display()))?;
        let names = if self.names.is_empty() {
            Case::names(&cases)?
        } else {
            self.names.clone()
        };
        let mut shared = Vec::new();
        let mut alone = Vec::new();
        for name in names {
            // A folder that is no case fails in the lab, by name.
            let is_alone =
                Case::read(&cases.join(&name)).is_ok_and(|case| case.needs_initial_namespace());
            if is_alone { &mut alone } else { &mut shared }.push(name);
        }
        let mut score = Score::default();
        if !shared.is_empty() {
            self.send(&Options::from_env(), &cases, &shared, false, &mut score)?;
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
        let skipped = if score.skipped == 0 {
            String::new()
        } else {
            format!(", {} skipped", score.skipped)
        };
        println!("{} passed, {} failed{skipped}", score.passed, score.failed);
        Ok(score.failed == 0)
    }

    /// Sends cases into the lab, and counts what comes back.
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
        argv.extend(self.adopt.then(|| "--adopt".into()));
        argv.push("--".into());
        argv.extend(names.iter().map(Into::into));
        let limit = CASE_LIMIT * u32::try_from(names.len()).unwrap_or(u32::MAX) + BOOT_LIMIT;
        let options = Options {
            timeout: limit,
            keep: vec![folder.clone()],
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

    /// In the lab: each case in a process of its own, so that none leaves anything to the next.
    fn in_lab(&self, verdicts: &Path) -> Result<()> {
        ensure!(lab::in_lab(), "--verdicts is for the lab");
        let mut file = fs::File::options()
            .create(true)
            .append(true)
            .open(verdicts)?;
        for (index, name) in self.names.iter().enumerate() {
            let mut differing = String::new();
            for start in self.starts(index) {
                let this = self
                    .apart(name, start)
                    .unwrap_or_else(|error| indented(&format!("{error:#}")));
                if let (false, Some(start)) = (this.is_empty(), start) {
                    let _ = writeln!(differing, "  from what was left for {start}:");
                }
                differing.push_str(&this);
            }
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

    /// For which cases the daemon of a case finds upstream's state; None: for no one.
    fn starts(&self, index: usize) -> Vec<Option<&str>> {
        if !self.adopt {
            return vec![None];
        }
        // Those with a `pre.sh` hold things of others, too.
        let is_plain =
            |name: &&String| Case::read(&self.cases.join(name)).is_ok_and(|case| !case.has_pre);
        let own = self.names.get(index);
        let before = self.names.iter().take(index).rfind(is_plain);
        let before = before.filter(|_| own.as_ref().is_some_and(is_plain));
        let starts = own.into_iter().chain(before);
        starts.map(|name| Some(name.as_str())).collect()
    }

    /// Runs a case in a process of its own; what it says is what differs.
    fn apart(&self, name: &str, start: Option<&str>) -> Result<String> {
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
            .args(start.map(|start| format!("--start={start}")))
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

    /// In the namespace of a case: prints what differs, and says whether nothing did.
    fn here(&self) -> Result<bool> {
        ensure!(lab::in_lab(), "--here is for the lab");
        let name = self.names.first().context("no case is named")?;
        let case = Case::read(&self.cases.join(name))?;
        let start = self
            .start
            .as_ref()
            .map(|start| Case::read(&self.cases.join(start)));
        let start = start.transpose()?;
        let (before, found) = node::run(
            &case,
            &self.mode,
            &self.kube_proxy,
            self.initial,
            start.as_ref(),
        )?;
        let expected = case
            .expected
            .iter()
            .map(|(table, dump)| (*table, table.clean(dump)))
            .collect();
        let mut is_equal = true;
        for (table, expected) in differences::ours(&before, expected) {
            let found = found
                .get(&table)
                .map(|found| table.clean(found))
                .unwrap_or_default();
            let lines = table::differing(&expected, &found);
            if !lines.is_empty() {
                is_equal = false;
                println!("  {}:", table.file());
                lines
                    .iter()
                    .take(SHOWN)
                    .for_each(|line| println!("    {line}"));
                if lines.len() > SHOWN {
                    println!("    and {} more", lines.len() - SHOWN);
                }
            }
        }
        Ok(is_equal)
    }
}

/// The last lines of a text, moved to the right.
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

/// A kernel of which nothing is left after the run: the lab's guest, but never the user's own. The error says why not.
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
