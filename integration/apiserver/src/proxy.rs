//! A test proxy between a client and a server: HTTP `CONNECT` (optionally over TLS) or SOCKS5 (RFC
//! 1928, RFC 1929).
//!
//! As a SOCKS5 proxy, it supports only the command CONNECT. Like real proxies, it reports different
//! errors for forbidden, unreachable and unknown targets. It resolves only the names in
//! [`ProxyOptions`], so a test can detect whether the client or the proxy resolves a name.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader,
    copy_bidirectional,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::tls::{self, Tls};

/// Protocol between a client and the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProxyProtocol {
    /// HTTP/1.1 with `CONNECT` tunnels.
    #[default]
    Http,
    /// SOCKS version 5.
    Socks5,
}

/// Options of a test proxy.
#[derive(Clone)]
pub struct ProxyOptions {
    /// Listen address of the proxy. The default is a free port of 127.0.0.1.
    pub address: SocketAddr,
    /// Protocol between clients and the proxy.
    pub speaks: ProxyProtocol,
    /// Certificates for TLS between clients and the proxy, or `None` for connections without TLS.
    pub tls: Option<Tls>,
    /// User name and password that a client must send. `None`: the proxy requires none, and rejects
    /// SOCKS5 clients that offer only password authentication.
    pub user: Option<(String, String)>,
    /// Host names that the proxy can resolve, with their addresses.
    pub names: BTreeMap<String, IpAddr>,
    /// True to reject every target: with status 403 for HTTP, with "connection not allowed by
    /// ruleset" for SOCKS5.
    pub refuses: bool,
}

impl Default for ProxyOptions {
    fn default() -> Self {
        Self {
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            speaks: ProxyProtocol::default(),
            tls: None,
            user: None,
            names: BTreeMap::new(),
            refuses: false,
        }
    }
}

/// Omits the password from debug output.
impl fmt::Debug for ProxyOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("ProxyOptions");
        debug.field("address", &self.address);
        debug.field("speaks", &self.speaks);
        debug.finish_non_exhaustive()
    }
}

/// A running test proxy. Dropping it closes its listening socket and its tunnels.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    targets: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

/// Reason why the proxy rejects a tunnel to a target.
enum Refusal {
    /// The user name or the password is wrong or missing.
    Unknown,
    /// The request is not a `CONNECT` in a form that the proxy supports.
    Unacceptable,
    /// The proxy rejects every target ([`ProxyOptions::refuses`]).
    Forbidden,
    /// The proxy cannot resolve the target's host name.
    Nameless,
    /// The proxy cannot connect to the target.
    Unreachable,
    /// The client violates the protocol, or has closed the connection.
    Broken,
}

impl From<io::Error> for Refusal {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

impl Proxy {
    /// Starts a proxy as a task of the current runtime. Fails if it cannot listen on the address,
    /// or if a certificate is unusable.
    #[expect(
        clippy::unused_async,
        reason = "it needs a runtime, and says so by its type"
    )]
    pub async fn start(options: ProxyOptions) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(options.address)?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let address = listener.local_addr()?;
        let tls = options.tls.as_ref().map(tls::config).transpose()?;
        let targets = Arc::default();
        let service = Arc::new(Service {
            options,
            tls: tls.map(TlsAcceptor::from),
            targets: Arc::clone(&targets),
        });
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(Arc::clone(&service).serve_connection(stream));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self {
            address,
            targets,
            task,
        })
    }

    /// Returns the proxy's listen address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the targets of all tunnel requests, oldest first, in the client's notation:
    /// `name:port` or `[::1]:port`.
    pub fn targets(&self) -> Vec<String> {
        let targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        targets.clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Service {
    options: ProxyOptions,
    tls: Option<TlsAcceptor>,
    targets: Arc<Mutex<Vec<String>>>,
}

impl Service {
    async fn serve_connection(self: Arc<Self>, stream: TcpStream) {
        let Some(tls) = self.tls.clone() else {
            return self.talk(stream).await;
        };
        match tls.accept(stream).await {
            Ok(stream) => self.talk(stream).await,
            Err(error) => tracing::debug!(%error, "no TLS connection"),
        }
    }

    async fn talk(&self, client: impl AsyncRead + AsyncWrite + Unpin) {
        let mut client = BufReader::new(client);
        let opened = match self.options.speaks {
            ProxyProtocol::Http => self.connect(&mut client).await,
            ProxyProtocol::Socks5 => self.socks(&mut client).await,
        };
        // If the client has disconnected, it gets no reply.
        match opened {
            Ok(mut server) => _ = copy_bidirectional(&mut client, &mut server).await,
            Err(answer) => {
                _ = client.write_all(&answer).await;
                _ = client.shutdown().await;
            }
        }
    }

    /// Handles an HTTP `CONNECT` request: connects to the target. An error contains the response
    /// for the client.
    async fn connect<C>(&self, client: &mut C) -> Result<TcpStream, Vec<u8>>
    where
        C: AsyncBufReadExt + AsyncWriteExt + Unpin,
    {
        let server = self.connect_target(client).await.map_err(|refusal| {
            let (code, more) = match refusal {
                Refusal::Unknown => (407, "Proxy-Authenticate: Basic realm=\"proxy\"\r\n"),
                Refusal::Forbidden => (403, ""),
                Refusal::Nameless | Refusal::Unreachable => (502, ""),
                Refusal::Unacceptable | Refusal::Broken => (400, ""),
            };
            let head = format!("HTTP/1.1 {code} No\r\n{more}Content-Length: 3\r\n\r\nno\n");
            head.into_bytes()
        })?;
        let answer = b"HTTP/1.1 200 Connection established\r\n\r\n";
        client.write_all(answer).await.map_err(|_| Vec::new())?;
        Ok(server)
    }

    async fn connect_target<C>(&self, client: &mut C) -> Result<TcpStream, Refusal>
    where
        C: AsyncBufReadExt + Unpin,
    {
        let (mut request, mut line) = (String::new(), String::new());
        let mut authorization = String::new();
        client.read_line(&mut request).await?;
        while client.read_line(&mut line).await? > 2 {
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("proxy-authorization")
            {
                value.trim().clone_into(&mut authorization);
            }
            line.clear();
        }
        let mut words = request.split(' ');
        let (Some("CONNECT"), Some(target)) = (words.next(), words.next()) else {
            return Err(Refusal::Unacceptable);
        };
        if let Some((name, password)) = &self.options.user
            && authorization != format!("Basic {}", base64(&format!("{name}:{password}")))
        {
            return Err(Refusal::Unknown);
        }
        let (host, port) = target.rsplit_once(':').ok_or(Refusal::Unacceptable)?;
        let port = port.parse().map_err(|_| Refusal::Unacceptable)?;
        self.open(host, port).await
    }

    /// Handles the SOCKS5 negotiation: greeting, password if required, and request. An error
    /// contains the reply for the client.
    async fn socks<C>(&self, client: &mut C) -> Result<TcpStream, Vec<u8>>
    where
        C: AsyncReadExt + AsyncWriteExt + Unpin,
    {
        self.greet(client).await?;
        let (code, opened) = match self.socks_target(client).await {
            Ok(server) => (0, Some(server)),
            Err(Refusal::Forbidden) => (2, None),
            Err(Refusal::Nameless) => (4, None),
            Err(Refusal::Unreachable) => (5, None),
            Err(Refusal::Unacceptable) => (7, None),
            Err(Refusal::Unknown | Refusal::Broken) => (1, None),
        };
        let mut answer = vec![5, code, 0];
        let bound = opened.as_ref().and_then(|server| server.local_addr().ok());
        let bound = bound.unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, 0).into());
        match bound.ip() {
            IpAddr::V4(ip) => answer.extend([&[1], &ip.octets()[..]].concat()),
            IpAddr::V6(ip) => answer.extend([&[4], &ip.octets()[..]].concat()),
        }
        answer.extend(bound.port().to_be_bytes());
        let server = opened.ok_or_else(|| answer.clone())?;
        client.write_all(&answer).await.map_err(|_| Vec::new())?;
        Ok(server)
    }

    async fn greet<C>(&self, client: &mut C) -> Result<(), Vec<u8>>
    where
        C: AsyncReadExt + AsyncWriteExt + Unpin,
    {
        let broken = |_: io::Error| Vec::new();
        let [5, count] = read(client).await.map_err(broken)? else {
            return Err(Vec::new());
        };
        let mut methods = vec![0; count.into()];
        client.read_exact(&mut methods).await.map_err(broken)?;
        let method = if self.options.user.is_some() { 2 } else { 0 };
        if !methods.contains(&method) {
            return Err(vec![5, 0xff]);
        }
        client.write_all(&[5, method]).await.map_err(broken)?;
        let Some((name, password)) = &self.options.user else {
            return Ok(());
        };
        let [1] = read(client).await.map_err(broken)? else {
            return Err(vec![1, 1]);
        };
        let told = [text(client).await, text(client).await];
        let [Ok(told_name), Ok(told_password)] = told else {
            return Err(vec![1, 1]);
        };
        if (&told_name, &told_password) != (name, password) {
            return Err(vec![1, 1]);
        }
        client.write_all(&[1, 0]).await.map_err(broken)
    }

    async fn socks_target<C>(&self, client: &mut C) -> Result<TcpStream, Refusal>
    where
        C: AsyncReadExt + Unpin,
    {
        let [5, 1, 0, kind] = read(client).await? else {
            return Err(Refusal::Unacceptable);
        };
        let host = match kind {
            1 => Ipv4Addr::from(read::<4>(client).await?).to_string(),
            3 => text(client).await?,
            4 => format!("[{}]", Ipv6Addr::from(read::<16>(client).await?)),
            _ => return Err(Refusal::Unacceptable),
        };
        let port = u16::from_be_bytes(read(client).await?);
        self.open(&host, port).await
    }

    fn note(&self, target: String) {
        let mut targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        targets.push(target);
    }

    async fn open(&self, host: &str, port: u16) -> Result<TcpStream, Refusal> {
        self.note(format!("{host}:{port}"));
        if self.options.refuses {
            return Err(Refusal::Forbidden);
        }
        let literal = host.trim_start_matches('[').trim_end_matches(']');
        let address = literal.parse().ok();
        let address = address.or_else(|| self.options.names.get(host).copied());
        let at = SocketAddr::new(address.ok_or(Refusal::Nameless)?, port);
        TcpStream::connect(at)
            .await
            .map_err(|_| Refusal::Unreachable)
    }
}

async fn read<const N: usize>(client: &mut (impl AsyncReadExt + Unpin)) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    client.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Reads a string of the SOCKS5 protocol: one byte for its length, then its bytes.
async fn text(client: &mut (impl AsyncReadExt + Unpin)) -> io::Result<String> {
    let [length] = read(client).await?;
    let mut text = vec![0; length.into()];
    client.read_exact(&mut text).await?;
    String::from_utf8(text).map_err(io::Error::other)
}

fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}
