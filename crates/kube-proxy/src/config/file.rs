//! Reads the configuration file. Unknown fields and duplicate fields cause a warning; all other
//! errors make the file unusable.

use std::path::{Path, PathBuf};
use std::{fs, io};

use flags::unusable_flag::UnusableFlag;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_saphyr::DuplicateKeyPolicy;

use super::settings::{every_field, in_terms_of_fields};
use super::{API_VERSION, Configuration, KIND};

/// Reason why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// The file cannot be read or written.
    #[error("cannot {verb} the configuration file {}: {source}", file.display())]
    File {
        /// Failed operation: `read` or `write`.
        verb: &'static str,
        /// Path of the configuration file.
        file: PathBuf,
        /// Error of the operating system about the file.
        source: io::Error,
    },
    /// The file's content is not a KubeProxyConfiguration.
    #[error("{}{}: {message}", file.display(), line.map(|line| format!(", line {line}")).unwrap_or_default())]
    Syntax {
        /// Path of the configuration file.
        file: PathBuf,
        /// Number of the line with the error, counted from 1, if known.
        line: Option<u64>,
        /// Description of the error, and the allowed values.
        message: String,
    },
    /// A field has an invalid value.
    #[error("{}: invalid value '{value}' for {field}: {advice}", file.display())]
    Meaning {
        /// Path of the configuration file.
        file: PathBuf,
        /// Path of the field with the invalid value.
        field: &'static str,
        /// Invalid value of the field.
        value: String,
        /// Description of the error, and the allowed values.
        advice: String,
    },
}

impl ConfigurationError {
    /// Converts an error about a flag. The result names the field of `file` that sets the flag.
    pub(crate) fn of(file: &Path, field: &'static str, error: &UnusableFlag) -> Self {
        Self::Meaning {
            file: file.to_owned(),
            field,
            value: error.value.clone(),
            advice: in_terms_of_fields(&error.advice),
        }
    }
}

/// Reads a file. Also returns warnings about settings without effect.
///
/// # Errors
///
/// Fails if the file cannot be read, or is not a KubeProxyConfiguration.
pub(crate) fn read(file: &Path) -> Result<(Configuration, Vec<String>), ConfigurationError> {
    let text = fs::read_to_string(file).map_err(|source| ConfigurationError::File {
        verb: "read",
        file: file.to_owned(),
        source,
    })?;
    parse(&text).map_err(|(line, message)| ConfigurationError::Syntax {
        file: file.to_owned(),
        line,
        message,
    })
}

/// Parses a file's text. Errors have a message and, if known, the line number.
pub(crate) fn parse(text: &str) -> Result<(Configuration, Vec<String>), (Option<u64>, String)> {
    let text = first_document(text);
    let mut warnings = Vec::new();
    let strict = yaml::<Value>(text, DuplicateKeyPolicy::Error);
    let tree = match strict {
        Ok(tree) => tree,
        Err(strict) => {
            let tree =
                yaml(text, DuplicateKeyPolicy::LastWins).map_err(|error| blame(text, &error))?;
            warnings.push(format!(
                "a field is given twice, and the last one counts: {}",
                message(&strict)
            ));
            tree
        }
    };
    let says = |name: &str| tree.get(name).and_then(Value::as_str).unwrap_or_default();
    let found = (says("apiVersion"), says("kind"));
    if found != (API_VERSION, KIND) {
        let wrong = match found {
            ("", "") => "apiVersion and kind are not given".to_owned(),
            ("", _) => "apiVersion is not given".to_owned(),
            (_, "") => "kind is not given".to_owned(),
            (version, kind) => format!("this is a {kind} of {version}"),
        };
        let advice = format!("{wrong}; give kind: {KIND} and apiVersion: {API_VERSION}");
        return Err((None, advice));
    }
    let configuration: Configuration =
        yaml(text, DuplicateKeyPolicy::LastWins).map_err(|error| blame(text, &error))?;
    let mut unknown = Vec::new();
    find_unknown("", &tree, &every_field(), &mut unknown);
    for path in unknown {
        warnings.push(format!(
            "unknown field {path} is left out; check its spelling"
        ));
    }
    Ok((configuration, warnings))
}

/// Returns the text before a second YAML document. Upstream also reads only the first document.
fn first_document(text: &str) -> &str {
    let mut end = 0;
    let mut has_begun = false;
    for line in text.split_inclusive('\n') {
        let is_marker = line.trim_end() == "---";
        if is_marker && has_begun {
            return text.get(..end).unwrap_or(text);
        }
        let said = line.trim_start();
        has_begun |= !(is_marker || said.is_empty() || said.starts_with('#'));
        end += line.len();
    }
    text
}

fn yaml<T: DeserializeOwned>(
    text: &str,
    duplicates: DuplicateKeyPolicy,
) -> Result<T, serde_saphyr::Error> {
    let options = serde_saphyr::options! { with_snippet: false, duplicate_keys: duplicates };
    serde_saphyr::from_str_with_options(text, options)
}

fn message(error: &serde_saphyr::Error) -> String {
    error
        .without_snippet()
        .render_with_formatter(&serde_saphyr::UserMessageFormatter)
}

/// The YAML parser's messages about values of a wrong type, each with the advice that replaces the
/// message for the operator.
const PLAIN: &[(&str, &str)] = &[
    ("invalid i32", "give a whole number"),
    ("invalid u32", "give a whole number, 0 or more"),
    ("invalid floating point", "give a number"),
    ("invalid boolean", "give true or false"),
    (
        "expected string scalar",
        "give a text, not a list or fields",
    ),
    ("expected sequence start", "give a list, such as [a, b]"),
    ("expected mapping start", "give fields with their values"),
];

/// Returns the line number of an error, if known, and a message with that line's text.
fn blame(text: &str, error: &serde_saphyr::Error) -> (Option<u64>, String) {
    let told = message(error);
    let told = told
        .get(..told.rfind(" at line ").unwrap_or(told.len()))
        .unwrap_or(&told);
    let told = PLAIN
        .iter()
        .find(|(terse, _)| *terse == told)
        .map_or(told, |(_, plain)| plain);
    let line = error.location().map(|location| location.line());
    let said = line
        .and_then(|line| {
            text.lines()
                .nth(usize::try_from(line).ok()?.checked_sub(1)?)
        })
        .map(|line| format!("{told}, in `{}`", line.trim()));
    (line, said.unwrap_or_else(|| told.to_owned()))
}

/// Collects the paths of fields that are in `tree` but not in `known`. A map without known fields
/// accepts any field.
fn find_unknown(prefix: &str, tree: &Value, known: &Value, unknown: &mut Vec<String>) {
    let (Some(tree), Some(known)) = (tree.as_object(), known.as_object()) else {
        return;
    };
    if known.is_empty() {
        return;
    }
    for (name, value) in tree {
        match known.get(name) {
            Some(known) => find_unknown(&format!("{prefix}{name}."), value, known, unknown),
            None => unknown.push(format!("{prefix}{name}")),
        }
    }
}
