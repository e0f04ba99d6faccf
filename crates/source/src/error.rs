//! Errors at the start of a source.

use std::path::PathBuf;

/// Reason why a source cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The directory of manifests cannot be watched.
    #[error("cannot watch manifests in {}: {source}; {advice}", folder.display())]
    Manifests {
        /// Directory of manifests that cannot be watched.
        folder: PathBuf,
        /// Next step for the operator.
        advice: &'static str,
        /// Error of the operating system about the directory.
        source: std::io::Error,
    },
    /// The settings name no usable API server.
    #[error("{what}: {reason}; {advice}")]
    Api {
        /// Setting or file that caused the error.
        what: String,
        /// Reason why the setting or file is unusable.
        reason: String,
        /// Next step for the operator.
        advice: &'static str,
    },
}
