//! What can be seen of the running daemon: `/api/v1/...`, answered on a local socket, and at the
//! metrics address where that is loopback.
//!
//! ```text
//!   socket ───────┐            Question ─▶ the loop: facts, a bounded piece a turn ─┐
//!   metrics pages ┴▶ Inspect ─▶                                                     ├─▶ view ─▶ JSON
//!                              a blocking thread: counters, limits, topology ◀──────┘
//! ```
//!
//! The loop owns the model and the modes, so that it is asked ([`Question`]). It hands out copies, so
//! many of them in one of its turns as take it no longer than about 2 ms; whatever is worked out of
//! them, and all rendering, happens on a blocking thread. Nothing is kept for those who may ask: what
//! nobody asks for takes no memory.
//!
//! Everything here is read-only: nothing but `GET` is answered, and no answer has a secret in it.
//!
//! # The local socket
//!
//! It is an abstract UNIX socket, `@kube-proxy-ipvs/inspect`. Abstract names belong to the network
//! namespace, as what the daemon programs does: the same name is the same daemon on the node, in the
//! daemon's container and with `kubectl exec`, and two nodes of a test on one machine do not meet. A
//! file would need a folder that both have mounted and may write to (the container's root is
//! read-only), and cleaning up after a crash, which the kernel does for an abstract name. What a file
//! has in permissions, the kernel says of each peer (`SO_PEERCRED`): root of the node, or who runs
//! the daemon, may ask, and nobody else.

pub(crate) mod explain;
mod facts;
mod local_only;
pub(crate) mod owners;
mod parts;
mod query;
pub(crate) mod question;
mod service;
mod services;
pub(crate) mod socket;
mod status;
mod top;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};
use hyper::body::Bytes;
use serde::Serialize;
use source::{Registry, Troubles};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

pub(crate) use facts::{Facts, OfFamily};
pub(crate) use local_only::refusal;
pub(crate) use question::Question;

use crate::healthz;
use crate::http_server::{Answer, Respond, answer, not_found};
use crate::modes::counters::Counters;

/// Under which all of it is.
pub(crate) const PREFIX: &str = "/api/v1/";
/// Questions that wait for the loop.
const QUEUE: usize = 16;
/// Answers that are worked out beside each other: what they hold in memory is bounded so.
const AT_ONCE: usize = 4;
/// How much of answers may wait to be taken by those who asked, in KiB: some may read slowly, or
/// nothing.
const UNTAKEN_KIB: u32 = 32 << 10;
/// How long the loop may take for a question, whatever else it does.
const LOOP_PATIENCE: Duration = Duration::from_secs(5);

/// Answers what can be seen.
pub(crate) struct Inspect {
    about: About,
    /// Where objects come from, once that is open.
    source: OnceLock<Origin>,
    counters: Counters,
    looks: top::Looks,
    health: Arc<healthz::Status>,
    questions: mpsc::Sender<Question>,
    at_once: Arc<Semaphore>,
    /// In KiB.
    untaken: Arc<Semaphore>,
    /// How many read the kernel rule by rule.
    explaining: Arc<Semaphore>,
}

/// What does not change while the process runs.
#[derive(Debug, Clone)]
pub(crate) struct About {
    /// The node's name.
    pub(crate) node: String,
    /// When the process began.
    pub(crate) started: SystemTime,
}

/// Where objects come from.
#[derive(Clone)]
pub(crate) struct Origin {
    /// In words, without secrets.
    pub(crate) from: String,
    /// Whom to ask for what the model does not keep.
    pub(crate) registry: Registry,
    /// What fails there.
    pub(crate) troubles: Troubles,
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unanswered {
    /// The first lists are still awaited.
    #[error("the daemon is starting, and awaits {0}")]
    Starting(String),
    /// It is busy, or ends.
    #[error("the daemon's loop has not answered within {} s: see its log", LOOP_PATIENCE.as_secs())]
    Late,
    /// Others are asking what reads much.
    #[error(
        "{} such questions are being answered, and none of them has ended within {} s: ask again",
        explain::AT_ONCE,
        explain::TURN_PATIENCE.as_secs()
    )]
    Busy,
    /// The question cannot be meant.
    #[error("{0}")]
    Wrong(String),
    /// There is no such object.
    #[error("{0}")]
    NotFound(String),
    /// What is to be read cannot be.
    #[error("{0}")]
    Unreadable(String),
}

impl Inspect {
    /// Answers, and the end at which the loop takes questions.
    pub(crate) fn new(
        about: About,
        health: Arc<healthz::Status>,
        counters: Counters,
    ) -> (Arc<Self>, mpsc::Receiver<Question>) {
        let (questions, asked) = mpsc::channel(QUEUE);
        let inspect = Self {
            about,
            source: OnceLock::new(),
            counters,
            looks: top::Looks::default(),
            health,
            questions,
            at_once: Arc::new(Semaphore::new(AT_ONCE)),
            untaken: Arc::new(Semaphore::new(UNTAKEN_KIB as usize)),
            explaining: Arc::new(Semaphore::new(explain::AT_ONCE)),
        };
        (Arc::new(inspect), asked)
    }

    /// Takes in where objects come from.
    pub(crate) fn comes_from(&self, source: Origin) {
        // There is one start.
        let _ = self.source.set(source);
    }

    /// What a request for a path under [`PREFIX`] is answered.
    pub(crate) async fn respond(self: &Arc<Self>, head: &Parts) -> Answer {
        if head.method != Method::GET && head.method != Method::HEAD {
            let why = "only GET is answered: nothing can be changed here";
            let mut answer = failed(StatusCode::METHOD_NOT_ALLOWED, why);
            let allowed = HeaderValue::from_static("GET, HEAD");
            answer.headers_mut().insert(header::ALLOW, allowed);
            return answer;
        }
        let permit = Arc::clone(&self.at_once).acquire_owned();
        // It is not closed.
        let Ok(Ok(permit)) = timeout(LOOP_PATIENCE, permit).await else {
            return refused(&Unanswered::Busy);
        };
        // Whoever asked may go; what was begun holds its place until it has ended, on whatever thread.
        let (inspect, head) = (Arc::clone(self), head.clone());
        let answered = tokio::spawn(async move {
            let _permit = permit;
            inspect.answered(&head).await
        });
        answered
            .await
            .unwrap_or_else(|ended| refused(&Unanswered::Unreadable(ended.to_string())))
    }

    async fn answered(&self, head: &Parts) -> Answer {
        let path = head.uri.path().strip_prefix(PREFIX).unwrap_or_default();
        match path {
            "status" => self.told(self.status().await).await,
            "services" => self.told(self.services(&head.uri).await).await,
            "explain" => self.told(self.explain(&head.uri).await).await,
            "top" => self.told(self.top(&head.uri).await).await,
            _ => match path.strip_prefix("services/") {
                Some(name) => self.told(self.service(name).await).await,
                None => failed(
                    StatusCode::NOT_FOUND,
                    "there is no such path: see docs/api.md",
                ),
            },
        }
    }

    /// What an object, or that there is none, is answered as. It counts as untaken until all of it is
    /// sent, or the connection has ended.
    async fn told(&self, found: Result<Vec<u8>, Unanswered>) -> Answer {
        let json = match found {
            Ok(json) => json,
            Err(why) => return refused(&why),
        };
        let size = u32::try_from(json.len() >> 10).unwrap_or(u32::MAX);
        let size = size.saturating_add(1).min(UNTAKEN_KIB);
        let room = Arc::clone(&self.untaken).acquire_many_owned(size);
        let Ok(Ok(room)) = timeout(LOOP_PATIENCE, room).await else {
            return refused(&Unanswered::Busy);
        };
        let body = Bytes::from_owner(Untaken { json, _room: room });
        uncached(answer(StatusCode::OK, "application/json", body))
    }

    /// Asks the loop.
    async fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Question,
    ) -> Result<T, Unanswered> {
        if !self.health.is_expecting() {
            return Err(Unanswered::Starting(self.health.awaiting().join("; ")));
        }
        let (answer, answered) = oneshot::channel();
        let asked = async {
            self.questions.send(question(answer)).await.ok()?;
            answered.await.ok()
        };
        match timeout(LOOP_PATIENCE, asked).await {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) | Err(_) => Err(Unanswered::Late),
        }
    }
}

#[cfg(test)]
impl Inspect {
    /// Of a node whose daemon is starting.
    pub(crate) fn unasked(node: &str) -> (Arc<Self>, mpsc::Receiver<Question>) {
        use crate::health::Health;
        use crate::options::object_source::OwnNode;
        let health = Arc::new(Health::new(Duration::from_secs(30)));
        let health = Arc::new(healthz::Status::new(health, OwnNode::Needed));
        let about = About {
            node: node.to_owned(),
            started: SystemTime::UNIX_EPOCH,
        };
        Self::new(about, health, Counters::default())
    }
}

/// An answer that somebody is to take.
struct Untaken {
    json: Vec<u8>,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Untaken {
    fn as_ref(&self) -> &[u8] {
        &self.json
    }
}

impl Respond for Arc<Inspect> {
    async fn respond(&self, head: &Parts) -> Answer {
        if head.uri.path().starts_with(PREFIX) {
            Inspect::respond(self, head).await
        } else {
            not_found()
        }
    }
}

impl Unanswered {
    fn code(&self) -> StatusCode {
        match self {
            Self::Starting(_) | Self::Late | Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::Wrong(_) => StatusCode::BAD_REQUEST,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Unreadable(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

fn refused(why: &Unanswered) -> Answer {
    failed(why.code(), &why.to_string())
}

fn failed(code: StatusCode, why: &str) -> Answer {
    let body = serde_json::json!({ "error": why }).to_string();
    uncached(answer(code, "application/json", body))
}

/// It is of this moment.
fn uncached(mut answer: Answer) -> Answer {
    let not = HeaderValue::from_static("no-store");
    answer.headers_mut().insert(header::CACHE_CONTROL, not);
    answer
}

/// Works something out, and renders it, where nobody waits for it.
async fn rendered<T: Serialize>(
    work: impl FnOnce() -> Result<T, Unanswered> + Send + 'static,
) -> Result<Vec<u8>, Unanswered> {
    let rendered = spawn_blocking(move || {
        let object = work()?;
        serde_json::to_vec(&object).map_err(|error| Unanswered::Unreadable(error.to_string()))
    });
    let ended = |error: tokio::task::JoinError| Unanswered::Unreadable(error.to_string());
    rendered.await.map_err(ended)?
}

#[cfg(test)]
mod tests;
