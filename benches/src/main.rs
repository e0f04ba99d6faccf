//! `bench`: measures kube-proxies, and compares our daemon with a bare loader, with the kernel's
//! tools and with other kube-proxies.
//!
//! ```text
//!  bench run ──▶ for each cell: lab run -- bench cell JSON ──▶ one line of JSON ──▶ report.json
//!                                 control_plane, data_plane, api
//!
//!  bench report: report.json ──▶ report.md, *.svg
//! ```
//!
//! A cell is one benchmark run: one subject, one size and one axis (measured quantity), in a newly
//! booted kernel. It only counts if the state that is read back from this kernel is completely
//! correct.

mod api;
mod budget;
mod control_plane;
mod counts;
mod data_plane;
mod floor;
mod http;
mod kernel;
mod nat;
mod nft;
mod nft_floor;
mod objects;
mod plan;
mod process;
mod report;
mod rules;
mod run;
mod schema;
mod stage;
mod subject;
mod tools;
mod wait;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, Subcommand};
use schema::{Axis, Cell, Outcome, Report, SubjectKind};

/// Measures kube-proxies on one kernel, one input and one setting.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Measure, and write a report
    Run(run::Run),
    /// Measure one cell, inside a VM of the lab
    Cell {
        /// Cell to measure, as JSON
        cell: String,
        /// File for the result, instead of standard output
        #[arg(long, value_name = "FILE")]
        into: Option<PathBuf>,
    },
    /// Run the bare loader of a cell (the command `cell` starts this)
    #[command(hide = true)]
    Floor {
        #[arg(hide = true)]
        cell: String,
    },
    /// Write the report's page and charts again, from a report.json
    Report {
        /// Path of report.json
        json: PathBuf,
    },
    /// Write the report's page and main figures into the documents
    Publish {
        /// Path of report.json
        json: PathBuf,
        /// Directory for the page, its charts and the JSON file
        #[arg(long, value_name = "FOLDER", default_value = "docs/bench")]
        into: PathBuf,
    },
    /// Write the report's memory and CPU figures into the page about sizing
    Sizing {
        /// Path of report.json
        json: PathBuf,
        /// Page with the markers between which the tables stand
        #[arg(long, value_name = "FILE", default_value = "docs/sizing.md")]
        into: PathBuf,
    },
}

fn main() -> ExitCode {
    lab::maybe_init();
    let done = match Cli::parse().command {
        Verb::Run(run) => run.run(),
        Verb::Cell { cell, into } => measure(&cell, into.as_deref()),
        Verb::Floor { cell } => floor::run(&cell),
        Verb::Report { json } => read(&json)
            .and_then(|report| report::draw(&report, json.parent().unwrap_or(Path::new("")), true)),
        Verb::Publish { json, into } => publish(&json, &into),
        Verb::Sizing { json, into } => sizing(&json, &into),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures a cell, and prints the outcome as a line of JSON, or writes it to the file `into`.
fn measure(cell: &str, into: Option<&Path>) -> Result<()> {
    ensure!(
        lab::in_lab(),
        "a cell is measured in the lab: lab run -- bench cell JSON"
    );
    let cell: Cell = serde_json::from_str(cell).context("cannot read the cell")?;
    let outcome = match cell.axis {
        Axis::Api => api::measure(&cell),
        axis if axis.is_data_plane() => data_plane::measure(&cell),
        _ => control_plane::measure(&cell),
    };
    let mut outcome = outcome.unwrap_or_else(|error| {
        let why = format!("{error:#}");
        match refusal(&cell, &why) {
            Some(why) => Outcome::skipped(why),
            None => Outcome::Failed { why },
        }
    });
    if let Outcome::Measured(measured) = &mut outcome {
        let kernel = rustix::system::uname();
        let (release, machine) = (kernel.release(), kernel.machine());
        measured.kernel = Some(format!(
            "{} {}",
            release.to_string_lossy(),
            machine.to_string_lossy()
        ));
    }
    let line = serde_json::to_string(&outcome)?;
    match into {
        Some(file) => std::fs::write(file, line)
            .with_context(|| format!("cannot write {}", file.display()))?,
        None => println!("{line}"),
    }
    Ok(())
}

/// Writes the published page: the main figures, their charts, and a JSON file with all figures.
fn publish(json: &Path, folder: &Path) -> Result<()> {
    let mut report = read(json)?;
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    report::draw(&report, folder, false)?;
    // Removes the programs' paths on this machine, which are of no use to readers.
    for one in &mut report.measurements {
        if let SubjectKind::KubeProxy { path, .. } = &mut one.cell.subject.kind {
            *path = path.file_name().unwrap_or_default().into();
        }
    }
    let copy = folder.join("report.json");
    let text = serde_json::to_vec_pretty(&report)?;
    std::fs::write(&copy, text).with_context(|| copy.display().to_string())
}

/// Replaces the tables in docs/sizing.md by those of a report.
fn sizing(json: &Path, page: &Path) -> Result<()> {
    let text = std::fs::read_to_string(page).with_context(|| page.display().to_string())?;
    let text = report::sizing::page(&read(json)?, &text).context(page.display().to_string())?;
    std::fs::write(page, text).with_context(|| page.display().to_string())
}

/// Returns why a kube-proxy cannot run in its mode: the kernel has no nf_tables, or the kube-proxy
/// does not know the mode or a flag. Returns `None` if the failure has another reason.
fn refusal(cell: &Cell, why: &str) -> Option<String> {
    if why.contains("the kernel has no nf_tables") {
        return Some("this kernel has no nf_tables; that of lane B has (LANE=B)".to_owned());
    }
    let SubjectKind::KubeProxy { mode, flags, .. } = &cell.subject.kind else {
        return None;
    };
    let words = flags
        .iter()
        .filter_map(|flag| Some(flag.split_once('=')?.0))
        .chain(["--proxy-mode"]);
    let about = |line: &&str| words.clone().any(|word| line.contains(word));
    let said = why.split_once("the subject ended: ")?.1;
    let line = said.lines().find(about)?.trim();
    let with = [vec![format!("--proxy-mode={}", mode.name())], flags.clone()].concat();
    Some(format!("it does not know {}: {line}", with.join(" ")))
}

fn read(json: &Path) -> Result<Report> {
    let text =
        std::fs::read_to_string(json).with_context(|| format!("cannot read {}", json.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no report", json.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kube_proxy_that_rejects_its_mode_is_skipped() {
        let cell: Cell = serde_json::from_str(
            r#"{"axis": "cold", "size": {"services": 1, "endpoints": 2}, "repeat": 0, "is_counting": false,
                "limit_s": 1, "changes": 1, "idle_s": 1, "subject": {"name": "x", "kind": "kube-proxy",
                "path": "/x", "mode": "iptables", "flags": ["--ipvs-shim=lean"], "is_ours": true}}"#,
        )
        .unwrap();
        let of = |said: &str| refusal(&cell, &format!("cold: the subject ended: {said}"));
        let why =
            of("INFO\nERROR --proxy-mode 'iptables': the modes of this build are: ipvs").unwrap();
        assert!(why.starts_with("it does not know --proxy-mode=iptables --ipvs-shim=lean: ERROR"));
        assert!(of("error: unexpected argument '--ipvs-shim' found").is_some());
        assert_eq!(of("Segmentation fault"), None);
        assert_eq!(refusal(&cell, "there is no --proxy-mode"), None);
    }
}
