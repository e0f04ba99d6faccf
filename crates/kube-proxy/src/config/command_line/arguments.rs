//! Arguments before they are read as flags.

use std::ffi::OsString;

use flags::go;
use flags::unusable::UnusableFlag;
use flags::words::word as word_of;

use crate::config::question::{AnswerOptions, Output, Question};

/// The flag that asks as `plan` does.
const DRY_RUN: &str = "--dry-run";

/// Replaces `_` by `-` in the names of flags.
pub(super) fn normalised(arguments: Vec<OsString>) -> impl Iterator<Item = OsString> {
    let mut is_value = false;
    arguments.into_iter().map(move |argument| {
        // No flag follows `--`.
        is_value |= argument == "--";
        if is_value {
            argument
        } else {
            go::normalise(argument)
        }
    })
}

/// The arguments of a question, before the flags are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leading {
    /// The question in front of the flags.
    pub(super) question: Option<Question>,
    /// `-o` and `--timeout`, if something is asked.
    pub(super) answer: AnswerOptions,
}

/// An option of an answer.
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

/// Splits arguments into the options of an answer, with their values, and all others.
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

/// Takes the question and the options of its answer out of a command line. A question is one of
/// the subcommands, or `--dry-run`.
pub(super) fn take_question(arguments: &mut Vec<OsString>) -> Result<Leading, UnusableFlag> {
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
    Ok(Leading { question, answer })
}

/// Returns true if a command line asks a question, even one with mistakes.
pub(super) fn asks(arguments: &[OsString]) -> bool {
    let word = arguments.get(1).and_then(|word| word.to_str());
    word.and_then(Question::of).is_some() || is_dry_run(arguments)
}

/// Returns true if a question has flags of the daemon.
pub(super) fn has_flags(arguments: &[OsString]) -> bool {
    let (_, others) = split_options(arguments.iter().skip(2).cloned());
    !others.is_empty()
}

/// Returns true if the last `--dry-run` is not false.
fn is_dry_run(arguments: &[OsString]) -> bool {
    let flags = normalised(arguments.to_vec()).take_while(|flag| flag != "--");
    let last = flags.skip(1).filter_map(|flag| {
        let flag = flag.to_string_lossy();
        let value = flag.strip_prefix(DRY_RUN)?;
        if value.is_empty() {
            return Some(true);
        }
        // An invalid value counts as true: the command line then ends as a wrong question does.
        value
            .strip_prefix('=')
            .map(|value| go::bool(value) != Ok(false))
    });
    last.last().unwrap_or(false)
}
