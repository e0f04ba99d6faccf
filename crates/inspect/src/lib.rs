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
//! It is a file in `/run/kube-proxy/inspect`, a folder of mode 0700, so that no process but root's can
//! take the daemon's place while that is down. The file's name is the number of the network namespace:
//! two nodes of a test on one machine do not meet. The client looks at the folder's owner and at its
//! peer (`SO_PEERCRED`). Where the folder cannot be made (a read-only root without a volume there) it
//! is the abstract socket `@kube-proxy-ipvs/inspect`, which any process of the network namespace can
//! take: a client then asks nobody but a process that runs the client's own program file, and names
//! any other. User 0 and the user that runs the daemon may ask.
//!
//! At the metrics address whoever is on the node may ask. They are not told what the kernel tells root
//! alone: rules of others are named there, and not quoted (`rooms` keeps both from each other).

mod explain;
mod facts;
mod local_only;
mod owners;
mod parts;
mod query;
mod question;
mod rooms;
mod service;
mod services;
pub mod socket;
mod status;
mod top;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use footprint::Footprints;
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, Uri, header};
use http_server::{Answer, Respond, answer, not_found};
use local_socket::Places;
use proxy::IpFamily;
use serde::Serialize;
use service_counters::{Apart, Counters};
use source::{Registry, Troubles};
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

pub use explain::{claimants, own_node};
pub use facts::{DriftTotal, Facts, OfFamily, Seen};
pub use local_only::refusal;
pub use owners::{Owners, Wanted, owners};
pub use question::{
    Claimed, Copied, DRAINS, ENDPOINTS_A_TURN, Ground, GroundOfFamily, NAMES_A_TURN, Names,
    Question, SERVICES_A_TURN, TROUBLES,
};
pub use rooms::Asker;
use rooms::{Room, TURN_PATIENCE, Trims};

/// Under which all of it is.
pub const PREFIX: &str = "/api/v1/";
/// Questions that wait for the loop.
const QUEUE: usize = 16;
/// How long the loop may take for a question, whatever else it does.
const LOOP_PATIENCE: Duration = Duration::from_secs(5);

/// Answers what can be seen.
pub struct Inspect {
    about: About,
    /// Where objects come from, once that is open.
    source: OnceLock<Origin>,
    counters: Counters,
    /// The same, for status alone.
    status_counters: Counters,
    looks: top::Looks,
    health: Arc<dyn Health>,
    questions: mpsc::Sender<Question>,
    trims: Trims,
    of_root: Room,
    of_anyone: Room,
}

/// What does not change while the process runs.
#[derive(Debug, Clone)]
pub struct About {
    /// The node's name.
    pub node: String,
    /// When the process began.
    pub started: SystemTime,
    /// This program's version.
    pub version: &'static str,
    /// The version of Kubernetes that this program matches.
    pub kubernetes: String,
    /// The modes of this build.
    pub modes: Footprints,
    /// Returns why IPVS cannot schedule by this name here; `None` if nothing speaks against it.
    pub missing_scheduler: fn(&str) -> Option<String>,
    /// Gives free memory back to the system, by blocking.
    pub trim: fn(),
}

/// The daemon's health.
pub trait Health: Send + Sync {
    /// Reports whether the first lists are complete.
    fn is_expecting(&self) -> bool;

    /// Returns what is awaited before the daemon is ready, a line each.
    fn awaiting(&self) -> Vec<String>;

    /// Reports whether the daemon keeps up.
    fn is_healthy(&self, now: Instant) -> bool;

    /// Returns for each family when the kernel last had everything that was asked before; without
    /// families for which it never had.
    fn updated(&self) -> BTreeMap<IpFamily, Instant>;
}

/// Where objects come from.
#[derive(Clone)]
pub struct Origin {
    /// In words, without secrets.
    pub from: String,
    /// Whom to ask for what the model does not keep.
    pub registry: Registry,
    /// What fails there.
    pub troubles: Troubles,
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// The first lists are still awaited.
    #[error("the daemon is starting, and awaits {0}")]
    Starting(String),
    /// It is busy, or ends.
    #[error("the daemon's loop has not answered within {} s: see its log", LOOP_PATIENCE.as_secs())]
    Late,
    /// Others are asking, or have not taken what they asked for.
    #[error(
        "others ask, or do not take their answers, and none of them has ended within {} s: ask again",
        TURN_PATIENCE.as_secs()
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
    pub fn new(
        about: About,
        health: Arc<dyn Health>,
        counters: &Apart,
    ) -> (Arc<Self>, mpsc::Receiver<Question>) {
        let (questions, asked) = mpsc::channel(QUEUE);
        let trims = Trims::new(about.trim);
        let inspect = Self {
            looks: top::Looks::new(about.trim),
            about,
            source: OnceLock::new(),
            counters: counters.asked.clone(),
            status_counters: counters.status.clone(),
            health,
            questions,
            of_root: Room::new(&trims),
            of_anyone: Room::new(&trims),
            trims,
        };
        (Arc::new(inspect), asked)
    }

    /// Starts to answer on the local socket.
    pub fn listen(self: &Arc<Self>) -> socket::Server {
        socket::start(Places::default(), ByRoot(Arc::clone(self)))
    }

    /// Takes in where objects come from.
    pub fn comes_from(&self, source: Origin) {
        // There is one start.
        let _ = self.source.set(source);
    }

    /// What a request for a path under [`PREFIX`] is answered.
    pub async fn respond(self: &Arc<Self>, head: &Parts, asker: Asker) -> Answer {
        if head.method != Method::GET && head.method != Method::HEAD {
            let why = "only GET is answered: nothing can be changed here";
            let mut answer = failed(StatusCode::METHOD_NOT_ALLOWED, why);
            let allowed = HeaderValue::from_static("GET, HEAD");
            answer.headers_mut().insert(header::ALLOW, allowed);
            return answer;
        }
        let room = self.room(asker);
        let turn = match path(&head.uri) {
            "status" => room.status_turn().await,
            _ => room.turn().await,
        };
        let turn = match turn {
            Ok(turn) => turn,
            Err(busy) => return refused(&busy),
        };
        // Whoever asked may go; what was begun holds its place until it has ended, on whatever thread.
        let (inspect, uri) = (Arc::clone(self), head.uri.clone());
        let answered = tokio::spawn(async move {
            let _turn = turn;
            inspect.answered(&uri, asker).await
        });
        answered
            .await
            .unwrap_or_else(|ended| refused(&Unanswered::Unreadable(ended.to_string())))
    }

    async fn answered(&self, uri: &Uri, asker: Asker) -> Answer {
        let found = match path(uri) {
            "status" => self.status().await,
            "top" => self.top(uri).await,
            path => {
                let found = match path {
                    "services" => self.services(uri).await,
                    "explain" => self.explain(uri, asker).await,
                    _ => match path.strip_prefix("services/") {
                        Some(name) => self.service(name).await,
                        None => Err(Unanswered::NotFound(
                            "there is no such path: see docs/api.md".to_owned(),
                        )),
                    },
                };
                // What it was worked out of is free again; looks are kept, and forgotten by themselves.
                self.trims.soon();
                found
            }
        };
        let json = match found {
            Ok(json) => self.room(asker).untaken(json).await,
            Err(why) => Err(why),
        };
        match json {
            Ok(json) => uncached(answer(StatusCode::OK, "application/json", json)),
            Err(why) => refused(&why),
        }
    }

    fn room(&self, asker: Asker) -> &Room {
        match asker {
            Asker::Root => &self.of_root,
            Asker::Anyone => &self.of_anyone,
        }
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

/// The path under [`PREFIX`].
fn path(uri: &Uri) -> &str {
    uri.path().strip_prefix(PREFIX).unwrap_or_default()
}

/// Answers by the local socket.
struct ByRoot(Arc<Inspect>);

impl Respond for ByRoot {
    async fn respond(&self, head: &Parts) -> Answer {
        if head.uri.path().starts_with(PREFIX) {
            self.0.respond(head, Asker::Root).await
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

/// Reads a path with a query.
#[doc(hidden)]
pub fn read_query(text: &str) {
    if let Ok(uri) = text.parse::<Uri>() {
        drop(query::Query::read(&uri));
    }
}

#[cfg(test)]
mod tests;
