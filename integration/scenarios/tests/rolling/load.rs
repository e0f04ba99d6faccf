//! Clients that ask without pause, and the account of what they got.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use lab::Place;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};

use crate::web::{SLOW, SLOW_PATH};

/// A request that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many failures are told one by one.
const TOLD: usize = 10;

/// How a client behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// A connection for each request, closed by the server: IPVS remembers it in TIME_WAIT while
    /// the client's port is free.
    New,
    /// A connection for each request, reset by the client: IPVS remembers it in CLOSE.
    Reset,
    /// One connection for as long as the server keeps it.
    Kept,
    /// The same, and each request takes a second.
    Slow,
}

/// One client: how it asks, where, from which source ports (in turn), and how long it rests between
/// two requests.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub(crate) manner: Manner,
    pub(crate) to: SocketAddr,
    pub(crate) ports: Range<u16>,
    pub(crate) rest: Duration,
}

/// What clients got.
#[derive(Debug, Default, Clone)]
pub(crate) struct Account {
    pub(crate) requests: u64,
    pub(crate) connections: u64,
    /// The longest time from asking (with connecting, where that was necessary) to the whole
    /// answer, without what a slow answer takes by itself.
    pub(crate) longest: Duration,
    pub(crate) failures: u64,
    /// The first of them.
    pub(crate) told: Vec<String>,
    /// Answers by pod.
    pub(crate) by_pod: BTreeMap<String, u64>,
}

impl Account {
    pub(crate) fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.connections += other.connections;
        self.longest = self.longest.max(other.longest);
        self.failures += other.failures;
        self.told.extend(other.told);
        self.told.truncate(TOLD);
        for (pod, answers) in other.by_pod {
            *self.by_pod.entry(pod).or_default() += answers;
        }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} requests on {} connections, {} failed, the longest took {:.0?}",
            self.requests, self.connections, self.failures, self.longest
        )
    }
}

/// Clients at work; dropped, they stop.
#[derive(Debug)]
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<(Manner, JoinHandle<io::Result<Account>>)>,
}

impl Load {
    /// Nobody asks yet.
    pub(crate) fn new() -> Self {
        Self {
            stop: Arc::default(),
            clients: Vec::new(),
        }
    }

    /// A client starts to ask from a place.
    pub(crate) fn start(&mut self, place: &Place, client: Client) -> Result<()> {
        let (place, stop, manner) = (place.clone(), Arc::clone(&self.stop), client.manner);
        let thread = std::thread::Builder::new()
            .name(format!("{manner:?}"))
            .spawn(move || place.enter(|| Ok(client.work(&stop))))?;
        self.clients.push((manner, thread));
        Ok(())
    }

    /// Stops all clients after their current request, and adds up by manner what they got.
    pub(crate) fn stop(mut self) -> Result<Vec<(Manner, Account)>> {
        self.stop.store(true, Ordering::SeqCst);
        let mut accounts: Vec<(Manner, Account)> = Vec::new();
        for (manner, thread) in self.clients.drain(..) {
            let account = thread
                .join()
                .map_err(|_| anyhow!("a client panicked"))?
                .context("a client could not work")?;
            match accounts.iter_mut().find(|(of, _)| *of == manner) {
                Some((_, sum)) => sum.add(account),
                None => accounts.push((manner, account)),
            }
        }
        Ok(accounts)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        for (_, thread) in self.clients.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Client {
    /// Asks until told to stop, in the calling thread's network namespace.
    fn work(&self, stop: &AtomicBool) -> Account {
        let mut account = Account::default();
        let mut ports = self.ports.clone().cycle();
        let mut kept: Option<TcpStream> = None;
        while !stop.load(Ordering::SeqCst) {
            let started = Instant::now();
            let is_new = kept.is_none();
            let port = if is_new { ports.next() } else { None };
            let asked = self.ask(kept.take(), port, &mut account.connections);
            let took = started.elapsed();
            match asked {
                Ok((answer, socket)) => {
                    kept = socket;
                    account.requests += 1;
                    let own = if self.manner == Manner::Slow {
                        SLOW
                    } else {
                        Duration::ZERO
                    };
                    account.longest = account.longest.max(took.saturating_sub(own));
                    *account.by_pod.entry(answer).or_default() += 1;
                }
                Err(error) => {
                    account.requests += 1;
                    account.failures += 1;
                    if account.told.len() < TOLD {
                        let on = if is_new { "a new" } else { "a kept" };
                        account.told.push(format!(
                            "{:?} to {} on {on} connection, after {took:.0?}: {error}",
                            self.manner, self.to
                        ));
                    }
                }
            }
            std::thread::sleep(self.rest);
        }
        account
    }

    /// One request, on a new connection if there is none; who answered, and the connection if it
    /// can be used again.
    fn ask(
        &self,
        kept: Option<TcpStream>,
        port: Option<u16>,
        connections: &mut u64,
    ) -> io::Result<(String, Option<TcpStream>)> {
        let mut socket = if let Some(socket) = kept {
            socket
        } else {
            *connections += 1;
            connect(self.to, port.unwrap_or(0), self.manner == Manner::Reset)?
        };
        let path = if self.manner == Manner::Slow {
            SLOW_PATH
        } else {
            "/"
        };
        let (answer, is_last) = get(&mut socket, path, self.manner == Manner::New)?;
        if is_last {
            return Ok((answer, None));
        }
        Ok((answer, (self.manner != Manner::Reset).then_some(socket)))
    }
}

/// Connects from a source port (0: any), which may still be remembered anywhere. `reset`: dropped,
/// it is reset.
pub(crate) fn connect(to: SocketAddr, port: u16, reset: bool) -> io::Result<TcpStream> {
    let socket = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        Some(ipproto::TCP),
    )?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    for timeout in [Timeout::Send, Timeout::Recv] {
        sockopt::set_socket_timeout(&socket, timeout, Some(PATIENCE))?;
    }
    if reset {
        sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    }
    let from = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    rustix::net::bind(&socket, &from)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match rustix::net::connect(&socket, &to) {
            Ok(()) => return Ok(socket.into()),
            // What a limit on sending means to connect(2).
            Err(Errno::INPROGRESS) => return Err(io::ErrorKind::TimedOut.into()),
            // A process that is being started holds a copy of the connection before until it
            // executes its program.
            Err(Errno::ADDRNOTAVAIL) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// One request; who answered, and whether the server has closed after it. `is_last` asks it to.
pub(crate) fn get(socket: &mut TcpStream, path: &str, is_last: bool) -> io::Result<(String, bool)> {
    let connection = if is_last { "Connection: close\r\n" } else { "" };
    let request = format!("GET {path} HTTP/1.1\r\nHost: web\r\n{connection}\r\n");
    socket.write_all(request.as_bytes())?;
    let (answer, is_last) = read_answer(socket)?;
    // The server closes first: whoever closes first keeps its port for a minute.
    if is_last && socket.read(&mut [0])? > 0 {
        return Err(io::Error::other("more than the answer came"));
    }
    Ok((answer, is_last))
}

/// The body of one answer, and whether the server will close after it.
fn read_answer(socket: &mut TcpStream) -> io::Result<(String, bool)> {
    let closed = || io::Error::new(io::ErrorKind::UnexpectedEof, "closed without an answer");
    let mut input = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        let text = String::from_utf8_lossy(&input);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .split_once("Content-Length: ")
                .and_then(|(_, rest)| rest.split("\r\n").next()?.parse::<usize>().ok())
                .filter(|_| head.starts_with("HTTP/1.1 200 "))
                .ok_or_else(|| io::Error::other(format!("no answer of ours: {head:?}")))?;
            if body.len() >= length {
                return Ok((body.to_owned(), head.contains("\r\nConnection: close")));
            }
        }
        match socket.read(&mut buffer)? {
            0 => return Err(closed()),
            length => input.extend_from_slice(buffer.get(..length).unwrap_or_default()),
        }
    }
}
