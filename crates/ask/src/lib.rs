//! Subcommands that query the daemon on this node. If no daemon runs, some subcommands read the
//! kernel instead. The subcommands change nothing.
//!
//! ```text
//!   kube-proxy status|services|explain|top … ─▶ socket ─▶ view ─▶ a table, JSON or YAML
//! ```
//!
//! The first argument names the subcommand. Each subcommand has a row in `Subcommands` and a module
//! of this crate.
//!
//! | exit status | meaning |
//! |---|---|
//! | 0 | the subcommand found no problem |
//! | 1 | the subcommand found a problem, such as a failed Service or a lost packet |
//! | 2 | the command line is invalid, or the daemon's response cannot be read |
//! | 3 | no daemon responds on this node |

#![warn(clippy::print_stdout, clippy::print_stderr)]

mod explain;
mod leftovers;
mod names;
mod services;
mod socket;
mod status;
mod table;
mod top;
mod virtual_servers;

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Command, CommandFactory as _, Parser, Subcommand, ValueEnum};
use flags::headings::HELP_COLUMNS;
use flags::usage::EXIT_USAGE;
use flags::{go, usage};
use serde::Serialize;

use footprint::Footprints;
use service_counters::ReadCounters;

/// Exit status if the command finds no problem.
const EXIT_WELL: u8 = 0;
/// Exit status if the command finds a problem, such as a failed Service or a lost packet.
const EXIT_WRONG: u8 = 1;
/// Exit status if no daemon responds.
const EXIT_NO_DAEMON: u8 = 3;

#[derive(Debug, Parser)]
#[command(
    name = "kube-proxy",
    disable_help_subcommand = true,
    args_override_self = true,
    max_term_width = HELP_COLUMNS
)]
struct CommandLine {
    #[command(subcommand)]
    subcommand: Subcommands,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
enum Subcommands {
    /// Show the state of kube-proxy on this node: mode, lag, failures, drains, near limits
    #[command(after_help = status::HELP)]
    Status(status::Arguments),
    /// List Services with their addresses and endpoints, and say why an endpoint is used or not
    #[command(after_help = services::HELP)]
    Services(services::Arguments),
    /// Trace a packet to a Service or an address through the kernel's rules
    #[command(after_help = explain::HELP)]
    Explain(explain::Arguments),
    /// Show the busiest Services and endpoints, live
    #[command(after_help = top::HELP)]
    Top(top::Arguments),
}

/// Options on the output format and on the time limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
struct Form {
    /// Form of the answer: wide has more columns; json and yaml have all fields (docs/api.md)
    #[arg(short, long, value_enum)]
    output: Option<Output>,
    #[command(flatten)]
    patience: Patience,
}

/// Option on the time limit for the daemon's response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
struct Patience {
    /// Longest wait for the daemon's answer
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = go::duration, allow_hyphen_values = true)]
    timeout: Duration,
}

/// Output format that the user selects with `-o`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Wide,
    Json,
    Yaml,
}

/// Reason why a command has no response to print. Its message is one line.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// No daemon listens on the local socket.
    #[error(
        "no kube-proxy-ipvs answers in this network namespace (local socket in {}): start it, or run \
         this command as root in its pod (kubectl -n kube-system exec POD -- kube-proxy ...)",
        local_socket::SocketLocations::default()
    )]
    NoDaemon,
    /// The daemon knows no object with the requested name.
    #[error("{0}")]
    NotFound(String),
    /// The response cannot be parsed, the daemon returned an error, or the request is invalid.
    #[error("{0}")]
    Unreadable(String),
}

/// Modes and functions that the program passes to the subcommands. The subcommands use them if no
/// daemon runs.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// Footprints of the modes in this build: the names of their kernel entries.
    pub modes: Footprints,
    /// Function that returns a reader of the kernel's IPVS virtual servers.
    pub virtual_servers: fn() -> Box<dyn ReadCounters>,
    /// Function that appends the next step for the operator to an error message, if one is known.
    pub with_next_step: fn(String) -> String,
}

/// Returns the subcommands of this crate, for the help text and the shell completions of the whole
/// program.
pub fn commands() -> Vec<Command> {
    CommandLine::command().get_subcommands().cloned().collect()
}

/// Runs the subcommand that `arguments` name, and returns its exit status. Returns `None` if the
/// first argument is not a subcommand of this crate.
pub fn run(arguments: &[OsString], program: &Program) -> Option<ExitCode> {
    let first = arguments.get(1)?.to_str()?;
    Subcommands::has_subcommand(first).then(|| ExitCode::from(run_named(first, arguments, program)))
}

fn run_named(name: &str, arguments: &[OsString], program: &Program) -> u8 {
    let subcommand = match CommandLine::try_parse_from(arguments) {
        Ok(line) => line.subcommand,
        Err(error) if error.use_stderr() => {
            print_error(&usage::in_words(&error, &format!("kube-proxy {name}")));
            return EXIT_USAGE;
        }
        Err(help) => return print(&help.to_string(), EXIT_WELL),
    };
    let answer = match subcommand {
        Subcommands::Status(arguments) => status::status(&arguments, program),
        Subcommands::Services(arguments) => services::services(&arguments, program),
        Subcommands::Explain(arguments) => explain::explain(&arguments, program),
        Subcommands::Top(arguments) => top::top(&arguments),
    };
    match answer {
        Ok((text, code)) => print(&text, code),
        Err(failure) => {
            print_error(&(program.with_next_step)(failure.to_string()));
            match failure {
                Failure::NoDaemon => EXIT_NO_DAEMON,
                Failure::NotFound(_) => EXIT_WRONG,
                Failure::Unreadable(_) => EXIT_USAGE,
            }
        }
    }
}

/// Prints a text to standard output. Returns `code`, or [`EXIT_USAGE`] if it cannot be written.
fn print(text: &str, code: u8) -> u8 {
    match view::print(text) {
        Ok(()) => code,
        Err(lost) => {
            print_error(&lost.to_string());
            EXIT_USAGE
        }
    }
}

fn print_error(text: &str) {
    view::print_error(format_args!("kube-proxy: {}", table::shown(text)));
}

/// Text that a command prints, with its exit status; or the reason why the command failed.
type Printed = Result<(String, u8), Failure>;

impl Form {
    /// Renders an object as JSON or YAML. Returns `None` for the default and wide formats (tables).
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

/// Returns true if standard output is a terminal that supports colours (<https://no-color.org>).
fn has_colours() -> bool {
    let is_unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    !is_unwanted && !is_dumb && io::stdout().is_terminal()
}

#[cfg(test)]
mod documented;
#[cfg(test)]
mod tests;
