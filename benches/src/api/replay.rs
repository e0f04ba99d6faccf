//! Replays the requests of one client from many clients at once.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::traffic::Request;
use crate::http;
use crate::stage::{API, Stage};

/// Open connections of simulated clients: one for each request.
pub(super) struct Clients {
    sockets: Vec<TcpStream>,
    buffer: Vec<u8>,
}

impl Clients {
    /// Sends each of `requests` once for each of `clients` clients, each on its own connection.
    pub(super) fn ask(stage: &Stage, requests: &[Request], clients: u32) -> Result<Self> {
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
        Ok(Self {
            sockets,
            buffer: vec![0; 1 << 16],
        })
    }

    /// Reads the responses until no data arrives for the duration `quiet`, because watches do not
    /// end. Returns the number of bytes.
    pub(super) fn read(&mut self, quiet: Duration) -> Result<u64> {
        let mut bytes = 0;
        while let Some(count) = self.read_once(quiet)? {
            bytes += count;
        }
        Ok(bytes)
    }

    /// Reads data from the connections as it arrives, until `stop` is true.
    pub(super) fn read_until(&mut self, stop: &AtomicBool) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            self.read_once(Duration::from_millis(50))?;
        }
        Ok(())
    }

    /// Reads once from each connection that has data. Returns the number of bytes, or `None` if no
    /// data arrives within `quiet`.
    fn read_once(&mut self, quiet: Duration) -> Result<Option<u64>> {
        let waiting = |socket| PollFd::new(socket, PollFlags::IN);
        let mut waiting: Vec<_> = self.sockets.iter().map(waiting).collect();
        if poll(&mut waiting, Some(&Timespec::try_from(quiet)?))? == 0 {
            return Ok(None);
        }
        let ready = waiting.iter().map(|one| !one.revents().is_empty());
        let ready: Vec<bool> = ready.collect();
        let mut ready = ready.into_iter();
        let (mut bytes, mut failure) = (0, None);
        let buffer = &mut self.buffer;
        self.sockets.retain_mut(|socket| {
            if ready.next() != Some(true) {
                return true;
            }
            match socket.read(buffer) {
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
        match failure {
            Some(error) => Err(error).context("a client's connection broke"),
            None => Ok(Some(bytes)),
        }
    }
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
