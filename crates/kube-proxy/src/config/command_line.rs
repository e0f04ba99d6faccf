//! The command line: what is to be done, and with which options.
//!
//! ```text
//!   arguments ─▶ Flags ─┐
//!                       ├─▶ Flags in effect ─▶ Options ─▶ Command
//!   --config ─▶ file ───┘
//! ```
//!
//! With `--config`, a file takes the place of the flags that it has fields for: see
//! [`crate::config`].
//!
//! An unknown flag is an error, as upstream. A flag that means nothing here is taken, and a warning
//! says so if it is given.

mod arguments;
mod daemons;
mod gone;
mod syntax;
mod typed;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{CommandFactory as _, FromArgMatches as _};
use flags::Flags;
use flags::unusable::UnusableFlag;

use crate::config::asked::{Asked, Question};
use crate::config::{self, Configuration, ConfigurationError, Given, Waiting};

use crate::config::options::Options;
use crate::process::version;

use arguments::{Leading, normalised, take_question};
pub use daemons::{Completed, completed};
pub use typed::{as_typed, values};

/// Flags that go at some time, and what to use.
const DEPRECATED: [(&str, &str); 2] = [
    ("healthz-port", "healthz-bind-address"),
    ("metrics-port", "metrics-bind-address"),
];

/// What to do about a command line.
#[derive(Debug)]
pub enum Command {
    /// Run the daemon.
    Run(Box<Options>),
    /// Say what the daemon would write, and exit: `check`, `plan` or `diff` stands in front of the
    /// flags, or `--dry-run` is among them.
    Check(Box<Options>, Asked),
    /// Take down what a kube-proxy has left (`--cleanup`), and exit.
    Cleanup(Box<Options>),
    /// Print this (help or version) to standard output, and exit with 0.
    Print(String),
    /// Write this text to the file, and exit with 0.
    Write(PathBuf, String),
}

/// Why a command line cannot be used. Exit with 1, as upstream does.
#[derive(Debug, thiserror::Error)]
pub enum CommandLineError {
    /// An unknown flag or a value that cannot be read.
    #[error("{0}")]
    Syntax(String),
    /// A value that cannot be meant.
    #[error(transparent)]
    Meaning(#[from] UnusableFlag),
    /// A question about a start, without the flags of one.
    #[error(
        "`kube-proxy {question}` is to know the flags of the daemon, and none are given: give its own, as in \
         `kubectl -n kube-system exec POD -- kube-proxy {question} --config=/var/lib/kube-proxy/config.conf`; in the \
         daemon's own container they are found by themselves, if it is process 1 there"
    )]
    NoFlags {
        /// The word of the question.
        question: &'static str,
    },
    /// The file that `--config` names.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
}

/// Reads a command line, the program's name first, and the configuration file that it names.
///
/// # Errors
///
/// It, or the file, cannot be used.
pub fn parse<A: Into<OsString>>(
    arguments: impl IntoIterator<Item = A>,
) -> Result<Command, CommandLineError> {
    parse_with(arguments, config::read)
}

/// The same, with the fields of the file that wait for a new start as they are in use.
///
/// # Errors
///
/// As of [`parse`].
pub fn parse_keeping<A: Into<OsString>>(
    arguments: impl IntoIterator<Item = A>,
    waiting: &[Waiting],
) -> Result<Command, CommandLineError> {
    parse_with(arguments, |file| {
        let (configuration, warnings) = config::read(file)?;
        Ok((configuration.keeping(waiting), warnings))
    })
}

/// The same as [`parse`], for a process that starts, perhaps anew in its pod: what takes a new
/// start is as it was when the pod was prepared (`--prepared-config`), and so is all of a file that
/// cannot be used.
///
/// # Errors
///
/// As of [`parse`], where nothing was kept that can be used instead.
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

/// With a warning for the operator.
fn warned(
    mut read: Result<Command, CommandLineError>,
    warning: &str,
) -> Result<Command, CommandLineError> {
    if let Ok(Command::Run(options)) = &mut read {
        options.said.warnings.push(warning.to_owned());
    }
    read
}

/// Whether a command line asks what a start would do, even if it cannot be read otherwise.
pub fn asks(arguments: &[OsString]) -> bool {
    arguments::asks(arguments)
}

/// The same, with what `read` says in place of the configuration file.
pub(crate) fn parse_as_if<A: Into<OsString>>(
    arguments: impl IntoIterator<Item = A>,
    read: impl FnOnce(&Path) -> Result<(Configuration, Vec<String>), ConfigurationError>,
) -> Result<Command, CommandLineError> {
    parse_with(arguments, read)
}

/// Reads a command line, and with `read` the configuration file that it names.
fn parse_with<A: Into<OsString>>(
    arguments: impl IntoIterator<Item = A>,
    read: impl FnOnce(&Path) -> Result<(Configuration, Vec<String>), ConfigurationError>,
) -> Result<Command, CommandLineError> {
    let mut arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let Leading { question, output } = take_question(&mut arguments)?;
    let typed = Flags::command()
        .try_get_matches_from(normalised(arguments))
        .and_then(|typed| Ok((Flags::from_arg_matches(&typed)?, typed)));
    let (flags, typed) = match typed {
        Ok(typed) => typed,
        Err(error) if !error.use_stderr() => return Ok(Command::Print(error.to_string())),
        Err(error) => return Err(CommandLineError::Syntax(syntax::told(&error))),
    };
    match flags.version.as_deref() {
        None | Some("false") => {}
        // It is to be told as the version, and tells nothing here.
        Some(given) if given.starts_with('v') => {}
        Some("true" | "raw") => {
            return Ok(Command::Print(version::told()));
        }
        Some(value) => {
            return Err(UnusableFlag::new("version", value, "give true, raw or false").into());
        }
    }
    let is_given = |flag: &str| {
        // clap's name of a flag is the field's.
        let id = match flag {
            "v" => "verbosity".to_owned(),
            other => other.replace('-', "_"),
        };
        // What only a file has is no flag that could be typed.
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
    let given = Given {
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
        Some(question) => Command::Check(options, Asked { question, output }),
        None if flags.cleanup => {
            // It takes down those of all modes.
            let no_mode = options.said.no_mode.take();
            let warnings = &mut options.said.warnings;
            warnings.retain(|warning| Some(warning) != no_mode.as_ref());
            Command::Cleanup(options)
        }
        None => Command::Run(options),
    })
}

/// The flags with the file's fields in place of theirs, the file, and warnings about it.
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
        warnings.push(format!(
            "{place}: it counts, and not {ignored} of the command line"
        ));
    }
    let wrong = |error: UnusableFlag| {
        let field = config::field_of(error.flag).unwrap_or_default();
        ConfigurationError::of(&file, field, &error)
    };
    configuration
        .clone()
        .put(&mut flags, is_given)
        .map_err(wrong)?;
    // Upstream's file has an address for each server, and no port beside it.
    let defaults = Flags::defaults();
    (flags.healthz_port, flags.metrics_port) = (defaults.healthz_port, defaults.metrics_port);
    Ok((flags, configuration, warnings))
}

#[cfg(test)]
mod tests;
