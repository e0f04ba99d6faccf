//! A small HTTP/1.1 server: one address, and a function from a request's head to an answer.
//!
//! Connections are limited in number and in time, since some of these ports are open to all. Bodies of requests are not read.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;
use tracing::{debug, error, info};

/// Connections of one server at a time: more wait until others have ended.
const MAX_CONNECTIONS: usize = 256;
/// How long a connection may take to send a request, or be idle.
const READ_TIMEOUT: Duration = Duration::from_mins(1);
/// How long accepting rests after it failed, as it does without free file descriptors.
const ACCEPT_REST: Duration = Duration::from_secs(1);
/// Connections that wait to be accepted.
const BACKLOG: u32 = 128;
/// How often an address that something else has is tried again, as upstream.
const RETRY: Duration = if cfg!(test) {
    Duration::from_millis(50)
} else {
    Duration::from_secs(5)
};

/// An answer.
pub(crate) type Answer = Response<Full<Bytes>>;

/// An answer of this content type, which browsers are not to second-guess.
pub(crate) fn answer(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Answer {
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

/// Plain text.
pub(crate) fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    answer(status, "text/plain; charset=utf-8", body)
}

/// What a path that does not exist answers.
pub(crate) fn not_found() -> Answer {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// What a server is, for the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Purpose {
    /// `health`.
    pub(crate) name: &'static str,
    /// The flag that gives its address, without dashes.
    pub(crate) flag: &'static str,
    /// The reason of the Kubernetes event that it cannot listen.
    pub(crate) event: &'static str,
}

/// An address that could not be bound, where that is fatal.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for {}: {source}. See what has the port (ss -ltnp), or give another --{}", .purpose.name, .purpose.flag)]
pub(crate) struct ListenError {
    purpose: Purpose,
    address: SocketAddr,
    source: io::Error,
}

/// A server that ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    /// Where it listens; or why it could not yet.
    pub(crate) address: Result<SocketAddr, ListenError>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts a server. An address that cannot be bound is tried again for ever, unless `is_fatal`.
pub(crate) fn start(
    purpose: Purpose,
    at: SocketAddr,
    is_fatal: bool,
    respond: impl Fn(&Parts) -> Answer + Send + Sync + 'static,
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
        Err(error) if is_fatal => return Err(error),
        Err(error) => {
            error!("{error}. It is tried again every {RETRY:?}");
            (None, Err(error))
        }
    };
    if let Ok(address) = &address {
        info!(%address, "{} is served", purpose.name);
    }
    let task = tokio::spawn(async move {
        let listener = match first {
            Some(listener) => listener,
            None => until_bound(purpose, at).await,
        };
        serve(listener, purpose.name, respond).await;
    });
    Ok(Server { address, task })
}

async fn until_bound(purpose: Purpose, at: SocketAddr) -> TcpListener {
    loop {
        sleep(RETRY).await;
        match listen(at) {
            Ok(listener) => {
                info!(address = %at, "{} is served now", purpose.name);
                return listener;
            }
            Err(error) => debug!(%error, address = %at, "still cannot listen for {}", purpose.name),
        }
    }
}

/// Listens; on an unspecified address, `0.0.0.0` or `::`, for both families where the kernel has both, as Go does.
fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    if !at.ip().is_unspecified() {
        return listen_on(at, false);
    }
    let both = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    match listen_on(SocketAddr::new(both, at.port()), false) {
        Err(error) if is_without_ipv6(&error) => {
            listen_on((Ipv4Addr::UNSPECIFIED, at.port()).into(), false)
        }
        result => result,
    }
}

fn is_without_ipv6(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Listens on an address; `is_v6_only`: `::` leaves IPv4 to another socket.
pub(crate) fn listen_on(at: SocketAddr, is_v6_only: bool) -> io::Result<TcpListener> {
    let socket = match at {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => {
            let socket = TcpSocket::new_v6()?;
            // Whatever the sysctl bindv6only says.
            rustix::net::sockopt::set_ipv6_v6only(&socket, is_v6_only)?;
            socket
        }
    };
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    socket.listen(BACKLOG)
}

/// Answers until it is aborted, and its connections with it. `what` is for the log.
pub(crate) async fn serve(
    listener: TcpListener,
    what: impl std::fmt::Display,
    respond: Arc<impl Fn(&Parts) -> Answer + Send + Sync + 'static>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(converse(stream, Arc::clone(&respond)));
                }
                Err(error) => {
                    debug!(%error, "cannot accept a connection for {what}");
                    sleep(ACCEPT_REST).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn converse(
    stream: TcpStream,
    respond: Arc<impl Fn(&Parts) -> Answer + Send + Sync + 'static>,
) {
    let respond = service_fn(async |request: http::Request<hyper::body::Incoming>| {
        let (head, _) = request.into_parts();
        Ok::<_, Infallible>(respond(&head))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(READ_TIMEOUT)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), respond);
    if let Err(error) = connection.await {
        debug!(%error, "a connection broke off");
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const TEST: Purpose = Purpose {
        name: "tests",
        flag: "test-bind-address",
        event: "FailedToStartTests",
    };

    /// What a server answers: head and body.
    pub(crate) async fn get(server: &Server, request: &str) -> (String, String) {
        let address = *server.address.as_ref().expect("it listens");
        let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port());
        let mut stream = TcpStream::connect(at).await.unwrap();
        let (line, headers) = request.split_once('\n').unwrap_or((request, ""));
        let headers = headers.replace('\n', "\r\n");
        let head = format!("{line} HTTP/1.1\r\nHost: node1\r\nConnection: close\r\n{headers}\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.replace('\r', ""), body.to_owned())
    }

    fn echo(head: &Parts) -> Answer {
        text(StatusCode::OK, head.uri.path().to_owned())
    }

    #[tokio::test]
    async fn an_unspecified_address_is_both_families() {
        let server = start(TEST, (Ipv4Addr::UNSPECIFIED, 0).into(), true, echo).unwrap();
        let (head, body) = get(&server, "GET /a?b").await;
        assert!(
            head.starts_with("HTTP/1.1 200 OK\nContent-Type: text/plain"),
            "{head}"
        );
        assert_eq!(body, "/a");
        let (head, body) = get(&server, "HEAD /abc").await;
        assert!(head.contains("Content-Length: 4"), "{head}");
        assert_eq!(body, "");
        let port = server.address.as_ref().unwrap().port();
        TcpStream::connect((Ipv6Addr::LOCALHOST, port))
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn a_taken_address_is_fatal_or_tried_again() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = taken.local_addr().unwrap();
        let error = start(TEST, at, true, echo).unwrap_err().to_string();
        assert!(
            error.contains(&format!("cannot listen on {at} for tests"))
                && error.contains("--test-bind-address"),
            "{error}"
        );
        let server = start(TEST, at, false, echo).unwrap();
        assert!(server.address.is_err());
        drop(taken);
        while TcpStream::connect(at).await.is_err() {
            sleep(RETRY).await;
        }
    }
}
