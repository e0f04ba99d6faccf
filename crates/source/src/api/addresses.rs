//! The addresses at which this process reaches the API server.
//!
//! ```text
//!   kubeconfig ── an address that is given ──────┐
//!   resolver ──── the addresses of a name ───────┼─▶ Addresses ─▶ the model
//!   connector ─── the peers of open connections ─┘
//! ```
//!
//! The model serves no Service at these addresses. Otherwise a Service with such an external IP
//! would cut the node off from the API server, and its correction could never arrive.
//!
//! - The model receives each address before the first connection to it. A hook ([`ConnectHooks`])
//!   can remove kernel entries that redirect the address to a Service.
//! - The server's name is resolved for each new connection, and every [`RESOLVE_PERIOD`]. A
//!   connection may live for hours, and the addresses may change meanwhile.
//! - An address is kept for [`KEPT`] after the last lookup that returned it. Many names rotate
//!   through more addresses than one DNS response contains.
//! - If a lookup fails, the name's last addresses stay in use.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::Uri;
use http::uri::Scheme;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep};
use tower::{BoxError, Service, ServiceExt as _};
use tracing::debug;

use super::backoff::up_to;

/// Time between two periodic lookups of the API server's host name.
const RESOLVE_PERIOD: Duration = Duration::from_secs(30);
/// Longest random time that is added to [`RESOLVE_PERIOD`], so that nodes that started together
/// resolve the name at different times.
const SPREAD: Duration = Duration::from_secs(5);
/// Time for which an address is kept after the last lookup that returned it. An address is also
/// kept while a connection to it is open.
const KEPT: Duration = Duration::from_mins(15);

/// Function that looks up the IP addresses of a host name.
pub type Resolve = Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync>;

/// Function that prepares the node for connections to the given addresses. The daemon's function
/// removes kernel entries that redirect these addresses to Services.
pub type Clear = Arc<dyn Fn(Vec<SocketAddr>) -> BoxFuture<'static, ()> + Send + Sync>;

/// Functions that the client runs before each connection to the API server: name lookup and
/// [`Clear`].
#[derive(Clone)]
pub struct ConnectHooks {
    resolve: Resolve,
    clear: Clear,
}

impl Default for ConnectHooks {
    /// Returns hooks that resolve names with the system's resolver, and do nothing else.
    fn default() -> Self {
        let resolve = |name: String| -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
            Box::pin(async move {
                let found = lookup_host((name, 0)).await?;
                Ok(found.map(|at| at.ip()).collect())
            })
        };
        Self {
            resolve: Arc::new(resolve),
            clear: Arc::new(|_| Box::pin(async {})),
        }
    }
}

impl ConnectHooks {
    /// Returns these hooks with `clear` as the function that prepares the node for a connection.
    #[must_use]
    pub fn cleared_by(self, clear: Clear) -> Self {
        Self { clear, ..self }
    }

    /// Returns these hooks with `resolve` as the resolver of host names.
    #[must_use]
    pub fn resolved_by(self, resolve: Resolve) -> Self {
        Self { resolve, ..self }
    }
}

/// An address of the API server, or of the proxy in front of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiServerAddress {
    /// Address and port of the API server or its proxy.
    pub at: SocketAddr,
    /// Origin of the address in words for operators, such as `api.example resolves to it`.
    pub from: String,
}

/// Addresses at which this process reaches the API server. Empty if the source is not an API
/// server. Clones share the addresses.
#[derive(Clone, Default)]
pub struct ApiServerAddresses(Option<Addresses>);

impl ApiServerAddresses {
    /// Returns a handle to `addresses` for readers outside this module.
    pub(super) fn of(addresses: &Addresses) -> Self {
        Self(Some(addresses.clone()))
    }

    /// Returns all current addresses, sorted by address and port.
    pub fn known(&self) -> Vec<ApiServerAddress> {
        self.0.as_ref().map(Addresses::shown).unwrap_or_default()
    }
}

/// Host and port to which the client connects: those of the API server, or of the proxy in front of
/// it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerPeer {
    pub(super) host: String,
    pub(super) port: u16,
}

impl ServerPeer {
    /// Returns the host and port of a URL (by default port 80 or 443), or `None` if the URL has no
    /// host.
    pub(super) fn of(url: &Uri) -> Option<Self> {
        let host = url.host()?.trim_start_matches('[').trim_end_matches(']');
        let is_plain = url.scheme() == Some(&Scheme::HTTP);
        Some(Self {
            host: host.to_owned(),
            port: url.port_u16().unwrap_or(if is_plain { 80 } else { 443 }),
        })
    }

    /// Returns the peer's address and port, or `None` if its host is a name.
    fn address(&self) -> Option<SocketAddr> {
        let ip: IpAddr = self.host.parse().ok()?;
        Some(SocketAddr::new(ip.to_canonical(), self.port))
    }
}

/// Addresses of the API server or of its proxy. Clones share the addresses.
#[derive(Clone)]
pub(super) struct Addresses(Arc<Shared>);

struct Shared {
    targets: Vec<ServerPeer>,
    hooks: ConnectHooks,
    known: Mutex<AddressBook>,
}

#[derive(Default)]
struct AddressBook {
    entries: BTreeMap<SocketAddr, Entry>,
    subscribers: Vec<UnboundedSender<Vec<SocketAddr>>>,
}

/// Reasons to keep an address of the API server. The address is removed once no reason applies.
#[derive(Debug, Default)]
struct Entry {
    /// True if the URL of the server or proxy contains this IP address instead of a name.
    is_given: bool,
    /// Name that resolves to the address, and the time of the last look-up that returned the
    /// address. `None` if no look-up has returned it.
    resolved: Option<(String, Instant)>,
    /// Number of open connections to the address.
    connections: usize,
}

impl Entry {
    fn is_current(&self, now: Instant) -> bool {
        let is_kept = |last: Instant| now.saturating_duration_since(last) < KEPT;
        let is_resolved = self.resolved.as_ref().is_some_and(|(_, at)| is_kept(*at));
        self.is_given || self.connections > 0 || is_resolved
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.resolved {
            _ if self.is_given => f.write_str("given as an address"),
            Some((name, _)) => write!(f, "{name} resolves to it"),
            None => f.write_str("a connection to it is open"),
        }
    }
}

impl Addresses {
    /// Records the targets that are IP addresses. Later look-ups add the addresses of targets that
    /// are names.
    pub(super) fn new(targets: Vec<ServerPeer>, hooks: ConnectHooks) -> Self {
        let mut known = AddressBook::default();
        for at in targets.iter().filter_map(ServerPeer::address) {
            known.entries.entry(at).or_default().is_given = true;
        }
        Self(Arc::new(Shared {
            targets,
            hooks,
            known: Mutex::new(known),
        }))
    }

    fn known(&self) -> MutexGuard<'_, AddressBook> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shown(&self) -> Vec<ApiServerAddress> {
        let known = self.known();
        let all = known.entries.iter().map(|(at, entry)| ApiServerAddress {
            at: *at,
            from: entry.to_string(),
        });
        all.collect()
    }

    /// Returns a receiver that gets all addresses now, and again after each change.
    pub(super) fn subscribe(&self) -> UnboundedReceiver<Vec<SocketAddr>> {
        let (sender, receiver) = unbounded_channel();
        let mut known = self.known();
        drop(sender.send(known.entries.keys().copied().collect()));
        known.subscribers.push(sender);
        receiver
    }

    /// Applies `change` to the entries, and removes entries that no reason keeps. If this changes
    /// the set of addresses, sends all addresses to the subscribers.
    fn change(&self, now: Instant, change: impl FnOnce(&mut BTreeMap<SocketAddr, Entry>)) {
        let mut known = self.known();
        let before: Vec<SocketAddr> = known.entries.keys().copied().collect();
        change(&mut known.entries);
        known.entries.retain(|_, entry| entry.is_current(now));
        let after: Vec<SocketAddr> = known.entries.keys().copied().collect();
        if before == after {
            return;
        }
        let mut subscribers = std::mem::take(&mut known.subscribers);
        subscribers.retain(|subscriber| subscriber.send(after.clone()).is_ok());
        known.subscribers = subscribers;
    }

    /// Looks up the host name `name`. If the resolver fails, returns the name's last addresses, or
    /// the error if there are none.
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let found = (self.0.hooks.resolve)(name.to_owned()).await;
        let ports = self.ports(name);
        let now = Instant::now();
        match found {
            Ok(found) => {
                self.change(now, |entries| {
                    for ip in &found {
                        for port in &ports {
                            let entry = entries.entry(SocketAddr::new(*ip, *port)).or_default();
                            entry.resolved = Some((name.to_owned(), now));
                        }
                    }
                });
                Ok(found)
            }
            Err(error) => {
                let mut known = self.known();
                let mut last = Vec::new();
                for (at, entry) in &mut known.entries {
                    if let Some((of, when)) = &mut entry.resolved
                        && *of == name
                    {
                        // Keeps the address, because a failed lookup does not show that the name
                        // has lost it.
                        *when = now;
                        last.push(at.ip());
                    }
                }
                last.dedup();
                if last.is_empty() {
                    return Err(error);
                }
                debug!("{name} cannot be resolved: {error}; its last addresses stay in use");
                Ok(last)
            }
        }
    }

    /// Returns the ports of all targets whose host is `name`.
    fn ports(&self, name: &str) -> Vec<u16> {
        let targets = self.0.targets.iter().filter(|of| of.host == name);
        targets.map(|target| target.port).collect()
    }

    async fn clear(&self, addresses: Vec<SocketAddr>) {
        (self.0.hooks.clear)(addresses).await;
    }

    /// Looks up the host names of all targets now, and again after each [`RESOLVE_PERIOD`]. Never
    /// returns.
    pub(super) async fn follow(self) {
        let is_named = |target: &&ServerPeer| target.address().is_none();
        let names = self.0.targets.iter().filter(is_named);
        let mut names: Vec<&str> = names.map(|target| &*target.host).collect();
        names.dedup();
        if names.is_empty() {
            return std::future::pending().await;
        }
        loop {
            for name in &names {
                if let Err(error) = self.resolve(name).await {
                    debug!("{name} cannot be resolved: {error}");
                }
            }
            sleep(RESOLVE_PERIOD + up_to(SPREAD)).await;
        }
    }
}

/// Resolver of the HTTP connector. Before it returns a name's addresses, it runs the [`Clear`] hook
/// on them.
#[derive(Clone)]
pub(super) struct Resolver(Addresses);

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let addresses = self.0.clone();
        Box::pin(async move {
            let name = name.as_str();
            let found = addresses.resolve(name).await?;
            let ports = addresses.ports(name);
            let at = |ip: &IpAddr| -> Vec<SocketAddr> {
                let ports = ports.iter();
                ports.map(|port| SocketAddr::new(*ip, *port)).collect()
            };
            addresses.clear(found.iter().flat_map(at).collect()).await;
            // Port 0 is a placeholder, which the connector replaces with the URL's port.
            let found: Vec<_> = found.into_iter().map(|ip| SocketAddr::new(ip, 0)).collect();
            Ok(found.into_iter())
        })
    }
}

/// Connector that counts the open connections to each peer in [`Addresses`].
#[derive(Clone)]
pub(super) struct Dial {
    addresses: Addresses,
    connector: HttpConnector<Resolver>,
}

impl Dial {
    /// Creates a connector. Calls `set` to set the connector's options.
    pub(super) fn new(
        addresses: &Addresses,
        set: impl FnOnce(&mut HttpConnector<Resolver>),
    ) -> Self {
        let resolver = Resolver(addresses.clone());
        let mut connector = HttpConnector::new_with_resolver(resolver);
        set(&mut connector);
        Self {
            addresses: addresses.clone(),
            connector,
        }
    }
}

impl Service<Uri> for Dial {
    type Response = DialledConnection;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<DialledConnection, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let Self {
            addresses,
            connector,
        } = self.clone();
        Box::pin(async move {
            // Runs the [`Clear`] hook if the URL contains an IP address. For a host name,
            // [`Resolver`] runs the hook.
            let given = ServerPeer::of(&url).and_then(|target| target.address());
            if let Some(at) = given {
                addresses.clear(vec![at]).await;
            }
            let stream = connector.oneshot(url).await?;
            let peer = stream.inner().peer_addr()?;
            let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
            addresses.change(Instant::now(), |entries| {
                entries.entry(peer).or_default().connections += 1;
            });
            Ok(DialledConnection {
                stream,
                open: Open { addresses, peer },
            })
        })
    }
}

/// Connection whose peer counts as an address of the server while the connection is open.
pub(super) struct DialledConnection {
    stream: TokioIo<TcpStream>,
    #[allow(dead_code, reason = "it counts while it lives")]
    open: Open,
}

struct Open {
    addresses: Addresses,
    peer: SocketAddr,
}

impl Drop for Open {
    fn drop(&mut self) {
        let now = Instant::now();
        self.addresses.change(now, |entries| {
            if let Some(entry) = entries.get_mut(&self.peer) {
                entry.connections = entry.connections.saturating_sub(1);
            }
        });
    }
}

impl Connection for DialledConnection {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

impl Read for DialledConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl Write for DialledConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }
}

#[cfg(test)]
mod tests;
