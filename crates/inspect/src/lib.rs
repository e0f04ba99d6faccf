//! Serves the paths `/api/v1/...` on a local socket and, if the metrics address is a loopback
//! address, at this address as well.
//!
//! ```text
//!   socket ───────┐
//!   metrics pages ┴▶ Inspect ─▶ Question ─▶ the loop: facts, a limited number per turn ──┐
//!                       └─▶ a blocking thread: counters, limits, topology ◀──────────────┘
//!                               └─▶ view ─▶ JSON
//! ```
//!
//! - The daemon's main loop owns the object model and the modes. So the server sends [`Question`]s
//!   to this loop, which replies with copies.
//! - The loop copies a limited number of objects in each turn, so that a turn takes about 2 ms.
//! - A separate thread computes and renders the response.
//! - Between requests, the server stores only counter samples, for a minute. So an unused API needs
//!   no memory.
//! - The API is read-only: it accepts only `GET` and `HEAD`. No response contains a secret.
//!
//! # The local socket
//!
//! The socket is a file in `/run/kube-proxy/inspect`, a directory of mode 0700.
//!
//! - Only root can replace the socket of a stopped daemon.
//! - The file's name is the inode number of the network namespace, so that two test nodes on one
//!   machine use different files.
//! - The client checks the owner of the directory, and the user of the server (`SO_PEERCRED`).
//!
//! On a read-only root file system without a volume, the socket has the abstract name
//! `@kube-proxy-ipvs/inspect`. Any process of the network namespace can bind that name.
//!
//! - The client accepts only a server that runs the client's own program file. If another process
//!   has the name, the client's error names this process.
//! - The daemon accepts only clients of user 0 and of its own user.
//!
//! # The metrics address
//!
//! Any process on the node may send requests to this address, but the kernel shows rules only to
//! root. So responses at this address mention other programs' rules, but do not quote them. The
//! address and the socket have separate limits on requests (`request_limits`).

mod explain;
mod facts;
mod local_only;
mod owners;
mod parts;
mod query;
mod question;
mod request_limits;
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
use local_socket::SocketLocations;
use proxy::IpFamily;
use serde::Serialize;
use service_counters::{Counters, SeparateReaders};
use source::{Registry, Troubles, UnreadableManifests};
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

pub use explain::{claimants, own_node};
pub use facts::{DriftTotal, Facts, FamilyFacts, FamilyProblems};
pub use local_only::refusal;
pub use owners::{Owners, RequestedPorts, owners};
pub use question::{
    ClaimingServices, DRAINS, ENDPOINTS_A_TURN, GroundOfFamily, NAMES_A_TURN, Names, NodeContext,
    Question, SERVICES_A_TURN, ServiceCopy, TROUBLES,
};
pub use request_limits::Asker;
use request_limits::{RequestSlots, TURN_PATIENCE, Trims};

/// Prefix of the paths of all requests.
pub const PREFIX: &str = "/api/v1/";
/// Maximum number of questions that wait in the queue to the daemon's main loop.
const QUEUE: usize = 16;
/// Longest time for which a request waits for a reply of the daemon's main loop.
const LOOP_PATIENCE: Duration = Duration::from_secs(5);

/// Server that responds to requests about the daemon's state.
pub struct Inspect {
    about: About,
    /// Source of the daemon's objects. Empty until the source is open.
    source: OnceLock<Origin>,
    counters: Counters,
    /// Counters for status requests, with their own reader, so that no other request delays a
    /// status.
    status_counters: Counters,
    looks: top::SampleStore,
    health: Arc<dyn Health>,
    questions: mpsc::Sender<Question>,
    trims: Trims,
    of_root: RequestSlots,
    of_anyone: RequestSlots,
}

/// Facts about the daemon's process that do not change.
#[derive(Debug, Clone)]
pub struct About {
    /// Name of this node in the cluster.
    pub node: String,
    /// Time at which the process started.
    pub started: SystemTime,
    /// Version of this program.
    pub version: &'static str,
    /// Kubernetes version of the kube-proxy that this program replaces.
    pub kubernetes: String,
    /// Footprints of the modes in this build.
    pub modes: Footprints,
    /// Function that returns the reason why IPVS lacks the scheduler with the given name, or `None`
    /// if IPVS may have it.
    pub missing_scheduler: fn(&str) -> Option<String>,
    /// Function that returns freed memory to the system. Blocks.
    pub trim: fn(),
    /// Function that returns the other kube-proxies in this network namespace, by process. Blocks.
    pub other_daemons: fn() -> Vec<String>,
}

/// Interface to the state that the daemon's health checks use.
pub trait Health: Send + Sync {
    /// Reports whether the initial lists of objects are complete, so that the first sync may begin.
    fn is_expecting(&self) -> bool;

    /// Lists the conditions that the daemon still waits for before it is ready.
    fn awaiting(&self) -> Vec<String>;

    /// Reports whether the daemon writes changes to the kernel in time.
    fn is_healthy(&self, now: Instant) -> bool;

    /// Returns for each IP family the time up to which the kernel has all changes. Omits a family
    /// for which this time is unknown.
    fn updated(&self) -> BTreeMap<IpFamily, Instant>;
}

/// Source of the daemon's Kubernetes objects.
#[derive(Clone)]
pub struct Origin {
    /// Description of the source for users, without secrets.
    pub from: String,
    /// Access to details of objects that the object model does not store.
    pub registry: Registry,
    /// Errors that the source reports at present.
    pub troubles: Troubles,
    /// Manifests that the source cannot read at present.
    pub unreadable: UnreadableManifests,
}

/// Reason why a request gets an error as its response.
#[derive(Debug, thiserror::Error)]
pub enum RequestRefusal {
    /// The daemon is starting: its initial lists of objects are incomplete.
    #[error("the daemon is starting, and awaits {0}")]
    Starting(String),
    /// The daemon's main loop is busy, or the daemon is ending.
    #[error("the daemon's loop has not answered within {} s: see its log", LOOP_PATIENCE.as_secs())]
    Late,
    /// Too many earlier requests are in progress, or too many of their responses are unread.
    #[error(
        "too many requests are running, and none ended within {} s: try again",
        TURN_PATIENCE.as_secs()
    )]
    Busy,
    /// The request has an invalid path or parameter.
    #[error("{0}")]
    Wrong(String),
    /// The requested object does not exist.
    #[error("{0}")]
    NotFound(String),
    /// A part of the kernel's state cannot be read.
    #[error("{0}")]
    Unreadable(String),
}

impl Inspect {
    /// Creates the server, and the channel through which the daemon's main loop receives its
    /// questions.
    pub fn new(
        about: About,
        health: Arc<dyn Health>,
        counters: &SeparateReaders,
    ) -> (Arc<Self>, mpsc::Receiver<Question>) {
        let (questions, asked) = mpsc::channel(QUEUE);
        let trims = Trims::new(about.trim);
        let inspect = Self {
            looks: top::SampleStore::new(about.trim),
            about,
            source: OnceLock::new(),
            counters: counters.asked.clone(),
            status_counters: counters.status.clone(),
            health,
            questions,
            of_root: RequestSlots::new(&trims),
            of_anyone: RequestSlots::new(&trims),
            trims,
        };
        (Arc::new(inspect), asked)
    }

    /// Starts the server on the local socket.
    pub fn listen(self: &Arc<Self>) -> socket::Server {
        socket::start(SocketLocations::default(), ByRoot(Arc::clone(self)))
    }

    /// Sets the source of the daemon's objects.
    pub fn comes_from(&self, source: Origin) {
        // Ignores the result, because the daemon sets the source only once.
        let _ = self.source.set(source);
    }

    /// Responds to a request for a path under [`PREFIX`].
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
        // Runs in a separate task. If the client disconnects, the request still counts towards the
        // limits until its work ends.
        let (inspect, uri) = (Arc::clone(self), head.uri.clone());
        let answered = tokio::spawn(async move {
            let _turn = turn;
            inspect.answered(&uri, asker).await
        });
        answered
            .await
            .unwrap_or_else(|ended| refused(&RequestRefusal::Unreadable(ended.to_string())))
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
                        None => Err(RequestRefusal::NotFound(
                            "there is no such path: see docs/api.md".to_owned(),
                        )),
                    },
                };
                // The copied objects are freed here, so their memory can return to the system soon.
                // Counter samples are freed later.
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

    fn room(&self, asker: Asker) -> &RequestSlots {
        match asker {
            Asker::Root => &self.of_root,
            Asker::Anyone => &self.of_anyone,
        }
    }

    /// Sends a question to the daemon's main loop, and waits for the reply.
    async fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Question,
    ) -> Result<T, RequestRefusal> {
        if !self.health.is_expecting() {
            return Err(RequestRefusal::Starting(self.health.awaiting().join("; ")));
        }
        let (answer, answered) = oneshot::channel();
        let asked = async {
            self.questions.send(question(answer)).await.ok()?;
            answered.await.ok()
        };
        match timeout(LOOP_PATIENCE, asked).await {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) | Err(_) => Err(RequestRefusal::Late),
        }
    }
}

/// Returns the part of the path after [`PREFIX`].
fn path(uri: &Uri) -> &str {
    uri.path().strip_prefix(PREFIX).unwrap_or_default()
}

/// Handler of requests at the local socket, whose clients have the rights of root.
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

impl RequestRefusal {
    fn code(&self) -> StatusCode {
        match self {
            Self::Starting(_) | Self::Late | Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::Wrong(_) => StatusCode::BAD_REQUEST,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Unreadable(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

fn refused(why: &RequestRefusal) -> Answer {
    failed(why.code(), &why.to_string())
}

fn failed(code: StatusCode, why: &str) -> Answer {
    let body = serde_json::json!({ "error": why }).to_string();
    uncached(answer(code, "application/json", body))
}

/// Adds a header that forbids caching, because a response is only a snapshot.
fn uncached(mut answer: Answer) -> Answer {
    let not = HeaderValue::from_static("no-store");
    answer.headers_mut().insert(header::CACHE_CONTROL, not);
    answer
}

/// Computes an object and renders it as JSON, on a thread that may block.
async fn rendered<T: Serialize>(
    work: impl FnOnce() -> Result<T, RequestRefusal> + Send + 'static,
) -> Result<Vec<u8>, RequestRefusal> {
    let rendered = spawn_blocking(move || {
        let object = work()?;
        serde_json::to_vec(&object).map_err(|error| RequestRefusal::Unreadable(error.to_string()))
    });
    let ended = |error: tokio::task::JoinError| RequestRefusal::Unreadable(error.to_string());
    rendered.await.map_err(ended)?
}

/// Parses a path with its query string, for the fuzzer.
#[doc(hidden)]
pub fn read_query(text: &str) {
    if let Ok(uri) = text.parse::<Uri>() {
        drop(query::Query::read(&uri));
    }
}

#[cfg(test)]
mod tests;
