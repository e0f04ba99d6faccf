//! A web server in a pod with a graceful shutdown: it finishes open requests, and then closes its
//! connections.
//!
//! ```text
//!   serves ── leave() ──▶ responds with       ── end() ──▶ waits for the last connection,
//!                         `Connection: close`              and stops listening
//! ```

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use lab::Place;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

/// Path of a request that the server answers after the time [`SLOW`].
pub(crate) const SLOW_PATH: &str = "/slow";
/// Time that the response to [`SLOW_PATH`] takes.
pub(crate) const SLOW: Duration = Duration::from_secs(1);
/// Timeout of accepts and reads, after which a server thread checks for the end of the server.
const GLANCE: Duration = Duration::from_millis(100);
/// Time without an open or new connection after which the server stops.
const QUIET: Duration = Duration::from_millis(300);

/// A running web server. Dropping it cuts its open connections.
#[derive(Debug)]
pub(crate) struct Web {
    state: Arc<PodState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct PodState {
    name: String,
    is_leaving: AtomicBool,
    is_over: AtomicBool,
    open: AtomicUsize,
    accepted: AtomicUsize,
}

impl Web {
    /// Serves HTTP on a port of a pod. The body of each response is the pod's name.
    pub(crate) fn serve(place: &Place, port: u16) -> Result<Self> {
        let listener = place.enter(|| {
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
            set_socket_timeout(&listener, Timeout::Recv, Some(GLANCE))?;
            Ok(listener)
        })?;
        let state = Arc::new(PodState {
            name: place.name().to_owned(),
            is_leaving: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            accepted: AtomicUsize::new(0),
        });
        let served = Arc::clone(&state);
        let accept = move || {
            while !served.is_over.load(Ordering::SeqCst) {
                if let Ok((socket, peer)) = listener.accept() {
                    served.accept(socket, peer);
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name(place.name().to_owned())
            .spawn(accept)?;
        Ok(Self {
            state,
            thread: Some(thread),
        })
    }

    /// Begins the shutdown: each connection ends with its next response.
    pub(crate) fn leave(&self) {
        self.state.is_leaving.store(true, Ordering::SeqCst);
    }

    /// Returns the number of connections that the server has accepted.
    pub(crate) fn accepted(&self) -> usize {
        self.state.accepted.load(Ordering::SeqCst)
    }

    /// Waits until no connection is open and no new connection arrives, but at most for `grace`.
    /// Then stops the server. Returns the number of connections that it had to cut.
    pub(crate) fn end(mut self, grace: Duration) -> usize {
        let deadline = Instant::now() + grace;
        let mut seen = (self.accepted(), Instant::now());
        while Instant::now() < deadline {
            if self.accepted() != seen.0 || self.state.open.load(Ordering::SeqCst) > 0 {
                seen = (self.accepted(), Instant::now());
            }
            if seen.1.elapsed() >= QUIET {
                break;
            }
            std::thread::sleep(GLANCE / 4);
        }
        let cut = self.state.open.load(Ordering::SeqCst);
        self.stop();
        cut
    }

    fn stop(&mut self) {
        self.state.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        self.stop();
    }
}

impl PodState {
    fn accept(self: &Arc<Self>, socket: TcpStream, _peer: SocketAddr) {
        self.accepted.fetch_add(1, Ordering::SeqCst);
        self.open.fetch_add(1, Ordering::SeqCst);
        let state = Arc::clone(self);
        let serve = move || {
            // Ignores the error, because the client itself reports a broken connection.
            let _ = state.serve_connection(socket);
            state.open.fetch_sub(1, Ordering::SeqCst);
        };
        if std::thread::Builder::new().spawn(serve).is_err() {
            self.open.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Responds to all requests on one connection until either side closes it.
    fn serve_connection(&self, mut socket: TcpStream) -> io::Result<()> {
        socket.set_read_timeout(Some(GLANCE))?;
        socket.set_nodelay(true)?;
        let mut input = Vec::new();
        let mut buffer = [0; 1024];
        loop {
            match socket.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(length) => input.extend_from_slice(buffer.get(..length).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if self.is_over.load(Ordering::SeqCst) {
                return Ok(());
            }
            if !input.ends_with(b"\r\n\r\n") {
                continue;
            }
            let request = String::from_utf8_lossy(&input).into_owned();
            input.clear();
            if request.split(' ').nth(1) == Some(SLOW_PATH) {
                std::thread::sleep(SLOW);
            }
            let is_last = self.is_leaving.load(Ordering::SeqCst)
                || request.contains("\r\nConnection: close\r\n");
            let connection = if is_last { "close" } else { "keep-alive" };
            let body = &self.name;
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: {connection}\r\n\r\n{body}",
                body.len()
            );
            socket.write_all(answer.as_bytes())?;
            if is_last {
                return Ok(());
            }
        }
    }
}
