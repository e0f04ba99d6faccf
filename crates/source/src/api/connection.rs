//! Connections to the API server, and the certificates that they need.
//!
//! The files that a kubeconfig names are looked at before each request, as the token is (there are
//! few requests). Once one has changed, new requests go over new connections, made with what it
//! holds now; a watch that is open ends within minutes by itself. What cannot be used (half of a
//! pair of certificate and key, a file that is gone) is said, and what was there before stays in
//! use. client-go looks every five minutes, and cuts what is open.
//!
//! The kernel asks a peer that is silent whether it is there, so that a watch whose peer vanished
//! without a word ends by the first probe after [`GONE`]; client-go needs 45 s, with pings of
//! HTTP/2. Here it is HTTP/1.1: `kube` offers no other (its ALPN is empty), and three watches do
//! not fill many connections.
//!
//! `kube` builds such a client too, but sets no keep-alive, looks at the CA of a Pod alone, and
//! calls a server that must not be trusted one that cannot be reached.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::uri::Scheme;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::Connection as Connected;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Config;
use kube::client::{Body, ConfigExt as _};
use tower::util::BoxCloneService;
use tower::{BoxError, Service, ServiceExt as _};
use tracing::{info, warn};

use super::addresses::{Addresses, Dial};
use super::http_proxy::{Protocol, Proxy};
use super::trust::{Authorities, Peer, tls};
use super::tunnel::Tunnel;

/// How long connecting may take. The kernel repeats the first packet after 1, 3 and 7 s, but then
/// not before 15 s: a server that comes back in between would wait for that.
const CONNECT: Duration = Duration::from_secs(10);
/// A connection that has been silent for so long is probed, and then as often as [`PROBES`] says.
const IDLE: Duration = Duration::from_secs(15);
const PROBES: Duration = Duration::from_secs(5);
/// One that has answered nothing for so long is dead, also if it is not idle.
const GONE: Duration = Duration::from_secs(30);
/// A connection that has nothing to do for so long is closed: a request over one whose peer has
/// vanished meanwhile would be another [`GONE`] lost.
const SPARE: Duration = Duration::from_secs(5);

type Pool = BoxCloneService<Request<Body>, Response<Incoming>, legacy::Error>;

/// Sends requests to one server. A clone shares the connections.
#[derive(Clone)]
pub(super) struct Connection(Arc<Shared>);

struct Shared {
    config: Config,
    files: Files,
    proxy: Option<Proxy>,
    addresses: Addresses,
    current: Mutex<(Held, Pool)>,
}

/// The files that TLS needs. What a kubeconfig holds itself counts more than a file, and is not
/// among them.
#[derive(Debug, Clone, Default)]
pub(super) struct Files {
    /// `certificate-authority`.
    pub(super) authority: Option<PathBuf>,
    /// `client-certificate`.
    pub(super) certificate: Option<PathBuf>,
    /// `client-key`.
    pub(super) key: Option<PathBuf>,
}

/// What each of them held when it was read.
type Held = [Option<Vec<u8>>; 3];

impl Files {
    fn read(&self) -> Held {
        let read = |file: &Option<PathBuf>| file.as_deref().and_then(|file| fs::read(file).ok());
        [&self.authority, &self.certificate, &self.key].map(read)
    }
}

impl Connection {
    /// To the server of `config`, whose certificates come from `files` where it has any, by way of
    /// `proxy`; `addresses` are told where that is. Connects to nothing yet; the error is about
    /// certificates that cannot be used.
    pub(super) fn new(
        mut config: Config,
        files: Files,
        proxy: Option<Proxy>,
        addresses: Addresses,
    ) -> Result<Self, kube::Error> {
        config.root_cert_file.clone_from(&files.authority);
        // In this order: what changes in between is noticed with the first request.
        let held = files.read();
        let pool = pool(&config, &files, proxy.as_ref(), &addresses)?;
        Ok(Self(Arc::new(Shared {
            config,
            files,
            proxy,
            addresses,
            current: Mutex::new((held, pool)),
        })))
    }
}

impl Shared {
    /// What to send a request with, by what the files hold now.
    fn pool(&self) -> Pool {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let found = self.files.read();
        if found == current.0 {
            return current.1.clone();
        }
        current.0 = found;
        let url = &self.config.cluster_url;
        let proxy = self.proxy.as_ref();
        match pool(&self.config, &self.files, proxy, &self.addresses) {
            Ok(pool) => {
                info!("API server {url}: certificate files have changed, and are used from now on");
                current.1 = pool;
            }
            Err(error) => warn!(
                "API server {url}: certificate files have changed and cannot be used: {error}; going on with what they \
                 held before; correct {}",
                self.files
            ),
        }
        current.1.clone()
    }
}

impl std::fmt::Display for Files {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = [
            ("certificate-authority", &self.authority),
            ("client-certificate", &self.certificate),
            ("client-key", &self.key),
        ];
        let named = names.iter().filter_map(|(name, file)| {
            let file = file.as_deref()?;
            Some(format!("{name} {}", file.display()))
        });
        formatter.write_str(&named.collect::<Vec<_>>().join(", "))
    }
}

impl Service<Request<Body>> for Connection {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            let answer = shared.pool().oneshot(request).await;
            answer.map_err(|error| match tls(&error) {
                Some(reason) => {
                    let authorities = authorities(&shared.config, &shared.files);
                    authorities.untrusted(reason, Peer::Server).into()
                }
                None => error.into(),
            })
        })
    }
}

/// A client with a pool of its own, by way of the proxy if there is one.
fn pool(
    config: &Config,
    files: &Files,
    proxy: Option<&Proxy>,
    addresses: &Addresses,
) -> Result<Pool, kube::Error> {
    let connector = Dial::new(addresses, |connector| {
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT));
        connector.set_keepalive(Some(IDLE));
        connector.set_keepalive_interval(Some(PROBES));
        connector.set_tcp_user_timeout(Some(GONE));
    });
    let Some(proxy) = proxy.cloned() else {
        return pool_over(config, connector);
    };
    let authorities = authorities(config, files);
    if proxy.protocol == Protocol::Https {
        let mut as_proxy = config.clone();
        as_proxy.tls_server_name = None;
        let connector = as_proxy.rustls_https_connector_with_connector(connector)?;
        return pool_over(config, Tunnel::new(proxy, authorities, connector));
    }
    pool_over(config, Tunnel::new(proxy, authorities, connector))
}

fn pool_over<C>(config: &Config, connector: C) -> Result<Pool, kube::Error>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connected + Read + Write + Send + Unpin,
    C::Future: Send + Unpin + 'static,
    C::Error: Into<BoxError>,
{
    let mut client = legacy::Client::builder(TokioExecutor::new());
    client
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(SPARE);
    Ok(if is_plain(config) {
        BoxCloneService::new(client.build::<_, Body>(connector))
    } else {
        let connector = config.rustls_https_connector_with_connector(connector)?;
        BoxCloneService::new(client.build::<_, Body>(connector))
    })
}

/// Whether there is nothing to trust and nothing to show: all authorities of the system need not be
/// read then. Certificates that are given are read in any case, as they have to be right.
fn is_plain(config: &Config) -> bool {
    let user = &config.auth_info;
    let given = [
        &user.client_certificate,
        &user.client_certificate_data,
        &user.client_key,
    ];
    config.cluster_url.scheme() == Some(&Scheme::HTTP)
        && config.root_cert.is_none()
        && config.root_cert_file.is_none()
        && given.iter().all(|one| one.is_none())
        && user.client_key_data.is_none()
}

/// Whether a request failed for want of a connection, so that the server has not seen it.
pub(super) fn is_none(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    let failed = causes.find_map(|cause| cause.downcast_ref::<legacy::Error>());
    failed.is_some_and(legacy::Error::is_connect)
}

/// Whose certificates are believed.
fn authorities(config: &Config, files: &Files) -> Authorities {
    match &files.authority {
        Some(file) => Authorities::Of(file.clone()),
        None if config.root_cert.is_some() => Authorities::Inline,
        None => Authorities::System,
    }
}
