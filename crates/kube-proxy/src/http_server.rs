//! A small HTTP/1.1 server: one address, and a function from a request's head to an answer.
//!
//! Some of these ports are open to all, so connections are limited in number (`places`) and in time
//! (`patience`), and what one takes in memory is, too. Bodies of requests are not read.

mod patience;
mod places;

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
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;
use tracing::{debug, error, info};

use patience::Patient;
use places::{Place, Places};

/// The longest head of a request. More than any probe sends, as each connection may have as much.
const LONGEST_HEAD: usize = 16 << 10;
/// How long accepting rests after it failed, as it does without free file descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Connections that wait to be accepted; the kernel may allow less (`net.core.somaxconn`).
const BACKLOG: u32 = 1024;
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

/// What a server does about an address that it cannot listen on, which something else has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenTaken {
    /// It tries again for ever.
    Retry,
    /// It is an error (`--bind-address-hard-fail`).
    Fail,
}

/// Starts a server.
///
/// # Errors
///
/// The address cannot be bound, where `when_taken` says that this is one.
pub(crate) fn start(
    purpose: Purpose,
    at: SocketAddr,
    when_taken: WhenTaken,
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
        Err(error) if when_taken == WhenTaken::Fail => return Err(error),
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
        return listen_on(at, Unspecified::Both);
    }
    let both = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    match listen_on(SocketAddr::new(both, at.port()), Unspecified::Both) {
        Err(error) if is_without_ipv6(&error) => {
            listen_on((Ipv4Addr::UNSPECIFIED, at.port()).into(), Unspecified::Both)
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

/// What a socket of IPv6 on an unspecified address, `::`, listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unspecified {
    /// Both families.
    Both,
    /// IPv6; IPv4 is left to another socket.
    V6Only,
}

/// Listens on an address.
pub(crate) fn listen_on(at: SocketAddr, unspecified: Unspecified) -> io::Result<TcpListener> {
    let socket = match at {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => {
            let socket = TcpSocket::new_v6()?;
            // Whatever the sysctl bindv6only says.
            rustix::net::sockopt::set_ipv6_v6only(&socket, unspecified == Unspecified::V6Only)?;
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
    serve_within(Places::all(), listener, what, respond).await;
}

async fn serve_within(
    places: Arc<Places>,
    listener: TcpListener,
    what: impl std::fmt::Display,
    respond: Arc<impl Fn(&Parts) -> Answer + Send + Sync + 'static>,
) {
    let server = places.server();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let place = places.admit(server, peer.ip(), &what);
                    connections.spawn(answer_all(stream, place, Arc::clone(&respond)));
                }
                // The peer has gone already.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    debug!(%error, "cannot accept a connection for {what}");
                    places.make_room();
                    sleep(ACCEPT_REST).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Answers what a peer asks, until it goes, takes too long, or has to go.
async fn answer_all(
    stream: TcpStream,
    place: Place,
    respond: Arc<impl Fn(&Parts) -> Answer + Send + Sync + 'static>,
) {
    let activity = Arc::clone(&place.activity);
    let respond = service_fn(async |request: http::Request<hyper::body::Incoming>| {
        activity.busy();
        let (head, _) = request.into_parts();
        Ok::<_, Infallible>(respond(&head))
    });
    let stream = Patient::new(stream, Arc::clone(&place.activity));
    let connection = http1::Builder::new()
        .max_buf_size(LONGEST_HEAD)
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
        let server = start(
            TEST,
            (Ipv4Addr::UNSPECIFIED, 0).into(),
            WhenTaken::Fail,
            echo,
        )
        .unwrap();
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

    /// A server of its own, with so many places, and so many for each client.
    fn small(places: Arc<Places>) -> (SocketAddr, JoinHandle<()>) {
        let listener = listen_on((Ipv4Addr::LOCALHOST, 0).into(), Unspecified::Both).unwrap();
        let address = listener.local_addr().unwrap();
        let respond = Arc::new(|head: &Parts| match head.uri.path() {
            "/long" => text(StatusCode::OK, vec![b'x'; 64 << 20]),
            _ => echo(head),
        });
        let serving = serve_within(places, listener, "tests", respond);
        (address, tokio::spawn(serving))
    }

    async fn connect_from(from: [u8; 4], to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        socket.connect(to).await.unwrap()
    }

    /// The first line of an answer on a connection that is kept; empty if it is closed.
    async fn ask(stream: &mut TcpStream, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: node1\r\n\r\n");
        _ = stream.write_all(request.as_bytes()).await;
        let mut answer = String::new();
        while !answer.ends_with(path) {
            let mut bytes = [0; 1024];
            match stream.read(&mut bytes).await {
                Ok(length @ 1..) => answer += str::from_utf8(&bytes[..length]).unwrap(),
                _ => return String::new(),
            }
        }
        answer.lines().next().unwrap().to_owned()
    }

    async fn is_closed(stream: &mut TcpStream) -> bool {
        let mut byte = [0];
        matches!(stream.read(&mut byte).await, Ok(0) | Err(_))
    }

    /// As the kubelet and balancers do: a connection for each probe.
    async fn is_probed(to: SocketAddr) {
        let probe = async {
            let mut stream = connect_from([127, 0, 0, 1], to).await;
            ask(&mut stream, "/healthz").await
        };
        let answer = tokio::time::timeout(Duration::from_secs(1), probe).await;
        assert_eq!(answer.unwrap(), "HTTP/1.1 200 OK");
    }

    #[tokio::test]
    async fn idle_connections_of_one_client_or_many_keep_no_probe_out() {
        crate::descriptors::raise_limit();
        let one = |_| [127, 9, 0, 1];
        let many = |number: u16| {
            let [high, low] = number.to_be_bytes();
            [127, 9, high, low]
        };
        for from in [one, many] {
            // As in the daemon; the other tests' connections have places of their own.
            let (to, _server) = small(places::tests::as_in_the_daemon());
            let mut idle = Vec::new();
            for number in 1..=600 {
                let mut stream = connect_from(from(number), to).await;
                if number % 2 == 0 {
                    // Never to be ended.
                    stream
                        .write_all(b"GET / HTTP/1.1\r\nX-Slow: ")
                        .await
                        .unwrap();
                }
                idle.push(stream);
                if number % 100 == 0 {
                    is_probed(to).await;
                }
            }
            for _ in 0..3 {
                is_probed(to).await;
                sleep(Duration::from_millis(300)).await;
            }
        }
    }

    #[tokio::test]
    async fn all_servers_together_hold_so_many_connections() {
        let places = places::tests::places(4, 3);
        let (first, _) = small(Arc::clone(&places));
        let (second, _) = small(Arc::clone(&places));
        let mut kept = connect_from([127, 0, 0, 2], first).await;
        assert_eq!(ask(&mut kept, "/a").await, "HTTP/1.1 200 OK");
        let mut idle = Vec::new();
        for to in [first, second, first, second] {
            idle.push(connect_from([127, 9, 0, 1], to).await);
            sleep(Duration::from_millis(10)).await;
        }
        assert!(is_closed(&mut idle[0]).await);
        is_probed(first).await;
        assert!(is_closed(&mut idle[1]).await);
        is_probed(second).await;
        assert_eq!(
            ask(&mut kept, "/b").await,
            "HTTP/1.1 200 OK",
            "it is its client's only one"
        );
    }

    #[tokio::test]
    async fn no_head_is_waited_for_longer_than_some_seconds() {
        let (to, _server) = small(places::tests::as_in_the_daemon());
        let mut silent = connect_from([127, 0, 0, 2], to).await;
        let mut slow = connect_from([127, 0, 0, 2], to).await;
        let mut kept = connect_from([127, 0, 0, 2], to).await;
        assert_eq!(ask(&mut kept, "/a").await, "HTTP/1.1 200 OK");
        tokio::time::pause();
        let began = tokio::time::Instant::now();
        let drip = async {
            for byte in b"GET / HTTP/1.1\r\nX-Long: xxxxxxxxxxxxxxxx".iter().cycle() {
                if slow.write_all(&[*byte]).await.is_err() {
                    break;
                }
                sleep(Duration::from_secs(1)).await;
            }
        };
        let begin_again = async {
            sleep(Duration::from_mins(1)).await;
            kept.write_all(b"GET /a").await.unwrap();
            let began = tokio::time::Instant::now();
            assert!(is_closed(&mut kept).await);
            began.elapsed().as_secs()
        };
        let silence = async {
            assert!(is_closed(&mut silent).await);
            began.elapsed().as_secs()
        };
        let dripping = async {
            drip.await;
            began.elapsed().as_secs()
        };
        let (silent, dripped, begun) = tokio::join!(silence, dripping, begin_again);
        assert_eq!(silent, 5);
        assert!((5..=8).contains(&dripped), "{dripped}");
        assert_eq!(begun, 5);
    }

    #[tokio::test]
    async fn a_connection_is_kept_for_minutes_between_requests() {
        let (to, _server) = small(places::tests::as_in_the_daemon());
        let mut stream = connect_from([127, 0, 0, 2], to).await;
        tokio::time::pause();
        for path in ["/a", "/b", "/c"] {
            assert_eq!(ask(&mut stream, path).await, "HTTP/1.1 200 OK");
            sleep(Duration::from_secs(170)).await;
        }
        sleep(Duration::from_secs(20)).await;
        assert!(is_closed(&mut stream).await);
    }

    #[tokio::test]
    async fn an_answer_that_nobody_takes_is_not_held_for_ever() {
        let (to, _server) = small(places::tests::as_in_the_daemon());
        let mut stream = connect_from([127, 0, 0, 2], to).await;
        stream
            .write_all(b"GET /long HTTP/1.1\r\nHost: n\r\n\r\n")
            .await
            .unwrap();
        sleep(Duration::from_millis(100)).await;
        tokio::time::pause();
        // A little is taken now and then.
        let mut bytes = vec![0; 1 << 20];
        let mut taken = 0;
        let began = tokio::time::Instant::now();
        while let Ok(length @ 1..) = stream.read(&mut bytes).await {
            taken += length;
            sleep(Duration::from_secs(10)).await;
        }
        assert!(taken < 64 << 20, "{taken}");
        println!("{taken} bytes in {:?}", began.elapsed());
    }

    #[tokio::test]
    async fn a_taken_address_is_fatal_or_tried_again() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = taken.local_addr().unwrap();
        let error = start(TEST, at, WhenTaken::Fail, echo)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(&format!("cannot listen on {at} for tests"))
                && error.contains("--test-bind-address"),
            "{error}"
        );
        let server = start(TEST, at, WhenTaken::Retry, echo).unwrap();
        assert!(server.address.is_err());
        drop(taken);
        while TcpStream::connect(at).await.is_err() {
            sleep(RETRY).await;
        }
    }
}
