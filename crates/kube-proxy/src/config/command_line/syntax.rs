//! What is wrong with a command line, said so that it can be made right.

use std::error::Error as _;

use clap::error::{ContextKind, ErrorKind};

use super::gone;

/// What is wrong with a command line, in one line.
pub(super) fn told(error: &clap::Error) -> String {
    let context = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let argument = context(ContextKind::InvalidArg);
    // `--flag <VALUE>`, `--flag[=<VALUE>]`, or `-v, --v <VALUE>`.
    let flag = argument.split([' ', '[']).next().unwrap_or(&argument);
    let flag = if flag == "-v," { "--v" } else { flag };
    match error.kind() {
        ErrorKind::UnknownArgument if !flag.starts_with('-') => format!(
            "only flags are taken, and '{flag}' is none; the value of a switch goes behind =, as in --masquerade-all=true"
        ),
        ErrorKind::UnknownArgument => {
            let similar = context(ContextKind::SuggestedArg);
            match gone::advice(flag.trim_start_matches('-')) {
                Some(advice) => format!("unknown flag: {flag}: {advice}"),
                None if similar.is_empty() => {
                    format!("unknown flag: {flag}; see kube-proxy --help")
                }
                None => format!("unknown flag: {flag}; is {similar} meant?"),
            }
        }
        ErrorKind::ValueValidation => {
            let (value, advice) = (context(ContextKind::InvalidValue), error.source());
            let advice = advice.map(ToString::to_string).unwrap_or_default();
            format!("invalid value '{value}' for '{flag}': {advice}")
        }
        ErrorKind::InvalidValue if context(ContextKind::InvalidValue).is_empty() => {
            format!("flag needs a value: {flag}")
        }
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            line.trim_start_matches("error: ").to_owned()
        }
    }
}
