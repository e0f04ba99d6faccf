//! WATCH: sends the changes after a resource version as a stream of events.
//!
//! ```text
//!  start ─┬─ too old a version ──────────────▶ ERROR 410, end
//!         ├─ initial objects ─▶ ADDED… [─▶ BOOKMARK] ─┐
//!         └─ a version ───────────────────────────────┴─▶ changes, BOOKMARK… ─▶ timeout, end
//! ```

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, stream};
use serde_json::json;
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};

use crate::cluster::Cluster;
use crate::list::CHUNK;
use crate::media::Media;
use crate::object::{Change, Object};
use crate::options::StreamedLists;
use crate::protobuf;
use crate::resource::Kind;
use crate::route::Query;
use crate::selector::Scope;
use crate::sent::SendTimes;
use crate::status::Status;

/// Default timeout of a watch: the shortest default of a real API server.
const TIMEOUT: Duration = Duration::from_mins(30);

/// Maximum number of changes that a watch reads from the history at once.
const BATCH: usize = 256;

/// Server options that apply to every watch.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    /// True if watches may request streamed initial lists (`sendInitialEvents`).
    pub(crate) watch_list: bool,
    pub(crate) streamed_lists: StreamedLists,
    pub(crate) bookmark_interval: Duration,
    /// Send times of change events, for `GET /fixture/sent`. `None`: the server does not record
    /// them.
    pub(crate) sent: Option<SendTimes>,
}

struct Watch {
    cluster: Cluster,
    media: Media,
    kind: Kind,
    scope: Scope,
    changed: Receiver<u64>,
    /// Resource version up to which this watch has sent all changes.
    sent: u64,
    initial: std::vec::IntoIter<Arc<Object>>,
    /// True if the watch has yet to send the bookmark that ends its initial events.
    mark_end: bool,
    bookmarks: Option<Interval>,
    deadline: Instant,
    noted: Option<SendTimes>,
    /// Error that the watch sends as its only event, or `None` for a watch without an error.
    refusal: Option<Status>,
    over: bool,
}

/// Starts a watch. Returns an error for an invalid request. For a resource version that is too old,
/// returns a watch with a single `ERROR` event (410).
pub(crate) fn start(
    cluster: &Cluster,
    kind: Kind,
    scope: Scope,
    query: &Query,
    media: Media,
    policy: &Policy,
) -> Result<impl Stream<Item = Bytes> + use<>, Status> {
    let asked = query.number("resourceVersion")?.unwrap_or(0);
    let send_initial = query.flag("sendInitialEvents");
    match (send_initial, query.text("resourceVersionMatch")) {
        (None, "") => {}
        (None, _) => {
            let why = "is for a watch with sendInitialEvents only";
            return Err(Status::invalid_options("resourceVersionMatch", why));
        }
        (Some(_), _) if !policy.watch_list => return Err(Status::no_watch_list()),
        (Some(_), "NotOlderThan") => {}
        (Some(_), _) => {
            let why = "must be NotOlderThan with sendInitialEvents";
            return Err(Status::invalid_options("resourceVersionMatch", why));
        }
    }
    if !query.text("continue").is_empty() {
        return Err(Status::invalid_options("continue", "is for lists"));
    }
    let timeout = query
        .number("timeoutSeconds")?
        .filter(|seconds| *seconds > 0);
    let bookmarks = query.flag("allowWatchBookmarks") == Some(true);
    let now = Instant::now();
    let timeout = timeout.map_or(TIMEOUT, |seconds| Duration::from_secs(seconds.min(1 << 32)));

    let changed = cluster.subscribe();
    let state = cluster.lock();
    let current = state.version;
    if send_initial == Some(true) && asked > current {
        return Err(Status::too_large(asked, current));
    }
    // A watch without a resource version begins with an `ADDED` event for each existing object.
    let with_initial = send_initial.unwrap_or(asked == 0);
    let from_now = with_initial || asked == 0;
    let oldest = state.oldest(kind);
    let watch = Watch {
        cluster: cluster.clone(),
        media,
        kind,
        changed,
        sent: if from_now { current } else { asked },
        initial: if with_initial {
            state.page(kind, &scope, current, None, 0).objects
        } else {
            Vec::new()
        }
        .into_iter(),
        mark_end: send_initial == Some(true) && bookmarks,
        bookmarks: bookmarks.then(|| {
            let mut interval =
                interval_at(now + policy.bookmark_interval, policy.bookmark_interval);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            interval
        }),
        deadline: now + timeout,
        noted: policy.sent.clone(),
        refusal: (!from_now && asked < oldest)
            .then(|| Status::expired(format!("too old resource version: {asked} ({oldest})"))),
        over: false,
        scope,
    };
    drop(state);
    Ok(stream::unfold(watch, async |mut watch| {
        Some((watch.next().await?, watch))
    }))
}

impl Watch {
    /// Returns the next chunk, which consists of complete events, or `None` at the end of the
    /// watch.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(status) = self.refusal.take() {
            self.over = true;
            return Some(self.media.error(&status));
        }
        // Reserves a full chunk while initial objects remain. Later chunks usually have few events,
        // so they start empty.
        let room = if self.initial.len() > 0 {
            CHUNK + CHUNK / 4
        } else {
            0
        };
        let mut chunk = Vec::with_capacity(room);
        while chunk.len() < CHUNK
            && let Some(object) = self.initial.next()
        {
            self.event("ADDED", &object, &mut chunk);
        }
        loop {
            if !chunk.is_empty() {
                return Some(chunk.into());
            }
            if self.over || Instant::now() >= self.deadline {
                return None;
            }
            if std::mem::take(&mut self.mark_end) {
                return Some(self.bookmark(Bookmark::EndOfInitial));
            }
            // Marks the latest version as seen before it reads the changes. So a change that
            // arrives in between wakes the watch again.
            self.changed.borrow_and_update();
            let changes = self.cluster.lock().changes(self.kind, self.sent, BATCH);
            let Some((changes, until)) = changes else {
                self.over = true;
                let message = format!(
                    "the history after {} is gone: the watch was too slow",
                    self.sent
                );
                return Some(self.media.error(&Status::expired(message)));
            };
            let mut told = Vec::new();
            for change in &changes {
                let before = chunk.len();
                self.change(change, &mut chunk);
                if chunk.len() > before {
                    told.push(change.version);
                }
            }
            if let (Some(noted), false) = (&self.noted, told.is_empty()) {
                noted.note(&told);
            }
            let idle = changes.len() < BATCH;
            self.sent = until;
            if !chunk.is_empty() || !idle {
                continue;
            }
            let tick = async {
                match &mut self.bookmarks {
                    Some(interval) => _ = interval.tick().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep_until(self.deadline) => return None,
                () = tick => return Some(self.bookmark(Bookmark::Regular)),
                changed = self.changed.changed() => self.over = changed.is_err(),
            }
        }
    }

    /// Appends the event for a change to `chunk`, if the watch selects the object before or after
    /// the change. An object that starts to match gets `ADDED`, one that stops matching gets
    /// `DELETED`.
    fn change(&self, change: &Change, chunk: &mut Vec<u8>) {
        let was = change
            .before
            .as_ref()
            .filter(|before| self.scope.matches(before));
        let is = !change.deleted && self.scope.matches(&change.object);
        match (was, is) {
            (None, true) => self.event("ADDED", &change.object, chunk),
            (Some(_), true) => self.event("MODIFIED", &change.object, chunk),
            (Some(_), false) if change.deleted => self.event("DELETED", &change.object, chunk),
            // The object still exists, but no longer matches. The `DELETED` event contains its last
            // matching state, with the resource version of the change.
            (Some(before), false) => self.event(
                "DELETED",
                &before.at_version(self.kind, change.version),
                chunk,
            ),
            (None, false) => {}
        }
    }

    fn event(&self, what: &str, object: &Object, chunk: &mut Vec<u8>) {
        self.media.event(what, object.bytes(self.media), chunk);
    }

    fn bookmark(&self, what: Bookmark) -> Bytes {
        let resource = self.kind.resource();
        let mut metadata = json!({ "resourceVersion": self.sent.to_string() });
        if let (Bookmark::EndOfInitial, Some(metadata)) = (what, metadata.as_object_mut()) {
            metadata.insert(
                "annotations".into(),
                json!({ "k8s.io/initial-events-end": "true" }),
            );
        }
        let (kind, version, empty) = (resource.kind, resource.api_version(), resource.empty);
        let object = match self.media {
            Media::Json => format!(
                r#"{{"kind":"{kind}","apiVersion":"{version}","metadata":{metadata}{empty}}}"#
            )
            .into_bytes(),
            Media::Protobuf => {
                let message = protobuf::encode(self.kind, &json!({ "metadata": metadata }))
                    .expect("metadata are made of their own types");
                protobuf::envelope(&version, kind, &message)
            }
        };
        let mut chunk = Vec::new();
        self.media.event("BOOKMARK", &object, &mut chunk);
        chunk.into()
    }
}

/// Purpose of a bookmark event.
#[derive(Debug, Clone, Copy)]
enum Bookmark {
    /// Reports the resource version up to which the watch has sent all changes.
    Regular,
    /// Marks the end of the initial events. Only changes follow.
    EndOfInitial,
}
