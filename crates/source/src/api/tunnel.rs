//! Connects to the API server through an HTTP, HTTPS or SOCKS 5 proxy.
//!
//! ```text
//!   http    TCP ─────────▶ CONNECT server:port ─▶ as if it were the server
//!   https   TCP ─▶ TLS ──▶ CONNECT server:port ─▶
//!   socks5  TCP ─────────▶ SOCKS 5 ─────────────▶
//! ```
//!
//! **Certificates.** This module checks the proxy's certificate as client-go does: with the
//! kubeconfig's CAs if the kubeconfig names any, and otherwise with the system's CAs. The
//! certificate must be valid for the proxy's host. `tls-server-name` applies only to the server.
//! (client-go also applies this name to the proxy.)
//!
//! **`hyper-util`.** This module uses only the SOCKS handshake of `hyper-util`, for two reasons:
//!
//! - The `CONNECT` client of `hyper-util` does not distinguish a proxy that forbids the target from
//!   a proxy that cannot reach the server.
//! - The SOCKS client does not return the reason why it cannot reach the proxy. So this module
//!   connects to the proxy itself.

use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::future::{BoxFuture, Either, select};
use http::header::{HOST, PROXY_AUTHORIZATION};
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::rt::{Read, Write};
use hyper::upgrade;
use hyper_util::client::legacy::connect::proxy::SocksV5;
use tokio::time::timeout;
use tower::{BoxError, Service, ServiceExt as _, service_fn};

use super::addresses::ServerPeer;
use super::backoff::Cost;
use super::cause::root_cause;
use super::http_proxy::{Protocol, Proxy};
use super::trust::{Authorities, Peer, tls};

/// Connector to a target through a proxy. `C` is the connector to the proxy.
#[derive(Clone)]
pub(super) struct Tunnel<C> {
    way: Arc<ProxyRoute>,
    inner: C,
}

#[derive(Debug)]
struct ProxyRoute {
    proxy: Proxy,
    authorities: Authorities,
}

/// Error of a connection through a proxy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub(super) struct ProxyError {
    /// Reason why the connection failed, with the name of the proxy.
    pub(super) why: String,
    /// Next step for the operator, such as a proxy setting to correct.
    pub(super) advice: String,
    /// Work that the attempt caused on the API server, which determines the back-off.
    pub(super) cost: Cost,
}

/// Timeout for opening a tunnel, including TLS with the proxy.
const OPENING: Duration = Duration::from_secs(30);
/// Error text of the SOCKS library for a proxy that accepts none of the offered login methods.
const NOT_ACCEPTABLE: &str = "server does not support user/pass authentication";

impl<C> Tunnel<C> {
    /// Creates a connector. `authorities` are the CAs against which `inner` checks the certificate
    /// of an HTTPS proxy. Error messages name these CAs.
    pub(super) fn new(proxy: Proxy, authorities: Authorities, inner: C) -> Self {
        Self {
            way: Arc::new(ProxyRoute { proxy, authorities }),
            inner,
        }
    }
}

impl<C> Service<Uri> for Tunnel<C>
where
    C: Service<Uri> + Clone + Send + 'static,
    C::Response: Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError> + Send + 'static,
{
    type Response = C::Response;
    type Error = ProxyError;
    type Future = BoxFuture<'static, Result<C::Response, ProxyError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ProxyError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let (way, inner) = (Arc::clone(&self.way), self.inner.clone());
        Box::pin(async move {
            let target = with_port(target);
            let opening = way.open(inner, &target);
            let opened = timeout(OPENING, opening).await;
            opened.unwrap_or_else(|_| Err(way.silent(&target)))
        })
    }
}

impl ProxyRoute {
    async fn open<C>(&self, connector: C, target: &Uri) -> Result<C::Response, ProxyError>
    where
        C: Service<Uri> + Clone,
        C::Response: Read + Write + Send + Unpin + 'static,
        C::Error: Into<BoxError>,
    {
        match self.proxy.protocol {
            Protocol::Http | Protocol::Https => {
                let stream = self.reach(connector).await?;
                self.connect(stream, target).await
            }
            Protocol::Socks5 => self.socks(connector, target).await,
        }
    }

    fn silent(&self, target: &Uri) -> ProxyError {
        let (proxy, target) = (&self.proxy, shown(target));
        ProxyError {
            why: format!("proxy {proxy} has not connected to {target} within {OPENING:?}"),
            advice: "check that the proxy is of the kind that its URL says, and that it reaches the API server".to_owned(),
            cost: Cost::Nothing,
        }
    }

    /// Opens a connection to the proxy. The error says whether the proxy is unreachable or its
    /// certificate untrusted.
    async fn reach<C>(&self, connector: C) -> Result<C::Response, ProxyError>
    where
        C: Service<Uri>,
        C::Error: Into<BoxError>,
    {
        let proxy = &self.proxy;
        let reached = connector.oneshot(proxy.url.clone()).await;
        reached.map_err(|error| {
            let error: BoxError = error.into();
            if let Some(error) = tls(&*error) {
                let untrusted = self.authorities.untrusted(error, Peer::Proxy);
                return ProxyError {
                    why: format!("proxy {proxy} cannot be talked to: {}", untrusted.why),
                    advice: untrusted.advice,
                    cost: Cost::Something,
                };
            }
            ProxyError {
                why: format!("proxy {proxy} cannot be reached: {}", root_cause(&*error)),
                advice: "check that the proxy runs and that this node reaches it".to_owned(),
                cost: Cost::Nothing,
            }
        })
    }

    /// Requests a tunnel to `target` from an HTTP proxy, with `CONNECT`.
    async fn connect<T>(&self, stream: T, target: &Uri) -> Result<T, ProxyError>
    where
        T: Read + Write + Send + Unpin + 'static,
    {
        let broken = |error: &(dyn std::error::Error + 'static)| ProxyError {
            why: format!("proxy {} breaks off: {}", self.proxy, root_cause(error)),
            advice: "check that this is the URL of an HTTP proxy".to_owned(),
            cost: Cost::Something,
        };
        let (mut requests, connection) = http1::handshake(stream)
            .await
            .map_err(|error| broken(&error))?;
        let request = self.connect_request(target);
        let request = request.map_err(|error| broken(&error))?;
        let exchange = async {
            let answer = requests.send_request(request).await;
            let answer = answer.map_err(|error| broken(&error))?;
            if !answer.status().is_success() {
                return Err(self.refused(answer.status(), target));
            }
            let opened = upgrade::on(answer).await;
            opened.map_err(|error| broken(&error))
        };
        // Polls both futures: the exchange makes progress only while `connection` is polled.
        let connection = pin!(connection.with_upgrades());
        let opened = match select(pin!(exchange), connection).await {
            Either::Left((opened, _)) => opened?,
            Either::Right((_, exchange)) => exchange.await?,
        };
        match opened.downcast::<T>() {
            Ok(parts) if parts.read_buf.is_empty() => Ok(parts.io),
            // In TLS and HTTP, the client sends first. So bytes from the server at this point are
            // an error.
            _ => Err(broken(&std::io::Error::other(
                "it speaks before it is spoken to",
            ))),
        }
    }

    fn connect_request(&self, target: &Uri) -> http::Result<Request<Empty<Bytes>>> {
        let authority = shown(target);
        let mut request = Request::connect(authority.as_str()).header(HOST, &authority);
        if let Some((name, password)) = &self.proxy.user {
            let basic = STANDARD.encode(format!("{name}:{password}"));
            let mut basic = HeaderValue::try_from(format!("Basic {basic}"))?;
            basic.set_sensitive(true);
            request = request.header(PROXY_AUTHORIZATION, basic);
        }
        request.body(Empty::new())
    }

    fn refused(&self, status: StatusCode, target: &Uri) -> ProxyError {
        let (proxy, target) = (&self.proxy, shown(target));
        let advice = match status {
            StatusCode::PROXY_AUTHENTICATION_REQUIRED | StatusCode::UNAUTHORIZED => {
                "give the name and password that it knows in its URL, as in http://NAME:PASSWORD@HOST:PORT, percent-encoded"
            }
            status if status.is_server_error() => "check that the proxy reaches the API server",
            _ => "check that the proxy allows CONNECT to that host and port",
        };
        ProxyError {
            why: format!("proxy {proxy} does not connect to {target}: {status}"),
            advice: advice.to_owned(),
            cost: if status.is_server_error() {
                Cost::Nothing
            } else {
                Cost::Something
            },
        }
    }

    /// Requests a tunnel from a SOCKS proxy. If the proxy rejects a login with a password, retries
    /// without a password, as Go does.
    async fn socks<C>(&self, connector: C, target: &Uri) -> Result<C::Response, ProxyError>
    where
        C: Service<Uri> + Clone,
        C::Response: Read + Write + Send + Unpin + 'static,
        C::Error: Into<BoxError>,
    {
        let user = self.proxy.user.as_ref();
        let stream = self.reach(connector.clone()).await?;
        let mut result = socks(stream, &self.proxy, user, target).await;
        if matches!(&result, Err(why) if user.is_some() && why.ends_with(NOT_ACCEPTABLE)) {
            let stream = self.reach(connector).await?;
            result = socks(stream, &self.proxy, None, target).await;
        }
        let (proxy, target) = (&self.proxy, shown(target));
        result.map_err(|why| ProxyError {
            why: format!("proxy {proxy} does not connect to {target}: {why}"),
            advice: "check that it is a SOCKS 5 proxy, that its URL has the name and password that it knows, and that it \
                     reaches the API server"
                .to_owned(),
            cost: Cost::Nothing,
        })
    }
}

/// Requests a tunnel over an open connection to a SOCKS proxy. Returns the proxy's error as text.
async fn socks<T>(
    stream: T,
    proxy: &Proxy,
    user: Option<&(String, String)>,
    target: &Uri,
) -> Result<T, String>
where
    T: Read + Write + Send + Unpin + 'static,
{
    // Gives the existing connection to the library, which calls this connector only once.
    let mut stream = Some(stream);
    let connected = service_fn(move |_: Uri| ready(stream.take().ok_or("it is connected already")));
    let mut socks = SocksV5::new(proxy.url.clone(), connected);
    if let Some((name, password)) = user {
        socks = socks.with_auth(name.clone(), password.clone());
    }
    let opened = socks.call(target.clone()).await;
    opened.map_err(|error| match error.to_string() {
        why if user.is_none() && why.ends_with(NOT_ACCEPTABLE) => {
            "it wants a name and a password".to_owned()
        }
        why => why,
    })
}

/// Adds the scheme's default port to a URL without a port.
fn with_port(url: Uri) -> Uri {
    let Some(target) = ServerPeer::of(&url) else {
        return url;
    };
    let mut parts = url.clone().into_parts();
    let host = url.host().unwrap_or_default();
    parts.authority = format!("{host}:{}", target.port).parse().ok();
    Uri::from_parts(parts).unwrap_or(url)
}

/// Returns the host and port of a URL as text.
fn shown(url: &Uri) -> String {
    url.authority().map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_target_gets_the_default_port_of_its_scheme() {
        let of = |url: &str| shown(&with_port(url.parse().unwrap()));
        assert_eq!(of("https://a:6443/x"), "a:6443");
        assert_eq!(of("https://[fd00::1]/x"), "[fd00::1]:443");
        assert_eq!(of("http://a"), "a:80");
    }
}
