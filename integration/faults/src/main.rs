//! `make faults`: runs all faults of a node during real traffic, and reports how many requests
//! failed.
//!
//! ```text
//!   faults ──▶ for each lane: lab run ──▶ for each fault and mode: a row ──▶ docs/faults.md
//!                                         a cluster: daemon, traffic, fault, promise
//! ```
//!
//! A lane is one of the lab's kernels. Each fault has a promise:
//!
//! - Most faults: no request fails and no open connection ends.
//! - Faults in which another program damages the data path: a time limit for the repair.
//!
//! If a promise is broken, the command fails.

mod churn;
mod document;
mod faults;
mod load;
mod mode;
mod row;
mod stage;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Parser;
use lab::Lane;

use crate::document::KernelRows;
use crate::faults::{ALL, Fault, modes};
use crate::mode::Mode;
use crate::row::Row;
use crate::stage::{Size, Stage};

/// Runs faults in the lab, with real traffic.
#[derive(Debug, Parser)]
struct Arguments {
    /// Run only this fault (a part of its name)
    #[arg(long, value_name = "NAME")]
    fault: Option<String>,
    /// Start with this fault (a part of its name)
    #[arg(long, value_name = "NAME", conflicts_with = "fault")]
    from: Option<String>,
    /// Run only this mode
    #[arg(long, value_name = "MODE")]
    mode: Option<String>,
    /// Run each fault's short form, as `make test` does
    #[arg(long)]
    short: bool,
    /// List the faults, and exit
    #[arg(long)]
    list: bool,
    /// Path of an older kube-proxy, for the faults that upgrade
    #[arg(long, value_name = "PATH")]
    before: Option<PathBuf>,
    /// Kernel of lane B, for a second run after lane A
    #[arg(long, value_name = "PATH")]
    kernel: Option<PathBuf>,
    /// Directory that keeps the rows of the page. A fault's new row replaces its old one
    #[arg(long, value_name = "FOLDER")]
    rows: Option<PathBuf>,
    /// Write the documentation page with the kept rows to this file
    #[arg(long, value_name = "FILE", requires = "rows")]
    document: Option<PathBuf>,
    /// Run no fault, only write the page from the kept rows
    #[arg(long, requires = "document")]
    page: bool,
    /// File for the rows (internal: passed to the run inside the VM)
    #[arg(long, value_name = "FOLDER", hide = true)]
    into: Option<PathBuf>,
}

/// Time limit for all faults on one kernel of the lab (a lane), including the VM's boot.
const LIMIT: Duration = Duration::from_hours(3);
/// Time limit for the short run in `make test`. A correct run is much shorter.
const SHORT_LIMIT: Duration = Duration::from_mins(8);
/// Sync period of the daemon in a long run.
const PERIOD: Duration = Duration::from_secs(30);
const SHORT_PERIOD: Duration = Duration::from_secs(3);
/// Name of the file into which a run on one kernel writes its rows.
const ROWS: &str = "rows.json";
const KERNEL: &str = "kernel";

fn main() -> ExitCode {
    lab::maybe_init();
    let arguments = Arguments::parse();
    let done = if arguments.list {
        list();
        Ok(())
    } else if arguments.page {
        write_page(&arguments)
    } else if lab::in_lab() {
        inside(&arguments)
    } else {
        outside(&arguments)
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("faults: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn list() {
    for fault in ALL {
        println!("{}: {}", fault.name, fault.about);
    }
}

fn is_named(part: Option<&String>, name: &str) -> bool {
    part.is_none_or(|part| name.contains(part.as_str()))
}

/// Checks the names of faults and modes in the arguments before a VM boots.
fn ensure_known(arguments: &Arguments) -> Result<()> {
    for (flag, part) in [("--fault", &arguments.fault), ("--from", &arguments.from)] {
        let mut all = ALL.iter();
        ensure!(
            all.any(|fault| is_named(part.as_ref(), fault.name)),
            "{flag}={}: no fault has that in its name; --list says which there are",
            part.as_deref().unwrap_or_default()
        );
    }
    let Some(mode) = &arguments.mode else {
        return Ok(());
    };
    let names: BTreeSet<_> = modes().map(|mode| mode.name).collect();
    ensure!(
        names.contains(mode.as_str()),
        "--mode={mode}: there are {}",
        Vec::from_iter(names).join("; ")
    );
    Ok(())
}

// ---- Inside the lab ----

/// Returns the pairs of a fault and a mode to run, in order.
fn chosen(arguments: &Arguments) -> Vec<(&'static Fault, &'static Mode)> {
    let mut chosen = Vec::new();
    let first = |fault: &&Fault| !is_named(arguments.from.as_ref(), fault.name);
    for fault in ALL
        .iter()
        .skip_while(first)
        .filter(|fault| (fault.is_for)())
    {
        let modes = if arguments.short {
            fault.short
        } else {
            fault.modes
        };
        for mode in modes.iter().filter(|mode| mode.is_possible()) {
            let is_exact = arguments.mode.as_ref().is_none_or(|name| name == mode.name);
            if is_exact && is_named(arguments.fault.as_ref(), fault.name) {
                chosen.push((fault, *mode));
            }
        }
    }
    chosen
}

fn inside(arguments: &Arguments) -> Result<()> {
    let size = Size {
        is_short: arguments.short,
        period: if arguments.short {
            SHORT_PERIOD
        } else {
            PERIOD
        },
    };
    let chosen = chosen(arguments);
    let mut rows = Vec::new();
    for (fault, mode) in &chosen {
        if fault.name == "upgrade and back" && arguments.before.is_none() {
            println!(
                "  {}, {}: passed over, as BEFORE names no older binary",
                fault.name, mode.name
            );
            continue;
        }
        let row = run(fault, mode, size, arguments.before.as_deref());
        println!("{}  ({:.1} s)", row::line(&row), row.took);
        rows.push(row);
        if let Some(folder) = &arguments.into {
            fs::write(folder.join(ROWS), serde_json::to_string(&rows)?)?;
        }
    }
    if let Some(folder) = &arguments.into {
        let uname = rustix::system::uname();
        fs::write(folder.join(KERNEL), uname.release().to_bytes())?;
    }
    let broken = rows.iter().filter(|row| row.broken.is_some()).count();
    ensure!(
        broken == 0,
        "{broken} of {} are not as promised",
        rows.len()
    );
    Ok(())
}

/// Runs a fault in one mode, on a new cluster. Returns its row, even if the fault's promise is
/// broken.
fn run(fault: &Fault, mode: &'static Mode, size: Size, before: Option<&Path>) -> Row {
    let began = Instant::now();
    let row = Row {
        fault: fault.name.to_owned(),
        mode: mode.name.to_owned(),
        ..Row::default()
    };
    let happened = match scenarios::Cluster::new(&fault.name.replace([' ', '/', ','], "-")) {
        Ok(mut cluster) => {
            let happens = || -> Result<Row> {
                let mut stage = Stage::new(&mut cluster, mode, size, row.clone(), before)?;
                (fault.happens)(&mut stage)
                    .inspect_err(|_| println!("      so far: {}", stage.account()))
            };
            let happened = catch_unwind(AssertUnwindSafe(happens));
            let happened = happened.unwrap_or_else(|_| Err(anyhow!("it panicked")));
            happened.inspect_err(|error| {
                let said = cluster.said();
                let tail = said.lines().rev().take(60).collect::<Vec<_>>();
                let tail: Vec<&str> = tail.into_iter().rev().collect();
                println!(
                    "  {}, {}: {error:#}\n-- kube-proxy said last:\n{}",
                    fault.name,
                    mode.name,
                    tail.join("\n")
                );
            })
        }
        Err(error) => Err(error),
    };
    let took = began.elapsed().as_secs_f64();
    match happened {
        Ok(row) => Row { took, ..row },
        Err(error) => Row {
            broken: Some(format!("{error:#}")),
            took,
            ..row
        },
    }
}

// ---- Outside the lab ----

fn outside(arguments: &Arguments) -> Result<()> {
    ensure_known(arguments)?;
    let given = lab::Options::from_env();
    if let Some(folder) = &arguments.rows {
        fs::create_dir_all(folder)?;
    }
    let mut lanes = vec![given.clone()];
    if let Some(kernel) = &arguments.kernel {
        lanes = vec![
            lab::Options {
                lane: Some(Lane::A),
                kernel: None,
                ..given.clone()
            },
            lab::Options {
                lane: Some(Lane::B),
                kernel: Some(kernel.clone()),
                ..given
            },
        ];
    }
    let mut parts = Vec::new();
    let mut is_well = true;
    for lane in lanes {
        let (part, is_kept) = run_lane(arguments, lane)?;
        if let Some(folder) = &arguments.rows {
            document::keep(folder, &part)?;
        }
        is_well &= is_kept;
        parts.push(part);
    }
    ensure!(
        parts.iter().any(|part| !part.rows.is_empty()),
        "no fault of that name, and in that mode, can be had on any of these kernels"
    );
    for part in &parts {
        println!(
            "\nLinux {} ({}):\n\n{}",
            part.kernel,
            part.lane,
            row::table(&part.rows)
        );
    }
    write_page(arguments)?;
    ensure!(is_well, "a promise was not kept, see above");
    Ok(())
}

/// Writes docs/faults.md from the saved rows, if the arguments request this (`--rows` and
/// `--document`).
fn write_page(arguments: &Arguments) -> Result<()> {
    let (Some(folder), Some(file)) = (&arguments.rows, &arguments.document) else {
        return Ok(());
    };
    let page = document::page(&document::kept(folder)?);
    let rows = |page: &str| page.lines().filter(|line| line.starts_with("| ")).count();
    if fs::read_to_string(file).is_ok_and(|there| rows(&page) < rows(&there)) {
        println!(
            "{} stays as it is: it has more rows than {} keeps. Remove it to have it written of these.",
            file.display(),
            folder.display(),
        );
        return Ok(());
    }
    fs::write(file, page).with_context(|| format!("cannot write {}", file.display()))
}

/// Runs the chosen faults on one kernel of the lab (a lane). Returns their rows, and true if all
/// promises were kept.
fn run_lane(arguments: &Arguments, options: lab::Options) -> Result<(KernelRows, bool)> {
    let folder =
        std::env::temp_dir().join(format!("faults-{}-{:?}", std::process::id(), options.lane));
    fs::create_dir_all(&folder)?;
    let lane = options
        .lane
        .map_or_else(|| "the default lane".into(), |lane| format!("lane {lane}"));
    let mut argv: Vec<OsString> = vec![std::env::current_exe()?.into()];
    argv.extend(std::env::args_os().skip(1));
    argv.extend(["--into".into(), folder.clone().into()]);
    let options = lab::Options {
        timeout: if arguments.short { SHORT_LIMIT } else { LIMIT },
        memory: if arguments.short {
            options.memory
        } else {
            "2G".into()
        },
        keep: vec![folder.clone()],
        ..options
    };
    let status = lab::run(&argv, &options);
    // A run in which the kernel supports none of the chosen faults writes no file.
    let rows = fs::read_to_string(folder.join(ROWS)).unwrap_or_else(|_| "[]".into());
    let kernel = fs::read_to_string(folder.join(KERNEL)).unwrap_or_else(|_| "?".into());
    fs::remove_dir_all(&folder)?;
    let rows: Vec<Row> = serde_json::from_str(&rows)?;
    ensure!(
        !rows.is_empty() || status == 0,
        "nothing was run on {lane}: the guest ended with {status}"
    );
    Ok((KernelRows { lane, kernel, rows }, status == 0))
}
