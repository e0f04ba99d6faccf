//! Arguments before they are read as flags.

use std::ffi::OsString;

use flags::go;
use flags::unusable::UnusableFlag;
use flags::words::word as word_of;

use crate::config::asked::{Output, Question};

/// The flag that asks as `plan` does.
const DRY_RUN: &str = "--dry-run";

/// The flags with `_` for `-` in their names made right.
pub(super) fn normalised(arguments: Vec<OsString>) -> impl Iterator<Item = OsString> {
    let mut is_value = false;
    arguments.into_iter().map(move |argument| {
        // Everything behind `--` is no flag.
        is_value |= argument == "--";
        if is_value {
            argument
        } else {
            go::normalise(argument)
        }
    })
}

/// What a command line asks, before its flags are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leading {
    /// What the word asks that stands in front of the flags.
    pub(super) question: Option<Question>,
    /// `-o`, where something may be asked.
    pub(super) output: Output,
}

/// Takes the word that asks something, and its `-o`, out of a command line that begins with one, or
/// has `--dry-run`.
pub(super) fn take_question(arguments: &mut Vec<OsString>) -> Result<Leading, UnusableFlag> {
    let word = arguments.get(1).and_then(|word| word.to_str());
    let question = word.and_then(Question::of);
    if question.is_some() {
        arguments.remove(1);
    }
    if question.is_none() && !is_dry_run(arguments) {
        let output = Output::default();
        return Ok(Leading { question, output });
    }
    let mut form = "text".to_owned();
    let mut rest = Vec::with_capacity(arguments.len());
    let mut given = arguments.drain(..);
    while let Some(argument) = given.next() {
        let text = argument.to_string_lossy();
        form = match text.split_once('=') {
            Some(("-o" | "--output", value)) => value.to_owned(),
            None if text == "-o" || text == "--output" => {
                let value = given.next().unwrap_or_default();
                value.to_string_lossy().into_owned()
            }
            _ => {
                rest.push(argument);
                continue;
            }
        };
    }
    drop(given);
    *arguments = rest;
    let output = word_of("output", &form, &Output::WORDS)?;
    Ok(Leading { question, output })
}

/// Whether a command line asks something, however it reads otherwise.
pub(super) fn asks(arguments: &[OsString]) -> bool {
    let word = arguments.get(1).and_then(|word| word.to_str());
    word.and_then(Question::of).is_some() || is_dry_run(arguments)
}

/// Whether `--dry-run` is among the flags and not said to be off; of several the last counts, as it
/// does when they are read.
fn is_dry_run(arguments: &[OsString]) -> bool {
    let flags = normalised(arguments.to_vec()).take_while(|flag| flag != "--");
    let last = flags.skip(1).filter_map(|flag| {
        let flag = flag.to_string_lossy();
        let value = flag.strip_prefix(DRY_RUN)?;
        if value.is_empty() {
            return Some(true);
        }
        // What is neither yes nor no asks as well: it ends as a wrong question does.
        value
            .strip_prefix('=')
            .map(|value| go::bool(value) != Ok(false))
    });
    last.last().unwrap_or(false)
}
