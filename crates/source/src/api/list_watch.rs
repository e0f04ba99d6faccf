//! Lists one kind of object, and then watches it.
//!
//! ```text
//!          ┌──────────────────── list ◀───────────────────────────┐ expired, or of
//!          ▼                                                      │ another storage
//!   watch from a resource version ─ ended ─▶ watch from the last one seen
//! ```
//!
//! The cost of a list for the server depends on the request:
//!
//! | list | request | source of the response |
//! |---|---|---|
//! | first list | `resourceVersion=0`, a limit | watch cache, unpaged; without a cache, paged |
//! | later list | at least the last seen version | watch cache, unpaged, once it is new enough |
//! | after "too large resource version" or "gone" | the newest | cache or etcd (server decides) |
//! | streamed, if configured | `sendInitialEvents` | watch cache, at the start of a watch |
//!
//! So the first list may be stale, as in upstream. Later lists never go back in time.
//!
//! A server whose storage was restored from a backup continues with smaller resource versions. A
//! watch from a version in the future stays silent until the server reaches that version, and
//! misses all changes before that version. So:
//!
//! 1. After a failure, the first request checks that the server has reached the last seen version.
//! 2. If the server has not reached this version, or has lost later changes, a list follows at
//!    once.
//! 3. So a list after an outage needs no further wait.
//!
//! Most other failures cause no list. After a rejected request (429, 503), a timeout or a broken
//! connection, the watch continues from the last version.
//!
//! # Why not `kube::runtime::watcher`
//!
//! - If the server does not support streamed lists, the watcher has no fallback.
//! - If a server closes a watch at once, the watcher reconnects without delay.
//! - If the watcher cannot decode one object, it loses the whole page.
//! - The watcher accepts an empty list of another kind as an empty list of Services, which would
//!   delete all Services.

mod listing;

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::io::AsyncReadExt as _;
use futures::poll;
use http::header::RETRY_AFTER;
use kube::Client;
use proxy::Event;
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use super::backoff::{Backoff, Cost, any_of, up_to};
use super::cause::root_cause;
use super::end::End;
use super::messages::{Messages, NextMessage};
use super::outage::{Failure, Outage};
use super::request::{Age, Format, Need, Resource, ResponseStream, get};
use crate::complaints::Complaints;
use crate::decode::{DecodedObject, MissingName, Status, WatchEvent, json, kind_name, protobuf};
use crate::settings::{ContentType, Lists};
use listing::{Listing, is_older};

/// Time limit for the beginning of a response, and upper limit for `Retry-After`.
const ANSWER: Duration = Duration::from_mins(1);
/// Silence at the start of a streamed list after which the server counts as unable to stream.
const FIRST_EVENT: Duration = Duration::from_secs(30);
/// Time before a streamed list is requested again from a server that could not stream.
const UNSTREAMED: Duration = Duration::from_mins(10);
/// Shortest and longest duration of a watch, in seconds. The duration is random, so that watches
/// opened together do not end together.
const WATCH_SECONDS: std::ops::RangeInclusive<u32> = 180..=290;
/// Longest random pause after a watch broke, because the watches of all nodes may have broken
/// together. The pause is also added to `Retry-After`, which may be equal for all nodes.
const SPREAD: Duration = Duration::from_secs(1);
/// Time without data after which a watch is reopened. Servers send a bookmark every minute, so a
/// silent watch may be dead. If a server sends no bookmarks, reopening the watch costs one request.
const SILENCE: Duration = Duration::from_secs(90);
/// Time after which an open watch counts as successful, even without an event.
const SETTLED: Duration = Duration::from_secs(1);
/// Number of yields before a request, so that the previous request's tasks can finish.
const HANDOVER: usize = 4;
/// Number of consecutive watches that end at an unreadable event before a list replaces the watch.
/// The list skips this event.
const STUMBLES_MAX: u32 = 2;
/// Number of consecutive responses with status 500 after which a request omits its minimum version,
/// because the server may be unable to read that version.
const REFUSALS_MAX: u32 = 2;
/// Largest number of bytes that are read from an unneeded response. The connection can be reused
/// only after its response has been read.
const LONGEST_REST: u64 = 64 << 10;

/// Constraint of a request on the resource versions in the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VersionConstraint {
    /// The server must return objects of this version or of a later version.
    NotOlder,
    /// The server may return objects of any version.
    Anything,
}

/// Task that lists and watches one kind of object.
pub(super) struct ListWatch {
    client: Client,
    content_type: ContentType,
    lists: Lists,
    resource: Resource,
    outage: Arc<Outage>,
    events: mpsc::Sender<Event>,
    /// Time when the server last rejected a streamed list. `None`: never.
    unstreamed: Option<Instant>,
    /// True if the server returned a list in pages, which shows that it has no watch cache.
    has_pages: bool,
    /// Version up to which the receiver has all events. `None`: a list is needed.
    version: Option<String>,
    /// Minimum resource version of the next list, which keeps objects from going back in time.
    next_list: Age,
    /// True after a failure, until the server proves that it has reached `version`.
    is_in_doubt: bool,
    /// Number of consecutive watches that broke at an unreadable event.
    stumbles: u32,
    /// Number of consecutive requests with a minimum version that the server rejected with 500.
    refusals: u32,
    /// Constraint of the current request on resource versions.
    asked: VersionConstraint,
    /// HTTP status with which the server rejected this optional kind. `None`: not rejected.
    untold: Option<u16>,
    /// `Retry-After` of the last response, or `None` if the response had none.
    retry_after: Option<Duration>,
    /// Time at which the current request's list was complete (or its watch began). `None`: not yet.
    listed: Option<Instant>,
    /// True if the current request delivered an object or bookmark, or lasted for [`SETTLED`].
    has_progressed: bool,
    complaints: Complaints,
}

impl ListWatch {
    pub(super) fn new(
        client: Client,
        content_type: ContentType,
        lists: Lists,
        resource: Resource,
        outage: Arc<Outage>,
        events: mpsc::Sender<Event>,
    ) -> Self {
        Self {
            client,
            content_type,
            lists,
            resource,
            outage,
            events,
            unstreamed: None,
            has_pages: false,
            version: None,
            next_list: Age::Any,
            is_in_doubt: false,
            stumbles: 0,
            refusals: 0,
            asked: VersionConstraint::Anything,
            untold: None,
            retry_after: None,
            listed: None,
            has_progressed: false,
            complaints: Complaints::default(),
        }
    }

    /// Lists and watches until the receiver of the events is dropped.
    pub(super) async fn run(mut self) {
        let name = kind_name(self.resource.kind);
        let mut backoff = Backoff::default();
        // True if the next list may start without a wait: no list has run since the last back-off
        // wait or successful watch. If a watch expires soon after a list, the next list waits.
        let mut may_list = true;
        loop {
            self.has_progressed = false;
            let is_list = self.version.is_none();
            let is_stream = is_list && self.streams();
            may_list &= !is_list;
            self.asked = match self.next_list {
                Age::NotOlderThan(_) if is_list => VersionConstraint::NotOlder,
                _ => VersionConstraint::Anything,
            };
            self.listed = (!is_list).then(Instant::now);
            let result = match self.version.clone() {
                Some(version) => self.watch(&version).await,
                None if is_stream => self.list_streamed().await,
                None => self.list().await,
            };
            // Counts the watch's duration from the end of the list.
            let is_settled = self
                .listed
                .is_some_and(|listed| listed.elapsed() >= SETTLED && self.has_progressed);
            // Keeps the back-off if the watch after a list failed at once, or any watch failed soon
            // after it progressed: the next one may do the same.
            let is_short = is_list || matches!(result, Err(End::Failed(_)));
            if self.has_progressed && (is_settled || !is_short) {
                backoff.reset();
            }
            may_list |= is_settled;
            let mut cost = Cost::Something;
            match result {
                // The watch broke, but had lasted long enough to count as successful.
                Ok(()) if is_settled && self.is_in_doubt => {
                    sleep(up_to(SPREAD)).await;
                    continue;
                }
                Ok(()) if is_settled || (is_list && !is_stream) => continue,
                // The watch closed early, but after progress. This is not an outage, but the next
                // request still waits.
                Ok(()) if self.has_progressed => {}
                Ok(()) => {
                    let failure = Failure::Nonsense("a watch that ends at once".to_owned());
                    self.outage.begin(self.resource.kind, failure);
                }
                Err(End::Closed) => return,
                Err(End::Unstreamed(why)) => {
                    debug!("{name}s: the server does not stream lists ({why}); asking for one");
                    self.unstreamed = Some(Instant::now());
                    continue;
                }
                Err(End::Expired) => {
                    debug!(
                        "{name}s: the server no longer has the changes since the last version; \
                            listing again"
                    );
                    self.version = None;
                    if is_list {
                        self.next_list = Age::Newest;
                    }
                    if may_list {
                        continue;
                    }
                    if is_list && !self.has_progressed {
                        let message = "the list expires before it is complete".to_owned();
                        let failure = Failure::Refused { code: 410, message };
                        self.outage.begin(self.resource.kind, failure);
                    }
                }
                Err(End::Ahead(message)) => {
                    self.version = None;
                    self.next_list = Age::Newest;
                    if may_list {
                        // Ignores Retry-After, which applies only to clients that repeat the same
                        // request.
                        self.retry_after = None;
                        info!(
                            "{name}s: the API server has not reached its last seen version \
                             ({message}): \
                             its storage may have been restored or recreated; listing again"
                        );
                        continue;
                    }
                    let failure = Failure::Refused { code: 504, message };
                    self.outage.begin(self.resource.kind, failure);
                }
                Err(End::Failed(Failure::Refused {
                    code: code @ (403 | 404),
                    message,
                })) if self.resource.need != Need::Needed => {
                    self.is_in_doubt = true;
                    cost = Cost::Optional;
                    if self.go_without(code, &message).await.is_err() {
                        return;
                    }
                }
                Err(End::Failed(failure)) => {
                    self.is_in_doubt = true;
                    match failure {
                        // The server may be unable to read the requested version.
                        Failure::Refused {
                            code: 400 | 422, ..
                        } => {
                            self.version = None;
                            if is_list {
                                self.next_list = Age::Newest;
                            }
                        }
                        // Before Kubernetes 1.38, a server returns an internal error if its storage
                        // cannot read the version.
                        Failure::Refused { code: 500, .. } if self.is_unreadable().await => {
                            self.version = None;
                            self.next_list = Age::Newest;
                        }
                        // Another server may reply next time, so the source may request a streamed
                        // list again.
                        Failure::Unreachable(_) | Failure::Unanswered(_) => self.unstreamed = None,
                        _ => {}
                    }
                    cost = failure.cost();
                    self.outage.begin(self.resource.kind, failure);
                }
            }
            let asked = self
                .retry_after
                .take()
                .map(|asked| asked.min(ANSWER) + up_to(SPREAD));
            let wait = backoff.next(cost, Instant::now());
            let wait = sleep(wait.max(asked.unwrap_or_default()));
            if cost == Cost::Optional {
                tokio::select! {
                    () = wait => {}
                    () = self.outage.over() => sleep(up_to(SPREAD)).await,
                }
            } else {
                wait.await;
            }
            may_list = true;
        }
    }

    /// Continues without an optional kind that the server rejects (403 or 404). Logs this once.
    async fn go_without(&mut self, code: u16, message: &str) -> Result<(), End> {
        let kind = self.resource.kind;
        self.outage.end(kind);
        if self.untold.replace(code) == Some(code) {
            return Ok(());
        }
        let name = kind_name(kind);
        if let Need::Optional { right, since } = self.resource.need {
            let beginning = format!("the API server does not list {name}s");
            let end = "features that need them are off, and everything else is served; they are \
                       requested again with back-off";
            if code == 404 {
                info!("{beginning}: it has none, which Kubernetes has from {since} on; {end}");
            } else {
                warn!("{beginning}: {message}; {end}; its role is to allow {right}");
            }
        }
        // Ends the list, although it lacks objects: the receiver waits for the end of each list.
        let is_whole = false;
        self.send(Event::ListComplete { kind, is_whole }).await
    }

    async fn watch(&mut self, version: &str) -> Result<(), End> {
        if self.is_in_doubt {
            self.asked = VersionConstraint::NotOlder;
            self.is_reached(version).await?;
            self.asked = VersionConstraint::Anything;
            self.is_in_doubt = false;
        }
        let target = self.resource.watch(version, any_of(WATCH_SECONDS));
        let answer = self.ask(&target).await?;
        let followed = self.follow(Messages::new(answer), None).await;
        if let Err(End::Failed(Failure::Nonsense(_))) = &followed {
            self.stumbles += 1;
            if self.stumbles >= STUMBLES_MAX {
                self.stumbles = 0;
                self.version = None;
            }
        }
        followed
    }

    /// Reports whether the server fails only at the requested version: it replied 500 to
    /// [`REFUSALS_MAX`] requests with a version, but accepts a request without one.
    async fn is_unreadable(&mut self) -> bool {
        self.refusals = match self.asked {
            VersionConstraint::NotOlder => self.refusals + 1,
            VersionConstraint::Anything => 0,
        };
        if self.refusals < REFUSALS_MAX {
            return false;
        }
        self.refusals = 0;
        match self.ask(&self.resource.sample()).await {
            Ok(answer) => {
                // Reads the rest of the response, because only then can the connection be reused.
                _ = timeout(ANSWER, read_rest(answer)).await;
                true
            }
            Err(_) => false,
        }
    }

    /// Checks, with a request for one object, that the server has reached `version`.
    async fn is_reached(&mut self, version: &str) -> Result<(), End> {
        let answer = self.ask(&self.resource.glance(version)).await?;
        let rest = read_rest(answer);
        // Reads the rest of the response, because only then can the connection be reused.
        _ = timeout(ANSWER, rest).await;
        Ok(())
    }

    /// Sends a request, and returns the response. Fails if the server rejects the request.
    async fn ask(&mut self, target: &str) -> Result<ResponseStream, End> {
        let request = get(target, self.content_type);
        let request = request.map_err(|error| End::nonsense(error.to_string()))?;
        // Lets the tasks of the previous connection finish, so that the connection can be reused.
        // Otherwise each request would need a new connection and handshake.
        for _ in 0..HANDOVER {
            yield_now().await;
        }
        let answer = timeout(ANSWER, self.client.send(request)).await;
        let answer = answer.map_err(|_| End::silent(ANSWER))??;
        let status = answer.status();
        let retry_after = answer.headers().get(RETRY_AFTER).cloned();
        let answer = ResponseStream::new(answer);
        if status.is_success() {
            return Ok(answer);
        }
        // Ignores a date in `Retry-After`, because API servers send only seconds in this header.
        let seconds = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
        self.retry_after = seconds.map(Duration::from_secs);
        let format = answer.format;
        // Ignores a missing body, because the status code alone explains the rejection.
        let text = timeout(ANSWER, read_rest(answer)).await.unwrap_or_default();
        let said = match format {
            Format::Json => json::status(&text),
            Format::Protobuf => protobuf::status(&text),
        };
        let said = said.unwrap_or_else(|| Status {
            message: String::from_utf8_lossy(&text).trim().to_owned(),
            ..Status::default()
        });
        Err(End::from(Status {
            code: status.as_u16(),
            ..said
        }))
    }

    /// Reads a watch to its end. If `list` is given, the first objects of the watch form the list.
    async fn follow(
        &mut self,
        mut messages: Messages,
        mut list: Option<Listing>,
    ) -> Result<(), End> {
        let mut patience = if list.is_some() { FIRST_EVENT } else { SETTLED };
        loop {
            let next = {
                let mut next = pin!(messages.next());
                match poll!(&mut next) {
                    // Needs no timer if data is ready.
                    Poll::Ready(next) => Ok(next),
                    Poll::Pending => timeout(patience, next).await,
                }
            };
            match next {
                Err(_) if patience == SETTLED => {
                    self.progressed();
                    patience = SILENCE;
                    continue;
                }
                Err(_) if list.is_some() && messages.is_silent() && patience == FIRST_EVENT => {
                    return Err(End::Unstreamed(format!("no event for {FIRST_EVENT:?}")));
                }
                Err(_) if list.is_some() => return Err(End::silent(SILENCE)),
                Ok(Err(error)) if list.is_some() => return Err(End::unreachable(&error)),
                Ok(Err(error)) => {
                    debug!("{}s: {}", kind_name(self.resource.kind), root_cause(&error));
                    self.is_in_doubt = true;
                    return Ok(());
                }
                Ok(Ok(NextMessage::TooLong)) => {
                    return Err(End::nonsense("an event that is too long"));
                }
                Ok(Ok(NextMessage::End)) if list.is_some() => {
                    return Err(End::nonsense("a list that ends before it is complete"));
                }
                // Not even a bookmark arrived. The server's resource versions may be lower than the
                // watch's version.
                Err(_) => {
                    self.is_in_doubt = true;
                    return Ok(());
                }
                // The next connection will show whether the server is down.
                Ok(Ok(NextMessage::End)) => return Ok(()),
                Ok(Ok(NextMessage::Event)) => {}
            }
            if !messages.event().is_empty() {
                self.event(messages.format, messages.event(), &mut list)
                    .await?;
                patience = SILENCE;
            }
        }
    }

    /// Decodes one watch event, sends it to the receiver, and records its resource version.
    async fn event(
        &mut self,
        format: Format,
        event: &[u8],
        list: &mut Option<Listing>,
    ) -> Result<(), End> {
        let kind = self.resource.kind;
        let read = match format {
            Format::Json => json::event(kind, event),
            Format::Protobuf => protobuf::event(kind, event),
        };
        let version = match read.map_err(|error| End::nonsense(shown(&error, event)))? {
            WatchEvent::Applied(object) => {
                let told = self.tell(object).await?;
                if let Some(list) = list {
                    list.is_whole &= told.is_named;
                }
                told.version
            }
            WatchEvent::Deleted(Ok((key, version))) => {
                self.complaints.forget(&key);
                self.send(key.into_deletion()).await?;
                version
            }
            WatchEvent::Deleted(Err(unnamed)) => {
                warn!("the API server deleted a {unnamed}");
                None
            }
            WatchEvent::Bookmark { version, ends_list } => {
                if ends_list && let Some(list) = list.take() {
                    self.complete(list).await?;
                } else if list.is_none() && is_older(&self.next_list, Some(&version)) {
                    return Err(End::Ahead(format!("a bookmark of version {version}")));
                }
                Some(version)
            }
            WatchEvent::Refused(status) => return Err(status.into()),
        };
        // Records no version within a list, because objects with lower versions may follow.
        if list.is_none() {
            if let Some(version) = version {
                self.reached(version.into());
            }
            self.progressed();
        }
        Ok(())
    }

    /// Sends one object to the receiver of the events, and logs its problems.
    async fn tell(
        &mut self,
        object: Result<DecodedObject, MissingName>,
    ) -> Result<SentObject, End> {
        let mut decoded = match object {
            Ok(decoded) => decoded,
            Err(unnamed) => {
                warn!("from the API server, a {unnamed}");
                return Ok(SentObject::default());
            }
        };
        let problems = std::mem::take(&mut decoded.problems);
        for complaint in self.complaints.of(&decoded.key, &problems) {
            warn!("{complaint}");
        }
        let version = decoded.version.take();
        self.send(decoded.into_event()).await?;
        Ok(SentObject {
            version,
            is_named: true,
        })
    }

    /// Records that the receiver has all events up to this version.
    fn reached(&mut self, version: String) {
        self.stumbles = 0;
        self.refusals = 0;
        self.next_list = Age::NotOlderThan(version.clone());
        self.version = Some(version);
    }

    fn progressed(&mut self) {
        self.has_progressed = true;
        self.outage.end(self.resource.kind);
        if self.untold.take().is_some() {
            let name = kind_name(self.resource.kind);
            info!("the API server tells of {name}s now");
        }
    }

    async fn send(&self, event: Event) -> Result<(), End> {
        self.events.send(event).await.map_err(|_| End::Closed)
    }
}

/// Result of sending an object: its version, if any, and whether it had a name.
#[derive(Debug, Default)]
struct SentObject {
    version: Option<Box<str>>,
    is_named: bool,
}

/// Reads the rest of a response, at most [`LONGEST_REST`] bytes, and returns it.
async fn read_rest(answer: ResponseStream) -> Vec<u8> {
    let mut text = Vec::new();
    // Ignores errors, because a truncated text is enough.
    _ = answer.body.take(LONGEST_REST).read_to_end(&mut text).await;
    text
}

/// Formats an error with the beginning of the event that caused it.
fn shown(error: &str, event: &[u8]) -> String {
    let beginning = String::from_utf8_lossy(event.get(..60).unwrap_or(event));
    format!("{error} in {beginning:?}")
}

#[cfg(test)]
mod tests;
