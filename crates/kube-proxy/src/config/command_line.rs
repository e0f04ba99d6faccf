//! The command line of the daemon, and of the commands that preview a start (`check`, `plan`,
//! `diff`).
//!
//! ```text
//!   arguments ─▶ Flags ─┐
//!                       ├─▶ Flags in effect ─▶ Options ─▶ Command
//!   --config ─▶ file ───┘
//! ```
//!
//! - With `--config`, the file overrides each flag that has a field, except log flags and
//!   `--hostname-override`.
//! - An unknown flag is an error, as in upstream.
//! - A flag without effect is accepted with a warning.

mod arguments;
mod daemons;
mod tree;
mod typed;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::FromArgMatches as _;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use flags::unusable_flag::UnusableFlag;
use flags::{Flags, usage};

use crate::config::question::{Question, StartQuestion};
use crate::config::{self, Configuration, ConfigurationError, GivenSettings, Waiting};

use crate::config::options::Options;
use crate::process::version;

use arguments::{LeadingArguments, normalised, take_question};
pub use daemons::{CompletedArguments, completed};
pub use tree::tree;
pub use typed::{as_typed, values};

/// Deprecated flags, each with the flag that replaces it.
const DEPRECATED: [(&str, &str); 2] = [
    ("healthz-port", "healthz-bind-address"),
    ("metrics-port", "metrics-bind-address"),
];

/// Action that a command line requests, with its options.
#[derive(Debug)]
pub enum Command {
    /// Runs the daemon.
    Run(Box<Options>),
    /// Previews a start without changes (`check`, `plan` or `diff`), and exits.
    Check(Box<Options>, StartQuestion),
    /// Removes the entries of all modes (`--cleanup`), and exits.
    Cleanup(Box<Options>),
    /// Prints a text (help, version, completions) to standard output, and exits with 0.
    Print(String),
    /// Writes a text to a file (`--write-config-to`), and exits with 0.
    Write(PathBuf, String),
}

/// Reason why the daemon rejects a command line. The exit status is [`usage::EXIT_USAGE`].
#[derive(Debug, thiserror::Error)]
pub enum CommandLineError {
    /// An unknown flag or command, or a value that cannot be parsed.
    #[error("{0}")]
    Syntax(String),
    /// A flag whose value has the right type but is not allowed.
    #[error(transparent)]
    Meaning(#[from] UnusableFlag),
    /// A command that previews a start, given without any flag of the daemon.
    #[error(
        "`kube-proxy {question}` needs the flags of the daemon: give them, as in `kubectl -n \
         kube-system exec POD -- \
         kube-proxy {question} --config=/var/lib/kube-proxy/config.conf`; in the daemon's \
         container it reads them from process 1"
    )]
    NoFlags {
        /// Name of the subcommand that lacks the flags.
        question: &'static str,
    },
    /// A configuration file (`--config`) that cannot be read or is invalid.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
}

/// Reads a command line and its configuration file. The first argument is the program's name.
///
/// # Errors
///
/// Fails if the command line or the file cannot be used.
pub fn parse<A: Into<OsString>>(
    arguments: impl IntoIterator<Item = A>,
) -> Result<Command, CommandLineError> {
    parse_with(arguments, config::read)
}

/// Reads a command line as [`parse`] does. The fields in `waiting`, which need a restart, keep
/// their current values.
///
/// # Errors
///
/// Fails if the command line or the file cannot be used.
pub fn parse_keeping<A: Into<OsString>>(
    arguments: impl IntoIterator<Item = A>,
    waiting: &[Waiting],
) -> Result<Command, CommandLineError> {
    parse_with(arguments, |file| {
        let (configuration, warnings) = config::read(file)?;
        Ok((configuration.keeping(waiting), warnings))
    })
}

/// Reads the command line at the start of the process, also after a restart in the same pod.
///
/// - Fields that need a new pod keep their values from the prepared configuration
///   (`--prepared-config`).
/// - If the configuration file is invalid, the prepared configuration replaces the file.
///
/// # Errors
///
/// Fails if the command line or the file cannot be used, and no prepared configuration can replace
/// the file.
pub fn parse_prepared(arguments: &[OsString]) -> Result<Command, CommandLineError> {
    let found = parse(arguments);
    let is_concerned = match &found {
        Ok(Command::Run(options)) => {
            !options.process.init_only && options.process.configuration_file.is_some()
        }
        Ok(_) => false,
        Err(error) => matches!(error, CommandLineError::Configuration(_)),
    };
    let is_it = |(flag, value): &(String, String)| flag == "prepared-config" && !value.is_empty();
    let Some((_, file)) = values(arguments).into_iter().find(is_it) else {
        return found;
    };
    if !is_concerned {
        return found;
    }
    let prepared = match config::prepared(Path::new(&file)) {
        Ok(Some(prepared)) => prepared,
        Ok(None) => return found,
        Err(error) => return warned(found, &format!("{error}; going on without it")),
    };
    match found {
        Ok(Command::Run(options)) => match &*prepared.waits(&options.said.configuration) {
            [] => Ok(Command::Run(options)),
            waiting => parse_keeping(arguments, waiting),
        },
        Ok(other) => Ok(other),
        Err(error) => warned(
            parse_with(arguments, |_| Ok((prepared, Vec::new()))),
            &format!("{error}; going on with the configuration that this pod had"),
        ),
    }
}

/// Adds a warning to the options if the command runs the daemon.
fn warned(
    mut read: Result<Command, CommandLineError>,
    warning: &str,
) -> Result<Command, CommandLineError> {
    if let Ok(Command::Run(options)) = &mut read {
        options.said.warnings.push(warning.to_owned());
    }
    read
}

/// Reports whether a command line contains `check`, `plan`, `diff` or `--dry-run`. The rest of the
/// command line may be invalid.
pub fn asks(arguments: &[OsString]) -> bool {
    arguments::asks(arguments)
}

/// Reads a command line as [`parse`] does, but calls `read` instead of reading the configuration
/// file.
pub(crate) fn parse_as_if<A: Into<OsString>>(
    arguments: impl IntoIterator<Item = A>,
    read: impl FnOnce(&Path) -> Result<(Configuration, Vec<String>), ConfigurationError>,
) -> Result<Command, CommandLineError> {
    parse_with(arguments, read)
}

/// Reads a command line, and calls `read` for its configuration file.
fn parse_with<A: Into<OsString>>(
    arguments: impl IntoIterator<Item = A>,
    read: impl FnOnce(&Path) -> Result<(Configuration, Vec<String>), ConfigurationError>,
) -> Result<Command, CommandLineError> {
    let mut arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let word = |at: usize| arguments.get(at).and_then(|word| word.to_str());
    let command = word(1).and_then(tree::command_named);
    // clap suggests a command for a misspelt `WORD`, but not for `help WORD`.
    let is_unknown = |word: &str| !word.starts_with('-') && tree::command_named(word).is_none();
    if word(1) == Some("help") && word(2).is_some_and(is_unknown) {
        arguments.remove(1);
    }
    let LeadingArguments { question, answer } = take_question(&mut arguments)?;
    let typed = tree()
        .try_get_matches_from(normalised(arguments))
        .and_then(|typed| Ok((Flags::from_arg_matches(&typed)?, typed)));
    let (flags, typed) = match typed {
        Ok(typed) => typed,
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            let help = question.map_or_else(|| error.to_string(), tree::question_help);
            return Ok(Command::Print(help));
        }
        Err(error) => {
            let command = command.as_deref().unwrap_or(tree::PROGRAM);
            let text = usage::in_words(&error, command);
            return Err(CommandLineError::Syntax(text));
        }
    };
    if let Some((command, matches)) = typed.subcommand() {
        return match (question, command) {
            (None, tree::VERSION) => Ok(Command::Print(version::told())),
            (None, tree::COMPLETION) => Ok(Command::Print(tree::completion(matches))),
            _ => Err(CommandLineError::Syntax(format!(
                "unexpected argument: '{command}'; write the command alone, before its flags"
            ))),
        };
    }
    match flags.version.as_deref() {
        None | Some("false") => {}
        // For `--version=vTEXT`, upstream starts and reports TEXT as its version. This program
        // ignores the flag.
        Some(given) if given.starts_with('v') => {}
        Some("true" | "raw") => {
            return Ok(Command::Print(version::told()));
        }
        Some(value) => {
            return Err(UnusableFlag::new("version", value, "give true, raw or false").into());
        }
    }
    let is_given = |flag: &str| {
        // clap identifies a flag by the name of its struct field.
        let id = match flag {
            "v" => "verbosity".to_owned(),
            other => other.replace('-', "_"),
        };
        // A struct field without a flag has no id, and cannot appear on a command line.
        typed.try_contains_id(&id).is_ok()
            && typed.value_source(&id) == Some(ValueSource::CommandLine)
    };
    let mut flags = flags;
    if !flags.hostname_override.trim().is_empty() {
        flags.hostname_override = flags.hostname_override.trim().to_lowercase();
    }
    let (flags, configuration, said) = if flags.config.is_empty() {
        modes::take_flags(&mut flags);
        (flags, Configuration::default(), Vec::new())
    } else {
        with_file(flags, read, is_given)?
    };
    let is_of_file = |flag: &str| {
        let wins = config::wins_over_file(flag) && is_given(flag);
        !flags.config.is_empty() && !wins
    };
    let mut options = Options::new(&flags).map_err(|error| match config::field_of(error.flag) {
        Some(field) if is_of_file(error.flag) => {
            ConfigurationError::of(Path::new(&flags.config), field, &error).into()
        }
        _ => CommandLineError::from(error),
    })?;
    if !flags.write_config_to.is_empty() {
        let text = config::render(configuration, &flags);
        return Ok(Command::Write(flags.write_config_to.into(), text));
    }
    let given = GivenSettings {
        typed: &is_given,
        file: (!flags.config.is_empty()).then_some((Path::new(&flags.config), &configuration)),
    };
    let without_effect = given.without_effect(&flags);
    options.said.configuration = configuration.completed(&flags);
    options.said.warnings.extend(said);
    let deprecated = DEPRECATED.iter().filter(|(flag, _)| is_given(flag));
    options.said.warnings.extend(
        deprecated.map(|(flag, instead)| format!("--{flag} is deprecated; use --{instead}")),
    );
    options.said.warnings.extend(without_effect);
    let mut options = Box::new(options);
    let question = question.or(flags.dry_run.then_some(Question::Plan));
    Ok(match question {
        Some(question) => Command::Check(options, StartQuestion { question, answer }),
        None if flags.cleanup => {
            // A cleanup covers all modes, so a missing mode needs no warning.
            let no_mode = options.said.no_mode.take();
            let warnings = &mut options.said.warnings;
            warnings.retain(|warning| Some(warning) != no_mode.as_ref());
            Command::Cleanup(options)
        }
        None => Command::Run(options),
    })
}

/// Reads the file of `--config`. Returns the flags with the file's values, the configuration in the
/// file, and warnings about the file.
fn with_file(
    mut flags: Flags,
    read: impl FnOnce(&Path) -> Result<(Configuration, Vec<String>), ConfigurationError>,
    is_given: impl Fn(&str) -> bool,
) -> Result<(Flags, Configuration, Vec<String>), ConfigurationError> {
    let file = PathBuf::from(&flags.config);
    let (configuration, mut warnings) = read(&file)?;
    let place = file.display();
    for warning in &mut warnings {
        *warning = format!("{place}: {warning}");
    }
    let ignored: Vec<String> = config::fields_with_flags()
        .filter(|(_, flag)| is_given(flag) && !config::wins_over_file(flag))
        .map(|(field, flag)| format!("--{flag} ({field})"))
        .collect();
    if !ignored.is_empty() {
        let ignored = ignored.join(", ");
        warnings.push(format!("{place} overrides {ignored} of the command line"));
    }
    let wrong = |error: UnusableFlag| {
        let field = config::field_of(error.flag).unwrap_or_default();
        ConfigurationError::of(&file, field, &error)
    };
    configuration
        .clone()
        .put(&mut flags, is_given)
        .map_err(wrong)?;
    // The file has one field for a server's address and port, and none for the port alone, so the
    // port flags get their defaults.
    let defaults = Flags::defaults();
    (flags.healthz_port, flags.metrics_port) = (defaults.healthz_port, defaults.metrics_port);
    Ok((flags, configuration, warnings))
}

#[cfg(test)]
mod tests;
