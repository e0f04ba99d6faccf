//! Subcommands that ask: what the daemon on this node says, and what the kernel holds where there is
//! none.
//!
//! ```text
//!   kube-proxy status|services|explain|top … ─▶ socket ─▶ view ─▶ a table, JSON or YAML
//! ```
//!
//! They are told from the daemon's flags by the first argument, as `check` is. A subcommand is a row
//! of `Asked` and a file here. They only read.
//!
//! Exit status: 0, all is well; 1, something is wrong; 2, wrong usage, or it cannot be read; 3, no
//! daemon answers.

mod explain;
mod held;
mod services;
mod socket;
mod status;
mod table;
mod top;
mod virtual_servers;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::Serialize;

use footprint::Footprints;
use service_counters::ReadCounters;

/// All is well.
const WELL: u8 = 0;
/// Something is wrong with what was asked about.
const WRONG: u8 = 1;
/// Wrong usage, or it cannot be read.
const UNREADABLE: u8 = 2;
/// No daemon answers.
const NO_DAEMON: u8 = 3;

#[derive(Debug, Parser)]
#[command(name = "kube-proxy", disable_help_subcommand = true)]
struct Asking {
    #[command(subcommand)]
    asked: Asked,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
enum Asked {
    /// How kube-proxy on this node stands: mode, lag, what fails, what drains, limits that are near
    #[command(after_help = status::HELP)]
    Status(status::Arguments),
    /// Services, their addresses and endpoints on this node, and why each endpoint is in or out
    #[command(after_help = services::HELP)]
    Services(services::Arguments),
    /// The way of packets to a Service or an address, step by step as the kernel has it, and where they end
    #[command(after_help = explain::HELP)]
    Explain(explain::Arguments),
    /// The busiest Services and endpoints, live: new connections, packets and bytes a second, and what drains or fails
    #[command(after_help = top::HELP)]
    Top(top::Arguments),
}

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Args)]
struct Form {
    /// As a table with more columns, or all of it as JSON or YAML, in the words of docs/api.md
    #[arg(short, long, value_enum)]
    output: Option<Output>,
}

/// `-o`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Wide,
    Json,
    Yaml,
}

/// Why there is no answer; told as one line.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// Nobody listens.
    #[error(
        "no kube-proxy-ipvs answers in this network namespace (local socket in {})",
        local_socket::Places::default()
    )]
    NoDaemon,
    /// There is no such object.
    #[error("{0}")]
    NotFound(String),
    /// Anything else.
    #[error("{0}")]
    Unreadable(String),
}

/// Parts of the program that answer where no daemon does.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// The modes of this build.
    pub modes: Footprints,
    /// Returns what reads the virtual servers of IPVS.
    pub virtual_servers: fn() -> Box<dyn ReadCounters>,
    /// Adds the next step to an error of which it knows one.
    pub with_next_step: fn(String) -> String,
}

/// Does what a command line asks, if it is one that asks, and says how that ended.
pub fn run(arguments: &[OsString], program: &Program) -> Option<ExitCode> {
    let first = arguments.get(1)?.to_str()?;
    Asked::has_subcommand(first).then(|| ExitCode::from(asked(arguments, program)))
}

fn asked(arguments: &[OsString], program: &Program) -> u8 {
    let asked = match Asking::try_parse_from(arguments) {
        Ok(asking) => asking.asked,
        Err(error) => {
            // Nobody may read what it says.
            let _ = error.print();
            return u8::from(error.use_stderr()) * UNREADABLE;
        }
    };
    let answer = match asked {
        Asked::Status(arguments) => status::status(&arguments, program),
        Asked::Services(arguments) => services::services(&arguments, program),
        Asked::Explain(arguments) => explain::explain(&arguments, program),
        Asked::Top(arguments) => top::top(&arguments),
    };
    match answer {
        Ok((text, code)) => {
            // A pager may have been left.
            let _ = io::stdout().write_all(text.as_bytes());
            code
        }
        Err(failure) => {
            // The terminal may be gone, which is no reason to panic.
            let why = (program.with_next_step)(failure.to_string());
            let why = table::shown(&why);
            let _ = writeln!(io::stderr(), "kube-proxy: {why}");
            match failure {
                Failure::NoDaemon => NO_DAEMON,
                Failure::NotFound(_) => WRONG,
                Failure::Unreadable(_) => UNREADABLE,
            }
        }
    }
}

/// What is printed, and the exit status.
type Printed = Result<(String, u8), Failure>;

impl Form {
    /// An object as JSON or YAML, if that is asked for.
    fn of(self, object: &impl Serialize) -> Result<Option<String>, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::Unreadable(error.to_string());
        Ok(match self.output {
            None | Some(Output::Wide) => None,
            Some(Output::Json) => {
                let text = serde_json::to_string_pretty(object).map_err(|error| failed(&error))?;
                Some(text + "\n")
            }
            Some(Output::Yaml) => {
                Some(serde_saphyr::to_string(object).map_err(|error| failed(&error))?)
            }
        })
    }

    fn is_table(self) -> bool {
        matches!(self.output, None | Some(Output::Wide))
    }

    fn is_wide(self) -> bool {
        self.output == Some(Output::Wide)
    }
}

/// Whether standard output takes colours: a terminal, where nobody says otherwise
/// (<https://no-color.org>).
fn has_colours() -> bool {
    let is_unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    !is_unwanted && !is_dumb && io::stdout().is_terminal()
}

#[cfg(test)]
mod documented;
#[cfg(test)]
mod tests;
