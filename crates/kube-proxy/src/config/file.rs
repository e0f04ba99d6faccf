//! Reads the configuration file. Unknown fields and duplicate fields cause a warning; all other
//! errors make the file unusable.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use flags::unusable_flag::UnusableFlag;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_saphyr::DuplicateKeyPolicy;
use source::yaml;

use super::settings::{every_field, in_terms_of_fields};
use super::{API_VERSION, Configuration, KIND};

/// Maximum size of a configuration file, in bytes. A ConfigMap has the same limit.
const LARGEST: u64 = 1 << 20;
/// Maximum number of characters that an error quotes from the file.
const SHOWN_MAX: usize = 100;

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
    /// Converts an error about a flag's value, which came from `field` of the configuration file.
    pub(crate) fn of(file: &Path, field: &'static str, error: &UnusableFlag) -> Self {
        Self::Meaning {
            file: file.to_owned(),
            field,
            value: error.value.clone(),
            advice: in_terms_of_fields(&error.advice),
        }
    }
}

/// Reads and parses a configuration file. Also returns warnings, such as about unknown fields.
///
/// # Errors
///
/// Fails if the file cannot be read, or is not a KubeProxyConfiguration.
pub(crate) fn read(file: &Path) -> Result<(Configuration, Vec<String>), ConfigurationError> {
    let mut bytes = Vec::new();
    // The limit ends the read even of an endless file, such as `/dev/zero`.
    let read = File::open(file).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes));
    let read = read.map_err(|source| ConfigurationError::File {
        verb: "read",
        file: file.to_owned(),
        source,
    })?;
    let syntax = |(line, message)| ConfigurationError::Syntax {
        file: file.to_owned(),
        line,
        message,
    };
    let wrong = |what| {
        syntax((
            None,
            format!("the file is {what}; give a {KIND} in YAML or JSON"),
        ))
    };
    if u64::try_from(read).is_ok_and(|size| size > LARGEST) {
        return Err(wrong("larger than 1 MiB"));
    }
    let text = String::from_utf8(bytes).map_err(|_| wrong("not UTF-8 text"))?;
    parse(&text).map_err(syntax)
}

/// Parses the text of a configuration file, and returns its fields and warnings. Errors have a
/// message and, if known, the line number.
pub(crate) fn parse(text: &str) -> Result<(Configuration, Vec<String>), (Option<u64>, String)> {
    let (text, further) = first_document(text);
    let mut warnings = Vec::new();
    if has_content(further) {
        warnings.push("only the first YAML document counts: remove the others".to_owned());
    }
    let strict = read_yaml::<Value>(text, DuplicateKeyPolicy::Error);
    let tree = match strict {
        Ok(tree) => tree,
        Err(strict) => {
            let tree = read_yaml(text, DuplicateKeyPolicy::LastWins)
                .map_err(|error| blame(text, &error))?;
            let place = strict.location().map_or(0, |place| place.line());
            warnings.push(format!(
                "a field is given twice, and the last one counts: {}, in line {place}",
                yaml::message(&strict)
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
        read_yaml(text, DuplicateKeyPolicy::LastWins).map_err(|error| blame(text, &error))?;
    let mut problems = FieldProblems::default();
    problems.find("", &tree, &every_field());
    if let Some((path, advice)) = problems.quoted.first() {
        return Err((None, format!("{path}: {advice}, without quotes")));
    }
    for path in problems.unknown {
        warnings.push(format!(
            "unknown field {path} is ignored; check its spelling"
        ));
    }
    Ok((configuration, warnings))
}

/// Splits a text before its second YAML document. Upstream also reads only the first document.
fn first_document(text: &str) -> (&str, &str) {
    let mut end = 0;
    let mut has_begun = false;
    for line in text.split_inclusive('\n') {
        let is_marker = line.trim_end() == "---";
        if is_marker && has_begun {
            return text.split_at_checked(end).unwrap_or((text, ""));
        }
        has_begun |= has_content(line);
        end += line.len();
    }
    (text, "")
}

/// Reports whether a YAML text has a line other than a comment, an empty line or the marker `---`.
fn has_content(text: &str) -> bool {
    text.lines().any(|line| {
        let line = line.trim();
        !(line == "---" || line.is_empty() || line.starts_with('#'))
    })
}

fn read_yaml<T: DeserializeOwned>(
    text: &str,
    duplicates: DuplicateKeyPolicy,
) -> Result<T, serde_saphyr::Error> {
    // With `no_schema`, the parser rejects a number in place of a text, as upstream does.
    let options = serde_saphyr::options! {
        with_snippet: false,
        duplicate_keys: duplicates,
        no_schema: true,
    };
    serde_saphyr::from_str_with_options(text, options)
}

/// Returns the line number of an error, if known, and a message with that line's text.
fn blame(text: &str, error: &serde_saphyr::Error) -> (Option<u64>, String) {
    let told = yaml::message(error);
    let line = error.location().map(|location| location.line());
    let said = line
        .and_then(|line| {
            text.lines()
                .nth(usize::try_from(line).ok()?.checked_sub(1)?)
        })
        .map(|line| {
            let shown: String = line.trim().chars().take(SHOWN_MAX).collect();
            format!("{told}, in `{shown}`")
        });
    (line, said.unwrap_or(told))
}

/// Problems of fields that the YAML parser does not report.
#[derive(Default)]
struct FieldProblems {
    /// Paths of fields that a KubeProxyConfiguration does not have.
    unknown: Vec<String>,
    /// Paths of fields with a text in place of a number or a truth value, with advice. Upstream
    /// does not start with such a file.
    quoted: Vec<(String, &'static str)>,
}

impl FieldProblems {
    /// Compares `tree` with `known`, which has an example value for each field. An empty map in
    /// `known` accepts any field with a truth value, as `featureGates` does.
    fn find(&mut self, prefix: &str, tree: &Value, known: &Value) {
        let (Some(tree), Some(known)) = (tree.as_object(), known.as_object()) else {
            return;
        };
        let any = known.is_empty().then_some(&Value::Bool(true));
        for (name, value) in tree {
            let path = format!("{prefix}{name}");
            match (known.get(name).or(any), value) {
                (Some(Value::Bool(_)), Value::String(_)) => {
                    self.quoted.push((path, "give true or false"));
                }
                (Some(Value::Number(_)), Value::String(_)) => {
                    self.quoted.push((path, "give a number"));
                }
                (Some(known), _) => self.find(&format!("{path}."), value, known),
                (None, _) => self.unknown.push(path),
            }
        }
    }
}
