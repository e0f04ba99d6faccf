//! Formats errors about the command line, each as one line. The daemon and its subcommands use the
//! same wording.

use std::error::Error as _;

use clap::CommandFactory as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::{Flags, go, removed};

/// Exit status for an invalid command line, and for a command that cannot determine its result.
pub const EXIT_USAGE: u8 = 2;

/// Formats a clap error as one line that says what to do next. `command` is the program's name,
/// with the subcommand if there is one.
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
            // clap reports an extra argument of a subcommand, such as `check`, as an unknown
            // subcommand.
            if command.contains(' ') || word.starts_with('-') {
                return unexpected(&word, command);
            }
            match &*context(ContextKind::SuggestedSubcommand) {
                _ if is_flag(&word) => format!("unknown command: '{word}'; is --{word} meant?"),
                "" => format!("unknown command: '{word}'; {help}"),
                similar => format!("unknown command: '{word}'; is {similar} meant? Else {help}"),
            }
        }
        ErrorKind::ArgumentConflict if error.get(ContextKind::InvalidSubcommand).is_some() => {
            unexpected(&context(ContextKind::InvalidSubcommand), command)
        }
        ErrorKind::ArgumentConflict => match context(ContextKind::PriorArg) {
            other if other == argument => format!("{flag} is given more than once; {help}"),
            other => {
                let other = other.split([' ', '[']).next().unwrap_or(&other);
                format!("{flag} and {other} exclude each other: give one of them")
            }
        },
        ErrorKind::TooManyValues => format!("'{value}' is unexpected: {flag} takes no value"),
        ErrorKind::UnknownArgument if !flag.starts_with('-') => unexpected(flag, command),
        ErrorKind::UnknownArgument => {
            let similar = context(ContextKind::SuggestedArg);
            match removed::advice(flag.trim_start_matches('-')) {
                Some(advice) => format!("unknown flag: {flag}: {advice}"),
                None if similar.is_empty() => format!("unknown flag: {flag}; {help}"),
                None => format!("unknown flag: {flag}; is {similar} meant? Else {help}"),
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

/// Reports whether a word is the name of a flag of the daemon, without dashes.
fn is_flag(word: &str) -> bool {
    let flags = Flags::command();
    flags
        .get_arguments()
        .any(|flag| flag.get_long() == Some(word))
}

fn unexpected(argument: &str, command: &str) -> String {
    let advice = if go::bool(argument).is_ok() {
        "a switch takes its value behind =, as in --switch=true; "
    } else if !command.contains(' ') && !argument.starts_with('-') {
        "a command comes first, before its flags; "
    } else {
        ""
    };
    format!("unexpected argument: '{argument}'; {advice}see {command} --help")
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction, Command};

    use super::*;

    #[test]
    fn errors_of_clap_are_reworded_with_the_next_step() {
        let switch = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
        let command = Command::new("x").arg(switch("all")).arg(
            Arg::new("name")
                .long("name")
                .value_name("NAME")
                .conflicts_with("all"),
        );
        let said = |arguments: &[&str]| {
            let arguments = [&["x"], arguments].concat();
            let error = command.clone().try_get_matches_from(arguments).unwrap_err();
            in_words(&error, "kube-proxy services")
        };
        assert_eq!(
            said(&["--all", "--name=a"]),
            "--all and --name exclude each other: give one of them"
        );
        assert_eq!(
            said(&["--name=a", "--name=b"]),
            "--name is given more than once; see kube-proxy services --help"
        );
        assert_eq!(
            said(&["--all=no"]),
            "'no' is unexpected: --all takes no value"
        );
        assert_eq!(
            said(&["extra"]),
            "unexpected argument: 'extra'; see kube-proxy services --help"
        );
    }
}
