//! Errors at the start of a source.

use std::path::PathBuf;

/// Reason why a source cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The folder of manifests cannot be watched.
    #[error("cannot watch manifests in {}: {source}; {advice}", folder.display())]
    Manifests {
        /// The folder of manifests.
        folder: PathBuf,
        /// The advice to the operator.
        advice: &'static str,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The settings name no usable API server.
    #[error("{what}: {reason}; {advice}")]
    Api {
        /// Setting or file with the error.
        what: String,
        /// The error in the setting or file.
        reason: String,
        /// The advice to the operator.
        advice: &'static str,
    },
}
