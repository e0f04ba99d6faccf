//! Arguments before they are read as flags.

use std::ffi::OsString;

use crate::check::answer::Output;
use crate::flags::go;
use crate::flags::unusable::UnusableFlag;
use crate::flags::words::word;

/// The words of `check -o`.
const FORMS: [(&str, Output); 3] = [
    ("text", Output::Text),
    ("json", Output::Json),
    ("yaml", Output::Yaml),
];

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

/// Takes `check` and its `-o` out of a command line, if it begins so; the form of the answer.
pub(super) fn take_check(arguments: &mut Vec<OsString>) -> Result<Option<Output>, UnusableFlag> {
    if arguments.get(1).is_none_or(|first| first != "check") {
        return Ok(None);
    }
    arguments.remove(1);
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
    word("output", &form, &FORMS).map(Some)
}
