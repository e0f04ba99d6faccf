//! The addresses at which this process reaches the API server.
//!
//! ```text
//!   kubeconfig ── an address that is given ──────┐
//!   resolver ──── the addresses of a name ───────┼─▶ Addresses ─▶ the model, which refuses them to Services
//!   connector ─── the peers of open connections ─┘
//! ```
//!
//! A Service that has one of them takes the API server away from the node, and the node never hears
//! that the Service was corrected. So each address is published before the first connection to it,
//! and the program may clear the way there ([`Way`]).
//!
//! Names are resolved for each new connection, and every [`RESOLVE_PERIOD`] on the resolver's
//! thread: connections live for hours, and the name's addresses change meanwhile. An address that
//! the name had within [`KEPT`] stays, since many names rotate through more addresses than one
//! answer holds. Where the resolver fails, the last addresses stay, and are connected to.

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

/// Time between two looks at the addresses of a name.
const RESOLVE_PERIOD: Duration = Duration::from_secs(30);
/// Added to it: nodes that started together do not ask together.
const SPREAD: Duration = Duration::from_secs(5);
/// How long an address stays that the name no longer has, and that no connection goes to.
const KEPT: Duration = Duration::from_mins(15);

/// Looks up the addresses of a name.
pub type Resolve = Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync>;

/// Does what the program wants done before a connection to these addresses.
pub type Clear = Arc<dyn Fn(Vec<SocketAddr>) -> BoxFuture<'static, ()> + Send + Sync>;

/// How the way to an API server is found and cleared.
#[derive(Clone)]
pub struct Way {
    resolve: Resolve,
    clear: Clear,
}

impl Default for Way {
    /// The system's resolver, and nothing to clear.
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

impl Way {
    /// The same, cleared by this before each connection.
    #[must_use]
    pub fn cleared_by(self, clear: Clear) -> Self {
        Self { clear, ..self }
    }

    /// The same, with another resolver.
    #[must_use]
    pub fn resolved_by(self, resolve: Resolve) -> Self {
        Self { resolve, ..self }
    }
}

/// An address of the API server, or of the proxy on the way to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiServerAddress {
    /// The address and port.
    pub at: SocketAddr,
    /// The origin, for operators: `api.example resolves to it`.
    pub from: String,
}

/// The addresses at which the API server is reached. Clones are the same; without a server there
/// are none.
#[derive(Clone, Default)]
pub struct ApiServerAddresses(Option<Addresses>);

impl ApiServerAddresses {
    /// Those of `addresses`.
    pub(super) fn of(addresses: &Addresses) -> Self {
        Self(Some(addresses.clone()))
    }

    /// Returns all that are known now, in order.
    pub fn known(&self) -> Vec<ApiServerAddress> {
        self.0.as_ref().map(Addresses::shown).unwrap_or_default()
    }
}

/// What is connected to: the server, or the proxy on the way to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    host: String,
    port: u16,
}

impl Target {
    /// The target of a URL, if it has a host.
    pub(super) fn of(url: &Uri) -> Option<Self> {
        let host = url.host()?.trim_start_matches('[').trim_end_matches(']');
        let is_plain = url.scheme() == Some(&Scheme::HTTP);
        Some(Self {
            host: host.to_owned(),
            port: url.port_u16().unwrap_or(if is_plain { 80 } else { 443 }),
        })
    }

    /// Its address, unless it is known by a name.
    fn address(&self) -> Option<SocketAddr> {
        let ip: IpAddr = self.host.parse().ok()?;
        Some(SocketAddr::new(ip.to_canonical(), self.port))
    }
}

/// The addresses of some targets. Clones are the same.
#[derive(Clone)]
pub(super) struct Addresses(Arc<Shared>);

struct Shared {
    targets: Vec<Target>,
    way: Way,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    entries: BTreeMap<SocketAddr, Entry>,
    subscribers: Vec<UnboundedSender<Vec<SocketAddr>>>,
}

/// Why an address is known.
#[derive(Debug, Default)]
struct Entry {
    /// Given as an address.
    is_given: bool,
    /// The name that has, or had, the address, and when it last had.
    resolved: Option<(String, Instant)>,
    /// Open connections.
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
    /// Those of these targets, which are connected to in this way.
    pub(super) fn new(targets: Vec<Target>, way: Way) -> Self {
        let mut known = Known::default();
        for at in targets.iter().filter_map(Target::address) {
            known.entries.entry(at).or_default().is_given = true;
        }
        Self(Arc::new(Shared {
            targets,
            way,
            known: Mutex::new(known),
        }))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
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

    /// Receives all addresses, now and whenever they are others.
    pub(super) fn subscribe(&self) -> UnboundedReceiver<Vec<SocketAddr>> {
        let (sender, receiver) = unbounded_channel();
        let mut known = self.known();
        drop(sender.send(known.entries.keys().copied().collect()));
        known.subscribers.push(sender);
        receiver
    }

    /// Changes what is known, and publishes the addresses if they are others then.
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

    /// Looks up a name that is connected to. Its last addresses are returned where the resolver
    /// fails.
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let found = (self.0.way.resolve)(name.to_owned()).await;
        let targets = self.0.targets.iter().filter(|of| of.host == name);
        let ports: Vec<u16> = targets.map(|target| target.port).collect();
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
                        // What is not known to have changed counts as it was.
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

    async fn clear(&self, addresses: Vec<SocketAddr>) {
        (self.0.way.clear)(addresses).await;
    }

    /// Follows the names, without an end.
    pub(super) async fn follow(self) {
        let is_named = |target: &&Target| target.address().is_none();
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

/// Resolves a name for a connection, and clears the way to its addresses.
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
            let targets = addresses.0.targets.iter().filter(|of| of.host == name);
            let ports: Vec<u16> = targets.map(|target| target.port).collect();
            let at = |ip: &IpAddr| -> Vec<SocketAddr> {
                let ports = ports.iter();
                ports.map(|port| SocketAddr::new(*ip, *port)).collect()
            };
            addresses.clear(found.iter().flat_map(at).collect()).await;
            // The connector puts its port there.
            let found: Vec<_> = found.into_iter().map(|ip| SocketAddr::new(ip, 0)).collect();
            Ok(found.into_iter())
        })
    }
}

/// Connects, and notes where to.
#[derive(Clone)]
pub(super) struct Dial {
    addresses: Addresses,
    connector: HttpConnector<Resolver>,
}

impl Dial {
    /// Connects by a connector that `set` has set up.
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
    type Response = Dialled;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Dialled, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, url: Uri) -> Self::Future {
        let Self {
            addresses,
            connector,
        } = self.clone();
        Box::pin(async move {
            // A name is resolved, and the way cleared, by the connector's resolver.
            let given = Target::of(&url).and_then(|target| target.address());
            if let Some(at) = given {
                addresses.clear(vec![at]).await;
            }
            let stream = connector.oneshot(url).await?;
            let peer = stream.inner().peer_addr()?;
            let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
            addresses.change(Instant::now(), |entries| {
                entries.entry(peer).or_default().connections += 1;
            });
            Ok(Dialled {
                stream,
                open: Open { addresses, peer },
            })
        })
    }
}

/// A connection to a peer that is known while it is open.
pub(super) struct Dialled {
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

impl Connection for Dialled {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

impl Read for Dialled {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl Write for Dialled {
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
