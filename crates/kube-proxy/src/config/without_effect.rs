//! Warnings about settings that the user has set but that have no effect, each with the reason.

use std::collections::BTreeMap;
use std::path::Path;

use flags::Flags;
use modes::definition::Definition;
use modes::settings::ProxyMode;

use super::Configuration;
use super::settings::{ROWS, SettingRow, at, is_within, wins_over_file};

/// Settings that are accepted without effect: the path of a field or section, and the reason.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    (
        "clientConnection.acceptContentTypes",
        "it follows from contentType",
    ),
    (
        "clientConnection.burst",
        "requests are few: lists, watches and events",
    ),
    (
        "clientConnection.qps",
        "requests are few: lists, watches and events",
    ),
    (
        "configSyncPeriod",
        "no object is looked at without a change",
    ),
    ("enableProfiling", "profiles are of Go programs"),
    ("logging.flushFrequency", "every line is written at once"),
    (
        "logging.options.json.infoBufferSize",
        "every line is written at once",
    ),
    (
        "logging.options.text.infoBufferSize",
        "every line is written at once",
    ),
    ("portRange", "userspace mode takes any port that is free"),
    ("showHiddenMetricsForVersion", "no metrics are hidden"),
    ("windowsRunAsService", "it is for Windows"),
    ("winkernel", "it is for Windows"),
];

/// Returns the field or section in `WITHOUT_EFFECT` that contains `path`, if any.
#[cfg(test)]
pub(super) fn without_effect(path: &str) -> Option<&'static str> {
    let mut all = WITHOUT_EFFECT.iter().map(|(section, _)| *section);
    all.find(|section| is_within(path, section))
}

/// Returns the fields that the mode `chosen` ignores but other modes read. Each field has the
/// reason why it has no effect.
fn of_others(chosen: &dyn Definition) -> Vec<(&'static str, String)> {
    let mut heard_by = BTreeMap::<&str, Vec<&str>>::new();
    for mode in ProxyMode::ALL.map(ProxyMode::definition) {
        for field in mode.fields() {
            heard_by.entry(field).or_default().push(mode.name());
        }
    }
    heard_by.retain(|field, _| !chosen.fields().contains(field));
    let why = |modes: Vec<&str>| format!("it is of {} mode", modes.join(" mode, and of "));
    let heard_by = heard_by.into_iter();
    heard_by.map(|(field, modes)| (field, why(modes))).collect()
}

/// Settings as the user gave them on the command line, or in a file that overrides most flags.
pub(crate) struct GivenSettings<'a> {
    /// Function that returns true if a flag is on the command line.
    pub(crate) typed: &'a dyn Fn(&str) -> bool,
    /// Path and content of the configuration file, if any.
    pub(crate) file: Option<(&'a Path, &'a Configuration)>,
}

impl GivenSettings<'_> {
    /// Returns lines about settings that have no effect although the user changed them from their
    /// defaults. A line names each setting as the user wrote it: flag or field. `flags` are the
    /// flags in effect.
    pub(crate) fn without_effect(&self, flags: &Flags) -> Vec<String> {
        let file = self.file.map(|(_, file)| file.clone()).unwrap_or_default();
        let in_effect = file.completed(flags);
        let mut modes = ProxyMode::ALL.into_iter();
        let chosen = modes.find(|mode| in_effect.mode.as_deref() == Some(mode.name()));
        let chosen = chosen.unwrap_or_default().definition();
        let of_others = of_others(chosen);
        let counts = |row: &&SettingRow| {
            self.file.is_some() || !chosen.flags_without_file().contains(&row.flag)
        };
        let without_effect = WITHOUT_EFFECT.iter();
        let of_all = without_effect.map(|(path, why)| (*path, (*why).to_owned()));
        let (typed, in_file) = self.differences(&in_effect);
        let mut lines = Vec::new();
        for (path, why) in of_all.chain(of_others) {
            let mut say = |place: &str, names: Vec<String>| {
                let have = if names.len() == 1 { "has" } else { "have" };
                if !names.is_empty() {
                    let names = names.join(", ");
                    lines.push(format!("{place}{names} {have} no effect: {why}"));
                }
            };
            let of_flags = typed.iter().filter(|row| is_within(row.path, path));
            let of_flags = of_flags.copied().filter(counts);
            say("", of_flags.map(|row| format!("--{}", row.flag)).collect());
            let of_file = in_file.iter().filter(|field| is_within(field, path));
            let place = self.file.map(|(file, _)| format!("{}: ", file.display()));
            say(&place.unwrap_or_default(), of_file.cloned().collect());
        }
        lines
    }

    /// Returns the settings that differ from their defaults: flags on the command line that are in
    /// effect, and fields of the file.
    fn differences(&self, in_effect: &Configuration) -> (Vec<&'static SettingRow>, Vec<String>) {
        let counts = |row: &&SettingRow| {
            (self.typed)(row.flag) && (self.file.is_none() || wins_over_file(row.flag))
        };
        let typed: Vec<_> = ROWS.iter().filter(counts).collect();
        let is_typed = |path: &str| typed.iter().any(|row| row.path == path);
        let in_file = self.file.map_or_else(Vec::new, |(_, file)| {
            let said = file.tree();
            let is_said = |path: &str| at(&said, path).is_some_and(|value| !value.is_null());
            let mut fields = of_empty_file().differences(in_effect);
            fields.retain(|path| is_said(path) && !is_typed(path));
            fields
        });
        let from_flags = Configuration::of(&Flags::defaults()).differences(in_effect);
        let differing = typed.into_iter();
        let typed = differing.filter(|row| from_flags.iter().any(|path| is_within(path, row.path)));
        (typed.collect(), in_file)
    }
}

/// Returns the configuration of an empty file. A few of its defaults differ from the defaults of a
/// command line without flags.
fn of_empty_file() -> Configuration {
    let mut flags = Flags::defaults();
    // Cannot fail: an empty configuration has no invalid value.
    let _ = Configuration::default().put(&mut flags, |_| false);
    Configuration::of(&flags)
}
