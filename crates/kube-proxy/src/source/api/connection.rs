//! Connections to the API server, and the certificates that they need.
//!
//! The files that a kubeconfig names are looked at before each request, as the token is (there are few requests). Once one
//! has changed, new requests go over new connections, made with what it holds now; a watch that is open ends within
//! minutes by itself. What cannot be used (half of a pair of certificate and key, a file that is gone) is said, and what
//! was there before stays in use. client-go looks every five minutes, and cuts what is open.
//!
//! The kernel asks a peer that is silent whether it is there, so that a watch whose peer vanished without a word ends by the
//! first probe after [`GONE`]; client-go needs 45 s, with pings of HTTP/2. Here it is HTTP/1.1: `kube` offers no other (its ALPN is
//! empty), and three watches do not fill many connections.
//!
//! `kube` builds such a client too, but sets no keep-alive, looks at the CA of a Pod alone, and calls a server that must not
//! be trusted one that cannot be reached.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::future::BoxFuture;
use http::uri::Scheme;
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connection as Connected, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Config;
use kube::client::{Body, ConfigExt as _};
use percent_encoding::percent_decode_str;
use rustls::{AlertDescription, CertificateError};
use tower::util::BoxCloneService;
use tower::{BoxError, Service, ServiceExt as _};
use tracing::{info, warn};

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(30);
/// A connection that has been silent for so long is probed, and then as often as [`PROBES`] says.
const IDLE: Duration = Duration::from_secs(15);
const PROBES: Duration = Duration::from_secs(5);
/// One that has answered nothing for so long is dead, also if it is not idle.
const GONE: Duration = Duration::from_secs(30);
/// A connection that has nothing to do for so long is closed: a request over one whose peer has vanished meanwhile would be
/// another [`GONE`] lost.
const SPARE: Duration = Duration::from_secs(5);

type Pool = BoxCloneService<Request<Body>, Response<Incoming>, legacy::Error>;

/// Sends requests to one server. A clone shares the connections.
#[derive(Clone)]
pub(super) struct Connection(Arc<Shared>);

struct Shared {
    config: Config,
    files: Files,
    current: Mutex<(Held, Pool)>,
}

/// The files that TLS needs. What a kubeconfig holds itself counts more than a file, and is not among them.
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

/// The server or the client did not believe the other's certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub(super) struct Untrusted {
    pub(super) why: String,
    /// What to do.
    pub(super) advice: String,
}

impl Connection {
    /// To the server of `config`, whose certificates come from `files` where it has any. Connects to nothing yet; the error
    /// is about certificates that cannot be used.
    pub(super) fn new(mut config: Config, files: Files) -> Result<Self, kube::Error> {
        config.root_cert_file.clone_from(&files.authority);
        // In this order: what changes in between is noticed with the first request.
        let held = files.read();
        let pool = pool(&config)?;
        Ok(Self(Arc::new(Shared {
            config,
            files,
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
        match pool(&self.config) {
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
                    let authority = shared.files.authority.as_deref();
                    untrusted(reason, authority, shared.config.root_cert.is_some()).into()
                }
                None => error.into(),
            })
        })
    }
}

/// A client with a pool of its own, by way of the proxy if there is one.
fn pool(config: &Config) -> Result<Pool, kube::Error> {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT));
    connector.set_keepalive(Some(IDLE));
    connector.set_keepalive_interval(Some(PROBES));
    connector.set_tcp_user_timeout(Some(GONE));
    let Some(proxy) = config.proxy_url.clone() else {
        return pool_over(config, connector);
    };
    let user = user_of(&proxy);
    if proxy.scheme_str() == Some("socks5") {
        let socks = SocksV5::new(proxy, connector);
        return pool_over(
            config,
            match user {
                Some((name, password)) => socks.with_auth(name, password),
                None => socks,
            },
        );
    }
    let tunnel = Tunnel::new(proxy, connector);
    let basic = user.and_then(|(name, password)| {
        let text = STANDARD.encode(format!("{name}:{password}"));
        HeaderValue::try_from(format!("Basic {text}")).ok()
    });
    let tunnel = match basic {
        Some(basic) => tunnel.with_auth(basic),
        None => tunnel,
    };
    pool_over(config, tunnel)
}

/// The name and password that a proxy's URL has in front of its host.
fn user_of(proxy: &Uri) -> Option<(String, String)> {
    let (user, _) = proxy.authority()?.as_str().rsplit_once('@')?;
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    let decoded = |text| percent_decode_str(text).decode_utf8_lossy().into_owned();
    Some((decoded(name), decoded(password)))
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

/// Whether there is nothing to trust and nothing to show: all authorities of the system need not be read then. Certificates that are
/// given are read in any case, as they have to be right.
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

/// What TLS failed of, if it did.
fn tls<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(error) = error.downcast_ref() {
        return Some(error);
    }
    // An I/O error is not the source of what is within, but stands in its place.
    let within = error.downcast_ref::<std::io::Error>();
    let within = within.and_then(std::io::Error::get_ref);
    tls(match within {
        Some(within) => within,
        None => error.source()?,
    })
}

/// Says what to do about a failure of TLS. `authority` is the file of it; without, `has_roots` says whether the kubeconfig
/// holds it.
fn untrusted(error: &rustls::Error, authority: Option<&Path>, has_roots: bool) -> Untrusted {
    use rustls::Error::{AlertReceived, InvalidCertificate};
    let field = match authority {
        Some(file) => format!("certificate-authority {}", file.display()),
        None if has_roots => "certificate-authority-data of the kubeconfig".to_owned(),
        None => "the authorities of this system (none is configured)".to_owned(),
    };
    let (why, advice) = match error {
        InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            let advice = match (authority, has_roots) {
                (None, false) => "give certificate-authority in the kubeconfig",
                _ => "put the cluster's CA there; kubeadm has it in /etc/kubernetes/pki/ca.crt",
            };
            (
                format!("its certificate is not signed by {field}"),
                advice.to_owned(),
            )
        }
        InvalidCertificate(
            reason @ (CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. }),
        ) => (
            format!("its certificate: {reason}"),
            "renew it on the server (kubeadm certs renew apiserver), or set this node's clock"
                .to_owned(),
        ),
        InvalidCertificate(
            reason @ (CertificateError::NotValidForName
            | CertificateError::NotValidForNameContext { .. }),
        ) => (
            format!("its certificate: {reason}"),
            "use one of its names as the server, or give tls-server-name in the kubeconfig"
                .to_owned(),
        ),
        InvalidCertificate(reason) => (
            format!("its certificate: {reason}"),
            "give the server another certificate".to_owned(),
        ),
        AlertReceived(
            alert @ (AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired
            | AlertDescription::UnknownCA
            | AlertDescription::DecryptError
            | AlertDescription::AccessDenied),
        ) => (
            format!("it does not take this client's certificate: {alert:?}"),
            "renew or correct client-certificate and client-key in the kubeconfig".to_owned(),
        ),
        other => (
            format!("TLS fails: {other}"),
            "check that this is the URL of a Kubernetes API server".to_owned(),
        ),
    };
    Untrusted { why, advice }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxys_user_is_decoded() {
        let user = |url: &str| user_of(&url.parse().unwrap());
        let is = |name: &str, password: &str| Some((name.to_owned(), password.to_owned()));
        assert_eq!(user("http://proxy:3128"), None);
        assert_eq!(user("http://me:p%40ss%3A@proxy:3128"), is("me", "p@ss:"));
        assert_eq!(user("socks5://me@proxy:1080"), is("me", ""));
    }

    #[test]
    fn a_failure_of_tls_is_found_in_what_carries_it() {
        use std::io::Error;
        let reason = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let carried = Error::other(Error::other(reason.clone()));
        assert_eq!(tls(&carried), Some(&reason));
        assert_eq!(tls(&Error::other("something else")), None);
        assert_eq!(tls(&Error::from_raw_os_error(111)), None);
        let said = untrusted(&reason, Some(Path::new("/ca.crt")), true);
        assert_eq!(
            said.why,
            "its certificate is not signed by certificate-authority /ca.crt"
        );
        let said = untrusted(&reason, None, false);
        assert!(said.advice.contains("give certificate-authority"));
    }
}
