//! Clients that ask the Service `web` all the time, on new connections and on one that is held, and
//! what they got.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use lab::{Crew, Over, Place};

/// A request that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two requests.
const REST: Duration = Duration::from_millis(50);
/// How many failures are told one by one.
const TOLD: usize = 5;

/// What the clients of one way got.
#[derive(Debug, Default, Clone)]
pub(crate) struct Account {
    pub(crate) way: String,
    pub(crate) requests: u64,
    pub(crate) failed: u64,
    pub(crate) longest: Duration,
    pub(crate) told: Vec<String>,
}

/// Clients at work; dropped, they stop.
#[derive(Debug, Default)]
pub(crate) struct Load(Crew<io::Result<Account>>);

impl Load {
    /// Two clients: one with a connection for each request, one that holds its connection.
    pub(crate) fn start(&mut self, from: &Place, to: SocketAddr) {
        for held in [false, true] {
            let from = from.clone();
            self.0
                .begin(move |over| from.enter(|| Ok(work(from.name(), to, held, over))));
        }
    }

    /// Stops them after their current request.
    pub(crate) fn stop(mut self) -> Result<Vec<Account>> {
        let accounts = self.0.stop().map_err(|_| anyhow!("a client panicked"))?;
        Ok(accounts.into_iter().collect::<io::Result<_>>()?)
    }
}

/// Asks until told to stop, in the calling thread's network namespace.
fn work(from: &str, to: SocketAddr, held: bool, over: &Over) -> Account {
    let kind = if held {
        "one connection"
    } else {
        "new connections"
    };
    let mut account = Account {
        way: format!("{from} to {to}, {kind}"),
        ..Account::default()
    };
    let mut open = None;
    while !over.is_over() {
        let started = Instant::now();
        let asked = open.take().map_or_else(|| connect(to), Ok).and_then(ask);
        account.requests += 1;
        match asked {
            Ok(socket) => {
                account.longest = account.longest.max(started.elapsed());
                open = held.then_some(socket);
            }
            Err(error) => {
                account.failed += 1;
                if account.told.len() < TOLD {
                    let took = started.elapsed();
                    account.told.push(format!("after {took:.1?}: {error}"));
                }
            }
        }
        std::thread::sleep(REST);
    }
    account
}

fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpStream::connect_timeout(&to, PATIENCE)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// One request of `pod.c`'s server, which goes on with the connection.
fn ask(mut socket: TcpStream) -> io::Result<TcpStream> {
    socket.write_all(b"GET / HTTP/1.1\r\nHost: web\r\n\r\n")?;
    let (mut answer, mut buffer) = (Vec::new(), [0; 512]);
    loop {
        match socket.read(&mut buffer)? {
            0 => {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "closed without an answer",
                ));
            }
            length => answer.extend_from_slice(buffer.get(..length).unwrap_or_default()),
        }
        let text = String::from_utf8_lossy(&answer);
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        if !head.starts_with("HTTP/1.1 200 ") {
            let status = head.lines().next().unwrap_or_default().to_owned();
            return Err(io::Error::other(status));
        }
        if body.ends_with('\n') {
            return Ok(socket);
        }
    }
}

/// Asks once, from a place.
pub(crate) fn ask_once(from: &Place, to: SocketAddr) -> io::Result<()> {
    from.enter(|| connect(to).and_then(ask).map(|_| ()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn an_answer_is_read_to_its_end_and_a_closed_connection_is_a_failure() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            for reply in ["HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npod\n", ""] {
                let (mut socket, _) = listener.accept().unwrap();
                let _ = socket.read(&mut [0; 256]).unwrap();
                socket.write_all(reply.as_bytes()).unwrap();
            }
        });
        ask(connect(at).unwrap()).unwrap();
        let error = ask(connect(at).unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        server.join().unwrap();
    }
}
