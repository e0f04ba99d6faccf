//! Decoded events of a watch, independent of the format.

use super::decoded::{DecodedObject, Key, MissingName};
use super::findings::Findings;
use super::status::Status;
use super::wire::MetadataOnly;

/// A decoded event of a watch.
#[derive(Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub(crate) enum WatchEvent {
    /// An object was added or modified.
    Applied(Result<DecodedObject, MissingName>),
    /// An object that was deleted, or no longer matches the selector. The value contains the
    /// object's key and resource version.
    Deleted(Result<(Key, Option<Box<str>>), MissingName>),
    /// The server has sent all changes up to a resource version.
    Bookmark {
        version: Box<str>,
        /// True if the bookmark ends a streamed list.
        ends_list: bool,
    },
    /// The server ended the watch with an error.
    Refused(Status),
}

impl WatchEvent {
    pub(super) fn deleted(headed: Result<Findings, MissingName>) -> Self {
        Self::Deleted(headed.map(|findings| (findings.key, findings.version)))
    }

    pub(super) fn bookmark(headed: MetadataOnly<'_>) -> Result<Self, String> {
        let metadata = headed.metadata.unwrap_or_default();
        let version = metadata.version();
        let version = version.ok_or("a bookmark without metadata.resourceVersion")?;
        let annotations = metadata.annotations.as_ref();
        Ok(Self::Bookmark {
            version: version.into(),
            ends_list: annotations.is_some_and(|one| one.initial_events_end.is_some()),
        })
    }
}
