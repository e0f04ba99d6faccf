//! A small HTTP/1.1 server on one address. The caller provides the response to each request.
//!
//! ```text
//!   Listen: TCP, a local socket ─▶ AcceptedConnection ─▶ ConnectionSlot ─▶ TimedStream
//!       ─▶ Respond ─▶ Answer
//! ```
//!
//! - Most pages are functions. A page that has to wait implements [`Respond`].
//! - Every host can connect to some of the ports. So `connection_slots` limits the number of
//!   connections, `step_timeouts` limits the time of each step, and the memory of a connection is
//!   limited.
//! - The server does not read the bodies of requests.

mod accept;
mod connection_slots;
mod listen;
mod step_timeouts;
#[doc(hidden)]
pub mod testing;
mod thread;

use std::convert::Infallible;
use std::future::ready;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;
use tracing::{debug, error, info};

pub use accept::{AcceptedConnection, Listen};
pub use connection_slots::Client;
use connection_slots::{ConnectionSlot, ConnectionSlots};
use listen::listen;
pub use listen::{Unspecified, listen_on};
use step_timeouts::TimedStream;
pub use thread::HttpThread;

/// Maximum size of a request's head (method, path and headers), in bytes. Every probe sends less.
/// Each connection may use this much memory.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Pause after the kernel refused to accept a connection, for example because the process has no
/// free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Interval between attempts to bind an address that another process has bound. Upstream uses the
/// same interval.
const LISTEN_RETRY_PERIOD: Duration = if cfg!(test) {
    Duration::from_millis(50)
} else {
    Duration::from_secs(5)
};

/// Handler that responds to requests. Every function that returns a response without waiting
/// implements this trait.
pub trait Respond: Send + Sync + 'static {
    /// Returns the response to a request with this head (method, path and headers).
    fn respond(&self, head: &Parts) -> impl Future<Output = Answer> + Send;
}

impl<F: Fn(&Parts) -> Answer + Send + Sync + 'static> Respond for F {
    fn respond(&self, head: &Parts) -> impl Future<Output = Answer> + Send {
        ready(self(head))
    }
}

/// An HTTP response, whose whole body is in memory.
pub type Answer = Response<Full<Bytes>>;

/// Creates a response. Its header `nosniff` forbids browsers to guess another content type.
pub fn answer(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().extend([
        (header::CONTENT_TYPE, HeaderValue::from_static(content_type)),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
    ]);
    answer
}

/// Creates a response in plain text.
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    answer(status, "text/plain; charset=utf-8", body)
}

/// Creates the response 403 to a client without access. The server then closes the connection.
fn refused(why: &str) -> Answer {
    let mut answer = text(StatusCode::FORBIDDEN, why.to_owned() + "\n");
    let close = HeaderValue::from_static("close");
    answer.headers_mut().insert(header::CONNECTION, close);
    answer
}

/// Creates the response 404 for an unknown path, with the same text as Go's HTTP server.
pub fn not_found() -> Answer {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// Names of a server in the log, in the flags and in Kubernetes events.
#[derive(Debug, Clone, Copy)]
pub struct Purpose {
    /// Name of the server in the log, such as `health`.
    pub name: &'static str,
    /// Name of the flag that sets the server's address, without dashes.
    pub flag: &'static str,
    /// Reason of the Kubernetes event that reports a server that cannot listen.
    pub event: &'static str,
}

/// Error of a server that cannot bind its address.
#[derive(Debug, thiserror::Error)]
#[error("cannot {}: {}", self.action(), self.reason())]
pub struct ListenError {
    purpose: Purpose,
    address: SocketAddr,
    source: io::Error,
}

impl ListenError {
    /// Describes the failed action, such as `listen on 0.0.0.0:10256 for health`.
    pub fn action(&self) -> String {
        format!("listen on {} for {}", self.address, self.purpose.name)
    }

    /// Returns the reason as text, with advice for the operator.
    pub fn reason(&self) -> String {
        let (source, flag) = (&self.source, self.purpose.flag);
        format!("{source}. {} --{flag}", next_step(source))
    }
}

/// Returns the beginning of the advice to the operator. The error message appends the name of the
/// server's flag.
fn next_step(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrNotAvailable => "This node does not have the address: correct",
        io::ErrorKind::AddrInUse => "Find the process on the port (ss -ltnp), or set another",
        _ => "Set another",
    }
}

/// A running server. Dropping the value stops the server.
#[derive(Debug)]
pub struct Server {
    /// Address that the server has bound, or the reason why it was not bound at the start.
    pub address: Result<SocketAddr, ListenError>,
    is_bound: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Server {
    /// Returns the reason why the server does not listen, if it does not.
    pub fn unbound(&self) -> Option<&ListenError> {
        let error = self.address.as_ref().err();
        error.filter(|_| !self.is_bound.load(Ordering::Relaxed))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reaction to a server address that another process has already bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConflictPolicy {
    /// Retry the bind until the address is free.
    Retry,
    /// Fail the start immediately (`--bind-address-hard-fail`).
    Fail,
}

/// Starts a server on an address, as a task of the current tokio runtime.
///
/// # Errors
///
/// Fails if the address cannot be bound and `when_taken` is [`ConflictPolicy::Fail`].
pub fn start(
    purpose: Purpose,
    at: SocketAddr,
    when_taken: ConflictPolicy,
    respond: impl Respond,
) -> Result<Server, ListenError> {
    let respond = Arc::new(respond);
    let failed = |source| ListenError {
        purpose,
        address: at,
        source,
    };
    let first = listen(at).and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (first, address) = match first.map_err(failed) {
        Ok((address, listener)) => (Some(listener), Ok(address)),
        Err(error) if when_taken == ConflictPolicy::Fail => return Err(error),
        Err(error) => {
            error!("{error}. It is tried again every {LISTEN_RETRY_PERIOD:?}");
            (None, Err(error))
        }
    };
    if let Ok(address) = &address {
        info!(%address, "{} is served", purpose.name);
    }
    let is_bound = Arc::new(AtomicBool::new(false));
    let bound = Arc::clone(&is_bound);
    let task = tokio::spawn(async move {
        let listener = match first {
            Some(listener) => listener,
            None => until_bound(purpose, at).await,
        };
        bound.store(true, Ordering::Relaxed);
        serve(listener, purpose.name, respond).await;
    });
    Ok(Server {
        address,
        is_bound,
        task,
    })
}

async fn until_bound(purpose: Purpose, at: SocketAddr) -> TcpListener {
    loop {
        sleep(LISTEN_RETRY_PERIOD).await;
        match listen(at) {
            Ok(listener) => {
                info!(address = %at, "{} is served now", purpose.name);
                return listener;
            }
            Err(error) => debug!(%error, address = %at, "still cannot listen for {}", purpose.name),
        }
    }
}

/// Accepts connections and responds to their requests until the task is aborted, which closes the
/// connections. `what` is the server's name in the log.
pub async fn serve(
    listener: impl Listen,
    what: impl std::fmt::Display,
    respond: Arc<impl Respond>,
) {
    serve_within(ConnectionSlots::all(), listener, what, respond).await;
}

async fn serve_within(
    places: Arc<ConnectionSlots>,
    listener: impl Listen,
    what: impl std::fmt::Display,
    respond: Arc<impl Respond>,
) {
    let server = places.server();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => {
                    let place = places.admit(server, accepted.client, &what);
                    connections.spawn(answer_all(accepted, place, Arc::clone(&respond)));
                }
                // The client closed the connection before the server accepted it.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    debug!(%error, "cannot accept a connection for {what}");
                    places.make_room();
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Responds to the requests of one connection. Ends when the client closes the connection or
/// exceeds a time limit, or when the server evicts the connection.
async fn answer_all<S: AsyncRead + AsyncWrite + Unpin + Send>(
    accepted: AcceptedConnection<S>,
    place: ConnectionSlot,
    respond: Arc<impl Respond>,
) {
    let AcceptedConnection {
        stream, refusal, ..
    } = accepted;
    let activity = Arc::clone(&place.activity);
    let respond = service_fn(|request: http::Request<Incoming>| {
        let (activity, respond, refusal) = (&activity, &respond, &refusal);
        async move {
            activity.busy();
            let (head, _) = request.into_parts();
            Ok::<_, Infallible>(match refusal {
                None => respond.respond(&head).await,
                Some(why) => refused(why),
            })
        }
    });
    let stream = TimedStream::new(stream, Arc::clone(&place.activity));
    let connection = http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), respond);
    tokio::select! {
        result = connection => if let Err(error) = result {
            debug!(%error, "a connection broke off");
        },
        () = place.over() => {}
    }
}

#[cfg(test)]
mod tests;
