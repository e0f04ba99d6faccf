//! Predicts the effect of a start of the daemon with the same flags. Writes nothing.
//!
//! ```text
//!                             ┌─▶ check: preflight, changes, migration
//!   foresee ─ StartForecast ──┼─▶ plan: the writes in their order (also `--dry-run`)
//!                             └─▶ diff: the kernel, compared with the desired state
//! ```
//!
//! The forecast performs the daemon's steps up to the first write: it reads the objects and the
//! kernel, builds the model, and plans the writes. It cannot predict:
//!
//! - which conntrack entries of UDP flows become stale;
//! - the effect of objects that change between the forecast and the start;
//! - whether the kernel has a scheduler that no virtual server uses. If the lists of modules lack
//!   this scheduler, the forecast has a warning.
//!
//! The comparison skips other programs' rules, chains and sets, because a start does not change
//! them. In every mode, the forecast searches for leftovers of IPVS mode. This search may make the
//! kernel load the IPVS module, as `ipvsadm -L` does.

mod answer;
mod counts;
mod diff;
mod finding;
mod foresee;
mod migration;
mod names;
mod plan;
mod preflight;

/// Parses text in the format of `/proc/net/tcp`. Entry point for fuzzing.
pub(crate) fn read_sockets(text: &str) {
    preflight::read_sockets(text);
}

#[cfg(test)]
pub(crate) mod tests;

use std::env;
use std::io::{IsTerminal as _, stdout};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use modes::footprints;
use view::{print, print_error, shown};

use crate::config::options::Options;
use crate::config::question::{AnswerOptions, Output, Question, StartQuestion};
use answer::CheckResult;
use diff::Colour;
use foresee::{StartForecast, foresee};
use migration::Migration;
use preflight::Traces;

/// Runs a command about a start of the daemon: `check`, `plan` or `diff`. Returns one of these exit
/// statuses:
///
/// * 0: The start would change nothing.
/// * 1: The start would change at least one entry.
/// * 2: The check found no change, but some objects could not be read. Or the preflight checks
///   found that the start would fail.
///
/// # Errors
///
/// Fails if the changes cannot be determined, or if the output cannot be written. The process then
/// exits with status 2.
pub async fn check(options: Options, asked: StartQuestion) -> Result<ExitCode> {
    let StartQuestion { question, answer } = asked;
    let AnswerOptions { output, timeout } = answer;
    let status = match question {
        Question::Check => return Box::pin(preflighted(&options, answer)).await,
        Question::Plan => {
            let foreseen = Box::pin(judged(&options, timeout)).await?;
            print(&plan::render(&foreseen, output)?)?;
            foreseen.status()
        }
        Question::Diff => {
            let foreseen = Box::pin(judged(&options, timeout)).await?;
            if matches!(output, Output::Text | Output::Wide) {
                // Prints the warnings, and lines such as `IPv4: layout flat`, to standard error.
                // The standard output of `diff` contains only differences.
                for line in foreseen.warnings.iter().chain(&foreseen.forms) {
                    print_error(format_args!("kube-proxy: {}", shown(line)));
                }
            }
            let is_plain = !stdout().is_terminal() || env::var_os("NO_COLOR").is_some();
            let colour = if is_plain { Colour::Off } else { Colour::On };
            print(&diff::render(&foreseen, output, colour)?)?;
            foreseen.status()
        }
    };
    Ok(ExitCode::from(status))
}

/// Computes the forecast for `plan` and `diff`, and runs the preflight checks, because the exit
/// status depends on both.
async fn judged(options: &Options, timeout: Duration) -> Result<StartForecast> {
    let (mut foreseen, model) = foresee(options, timeout).await?;
    let findings = preflight::look(options, &Traces::read(), Some((&foreseen, &model)));
    foreseen.note_failures(&findings);
    Ok(foreseen)
}

/// Runs `kube-proxy check`. Reports every finding, even if the kernel cannot be read.
async fn preflighted(options: &Options, answer: AnswerOptions) -> Result<ExitCode> {
    let AnswerOptions { output, timeout } = answer;
    let foreseen = Box::pin(foresee(options, timeout)).await;
    let traces = Traces::read();
    let seen = foreseen.as_ref().ok();
    let seen = seen.map(|(foreseen, model)| (foreseen, model));
    let preflight = preflight::look(options, &traces, seen);
    let from = traces.modes(footprints::ALL);
    let to = options.modes.chosen.name();
    let migration = seen.and_then(|(foreseen, _)| Migration::report(from, to, foreseen));
    let (foreseen, error) = match foreseen {
        Ok((foreseen, _)) => (Some(foreseen), None),
        Err(error) => (None, Some(error)),
    };
    let status = foreseen.as_ref().map_or(CANNOT_SAY, StartForecast::status);
    let answer = CheckResult {
        foreseen,
        error: error.as_ref().map(|error| format!("{error:#}")),
        preflight,
        migration,
    };
    print(&answer.render(output)?)?;
    match error {
        Some(error) => Err(error),
        None if answer.fails() => Ok(ExitCode::from(CANNOT_SAY)),
        None => Ok(ExitCode::from(status)),
    }
}

/// Exit status if the check cannot determine the changes of a start, or the start would fail.
pub const CANNOT_SAY: u8 = 2;
