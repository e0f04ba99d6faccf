//! One kind of object, listed and then watched for ever.
//!
//! ```text
//!          ┌──────────────────── list ◀───────────────────────────┐ expired, or
//!          ▼                                                      │ of another life
//!   watch from a resource version ─ ended ─▶ watch from the last one seen
//! ```
//!
//! What a list costs the server depends on how it is asked for:
//!
//! | list | asked for as | comes from |
//! |---|---|---|
//! | the first | `resourceVersion=0`, with a limit | the watch cache, whole; in pages from a server without one |
//! | a further one | not older than what was seen | the watch cache, whole, once it is as new as that |
//! | after "too large" or "gone" | the newest | the watch cache or etcd, as the server has it |
//! | streamed, if that is wanted | `sendInitialEvents` | the watch cache, as the beginning of a watch |
//!
//! So a first list may be of a cache that lags behind, as upstream's may, but nothing goes back in
//! time after that.
//!
//! A server that comes back with its storage restored from a backup counts its resource versions
//! from an earlier one. A watch from a version that is still to come stays silent until the count
//! has got there, and what happens meanwhile is never told; so after a failure, before going on,
//! the server is asked whether it has reached that version. If it has not, or has forgotten what
//! changed since, the list follows at once: there is one wait to an outage, and `backoff` says how
//! long it is. Nothing else is a reason to list anew: after a refusal (429, 5xx), a timeout or a
//! connection that broke, the watch goes on from the last version.
//!
//! `kube::runtime::watcher` does the same, but does not fit here: it never falls back from a
//! streamed list that the server does not know, it reconnects without any delay to a server that
//! closes at once, one object that does not decode costs it the whole page, and it cannot tell an
//! empty list of Services from an empty list of something else, after which everything would be
//! deleted.

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
use super::messages::{Messages, Next};
use super::outage::{Failure, Outage};
use super::request::{Age, Answer, Format, Need, Resource, get};
use crate::complaints::Complaints;
use crate::decode::{Decoded, Status, Unnamed, Watched, json, kind_name, protobuf};
use crate::settings::{ContentType, Lists};
use listing::{Listing, is_older};

/// How long the beginning of an answer may take. Also the longest that a server may ask to be left
/// alone.
const ANSWER: Duration = Duration::from_mins(1);
/// How long a streamed list may stay silent before the server is taken to know none.
const FIRST_EVENT: Duration = Duration::from_secs(30);
/// How long a server that does not stream lists is not asked to again.
const UNSTREAMED: Duration = Duration::from_mins(10);
/// How long a watch lasts, at least and at most: what all nodes opened when a server came back is
/// not to end on all at once.
const WATCH_SECONDS: std::ops::RangeInclusive<u32> = 180..=290;
/// How long a watch that broke is left alone, at most: it may have broken on all nodes at once.
/// Also what is added to `Retry-After`, which may be the same for all.
const SPREAD: Duration = Duration::from_secs(1);
/// A watch that is silent for so long is opened anew: it may be dead, as a server sends a bookmark
/// every minute; from one that does not, it costs a request.
const SILENCE: Duration = Duration::from_secs(90);
/// A watch that has been open for so long is one, even if nothing has happened yet.
const SETTLED: Duration = Duration::from_secs(1);
/// How often the tasks of a connection get their turn before its next request: each of them (what
/// reads it, what waits for its end, who keeps it) hands on to the next.
const HANDOVER: usize = 4;
/// So many watches in a row that break at something which cannot be read, without anything new
/// before it, and the watch is given up for a list: that leaves out what the watch stumbles over.
const STUMBLES_MAX: u32 = 2;
/// So many refusals in a row (500) of requests for what is not older than a version, and the server
/// is asked without one: that may be what it cannot read.
const REFUSALS_MAX: u32 = 2;
/// Bytes of an answer that are read though they do not matter, so that its connection can be used
/// again.
const LONGEST_REST: u64 = 64 << 10;

/// What a request asks for, as far as a server may be unable to read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Objects that are not older than a version.
    NotOlder,
    /// Anything else.
    Anything,
}

/// Lists and watches one kind of object.
pub(super) struct ListWatch {
    client: Client,
    content_type: ContentType,
    lists: Lists,
    resource: Resource,
    outage: Arc<Outage>,
    events: mpsc::Sender<Event>,
    /// When the server refused to stream a list.
    unstreamed: Option<Instant>,
    /// It has given a list in pages, and so has no watch cache.
    has_pages: bool,
    /// Everything up to here is known; nothing is, or not any more, where it is not there.
    version: Option<String>,
    /// How new a list must be, if there is to be another: nothing goes back in time.
    next_list: Age,
    /// The server has been away since, and may have come back as another.
    is_in_doubt: bool,
    /// How many watches have broken at what cannot be read since something new was told.
    stumbles: u32,
    /// How many requests for what is not older than a version were refused with 500 in a row.
    refusals: u32,
    /// What the request at hand asks for.
    asked: Asked,
    /// Why the server does not tell of this kind, which need not be told: the HTTP status.
    untold: Option<u16>,
    /// How long the server asked to be left alone.
    retry_after: Option<Duration>,
    /// Since when everything has been known, if it has been on the connection at hand.
    listed: Option<Instant>,
    /// Whether the connection at hand has brought anything.
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
            asked: Asked::Anything,
            untold: None,
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
            let is_stream = is_list && self.streams();
            may_list &= !is_list;
            self.asked = match self.next_list {
                Age::NotOlderThan(_) if is_list => Asked::NotOlder,
                _ => Asked::Anything,
            };
            self.listed = (!is_list).then(Instant::now);
            let result = match self.version.clone() {
                Some(version) => self.watch(&version).await,
                None if is_stream => self.list_streamed().await,
                None => self.list().await,
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
                Ok(()) if is_settled || (is_list && !is_stream) => continue,
                // Closed soon, but not in vain: no outage, and no hurry either.
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
                    debug!("{name}s: the server has forgotten what changed since; listing again");
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
                Err(End::Failed(Failure::Refused {
                    code: code @ (403 | 404),
                    message,
                })) if self.resource.need != Need::Needed => {
                    self.is_in_doubt = true;
                    cost = Cost::InVain;
                    if self.go_without(code, &message).await.is_err() {
                        return;
                    }
                }
                Err(End::Failed(failure)) => {
                    self.is_in_doubt = true;
                    match failure {
                        // The version that it was asked for may be what it cannot read.
                        Failure::Refused {
                            code: 400 | 422, ..
                        } => {
                            self.version = None;
                            if is_list {
                                self.next_list = Age::Newest;
                            }
                        }
                        // Until 1.38, a version that storage cannot read is an internal error.
                        Failure::Refused { code: 500, .. } if self.is_unreadable().await => {
                            self.version = None;
                            self.next_list = Age::Newest;
                        }
                        // Another server may take its place.
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
            if cost == Cost::InVain {
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

    /// The server does not tell of this kind, and need not.
    async fn go_without(&mut self, code: u16, message: &str) -> Result<(), End> {
        let kind = self.resource.kind;
        self.outage.end(kind);
        if self.untold.replace(code) == Some(code) {
            return Ok(());
        }
        let name = kind_name(kind);
        if let Need::Optional { right, since } = self.resource.need {
            let beginning = format!("the API server does not tell of {name}s");
            let end = "what needs them is left out, and all else is served; they are asked for again, later and later";
            if code == 404 {
                info!("{beginning}: it has none, which Kubernetes has from {since} on; {end}");
            } else {
                warn!("{beginning}: {message}; {end}; its role is to allow {right}");
            }
        }
        // Nobody is to wait for them.
        let is_whole = false;
        self.send(Event::ListComplete { kind, is_whole }).await
    }

    async fn watch(&mut self, version: &str) -> Result<(), End> {
        if self.is_in_doubt {
            self.asked = Asked::NotOlder;
            self.is_reached(version).await?;
            self.asked = Asked::Anything;
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

    /// Reports whether the server refuses a version that it is asked for, and nothing else: it has
    /// refused often enough, and answers where no version is named.
    async fn is_unreadable(&mut self) -> bool {
        self.refusals = match self.asked {
            Asked::NotOlder => self.refusals + 1,
            Asked::Anything => 0,
        };
        if self.refusals < REFUSALS_MAX {
            return false;
        }
        self.refusals = 0;
        match self.ask(&self.resource.sample()).await {
            Ok(answer) => {
                // What is in the answer does not matter.
                _ = timeout(ANSWER, read_rest(answer)).await;
                true
            }
            Err(_) => false,
        }
    }

    /// Asks for one object as of `version` or later; a server that has not got there says so.
    async fn is_reached(&mut self, version: &str) -> Result<(), End> {
        let answer = self.ask(&self.resource.glance(version)).await?;
        let rest = read_rest(answer);
        // What is in the answer does not matter.
        _ = timeout(ANSWER, rest).await;
        Ok(())
    }

    /// Sends a request; the answer, if it is not a refusal.
    async fn ask(&mut self, target: &str) -> Result<Answer, End> {
        let request = get(target, self.content_type);
        let request = request.map_err(|error| End::nonsense(error.to_string()))?;
        // The connection of the answer before can be used again once its tasks have seen the end:
        // else there would be a new one, with a handshake, for each request.
        for _ in 0..HANDOVER {
            yield_now().await;
        }
        let answer = timeout(ANSWER, self.client.send(request)).await;
        let answer = answer.map_err(|_| End::silent(ANSWER))??;
        let status = answer.status();
        let retry_after = answer.headers().get(RETRY_AFTER).cloned();
        let answer = Answer::new(answer);
        if status.is_success() {
            return Ok(answer);
        }
        // Not a date, which no API server gives.
        let seconds = retry_after.and_then(|value| value.to_str().ok()?.parse().ok());
        self.retry_after = seconds.map(Duration::from_secs);
        let format = answer.format;
        // The status code says enough when its explanation does not come.
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

    /// Reads a watch to its end. With a list, objects come first that are it.
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
                    // Of many that have come together, only the last is worth a look at the clock.
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
                Ok(Ok(Next::TooLong)) => {
                    return Err(End::nonsense("an event that is too long"));
                }
                Ok(Ok(Next::End)) if list.is_some() => {
                    return Err(End::nonsense("a list that ends before it is complete"));
                }
                // No bookmark has come either: it may be a server whose versions are from before.
                Err(_) => {
                    self.is_in_doubt = true;
                    return Ok(());
                }
                // The next connection shows whether the server is away.
                Ok(Ok(Next::End)) => return Ok(()),
                Ok(Ok(Next::Event)) => {}
            }
            if !messages.event().is_empty() {
                self.event(messages.format, messages.event(), &mut list)
                    .await?;
                patience = SILENCE;
            }
        }
    }

    /// Takes one event of a watch.
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
            Watched::Applied(object) => {
                let told = self.tell(object).await?;
                if let Some(list) = list {
                    list.is_whole &= told.is_named;
                }
                told.version
            }
            Watched::Deleted(Ok((key, version))) => {
                self.complaints.forget(&key);
                self.send(key.into_deletion()).await?;
                version
            }
            Watched::Deleted(Err(unnamed)) => {
                warn!("the API server deleted a {unnamed}");
                None
            }
            Watched::Bookmark { version, ends_list } => {
                if ends_list && let Some(list) = list.take() {
                    self.complete(list).await?;
                } else if list.is_none() && is_older(&self.next_list, Some(&version)) {
                    return Err(End::Ahead(format!("a bookmark of version {version}")));
                }
                Some(version)
            }
            Watched::Refused(status) => return Err(status.into()),
        };
        // While the list is told, a version says nothing about what is still to come.
        if list.is_none() {
            if let Some(version) = version {
                self.reached(version.into());
            }
            self.progressed();
        }
        Ok(())
    }

    /// Tells of one object.
    async fn tell(&mut self, object: Result<Decoded, Unnamed>) -> Result<Told, End> {
        let mut decoded = match object {
            Ok(decoded) => decoded,
            Err(unnamed) => {
                warn!("from the API server, a {unnamed}");
                return Ok(Told::default());
            }
        };
        let problems = std::mem::take(&mut decoded.problems);
        for complaint in self.complaints.of(&decoded.key, &problems) {
            warn!("{complaint}");
        }
        let version = decoded.version.take();
        self.send(decoded.into_event()).await?;
        Ok(Told {
            version,
            is_named: true,
        })
    }

    /// Everything up to this version has been told.
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

/// What was told of an object.
#[derive(Debug, Default)]
struct Told {
    version: Option<Box<str>>,
    is_named: bool,
}

/// The rest of an answer, as much of it as is worth reading.
async fn read_rest(answer: Answer) -> Vec<u8> {
    let mut text = Vec::new();
    // What breaks off is as good as what does not.
    _ = answer.body.take(LONGEST_REST).read_to_end(&mut text).await;
    text
}

/// An error, and the beginning of what it is in.
fn shown(error: &str, event: &[u8]) -> String {
    let beginning = String::from_utf8_lossy(event.get(..60).unwrap_or(event));
    format!("{error} in {beginning:?}")
}

#[cfg(test)]
mod tests;
