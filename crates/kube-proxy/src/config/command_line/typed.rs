//! Formats a command line as Go prints it, for the log and for `/flagz`.

use std::ffi::{OsStr, OsString};

use clap::{Arg, ArgAction, ArgMatches, CommandFactory as _};
use flags::{Flags, go, nets};

use super::arguments::{normalised, take_question};
use crate::config::Period;

/// Returns the flags of a valid command line with their values, sorted, in the format of upstream's
/// log: `--v="2"`.
pub fn as_typed<A: Into<OsString>>(arguments: impl IntoIterator<Item = A>) -> Vec<String> {
    values(arguments)
        .into_iter()
        .map(|(name, value)| format!("--{name}={value:?}"))
        .collect()
}

/// Returns the flags of a valid command line with their values, sorted and without dashes. Values
/// have the format in which Go prints them.
pub fn values<A: Into<OsString>>(arguments: impl IntoIterator<Item = A>) -> Vec<(String, String)> {
    let mut arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let mut command = Flags::command();
    command.build();
    let typed = take_question(&mut arguments)
        .ok()
        .and_then(|_| command.try_get_matches_from_mut(normalised(arguments)).ok());
    let Some(typed) = typed else {
        return Vec::new();
    };
    let mut flags: Vec<_> = command
        .get_arguments()
        .filter_map(|flag| Some((flag.get_long()?.to_owned(), value(flag, &typed))))
        .collect();
    flags.sort();
    flags
}

/// Formats a flag's value as Go prints it, such as `24h0m0s` for `24h`.
fn value(flag: &Arg, typed: &ArgMatches) -> String {
    let id = flag.get_id().as_str();
    if matches!(id, "help" | "version") {
        let given = typed.try_get_one::<String>(id).ok().flatten();
        return given.map_or_else(|| "false".to_owned(), Clone::clone);
    }
    let given = typed.get_raw(id).into_iter().flatten();
    let mut given: Vec<String> = given
        .map(|value: &OsStr| value.to_string_lossy().into_owned())
        .collect();
    let names = flag.get_value_names().unwrap_or_default();
    let kind = names.first().map_or("", |name| name.as_str());
    let is_list = matches!(flag.get_action(), ArgAction::Append);
    if kind == "CIDRS" && is_list {
        return format!("[{}]", nets::items(&given).collect::<Vec<_>>().join(","));
    }
    if is_list {
        let gates = given.iter().filter_map(|gate| go::gate(gate).ok());
        let mut gates: Vec<String> = gates
            .filter(|(name, _)| !name.is_empty())
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        gates.sort();
        return gates.join(",");
    }
    let last = given.pop().unwrap_or_default();
    match kind {
        "DURATION" => go::duration(&last)
            .ok()
            .map(|value| Period(value).to_string()),
        "BOOL" => go::bool(&last).ok().map(|value| value.to_string()),
        "NUMBER" => go::float(&last).ok().map(|value| value.to_string()),
        _ => go::int(&last).ok().map(|value| value.to_string()),
    }
    .unwrap_or(last)
}
