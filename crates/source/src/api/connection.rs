//! Opens connections to the API server, and reads the certificate files that they need.
//!
//! **Files.** Requests are few. So before each request, this module reads the files that the
//! kubeconfig names. The module `token` reads the token file.
//!
//! - If a file changed, new requests use new connections with the new content. An open watch keeps
//!   its connection, but ends within minutes.
//! - If the content is invalid (a certificate without its key, a missing file), the log reports
//!   this, and the previous content stays in use.
//! - client-go checks its files every five minutes, and then closes open connections.
//!
//! **Silent peers.** The kernel probes a silent peer with TCP keep-alive. If a watch's peer
//! vanishes, the watch ends at the first probe after [`GONE`]. client-go needs 45 s, with HTTP/2
//! pings.
//!
//! **HTTP/1.1.** `kube` offers no other version (its ALPN is empty). Three watches need few
//! connections.
//!
//! **Difference from `kube`.** The client that `kube` builds has no keep-alive, reloads only a
//! Pod's CA, and reports an untrusted server as unreachable.

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

/// Time limit for connecting. The kernel resends the SYN after 1, 3, 7 and 15 s. If the server
/// returns after 8 s, a longer limit would delay the connection until 15 s.
const CONNECT: Duration = Duration::from_secs(10);
/// Silence on a connection before the kernel's first TCP keep-alive probe. Further probes follow
/// every [`PROBES`].
const IDLE: Duration = Duration::from_secs(15);
const PROBES: Duration = Duration::from_secs(5);
/// Time without an acknowledgement from the peer after which the kernel closes a connection
/// (`TCP_USER_TIMEOUT`).
const GONE: Duration = Duration::from_secs(30);
/// Time after which the pool closes an idle connection. If the peer of an idle connection has
/// vanished, the next request on the connection waits for [`GONE`] before it is repeated.
const SPARE: Duration = Duration::from_secs(5);

type Pool = BoxCloneService<Request<Body>, Response<Incoming>, legacy::Error>;

/// Service that sends requests to one API server. Clones share the connections.
#[derive(Clone)]
pub(super) struct Connection(Arc<Shared>);

struct Shared {
    config: Config,
    files: Files,
    proxy: Option<Proxy>,
    addresses: Addresses,
    current: Mutex<(FileContents, Pool)>,
}

/// Certificate and key files that the kubeconfig names. `None`: not configured, or configured as
/// inline data.
#[derive(Debug, Clone, Default)]
pub(super) struct Files {
    /// File with the CA certificates that verify the server (`certificate-authority`).
    pub(super) authority: Option<PathBuf>,
    /// File with the client certificate (`client-certificate`).
    pub(super) certificate: Option<PathBuf>,
    /// File with the private key of the client certificate (`client-key`).
    pub(super) key: Option<PathBuf>,
}

/// Content of the three [`Files`] at their last read. `None`: not configured or not readable.
type FileContents = [Option<Vec<u8>>; 3];

impl Files {
    fn read(&self) -> FileContents {
        let read = |file: &Option<PathBuf>| file.as_deref().and_then(|file| fs::read(file).ok());
        [&self.authority, &self.certificate, &self.key].map(read)
    }
}

impl Connection {
    /// Prepares connections to the server of `config`, through `proxy` and with the certificates in
    /// `files`. Records the peers in `addresses`. Does not open a connection. Fails if a
    /// certificate is invalid.
    pub(super) fn new(
        mut config: Config,
        files: Files,
        proxy: Option<Proxy>,
        addresses: Addresses,
    ) -> Result<Self, kube::Error> {
        config.root_cert_file.clone_from(&files.authority);
        // Reads the files before the connection pool does. If a file changes in between, the first
        // request detects the change.
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
    /// Returns the connection pool for a request. If a certificate file has changed and is valid,
    /// this is a new pool.
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
                "API server {url}: certificate files have changed and cannot be used: {error}; \
                 the previous certificates stay in use; correct {}",
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

/// Creates a pool of connections to the API server, through `proxy` if given.
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

/// Reports whether the connections need no TLS: the URL is plain HTTP, and no certificates are
/// configured. Configured certificates are always loaded, so that the client reports their errors.
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

/// Reports whether a request failed before a connection existed. The server then cannot have
/// received the request.
pub(super) fn is_none(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    let failed = causes.find_map(|cause| cause.downcast_ref::<legacy::Error>());
    failed.is_some_and(legacy::Error::is_connect)
}

/// Returns the CAs that the client trusts to sign the certificate of the server or of an HTTPS
/// proxy.
fn authorities(config: &Config, files: &Files) -> Authorities {
    match &files.authority {
        Some(file) => Authorities::Of(file.clone()),
        None if config.root_cert.is_some() => Authorities::Inline,
        None => Authorities::System,
    }
}
