//! Formats errors as text for log lines.

/// Returns the text of the innermost error, without the errors that wrap it.
pub(super) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Returns the text of an error. Where `kube` writes a file name in two kinds of quotes
/// (`'"ca.crt"'`), keeps only the single quotes.
pub(super) fn quoted_once(error: &dyn std::error::Error) -> String {
    error.to_string().replace("'\"", "'").replace("\"'", "'")
}
