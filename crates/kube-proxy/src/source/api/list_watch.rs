//! One kind of object, listed and then watched for ever.
//!
//! ```text
//!          ┌────────────── list: streamed, or in pages ◀──────────┐ expired, or
//!          ▼                                                      │ of another life
//!   watch from a resource version ─ ended ─▶ watch from the last one seen
//! ```
//!
//! A server that comes back with its storage restored from a backup counts its resource versions
//! from an earlier one. A watch from a version that is still to come stays silent until the count
//! has got there, and what happens meanwhile is never told; so after a failure, before going on,
//! the server is asked whether it has reached that version. If it has not, or has forgotten what
//! changed since, the list follows at once: there is one wait to an outage, and `backoff` says how
//! long it is.
//!
//! `kube::runtime::watcher` does the same, but does not fit here: it never falls back from a streamed list that the server
//! does not know, it reconnects without any delay to a server that closes at once, one object that does not decode costs
//! it the whole page, and it cannot tell an empty list of Services from an empty list of something else, after which
//! everything would be deleted.
//!
//! Events and pages are parsed in one pass, in which each object becomes its compact form; what does not decode in it is then
//! looked at object by object.

use std::borrow::Cow;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};
use futures::{TryStreamExt, poll};
use http::header::RETRY_AFTER;
use http_body_util::BodyExt;
use kube::Client;
use kube::api::{ListParams, VersionMatch, WatchParams};
use kube::client::Body;
use kube::core::Request;
use proxy::{Event, Kind};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use super::backoff::{Backoff, Cost, any_of, up_to};
use super::connection;
use super::outage::{Failure, Outage};
use super::page::Page;
use super::root_cause;
use crate::decode::{self, Decoded, Unnamed, kind_name};
use crate::options::object_source::FirstList;
use crate::source::Complaints;

/// Objects to a page: 500 slices of 50 endpoints are 8 MB of JSON.
const PAGE: u32 = 500;
/// How long a page may stand still, or the beginning of a watch take. Also the longest that a server may ask to be left
/// alone.
const ANSWER: Duration = Duration::from_mins(1);
/// How long a streamed list may stay silent before the server is taken to know none.
const FIRST_EVENT: Duration = Duration::from_secs(30);
/// How long a page may take altogether: a server forgets where a list was after five minutes.
const WHOLE_PAGE: Duration = Duration::from_mins(5);
/// How long a watch lasts, at least and at most: what all nodes opened when a server came back is not to end on all at once.
const WATCH_SECONDS: std::ops::RangeInclusive<u32> = 180..=290;
/// How long a watch that broke is left alone, at most: it may have broken on all nodes at once.
/// Also what is added to `Retry-After`, which may be the same for all.
const SPREAD: Duration = Duration::from_secs(1);
/// A watch that is silent for so long is opened anew: it may be dead, as a server sends a bookmark every minute; from one
/// that does not, it costs a request.
const SILENCE: Duration = Duration::from_secs(90);
/// A watch that has been open for so long is one, even if nothing has happened yet.
const SETTLED: Duration = Duration::from_secs(1);
/// Longer events and pages than these are not Kubernetes': etcd takes objects of 1.5 MB.
const LONGEST_EVENT: u64 = 64 << 20;
const LONGEST_PAGE: usize = 1 << 30;
const LONGEST_REFUSAL: u64 = 64 << 10;

/// What to list and watch.
pub(super) struct Resource {
    pub(super) kind: Kind,
    /// The path that all objects of the kind are under.
    pub(super) path: &'static str,
    pub(super) labels: Option<&'static str>,
    pub(super) fields: Option<String>,
}

/// Lists and watches one kind of object.
pub(super) struct ListWatch {
    client: Client,
    resource: Resource,
    outage: Arc<Outage>,
    events: mpsc::Sender<Event>,
    /// Whether the server streams lists (KEP-3157), as far as is known.
    can_stream: bool,
    /// Everything up to here is known.
    version: Option<String>,
    /// The server has been away since, and may have come back as another.
    is_in_doubt: bool,
    /// How long the server asked to be left alone.
    retry_after: Option<Duration>,
    /// Since when everything has been known, if it has been on the connection at hand.
    listed: Option<Instant>,
    /// Whether the connection at hand has brought anything.
    has_progressed: bool,
    complaints: Complaints,
}

/// Why a connection ended before its time.
#[derive(Debug)]
enum End {
    /// Nobody listens to the events any more.
    Unheard,
    /// The resource version is too old.
    Expired,
    /// The resource version is one that the server has still to come to.
    Ahead(String),
    /// The server does not stream lists.
    Unstreamed(String),
    Failed(Failure),
}

impl End {
    fn nonsense(what: impl Into<String>) -> Self {
        Self::Failed(Failure::Nonsense(what.into()))
    }

    fn unreachable(error: &(dyn std::error::Error + 'static)) -> Self {
        let causes = std::iter::successors(Some(error), |error| error.source());
        let told = causes.into_iter().find_map(|cause| {
            let untrusted = cause.downcast_ref().cloned().map(Failure::Untrusted);
            untrusted.or_else(|| cause.downcast_ref().cloned().map(Failure::Proxied))
        });
        Self::Failed(match told {
            Some(failure) => failure,
            None if connection::is_none(error) => Failure::Unreachable(root_cause(error)),
            None => Failure::Unanswered(root_cause(error)),
        })
    }

    fn silent(limit: Duration) -> Self {
        Self::Failed(Failure::Unanswered(format!("no answer for {limit:?}")))
    }
}

impl From<kube::Error> for End {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::refused(status.code, &status.message),
            other => Self::unreachable(&other),
        }
    }
}

impl From<Status> for End {
    fn from(status: Status) -> Self {
        if status.code == 504 && status.is_ahead() {
            return Self::Ahead(status.message.chars().take(200).collect());
        }
        Self::refused(status.code, &status.message)
    }
}

impl End {
    fn refused(code: u16, message: &str) -> Self {
        if code == 410 {
            return Self::Expired;
        }
        Self::Failed(Failure::Refused {
            code,
            message: message.chars().take(200).collect(),
        })
    }
}

impl ListWatch {
    pub(super) fn new(
        client: Client,
        resource: Resource,
        outage: Arc<Outage>,
        events: mpsc::Sender<Event>,
        first_list: FirstList,
    ) -> Self {
        Self {
            client,
            resource,
            outage,
            events,
            can_stream: first_list == FirstList::Streamed,
            version: None,
            is_in_doubt: false,
            retry_after: None,
            listed: None,
            has_progressed: false,
            complaints: Complaints::default(),
        }
    }

    /// Until nobody listens any more.
    pub(super) async fn run(mut self) {
        let name = kind_name(self.resource.kind);
        let mut backoff = Backoff::default();
        // Nothing has been listed since the last wait, so that a list may follow at once. One that
        // is of no use (the watch after it has expired, too) is not repeated in a hurry.
        let mut may_list = true;
        loop {
            self.has_progressed = false;
            let is_list = self.version.is_none();
            may_list &= !is_list;
            self.listed = (!is_list).then(Instant::now);
            let result = match self.version.clone() {
                Some(version) => self.watch(&version).await,
                None if self.can_stream => self.list_streamed().await,
                None => self.list_in_pages().await,
            };
            // How long the list took says nothing about the watch that follows it.
            let is_settled = self
                .listed
                .is_some_and(|listed| listed.elapsed() >= SETTLED && self.has_progressed);
            // A list that is told and lost again at once is not to be repeated in a hurry.
            if self.has_progressed && (is_settled || !is_list) {
                backoff.reset();
            }
            may_list |= is_settled;
            let mut cost = Cost::Something;
            match result {
                // It broke in the middle.
                Ok(()) if is_settled && self.is_in_doubt => {
                    sleep(up_to(SPREAD)).await;
                    continue;
                }
                Ok(()) if is_settled || (is_list && !self.can_stream) => continue,
                // Closed soon, but not in vain: no outage, and no hurry either.
                Ok(()) if self.has_progressed => {}
                Ok(()) => {
                    let failure = Failure::Nonsense("a watch that ends at once".to_owned());
                    self.outage.begin(self.resource.kind, failure);
                }
                Err(End::Unheard) => return,
                Err(End::Unstreamed(why)) => {
                    debug!("{name}s: the server does not stream lists ({why}); listing in pages");
                    self.can_stream = false;
                    continue;
                }
                Err(End::Expired) => {
                    debug!("{name}s: the server has forgotten what changed since; listing again");
                    self.version = None;
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
                    if may_list {
                        // With the answer comes a Retry-After, which is for who asks for that
                        // version again.
                        self.retry_after = None;
                        info!(
                            "{name}s: the API server has not come to the version that was last seen of it ({message}): \
                             its storage may have been restored or made anew; listing again"
                        );
                        continue;
                    }
                    let failure = Failure::Refused { code: 504, message };
                    self.outage.begin(self.resource.kind, failure);
                }
                Err(End::Failed(failure)) => {
                    self.is_in_doubt = true;
                    if let Failure::Refused {
                        code: 400 | 404 | 422,
                        ..
                    } = failure
                    {
                        self.version = None;
                    }
                    cost = failure.cost();
                    self.outage.begin(self.resource.kind, failure);
                }
            }
            let asked = self
                .retry_after
                .take()
                .map(|asked| asked.min(ANSWER) + up_to(SPREAD));
            sleep(
                backoff
                    .next(cost, Instant::now())
                    .max(asked.unwrap_or_default()),
            )
            .await;
            may_list = true;
        }
    }

    /// A watch that begins with all objects, and goes on.
    async fn list_streamed(&mut self) -> Result<(), End> {
        let reader = match self.open_watch("", true).await {
            // A server that does not know the option says Invalid; what stands before it may say anything else. Only what
            // pages would meet as well is no reason to try them.
            Err(End::Failed(Failure::Refused { code, message }))
                if !matches!(code, 401 | 403 | 429 | 500..) =>
            {
                return Err(End::Unstreamed(message));
            }
            reader => reader?,
        };
        self.send(Event::ListStarted(self.resource.kind)).await?;
        self.follow(reader, true).await
    }

    async fn watch(&mut self, version: &str) -> Result<(), End> {
        if self.is_in_doubt {
            self.is_reached(version).await?;
            self.is_in_doubt = false;
        }
        let reader = self.open_watch(version, false).await?;
        self.follow(reader, false).await
    }

    /// Asks for one object as of `version` or later; a server that has not got there says so.
    async fn is_reached(&mut self, version: &str) -> Result<(), End> {
        let params = ListParams {
            label_selector: self.resource.labels.map(str::to_owned),
            field_selector: self.resource.fields.clone(),
            limit: Some(1),
            resource_version: Some(version.to_owned()),
            version_match: Some(VersionMatch::NotOlderThan),
            ..ListParams::default()
        };
        let request = Request::new(self.resource.path)
            .list(&params)
            .map_err(kube::Error::BuildRequest)?;
        // What is in the answer does not matter.
        self.ask(request).await.map(drop)
    }

    /// Sends a request; the body of the answer, if it is not a refusal.
    async fn ask(
        &mut self,
        request: http::Request<Vec<u8>>,
    ) -> Result<impl AsyncBufRead + Unpin + use<>, End> {
        let answer = timeout(ANSWER, self.client.send(request.map(Body::from))).await;
        let answer = answer.map_err(|_| End::silent(ANSWER))??;
        let status = answer.status();
        let retry_after = answer.headers().get(RETRY_AFTER).cloned();
        let body = answer.into_body().into_data_stream();
        let mut reader = Box::pin(body.map_err(io::Error::other).into_async_read());
        if status.is_success() {
            return Ok(reader);
        }
        // Not a date, which no API server gives.
        let seconds = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
        self.retry_after = seconds.map(Duration::from_secs);
        let mut text = Vec::new();
        let mut limited = (&mut reader).take(LONGEST_REFUSAL);
        // The status code says enough when its explanation does not come.
        _ = timeout(ANSWER, limited.read_to_end(&mut text)).await;
        let said = serde_json::from_slice::<Status>(&text).unwrap_or_else(|_| Status {
            message: String::from_utf8_lossy(&text).trim().to_owned(),
            ..Status::default()
        });
        Err(End::from(Status {
            code: status.as_u16(),
            ..said
        }))
    }

    async fn open_watch(
        &mut self,
        version: &str,
        is_list: bool,
    ) -> Result<impl AsyncBufRead + Unpin + use<>, End> {
        let params = WatchParams {
            label_selector: self.resource.labels.map(str::to_owned),
            field_selector: self.resource.fields.clone(),
            timeout: Some(any_of(WATCH_SECONDS)),
            bookmarks: true,
            send_initial_events: is_list,
        };
        let request = Request::new(self.resource.path)
            .watch(&params, version)
            .map_err(kube::Error::BuildRequest)?;
        self.ask(request).await
    }

    /// Reads a watch to its end. With `is_list`, objects come first that are the list.
    async fn follow(
        &mut self,
        mut reader: impl AsyncBufRead + Unpin,
        is_list: bool,
    ) -> Result<(), End> {
        let mut list = is_list.then_some(Listing { is_whole: true });
        let mut line = Vec::new();
        let mut patience = if is_list { FIRST_EVENT } else { SETTLED };
        loop {
            let room = LONGEST_EVENT.saturating_sub(line.len() as u64);
            let mut limited = (&mut reader).take(room);
            // What was read when the time is over stays in `line`.
            let mut reading = pin!(limited.read_until(b'\n', &mut line));
            let read = match poll!(&mut reading) {
                // Of many that have come together, only the last is worth a look at the clock.
                Poll::Ready(read) => Ok(read),
                Poll::Pending => timeout(patience, reading).await,
            };
            match read {
                Err(_) if patience == SETTLED => {
                    self.progressed();
                    patience = SILENCE;
                    continue;
                }
                Err(_) if list.is_some() && line.is_empty() && patience == FIRST_EVENT => {
                    return Err(End::Unstreamed(format!("no event for {FIRST_EVENT:?}")));
                }
                Err(_) if list.is_some() => return Err(End::silent(SILENCE)),
                // As when the server closes: the next connection shows whether it is away.
                Err(_) => return Ok(()),
                Ok(Err(error)) if list.is_some() => return Err(End::unreachable(&error)),
                Ok(Err(error)) => {
                    debug!("{}s: {}", kind_name(self.resource.kind), root_cause(&error));
                    self.is_in_doubt = true;
                    return Ok(());
                }
                Ok(Ok(_)) => {}
            }
            let Some(text) = line.strip_suffix(b"\n") else {
                if line.len() as u64 >= LONGEST_EVENT {
                    return Err(End::nonsense(format!(
                        "an event of more than {LONGEST_EVENT} bytes"
                    )));
                }
                return match list {
                    Some(_) => Err(End::nonsense("a list that ends before it is complete")),
                    None => Ok(()),
                };
            };
            if !text.iter().all(u8::is_ascii_whitespace) {
                self.event(text, &mut list).await?;
                patience = SILENCE;
            }
            line.clear();
        }
    }

    /// Takes one event of a watch.
    async fn event(&mut self, line: &[u8], list: &mut Option<Listing>) -> Result<(), End> {
        let nonsense = |error: &dyn std::error::Error| {
            End::nonsense(format!("{error} in {:?}", excerpt(line)))
        };
        let text = str::from_utf8(line).map_err(|error| nonsense(&error))?;
        let applied = decode::applied_from_json(self.resource.kind, text);
        let version = if let Some(object) = applied {
            self.applied(object, list).await?
        } else {
            let line = serde_json::from_str(text).map_err(|error| nonsense(&error))?;
            self.other_event(line, list).await?
        };
        // While the list is told, a version says nothing about what is still to come.
        if list.is_none() {
            if let Some(version) = version {
                self.version = Some(version.into());
            }
            self.progressed();
        }
        Ok(())
    }

    /// Takes an object that was added or modified; its resource version.
    async fn applied(
        &mut self,
        object: Result<Decoded, Unnamed>,
        list: &mut Option<Listing>,
    ) -> Result<Option<Box<str>>, End> {
        let (version, is_named) = self.tell(object).await?;
        if let Some(list) = list {
            list.is_whole &= is_named;
        }
        Ok(version)
    }

    /// Takes an event that is not of the usual form: about something else than an object that is there now, or about one that does
    /// not decode. Its resource version.
    async fn other_event(
        &mut self,
        line: Line<'_>,
        list: &mut Option<Listing>,
    ) -> Result<Option<Box<str>>, End> {
        let Line { kind, object } = line;
        let version = match &*kind {
            "ADDED" | "MODIFIED" => {
                let object = decode::from_json(self.resource.kind, object.get());
                self.applied(object, list).await?
            }
            "DELETED" => match decode::key_from_json(self.resource.kind, object.get()) {
                Ok((key, version)) => {
                    self.complaints.forget(&key);
                    self.send(key.into_deletion()).await?;
                    version
                }
                Err(unnamed) => {
                    warn!("the API server deleted a {unnamed}");
                    None
                }
            },
            "BOOKMARK" => {
                let Bookmark { metadata } = serde_json::from_str(object.get())
                    .map_err(|error| End::nonsense(format!("a bookmark: {error}")))?;
                let annotations = metadata.annotations.unwrap_or_default();
                if annotations.initial_events_end.is_some()
                    && let Some(list) = list.take()
                {
                    self.complete(list).await?;
                }
                Some(metadata.resource_version)
            }
            "ERROR" => {
                let status: Status = serde_json::from_str(object.get()).unwrap_or_default();
                return Err(status.into());
            }
            other => return Err(End::nonsense(format!("an event of type {other:?}"))),
        };
        Ok(version)
    }

    async fn list_in_pages(&mut self) -> Result<(), End> {
        let kind = self.resource.kind;
        let mut list = Listing { is_whole: true };
        let mut position: Option<String> = None;
        // One for all pages: they are megabytes, and much alike.
        let mut body = Vec::new();
        loop {
            let params = ListParams {
                label_selector: self.resource.labels.map(str::to_owned),
                field_selector: self.resource.fields.clone(),
                limit: Some(PAGE),
                continue_token: position.clone(),
                ..ListParams::default()
            };
            let request = Request::new(self.resource.path)
                .list(&params)
                .map_err(kube::Error::BuildRequest)?;
            let reader = self.ask(request).await?;
            let read = timeout(WHOLE_PAGE, read_page(reader, &mut body)).await;
            read.map_err(|_| End::silent(WHOLE_PAGE))??;
            let page = Page::read(kind, &body)
                .map_err(|error| End::nonsense(format!("{error} in {:?}", excerpt(&body))))?;
            let wanted = format!("{}List", kind_name(kind));
            if page.kind != wanted {
                return Err(End::nonsense(format!(
                    "kind {:?} where a {wanted} was asked for",
                    page.kind
                )));
            }
            if position.is_none() {
                self.send(Event::ListStarted(kind)).await?;
            }
            for object in page.objects {
                let (_, is_named) = self.tell(object).await?;
                list.is_whole &= is_named;
            }
            match page.continue_token {
                Some(token) if position.as_deref() == Some(&*token) => {
                    return Err(End::nonsense("a list that goes on for ever"));
                }
                Some(token) => position = Some(token),
                None => {
                    let version = page
                        .version
                        .ok_or_else(|| End::nonsense("a list without a resourceVersion"))?;
                    self.complete(list).await?;
                    self.version = Some(version);
                    self.progressed();
                    return Ok(());
                }
            }
        }
    }

    /// Tells of one object; its resource version, and whether it could be named.
    async fn tell(
        &mut self,
        object: Result<Decoded, Unnamed>,
    ) -> Result<(Option<Box<str>>, bool), End> {
        let mut decoded = match object {
            Ok(decoded) => decoded,
            Err(unnamed) => {
                warn!("from the API server, a {unnamed}");
                return Ok((None, false));
            }
        };
        let problems = std::mem::take(&mut decoded.problems);
        for complaint in self.complaints.of(&decoded.key, problems) {
            warn!("{complaint}");
        }
        let version = decoded.version.take();
        self.send(decoded.into_event()).await?;
        Ok((version, true))
    }

    async fn complete(&mut self, list: Listing) -> Result<(), End> {
        self.listed = Some(Instant::now());
        self.is_in_doubt = false;
        self.send(Event::ListComplete {
            kind: self.resource.kind,
            is_whole: list.is_whole,
        })
        .await
    }

    fn progressed(&mut self) {
        self.has_progressed = true;
        self.outage.end(self.resource.kind);
    }

    async fn send(&self, event: Event) -> Result<(), End> {
        self.events.send(event).await.map_err(|_| End::Unheard)
    }
}

/// What is noted of a list while it is told.
#[derive(Debug)]
struct Listing {
    is_whole: bool,
}

/// Reads a page to its end, which may be long in coming as long as something comes.
async fn read_page(mut reader: impl AsyncBufRead + Unpin, body: &mut Vec<u8>) -> Result<(), End> {
    body.clear();
    loop {
        let read = timeout(ANSWER, reader.fill_buf()).await;
        let piece = read
            .map_err(|_| End::silent(ANSWER))?
            .map_err(|error| End::unreachable(&error))?;
        let length = piece.len();
        if length == 0 {
            return Ok(());
        }
        body.extend_from_slice(piece);
        reader.consume_unpin(length);
        if body.len() > LONGEST_PAGE {
            return Err(End::nonsense(format!(
                "a page of more than {LONGEST_PAGE} bytes"
            )));
        }
    }
}

/// The beginning of an answer, to recognise it by.
fn excerpt(body: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(body.get(..60).unwrap_or(body))
}

/// An event of a watch.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Bookmark {
    metadata: BookmarkMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMetadata {
    resource_version: Box<str>,
    annotations: Option<BookmarkAnnotations>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct BookmarkAnnotations {
    #[serde(rename = "k8s.io/initial-events-end")]
    initial_events_end: Option<Box<str>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
    message: String,
    details: Option<Details>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Details {
    causes: Option<Vec<Cause>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Cause {
    reason: Option<String>,
}

impl Status {
    /// Whether it is about a resource version that is still to come, and not another 504: by its
    /// cause, or, before Kubernetes 1.19, by its message.
    fn is_ahead(&self) -> bool {
        let causes = self.details.iter().flat_map(|details| &details.causes);
        causes
            .flatten()
            .any(|cause| cause.reason.as_deref() == Some("ResourceVersionTooLarge"))
            || self.message.contains("Too large resource version")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_version_that_is_still_to_come_is_told_from_other_timeouts() {
        let is_ahead = |code: u16, rest: &str| {
            let text = format!(r#"{{"kind":"Status","code":{code},"reason":"Timeout",{rest}}}"#);
            let status: Status = serde_json::from_str(&text).unwrap();
            matches!(End::from(status), End::Ahead(_))
        };
        let cause = r#""message":"no","details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}"#;
        assert!(is_ahead(504, cause));
        assert!(is_ahead(
            504,
            r#""message":"Too large resource version: 7, current: 5""#
        ));
        assert!(!is_ahead(500, cause));
        for other in [
            r#""message":"Timeout: request did not complete within the allotted timeout""#,
            r#""message":"no","details":null"#,
            r#""message":"no","details":{"causes":null}"#,
            r#""message":"no","details":{"causes":[{"message":"no"},{"reason":"FieldValueInvalid"}]}"#,
        ] {
            assert!(!is_ahead(504, other), "{other}");
        }
    }

    #[test]
    fn watches_do_not_end_in_step() {
        let lengths: BTreeSet<_> = (0..1000).map(|_| any_of(WATCH_SECONDS)).collect();
        assert!(lengths.iter().all(|length| WATCH_SECONDS.contains(length)));
        assert!(lengths.len() > 50, "{lengths:?}");
        assert_eq!(any_of(7..=7), 7);
    }
}
