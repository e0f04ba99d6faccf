//! What an event of a watch says.

use super::decoded::{Decoded, Key, Unnamed};
use super::findings::Findings;
use super::status::Status;
use super::wire::Headed;

/// An event of a watch.
#[derive(Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub(crate) enum Watched {
    /// An object was added or modified.
    Applied(Result<Decoded, Unnamed>),
    /// An object was deleted, or has left the selection; with its resource version.
    Deleted(Result<(Key, Option<Box<str>>), Unnamed>),
    /// All that was changed up to a resource version has been told.
    Bookmark {
        version: Box<str>,
        /// It is the one after which a streamed list is complete.
        ends_list: bool,
    },
    /// The watch is over.
    Refused(Status),
}

impl Watched {
    pub(super) fn deleted(headed: Result<Findings, Unnamed>) -> Self {
        Self::Deleted(headed.map(|findings| (findings.key, findings.version)))
    }

    pub(super) fn bookmark(headed: Headed<'_>) -> Result<Self, String> {
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
