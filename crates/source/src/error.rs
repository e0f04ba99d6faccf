//! Why a source cannot be started.

use std::path::PathBuf;

/// A source cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The folder of manifests cannot be watched.
    #[error("cannot watch manifests in {}: {source}; {advice}", folder.display())]
    Manifests {
        /// The folder.
        folder: PathBuf,
        /// What to do.
        advice: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// It is not known how to reach the API server.
    #[error("{what}: {reason}; {advice}")]
    Api {
        /// What was read for it.
        what: String,
        /// What is wrong with it.
        reason: String,
        /// What to do.
        advice: &'static str,
    },
}
