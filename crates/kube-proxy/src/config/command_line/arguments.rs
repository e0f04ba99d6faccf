//! Processes arguments before clap parses them as flags.

use std::ffi::{OsStr, OsString};

use clap::CommandFactory as _;
use flags::unusable_flag::UnusableFlag;
use flags::words::word as word_of;
use flags::{Flags, go};

use crate::config::question::{AnswerOptions, Output, Question};

/// Flag with the same effect as the subcommand `plan`.
const DRY_RUN: &str = "--dry-run";

/// Replaces `_` with `-` in flag names, and removes empty arguments.
pub(super) fn normalised(arguments: Vec<OsString>) -> impl Iterator<Item = OsString> {
    let mut is_value = false;
    let arguments = arguments.into_iter().map(|argument| {
        // Arguments after `--` are not flags.
        is_value |= argument == "--";
        if is_value {
            argument
        } else {
            go::normalise(argument)
        }
    });
    without_empty(arguments.collect()).into_iter()
}

/// Removes empty arguments that are not values of flags, as upstream ignores them. The template of
/// a pod may produce such an argument.
fn without_empty(arguments: Vec<OsString>) -> Vec<OsString> {
    if !arguments.iter().any(|argument| argument.is_empty()) {
        return arguments;
    }
    let mut command = Flags::command();
    command.build();
    let takes_value = |argument: &OsStr| {
        command.get_arguments().any(|flag| {
            let long = flag.get_long().map(|name| format!("--{name}"));
            let short = flag.get_short().map(|name| format!("-{name}"));
            let is_it = [long, short]
                .iter()
                .flatten()
                .any(|name| argument == &**name);
            is_it && flag.get_num_args().is_some_and(|of| of.min_values() > 0)
        })
    };
    let mut kept: Vec<OsString> = Vec::new();
    for argument in arguments {
        if !argument.is_empty() || kept.last().is_some_and(|last| takes_value(last)) {
            kept.push(argument);
        }
    }
    kept
}

/// Arguments of a command that previews a start: `check`, `plan` or `diff`. The parser removes them
/// from the command line before it parses the flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LeadingArguments {
    /// Subcommand before the flags, if any. `--dry-run` is a flag, and does not set this field.
    pub(super) question: Option<Question>,
    /// Options of the command's output: `-o` and `--timeout`.
    pub(super) answer: AnswerOptions,
}

/// An output option of `check`, `plan` and `diff`: `-o` or `--timeout`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerOption {
    Output,
    Timeout,
}

impl AnswerOption {
    fn of(name: &str) -> Option<Self> {
        match name {
            "-o" | "--output" => Some(Self::Output),
            "--timeout" => Some(Self::Timeout),
            _ => None,
        }
    }
}

/// Separates the output options, with their values, from all other arguments.
fn split_options(
    arguments: impl Iterator<Item = OsString>,
) -> (Vec<(AnswerOption, String)>, Vec<OsString>) {
    let (mut options, mut others) = (Vec::new(), Vec::new());
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (&*text, None),
        };
        let Some(option) = AnswerOption::of(name) else {
            others.push(argument);
            continue;
        };
        let value = value.unwrap_or_else(|| {
            let next = arguments.next().unwrap_or_default();
            next.to_string_lossy().into_owned()
        });
        options.push((option, value));
    }
    (options, others)
}

/// Removes the subcommand and its output options from a command line, and returns them. With the
/// flag `--dry-run` instead of a subcommand, removes only the output options.
pub(super) fn take_question(
    arguments: &mut Vec<OsString>,
) -> Result<LeadingArguments, UnusableFlag> {
    let word = arguments.get(1).and_then(|word| word.to_str());
    let question = word.and_then(Question::of);
    if question.is_some() {
        arguments.remove(1);
    }
    let mut answer = AnswerOptions::default();
    if question.is_some() || is_dry_run(arguments) {
        let (options, others) = split_options(arguments.drain(..));
        *arguments = others;
        for (option, value) in options {
            match option {
                AnswerOption::Output => answer.output = word_of("output", &value, &Output::WORDS)?,
                AnswerOption::Timeout => {
                    let timeout = go::duration(&value);
                    let unusable = |advice| UnusableFlag::new("timeout", &value, advice);
                    answer.timeout = timeout.map_err(unusable)?;
                }
            }
        }
    }
    Ok(LeadingArguments { question, answer })
}

/// Reports whether a command line contains `check`, `plan`, `diff` or `--dry-run`. The rest of the
/// command line may be invalid.
pub(super) fn asks(arguments: &[OsString]) -> bool {
    let word = arguments.get(1).and_then(|word| word.to_str());
    word.and_then(Question::of).is_some() || is_dry_run(arguments)
}

/// Returns true if a flag of the daemon follows the subcommand.
pub(super) fn has_flags(arguments: &[OsString]) -> bool {
    let (_, others) = split_options(arguments.iter().skip(2).cloned());
    !others.is_empty()
}

/// Returns the value of the last `--dry-run` on the command line. Returns false if the command line
/// lacks this flag.
fn is_dry_run(arguments: &[OsString]) -> bool {
    let flags = normalised(arguments.to_vec()).take_while(|flag| flag != "--");
    let last = flags.skip(1).filter_map(|flag| {
        let flag = flag.to_string_lossy();
        let value = flag.strip_prefix(DRY_RUN)?;
        if value.is_empty() {
            return Some(true);
        }
        // Treats an invalid value as true. The process then reports the error and exits, as after
        // any invalid command.
        value
            .strip_prefix('=')
            .map(|value| go::bool(value) != Ok(false))
    });
    last.last().unwrap_or(false)
}
