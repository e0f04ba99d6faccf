//! LIST: sends one page of objects, all from one resource version, as a stream of chunks.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;

use crate::cluster::{Cluster, Page};
use crate::media::Media;
use crate::object::{Key, Object};
use crate::options::WatchCache;
use crate::protobuf;
use crate::resource::Kind;
use crate::route::Query;
use crate::selector::Scope;
use crate::status::Status;

/// Approximate size of a response chunk, in bytes. Every chunk ends with a complete object.
pub(crate) const CHUNK: usize = 64 << 10;

/// Returns the resource version for which a list request from the watch cache must wait. `None` if
/// the request does not wait.
pub(crate) fn awaited(query: &Query) -> Option<u64> {
    let version = query.number("resourceVersion").ok()??;
    let is_exact = match query.text("resourceVersionMatch") {
        "" => query.number("limit").ok()?.is_some_and(|limit| limit > 0),
        matching => matching != "NotOlderThan",
    };
    (!is_exact && query.text("continue").is_empty()).then_some(version)
}

/// Returns the page that `query` requests, and its `continue` token (empty for the last page).
pub(crate) fn page(
    cluster: &Cluster,
    kind: Kind,
    scope: &Scope,
    query: &Query,
    cache: WatchCache,
) -> Result<(Page, String), Status> {
    let state = cluster.lock();
    let current = state.version;
    let matching = query.text("resourceVersionMatch");
    let asked = query.number("resourceVersion")?;
    // `limit=0` means no limit, as in a real API server.
    let mut limit = usize::try_from(query.number("limit")?.unwrap_or(0)).unwrap_or(usize::MAX);

    if query.flag("sendInitialEvents").is_some() {
        let why = "is for watches";
        return Err(Status::invalid_options("sendInitialEvents", why));
    }
    let wrong = |why| Err(Status::invalid_options("resourceVersionMatch", why));
    let (version, after) = match (query.text("continue"), matching, asked) {
        ("", "Exact" | "NotOlderThan", None) => return wrong("needs a resourceVersion"),
        ("", "Exact", Some(0)) => return wrong("Exact has no version 0"),
        ("", "Exact", Some(version)) => (version, None),
        // A query with a limit and a resource version requests exactly this version.
        ("", "", Some(version @ 1..)) if limit > 0 => (version, None),
        ("", "" | "NotOlderThan", asked) => {
            if asked == Some(0) && cache == WatchCache::Present {
                limit = 0;
            }
            if let Some(version) = asked.filter(|version| *version > current) {
                return Err(Status::too_large(version, current));
            }
            (current, None)
        }
        ("", ..) => return wrong("must be Exact or NotOlderThan"),
        (_, "", Some(1..)) => {
            let why = "resourceVersion: the continue token has one already";
            return Err(Status::bad_request(why));
        }
        (token, "", _) => {
            let (version, after) = read_token(token)
                .ok_or_else(|| Status::bad_request(format!("continue: {token:?} is no token")))?;
            (version.unwrap_or(current), Some(after))
        }
        _ => return wrong("does not go with continue"),
    };
    if version > current {
        return Err(Status::too_large(version, current));
    }
    if version < state.oldest(kind) {
        let message = format!(
            "resource version {version} is too old: list again, or go on without consistency"
        );
        let on = after.map(|after| token(None, &after));
        return Err(Status {
            continue_token: on,
            ..Status::expired(message)
        });
    }
    let page = state.page(kind, scope, version, after.as_ref(), limit);
    let on = match &page.last {
        Some(last) if page.remaining > 0 => token(Some(version), last),
        _ => String::new(),
    };
    Ok((page, on))
}

/// A page of a list, encoded as response chunks.
pub(crate) struct List {
    /// Length in bytes of all chunks, without the few bytes before each item (JSON separators,
    /// protobuf headers).
    pub(crate) length: usize,
    pub(crate) chunks: Chunks,
}

impl List {
    /// Encodes a page. `on` is its `continue` token, empty for the last page.
    pub(crate) fn new(kind: Kind, page: Page, on: &str, scope: &Scope, media: Media) -> Self {
        let resource = kind.resource();
        let mut metadata = json!({ "resourceVersion": page.version.to_string() });
        if let (false, Some(metadata)) = (on.is_empty(), metadata.as_object_mut()) {
            metadata.insert("continue".into(), on.into());
            // With selectors, the server does not know how many of the remaining objects match.
            if !scope.selects() {
                metadata.insert("remainingItemCount".into(), page.remaining.into());
            }
        }
        let (api_version, kind) = (resource.api_version(), format!("{}List", resource.kind));
        let lengths = page.objects.iter().map(|object| object.item(media).len());
        let (head, tail): (_, &[u8]) = match media {
            Media::Json => {
                let head = format!(
                    r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{metadata},"items":["#
                );
                (head.into_bytes(), b"]}\n")
            }
            Media::Protobuf => protobuf::list(&api_version, &kind, &metadata, lengths.clone()),
        };
        let length = head.len() + lengths.sum::<usize>() + tail.len();
        Self {
            length,
            chunks: Chunks {
                media,
                next: Some(head),
                objects: page.objects.into_iter(),
                first: true,
                tail,
            },
        }
    }
}

pub(crate) struct Chunks {
    media: Media,
    /// First bytes of the next chunk, or `None` after the last chunk.
    next: Option<Vec<u8>>,
    objects: std::vec::IntoIter<Arc<Object>>,
    first: bool,
    tail: &'static [u8],
}

impl Iterator for Chunks {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut chunk = self.next.take()?;
        while chunk.len() < CHUNK {
            let Some(object) = self.objects.next() else {
                chunk.extend_from_slice(self.tail);
                return Some(chunk.into());
            };
            let item = object.item(self.media);
            let is_first = std::mem::take(&mut self.first);
            match self.media {
                Media::Json if is_first => chunk.push(b'{'),
                Media::Json => chunk.extend_from_slice(b",{"),
                Media::Protobuf => protobuf::item(item.len(), &mut chunk),
            }
            chunk.extend_from_slice(item);
        }
        self.next = Some(Vec::with_capacity(CHUNK + CHUNK / 4));
        Some(chunk.into())
    }
}

/// Returns a `continue` token from the list's resource version (`-` for the current version) and
/// the last key of the page.
fn token(version: Option<u64>, (namespace, name): &Key) -> String {
    let version = version.map_or_else(|| "-".to_owned(), |version| version.to_string());
    format!("{version}/{namespace}/{name}")
}

fn read_token(token: &str) -> Option<(Option<u64>, Key)> {
    let (version, key) = token.split_once('/')?;
    let (namespace, name) = key.split_once('/')?;
    let version = if version == "-" {
        None
    } else {
        Some(version.parse().ok()?)
    };
    Some((version, (namespace.into(), name.into())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_continue_token_parses_to_its_version_and_key(version: Option<u64>, namespace in "[a-z0-9-]{0,8}", name in "[a-z0-9.-]{1,8}") {
            let key: Key = (namespace.into(), name.into());
            prop_assert_eq!(read_token(&token(version, &key)), Some((version, key)));
        }

        #[test]
        fn arbitrary_continue_tokens_never_panic_the_parser(text in "[0-9a-z/.-]{0,16}") {
            let _ = read_token(&text);
        }
    }
}
