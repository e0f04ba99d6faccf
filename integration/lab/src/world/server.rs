//! Test servers, which reply with their name and with the client's address.
//!
//! One thread serves all listening sockets and connections of a world.
//!
//! - TCP and SCTP: a request is a line, and the reply is the line `NAME PEER_IP:PORT`. Connections
//!   are persistent, and clients may send several requests without waiting for replies.
//! - HTTP: a line such as `GET / HTTP/1.1` begins an HTTP request. The server reads the header. The
//!   body of its response is the reply line.
//! - UDP: every datagram is a request.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

/// Maximum length of a request line in bytes. The server closes a connection with a longer line.
const LONGEST_LINE: usize = 8192;

/// Handle of a server on a [`crate::Place`]. The server runs until [`stop`](Self::stop), or until
/// the world removes its node, pod or host; dropping the handle does not stop it.
#[derive(Debug, Clone)]
pub struct Server {
    id: u64,
    answers: Arc<AtomicU64>,
    orders: Orders,
}

impl Server {
    /// Returns the number of requests to which the server has replied.
    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// Closes the server's listening socket and all its connections, and waits until they are
    /// closed.
    pub fn stop(&self) {
        self.orders.send(Order::Stop(self.id));
    }
}

/// Handle of the thread that serves all sockets of a world. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Servers {
    orders: Orders,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A socket of a server, created in the network namespace of its node, pod or host.
pub(super) enum Listening {
    /// A listening socket of TCP or SCTP, which have the same system calls.
    Stream(TcpListener),
    Datagram(UdpSocket),
}

impl Servers {
    pub(super) fn start() -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let orders = Orders {
            sender,
            wake: Arc::clone(&wake),
        };
        let thread = std::thread::Builder::new()
            .name("servers".into())
            .spawn(move || serve(&receiver, &wake))?;
        Ok(Self {
            orders,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Starts a server that serves all `sockets` and replies with `name`.
    /// [`stop_at`](Self::stop_at) stops all servers of one `place`.
    pub(super) fn add(&self, name: &str, place: &str, sockets: Vec<Listening>) -> Server {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let server = Server {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            answers: Arc::default(),
            orders: self.orders.clone(),
        };
        for socket in sockets {
            let identity = Identity {
                id: server.id,
                name: name.into(),
                place: place.into(),
                answers: Arc::clone(&server.answers),
            };
            self.orders.send(Order::Serve(identity, socket));
        }
        server
    }

    pub(super) fn stop_at(&self, place: &str) {
        self.orders.send(Order::StopAt(place.to_owned()));
    }

    /// Closes all sockets of all servers. Returns once they are closed.
    pub(super) fn end(&self) {
        self.orders.send(Order::End);
        if let Some(thread) = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            let _ = thread.join();
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.end();
    }
}

#[derive(Debug, Clone)]
struct Orders {
    sender: mpsc::Sender<(Order, CompletionSender)>,
    wake: Arc<OwnedFd>,
}

/// Sender that the serving thread drops once it has carried out an order, which wakes the caller.
type CompletionSender = mpsc::Sender<()>;

impl Orders {
    /// Sends an order to the serving thread. Waits until the thread has carried out the order, or
    /// has ended.
    fn send(&self, order: Order) {
        let (done, wait) = mpsc::channel();
        if self.sender.send((order, done)).is_ok() {
            let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
            let _ = wait.recv();
        }
    }
}

enum Order {
    Serve(Identity, Listening),
    Stop(u64),
    StopAt(String),
    End,
}

#[derive(Clone)]
struct Identity {
    id: u64,
    name: Arc<str>,
    place: Arc<str>,
    answers: Arc<AtomicU64>,
}

impl Identity {
    fn answer(&self, peer: SocketAddr) -> String {
        self.answers.fetch_add(1, Ordering::Relaxed);
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        format!("{} {peer}\n", self.name)
    }
}

enum Socket {
    Listening(Listening),
    Connection(Connection),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Listening(Listening::Stream(socket)) => socket.as_fd(),
            Self::Listening(Listening::Datagram(socket)) => socket.as_fd(),
            Self::Connection(connection) => connection.socket.as_fd(),
        }
    }
}

fn serve(orders: &mpsc::Receiver<(Order, CompletionSender)>, wake: &OwnedFd) {
    let mut sockets: Vec<(Identity, Socket)> = Vec::new();
    loop {
        let mut fds = vec![PollFd::new(wake, PollFlags::IN)];
        fds.extend(sockets.iter().map(|(_, socket)| {
            let blocked =
                matches!(socket, Socket::Connection(connection) if !connection.output.is_empty());
            PollFd::new(
                socket,
                if blocked {
                    PollFlags::OUT
                } else {
                    PollFlags::IN
                },
            )
        }));
        if poll(&mut fds, None).is_err() {
            continue; // fails only with EINTR
        }
        let ready: Vec<bool> = fds
            .iter()
            .skip(1)
            .map(|fd| !fd.revents().is_empty())
            .collect();
        drop(fds);

        let mut accepted = Vec::new();
        let mut ready = ready.into_iter();
        sockets.retain_mut(|(identity, socket)| {
            if !ready.next().unwrap_or(false) {
                return true;
            }
            match socket {
                Socket::Listening(Listening::Stream(listener)) => {
                    while let Ok((socket, peer)) = listener.accept() {
                        if socket.set_nonblocking(true).is_ok() {
                            let connection = Connection {
                                socket,
                                peer,
                                input: Vec::new(),
                                output: Vec::new(),
                                http: None,
                                last: false,
                            };
                            accepted.push((identity.clone(), Socket::Connection(connection)));
                        }
                    }
                    true
                }
                Socket::Listening(Listening::Datagram(socket)) => {
                    let mut datagram = [0; 2048];
                    while let Ok((_, peer)) = socket.recv_from(&mut datagram) {
                        let _ = socket.send_to(identity.answer(peer).as_bytes(), peer);
                    }
                    true
                }
                Socket::Connection(connection) => connection.proceed(identity),
            }
        });
        sockets.append(&mut accepted);

        let _ = rustix::io::read(wake, &mut [0u8; 8]);
        for (order, _done) in orders.try_iter() {
            match order {
                Order::Serve(identity, socket) => {
                    sockets.push((identity, Socket::Listening(socket)));
                }
                Order::Stop(id) => sockets.retain(|(identity, _)| identity.id != id),
                Order::StopAt(place) => sockets.retain(|(identity, _)| *identity.place != *place),
                Order::End => return,
            }
        }
    }
}

/// An accepted connection, with unread input and unsent output.
struct Connection {
    socket: TcpStream,
    peer: SocketAddr,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Request line of an HTTP request whose header is still incomplete, if any.
    http: Option<Http>,
    /// True to close the connection after sending `output`.
    last: bool,
}

struct Http {
    keep: bool,
    body: bool,
}

impl Connection {
    /// Reads the available data, replies to complete requests, and sends the replies. Returns false
    /// if the connection has ended.
    fn proceed(&mut self, identity: &Identity) -> bool {
        let mut buffer = [0; 4096];
        while self.output.is_empty() {
            match self.socket.read(&mut buffer) {
                Ok(0) => return false,
                Ok(length) => self
                    .input
                    .extend_from_slice(buffer.get(..length).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return false,
            }
            while let Some(end) = self.input.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.input.drain(..=end).collect();
                self.line(line.trim_ascii_end(), identity);
            }
            if self.input.len() > LONGEST_LINE {
                return false;
            }
        }
        while !self.output.is_empty() {
            match self.socket.write(&self.output) {
                Ok(length) => drop(self.output.drain(..length)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        !self.last
    }

    fn line(&mut self, line: &[u8], identity: &Identity) {
        match &mut self.http {
            Some(http) if line.is_empty() => {
                let body = identity.answer(self.peer);
                let keep = if http.keep { "keep-alive" } else { "close" };
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: {keep}\r\n\r\n",
                    body.len()
                );
                self.output.extend_from_slice(head.as_bytes());
                if http.body {
                    self.output.extend_from_slice(body.as_bytes());
                }
                self.last |= !http.keep;
                self.http = None;
            }
            Some(http) => {
                let header = String::from_utf8_lossy(line).to_ascii_lowercase();
                match header
                    .split_once(':')
                    .map(|(name, value)| (name, value.trim()))
                {
                    Some(("connection", "close")) => http.keep = false,
                    Some(("connection", "keep-alive")) => http.keep = true,
                    _ => {}
                }
            }
            None if (line.starts_with(b"GET ") || line.starts_with(b"HEAD "))
                && line.windows(8).any(|part| part == b" HTTP/1.") =>
            {
                self.http = Some(Http {
                    keep: line.ends_with(b"1.1"),
                    body: line.starts_with(b"GET"),
                });
            }
            None => self
                .output
                .extend_from_slice(identity.answer(self.peer).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufRead as _;
    use std::time::Duration;

    fn server() -> (Servers, Server, SocketAddr) {
        let servers = Servers::start().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let at = listener.local_addr().unwrap();
        let server = servers.add("pod", "place", vec![Listening::Stream(listener)]);
        (servers, server, at)
    }

    fn connect(at: SocketAddr) -> TcpStream {
        let socket = TcpStream::connect(at).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        socket
    }

    #[test]
    fn each_pipelined_request_line_gets_a_response() {
        let (_servers, server, at) = server();
        let mut socket = connect(at);
        socket.write_all(b"a\nb\n\nc").unwrap();
        let mut lines = io::BufReader::new(socket.try_clone().unwrap()).lines();
        let expected = format!("pod {}", socket.local_addr().unwrap());
        for _ in 0..3 {
            assert_eq!(lines.next().unwrap().unwrap(), expected);
        }
        assert_eq!(server.answers(), 3);
        socket.write_all(b"\n").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), expected);
    }

    #[test]
    fn http_requests_get_http_responses() {
        let (_servers, _server, at) = server();
        let mut socket = connect(at);
        socket
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.0\r\n\r\n")
            .unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).unwrap(); // ends, because HTTP/1.0 closes
        let body = format!("\r\n\r\npod {}\n", socket.local_addr().unwrap());
        assert_eq!(text.matches("HTTP/1.1 200 OK\r\n").count(), 2);
        assert_eq!(text.matches(&body).count(), 2);
    }

    #[test]
    fn a_stopped_server_closes_its_connections() {
        let (_servers, server, at) = server();
        let mut socket = connect(at);
        socket.write_all(b"\n").unwrap();
        assert_ne!(socket.read(&mut [0; 99]).unwrap(), 0);
        server.stop();
        assert_eq!(socket.read(&mut [0; 99]).unwrap(), 0);
        assert_eq!(
            TcpStream::connect(at).unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
    }

    #[test]
    fn a_too_long_request_line_is_rejected() {
        let (_servers, _server, at) = server();
        let mut socket = connect(at);
        let _ = socket.write_all(&vec![b'x'; 3 * LONGEST_LINE]);
        assert!(matches!(socket.read(&mut [0; 9]), Ok(0) | Err(_)));
    }
}
