//! Formats errors about the command line, each as one line. The daemon and its subcommands use the
//! same wording.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::removed;

/// Exit status for an invalid command line, and for a command that cannot determine its result.
pub const EXIT_USAGE: u8 = 2;

/// Formats an error of clap as one line with the next step. `command` is the program's name, with
/// the subcommand if there is one.
pub fn in_words(error: &clap::Error, command: &str) -> String {
    let help = format!("see {command} --help");
    let context = |kind| match error.get(kind) {
        Some(ContextValue::Strings(values)) => values.join(" or "),
        Some(value) => value.to_string(),
        None => String::new(),
    };
    let argument = context(ContextKind::InvalidArg);
    // clap names an argument like `--flag <VALUE>`, `--flag[=<VALUE>]` or `-v, --v <VALUE>`.
    let flag = argument.split([' ', '[']).next().unwrap_or(&argument);
    let flag = if flag == "-v," { "--v" } else { flag };
    let value = context(ContextKind::InvalidValue);
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let word = context(ContextKind::InvalidSubcommand);
            match &*context(ContextKind::SuggestedSubcommand) {
                "" => format!("unknown command: '{word}'; {help}"),
                similar => format!("unknown command: '{word}'; is {similar} meant?"),
            }
        }
        ErrorKind::ArgumentConflict if error.get(ContextKind::InvalidSubcommand).is_some() => {
            unexpected(&context(ContextKind::InvalidSubcommand), &help)
        }
        ErrorKind::UnknownArgument if !flag.starts_with('-') => unexpected(flag, &help),
        ErrorKind::UnknownArgument => {
            let similar = context(ContextKind::SuggestedArg);
            match removed::advice(flag.trim_start_matches('-')) {
                Some(advice) => format!("unknown flag: {flag}: {advice}"),
                None if similar.is_empty() => format!("unknown flag: {flag}; {help}"),
                None => format!("unknown flag: {flag}; is {similar} meant?"),
            }
        }
        ErrorKind::ValueValidation => {
            let advice = error.source().map(ToString::to_string).unwrap_or_default();
            format!("invalid value '{value}' for '{flag}': {advice}")
        }
        ErrorKind::InvalidValue if value.is_empty() => format!("flag needs a value: {flag}"),
        ErrorKind::InvalidValue => {
            let valid = context(ContextKind::ValidValue);
            format!("invalid value '{value}' for '{flag}': give {valid}")
        }
        ErrorKind::MissingRequiredArgument => format!("missing argument: {argument}; {help}"),
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            line.trim_start_matches("error: ").to_owned()
        }
    }
}

fn unexpected(argument: &str, help: &str) -> String {
    format!(
        "unexpected argument: '{argument}'; a switch takes its value behind =, as in --switch=true; {help}"
    )
}
