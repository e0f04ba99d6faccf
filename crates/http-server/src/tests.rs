use std::net::{Ipv4Addr, Ipv6Addr};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use super::listen::{Unspecified, listen_on};
use super::testing::get;
use super::*;

const TEST: Purpose = Purpose {
    name: "tests",
    flag: "test-bind-address",
    event: "FailedToStartTests",
};

fn echo(head: &Parts) -> Answer {
    text(StatusCode::OK, head.uri.path().to_owned())
}

#[tokio::test]
async fn a_server_on_an_unspecified_address_listens_on_both_ip_families() {
    let server = start(
        TEST,
        (Ipv4Addr::UNSPECIFIED, 0).into(),
        ConflictPolicy::Fail,
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

/// A listener that counts each address of this node as a different remote client.
struct ByAddress(TcpListener);

impl Listen for ByAddress {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<AcceptedConnection<TcpStream>> {
        let (stream, peer) = self.0.accept().await?;
        Ok(AcceptedConnection {
            stream,
            client: Client::Network(peer.ip()),
            refusal: None,
        })
    }
}

/// Starts a server that uses these connection slots, on any free port.
fn small(places: Arc<ConnectionSlots>) -> (SocketAddr, JoinHandle<()>) {
    let listener = listen_on((Ipv4Addr::LOCALHOST, 0).into(), Unspecified::Both).unwrap();
    let address = listener.local_addr().unwrap();
    let respond = Arc::new(|head: &Parts| match head.uri.path() {
        "/long" => text(StatusCode::OK, vec![b'x'; 64 << 20]),
        _ => echo(head),
    });
    let serving = serve_within(places, ByAddress(listener), "tests", respond);
    (address, tokio::spawn(serving))
}

async fn connect_from(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

/// Sends a request on an open connection. Returns the first line of the response, or an empty text
/// if the server has closed the connection.
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

/// Probes a server like the kubelet or a load balancer, each time with a new connection.
async fn is_probed(to: SocketAddr) {
    let probe = async {
        let mut stream = connect_from([127, 0, 0, 1], to).await;
        ask(&mut stream, "/healthz").await
    };
    let answer = tokio::time::timeout(Duration::from_secs(1), probe).await;
    assert_eq!(answer.unwrap(), "HTTP/1.1 200 OK");
}

#[tokio::test]
async fn idle_connections_do_not_block_health_probes() {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum;
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
    let one = |_| [127, 9, 0, 1];
    let many = |number: u16| {
        let [high, low] = number.to_be_bytes();
        [127, 9, high, low]
    };
    for from in [one, many] {
        // Uses the daemon's limits, but counts only the connections of this test.
        let (to, _server) = small(connection_slots::tests::as_in_the_daemon());
        let mut idle = Vec::new();
        for number in 1..=600 {
            let mut stream = connect_from(from(number), to).await;
            if number % 2 == 0 {
                // Begins a request that stays in progress, so that the server must not evict this
                // connection.
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
async fn the_connection_limit_covers_all_servers_together() {
    let places = connection_slots::tests::places(4, 3);
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
async fn a_connection_with_a_slow_request_header_is_closed() {
    let (to, _server) = small(connection_slots::tests::as_in_the_daemon());
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
    // The server accepted the silent connection before the test stopped the clock. So this
    // connection may end up to a second before its time limit.
    assert!((4..=5).contains(&silent), "{silent}");
    assert!((5..=8).contains(&dripped), "{dripped}");
    assert_eq!(begun, 5);
}

#[tokio::test]
async fn an_idle_keep_alive_connection_is_closed_after_some_minutes() {
    let (to, _server) = small(connection_slots::tests::as_in_the_daemon());
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
async fn a_response_that_the_client_does_not_read_times_out() {
    let (to, _server) = small(connection_slots::tests::as_in_the_daemon());
    let mut stream = connect_from([127, 0, 0, 2], to).await;
    stream
        .write_all(b"GET /long HTTP/1.1\r\nHost: n\r\n\r\n")
        .await
        .unwrap();
    sleep(Duration::from_millis(100)).await;
    tokio::time::pause();
    // The client reads a few bytes from time to time, which must not extend the time limit.
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
async fn a_server_with_an_address_in_use_fails_or_retries_as_its_policy_says() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    let error = start(TEST, at, ConflictPolicy::Fail, echo)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(&format!("cannot listen on {at} for tests"))
            && error.contains("--test-bind-address"),
        "{error}"
    );
    assert!(error.contains("ss -ltnp"), "{error}");
    let absent = "203.0.113.9:80".parse().unwrap();
    let error = start(TEST, absent, ConflictPolicy::Fail, echo).unwrap_err();
    let error = error.to_string();
    assert!(
        error.ends_with("This node does not have the address: correct --test-bind-address"),
        "{error}"
    );
    let server = start(TEST, at, ConflictPolicy::Retry, echo).unwrap();
    let unbound = server.unbound().unwrap();
    assert_eq!(unbound.action(), format!("listen on {at} for tests"));
    assert!(
        unbound.reason().contains("--test-bind-address"),
        "{unbound}"
    );
    drop(taken);
    while TcpStream::connect(at).await.is_err() {
        sleep(LISTEN_RETRY_PERIOD).await;
    }
    assert!(server.unbound().is_none());
}
