//! Problem with the configuration file since the start, for the status.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Reasons why the configuration file differs from the configuration in use. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct FileProblem(Arc<Mutex<Reasons>>);

#[derive(Debug, Default)]
struct Reasons {
    /// Error of the last read of the file.
    unusable: Option<String>,
    /// Changes that need a restart.
    waiting: Option<String>,
}

impl FileProblem {
    /// Sets the error of the last read of the file, or clears it.
    pub(crate) fn set_unusable(&self, error: Option<String>) {
        self.lock().unusable = error;
    }

    /// Sets the text about changes that need a restart, or clears it.
    pub(crate) fn set_waiting(&self, text: Option<String>) {
        self.lock().waiting = text;
    }

    /// Returns the reasons as texts for the operator.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let reasons = self.lock();
        let unusable = reasons.unusable.as_ref();
        let unusable = unusable.map(|error| {
            format!("{error}; kube-proxy keeps the configuration in use, but could not start again")
        });
        unusable
            .into_iter()
            .chain(reasons.waiting.clone())
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Reasons> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
