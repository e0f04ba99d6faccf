//! Options of the log, such as its format and verbosity.

use flags::Flags;
use flags::gates::{ALPHA_LOGGING, BETA_LOGGING, Gates};
use flags::unusable_flag::UnusableFlag;
use flags::words::word;

/// Values of `--logging-format`, each with its log format.
const FORMATS: [(&str, LogFormat); 3] = [
    ("text", LogFormat::Text),
    ("plain", LogFormat::Plain),
    ("json", LogFormat::Json),
];

/// Options of the log, such as its format and verbosity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Verbosity of the log, 0 (the default) to 10.
    pub verbosity: u8,
    /// Verbosity of single source files, by pattern. The first matching pattern applies.
    pub vmodule: Vec<(String, u8)>,
    /// Format of the log's lines.
    pub format: LogFormat,
    /// True if informational lines go to standard output instead of standard error.
    pub is_split: bool,
}

/// Format of the log (`--logging-format`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// klog's text, which parsers of Kubernetes logs read.
    Text,
    /// Plain lines without klog's header, for people.
    Plain,
    /// One JSON object per line.
    Json,
}

impl Settings {
    /// Converts flags to the options of the log.
    ///
    /// # Errors
    ///
    /// Fails if a value is invalid, or needs a feature gate that is off.
    pub(crate) fn read(flags: &Flags, gates: &Gates) -> Result<Self, UnusableFlag> {
        let format = log_format(flags, gates)?;
        Ok(Self {
            verbosity: u8::try_from(flags.verbosity.clamp(0, 10)).unwrap_or_default(),
            vmodule: vmodule(&flags.vmodule)?,
            format,
            is_split: match format {
                LogFormat::Text | LogFormat::Plain => flags.log_text_split_stream,
                LogFormat::Json => flags.log_json_split_stream,
            },
        })
    }
}

fn log_format(flags: &Flags, gates: &Gates) -> Result<LogFormat, UnusableFlag> {
    let needs = |gate: &str| format!("the feature gate {gate} is off, which this needs");
    let options = [
        (
            "log-json-info-buffer-size",
            &flags.log_json_info_buffer_size,
        ),
        (
            "log-text-info-buffer-size",
            &flags.log_text_info_buffer_size,
        ),
        (
            "log-json-split-stream",
            &flags.log_json_split_stream.to_string(),
        ),
        (
            "log-text-split-stream",
            &flags.log_text_split_stream.to_string(),
        ),
    ];
    // Searches for a digit other than 0, because zero has several spellings, such as `0` and `0Ki`.
    let is_set = |value: &str| value == "true" || value.contains(|c| matches!(c, '1'..='9'));
    for (flag, value) in options {
        if is_set(value) && !gates.is_on(ALPHA_LOGGING) {
            return Err(UnusableFlag::new(flag, value, needs(ALPHA_LOGGING)));
        }
    }
    let format = word("logging-format", &flags.logging_format, &FORMATS)?;
    if format == LogFormat::Json && !gates.is_on(BETA_LOGGING) {
        let advice = needs(BETA_LOGGING);
        return Err(UnusableFlag::new("logging-format", "json", advice));
    }
    Ok(format)
}

fn vmodule(given: &str) -> Result<Vec<(String, u8)>, UnusableFlag> {
    let items = given.split(',').map(str::trim);
    items
        .filter(|item| !item.is_empty())
        .map(|item| {
            let wrong = || {
                UnusableFlag::new(
                    "vmodule",
                    item,
                    "give source files and their verbosity, such as proxier=4,sets=6",
                )
            };
            let (pattern, verbosity) = item.split_once('=').ok_or_else(wrong)?;
            let verbosity: u32 = verbosity.trim().parse().map_err(|_| wrong())?;
            Ok((
                pattern.trim().to_owned(),
                u8::try_from(verbosity).unwrap_or(10),
            ))
        })
        .collect()
}
