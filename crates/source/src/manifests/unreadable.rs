//! A shared list of manifests that cannot be read at the moment.

use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of unreadable manifests and objects that are stored.
const MOST: usize = 100;

/// A manifest, or an object in a manifest, that cannot be read. Its former objects stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableManifest {
    /// Path of the file or directory. The path of an object also has its line number.
    pub place: String,
    /// Reason why the manifest cannot be read, the effect, and the next step for the operator.
    pub reason: String,
}

/// Current unreadable manifests of a source, for readers on other threads. Always empty if the
/// source is an API server. Clones share the list.
#[derive(Debug, Clone, Default)]
pub struct UnreadableManifests(Arc<Mutex<Vec<UnreadableManifest>>>);

impl UnreadableManifests {
    /// Returns the unreadable manifests, at most 100.
    pub fn now(&self) -> Vec<UnreadableManifest> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn set(&self, all: impl IntoIterator<Item = UnreadableManifest>) {
        let all = all.into_iter().take(MOST).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = all;
    }
}
