//! Requests that one client made, played again by many at once.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::traffic::Request;
use crate::http;
use crate::stage::{API, Stage};

/// What came of it.
pub(super) struct Replayed {
    /// What all clients received.
    pub(super) bytes: u64,
    /// The fixture's CPU time until then, in seconds.
    pub(super) fixture_cpu_s: f64,
}

/// Lets each of many clients make these requests, on a connection for each, and waits until nothing has come for `quiet`: watches
/// stay open.
pub(super) fn replay(
    stage: &Stage,
    requests: &[Request],
    clients: u32,
    quiet: Duration,
) -> Result<Replayed> {
    let quiet = Timespec::try_from(quiet)?;
    let to: SocketAddr = API.parse()?;
    let open = || {
        let sockets = (0..clients).flat_map(|_| requests.iter());
        sockets.map(|_| TcpStream::connect(to)).collect()
    };
    let mut sockets: Vec<TcpStream> = stage.node.enter(open).context("cannot connect")?;
    for (socket, request) in sockets.iter_mut().zip(requests.iter().cycle()) {
        socket.write_all(head(request).as_bytes())?;
        socket.set_nonblocking(true)?;
    }
    let (mut bytes, mut buffer) = (0, vec![0; 1 << 16]);
    while !sockets.is_empty() {
        let waiting = |socket| PollFd::new(socket, PollFlags::IN);
        let mut waiting: Vec<_> = sockets.iter().map(waiting).collect();
        if poll(&mut waiting, Some(&quiet))? == 0 {
            break;
        }
        let ready = waiting.iter().map(|one| !one.revents().is_empty());
        let ready: Vec<bool> = ready.collect();
        let mut ready = ready.into_iter();
        let mut failure = None;
        sockets.retain_mut(|socket| {
            if ready.next() != Some(true) {
                return true;
            }
            match socket.read(&mut buffer) {
                Ok(0) => false,
                Ok(count) => {
                    bytes += count as u64;
                    true
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => true,
                Err(error) => {
                    failure = Some(error);
                    false
                }
            }
        });
        if let Some(error) = failure {
            return Err(error).context("a client's connection broke");
        }
    }
    Ok(Replayed {
        bytes,
        fixture_cpu_s: stage.fixture_cpu_s()?,
    })
}

fn head(request: &Request) -> String {
    let mut head = format!(
        "GET {}?{} HTTP/1.1\r\nhost: fixture\r\nuser-agent: {}\r\n",
        request.path,
        request.query,
        http::USER_AGENT
    );
    for (name, value) in [
        ("accept", &request.accept),
        ("accept-encoding", &request.accept_encoding),
    ] {
        if !value.is_empty() {
            head.extend([name, ": ", value, "\r\n"]);
        }
    }
    head + "\r\n"
}
