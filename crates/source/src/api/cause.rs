//! Texts of errors.

/// Returns the text of the innermost error, without the errors that wrap it.
pub(super) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Returns the text of an error. `kube` puts file names in two kinds of quotes; the text has one.
pub(super) fn quoted_once(error: &dyn std::error::Error) -> String {
    error.to_string().replace("'\"", "'").replace("\"'", "'")
}
