//! The HTTP side: connections, what is accepted, which verb does what, and the log of requests.
//!
//! Every request comes through [`Service::serve`] and every watch through [`watch::start`]. What is to be answered
//! otherwise than by the rules ([`crate::faults`]) is so in the first: before the request is looked at, or around the body
//! that it returns.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::{Deref, RangeInclusive};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyDataStream, BodyExt, Full, LengthLimitError, Limited, StreamBody};
use hyper::body::{Body as _, Frame, Incoming};
use hyper::header::{
    ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER,
    USER_AGENT,
};
use hyper::{HeaderMap, Method, Response, StatusCode};
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use crate::cluster::Cluster;
use crate::faults::{Asked, Fault, Faults};
use crate::object::Object;
use crate::resource::Kind;
use crate::route::{Query, Target};
use crate::selector::Scope;
use crate::sent::Sent;
use crate::status::Status;
use crate::tls::Tls;
use crate::write::Part;
use crate::{discovery, list, protobuf, tls, watch};

/// The longest body that is read, in bytes, as the real server has it.
const BODY_LIMIT: usize = 3 << 20;

type Body = UnsyncBoxBody<Bytes, Infallible>;
/// A body that may break off.
type SentBody = UnsyncBoxBody<Bytes, io::Error>;

/// What a server and its cluster are like.
#[derive(Debug)]
pub struct Options {
    /// Where to listen, unless `listener` is given. The default is a free port of 127.0.0.1.
    pub address: SocketAddr,
    /// A socket that listens already, in whatever network namespace it was made.
    pub listener: Option<std::net::TcpListener>,
    /// Whether streamed initial lists (KEP-3157) are served. Without, asking for one is answered with 422 Invalid.
    pub watch_list: bool,
    /// How often a watch that wants bookmarks gets one.
    pub bookmark_interval: Duration,
    /// Where cluster IPs come from; the first range's family is the default one.
    pub service_cidrs: Vec<IpNet>,
    /// Where node ports come from.
    pub node_ports: RangeInclusive<u16>,
    /// Whether there is a Service `default/kubernetes`, on the first address of the first range.
    pub kubernetes_service: bool,
    /// Whether it is noted when events of changes are sent, for `GET /sent`: an object of nanoseconds of `CLOCK_MONOTONIC` by
    /// resource version, of all that was sent since the last such request.
    pub notes_sent: bool,
    /// How many changes of each kind a watch can go back.
    pub history: usize,
    /// HTTPS instead of HTTP.
    pub tls: Option<Tls>,
    /// The bearer tokens that are good; without, everybody may ask (unless [`Tls::clients`] is given).
    pub tokens: Option<Vec<String>>,
}

impl Default for Options {
    fn default() -> Self {
        let cidrs = ["10.96.0.0/12", "fd00:96::/112"]
            .iter()
            .filter_map(|cidr| cidr.parse().ok());
        Self {
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            listener: None,
            watch_list: true,
            bookmark_interval: Duration::from_mins(1),
            service_cidrs: cidrs.collect(),
            node_ports: 30000..=32767,
            kubernetes_service: false,
            notes_sent: false,
            history: 100_000,
            tls: None,
            tokens: None,
        }
    }
}

/// A request as it arrived.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// `GET`, `POST`, …
    pub method: String,
    /// The path, still percent-encoded.
    pub path: String,
    /// The query, still percent-encoded; empty if there is none.
    pub query: String,
    /// `User-Agent`; empty if there is none.
    pub user_agent: String,
    /// `Accept`; empty if there is none.
    pub accept: String,
    /// `Authorization`; empty if there is none.
    pub authorization: Credentials,
}

/// What a client says who it is by. Shown only to who asks for it by name, never in a log.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials(String);

impl Credentials {
    /// The header's value.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_empty() { "none" } else { "hidden" })
    }
}

/// A server that listens. It stops, and cuts its connections, when it is dropped; the [`Cluster`] that it serves, to
/// which it dereferences, goes on for those who hold a clone.
#[derive(Debug)]
pub struct Server {
    service: Arc<Service>,
    stop: Option<oneshot::Sender<()>>,
    running: Option<Running>,
}

#[derive(Debug)]
enum Running {
    Task(tokio::task::JoinHandle<()>),
    Thread(std::thread::JoinHandle<()>),
}

impl Server {
    /// Serves a new cluster from a task of the current runtime. The error is that of the socket.
    pub async fn start(options: Options) -> io::Result<Self> {
        Self::start_on(Cluster::new(&options), options).await
    }

    /// Serves a cluster that exists already, such as that of a server that was stopped.
    #[expect(
        clippy::unused_async,
        reason = "it needs a runtime, and says so by its type"
    )]
    pub async fn start_on(cluster: Cluster, mut options: Options) -> io::Result<Self> {
        let listener = bind(&mut options)?;
        let service = Service::new(cluster, listener.local_addr()?, &options)?;
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(
            service
                .clone()
                .accept(TcpListener::from_std(listener)?, stopped),
        );
        Ok(Self {
            service,
            stop: Some(stop),
            running: Some(Running::Task(task)),
        })
    }

    /// Serves a new cluster from a thread with its own runtime, for those who have none.
    pub fn spawn(options: Options) -> io::Result<Self> {
        Self::spawn_on(Cluster::new(&options), options)
    }

    /// The same with a cluster that exists already.
    pub fn spawn_on(cluster: Cluster, mut options: Options) -> io::Result<Self> {
        let listener = bind(&mut options)?;
        let service = Service::new(cluster, listener.local_addr()?, &options)?;
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let listener = {
            let _guard = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let accept = service.clone().accept(listener, stopped);
        let thread = std::thread::Builder::new().name("apiserver".into());
        let thread = thread.spawn(move || runtime.block_on(accept))?;
        Ok(Self {
            service,
            stop: Some(stop),
            running: Some(Running::Thread(thread)),
        })
    }

    /// The address that is listened on.
    pub fn address(&self) -> SocketAddr {
        self.service.address
    }

    /// The cluster that is served.
    pub fn cluster(&self) -> &Cluster {
        &self.service.cluster
    }

    /// The requests that have arrived, in order.
    pub fn requests(&self) -> Vec<Request> {
        self.service
            .log
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// What goes wrong with this server: nothing, until it is told to.
    pub fn faults(&self) -> &Faults {
        &self.service.faults
    }

    /// From now on these bearer tokens are good and no others: requests with another are answered with 401. What is
    /// being answered goes on.
    pub fn set_tokens(&self, tokens: &[&str]) {
        let tokens = tokens.iter().map(|&token| token.to_owned()).collect();
        *self.service.tokens() = Some(tokens);
    }

    /// How many connections have been accepted; with TLS, how many handshakes have been done.
    pub fn connections(&self) -> usize {
        self.service.connections.load(Ordering::Relaxed)
    }

    /// `http://` or `https://`, and the address.
    pub fn url(&self) -> String {
        let scheme = match self.service.tls {
            Some(_) => "https",
            None => "http",
        };
        format!("{scheme}://{}", self.address())
    }

    /// A kubeconfig for this server, in YAML. It names no authority and no credentials.
    pub fn kubeconfig(&self) -> String {
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: fixture\n  cluster:\n    server: {}\ncontexts:\n\
             - name: fixture\n  context:\n    cluster: fixture\n    user: fixture\ncurrent-context: fixture\nusers:\n\
             - name: fixture\n  user: {{}}\n",
            self.url(),
        )
    }

    /// Stops, and returns when nothing listens any more and all connections are cut. (When the server is only dropped,
    /// one that was started with [`Server::start`] does this as soon as its runtime gets to it.)
    pub async fn stop(mut self) {
        self.stop.take();
        if let Some(Running::Task(task)) = &mut self.running {
            // An error would be a panic, which has been reported where it happened.
            _ = task.await;
        }
    }
}

impl Deref for Server {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        self.cluster()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(Running::Thread(thread)) = self.running.take() {
            _ = thread.join();
        }
    }
}

fn bind(options: &mut Options) -> io::Result<std::net::TcpListener> {
    let listener = match options.listener.take() {
        Some(listener) => listener,
        None => std::net::TcpListener::bind(options.address)?,
    };
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// What the connections share.
#[derive(Debug)]
struct Service {
    cluster: Cluster,
    address: SocketAddr,
    watches: watch::Policy,
    log: Mutex<Vec<Request>>,
    faults: Faults,
    tls: Option<Arc<ServerConfig>>,
    /// Whether a client certificate will do instead of a token.
    by_certificate: bool,
    tokens: Mutex<Option<BTreeSet<String>>>,
    connections: AtomicUsize,
}

impl Service {
    fn new(cluster: Cluster, address: SocketAddr, options: &Options) -> io::Result<Arc<Self>> {
        let watches = watch::Policy {
            watch_list: options.watch_list,
            bookmark_interval: options.bookmark_interval,
            sent: options.notes_sent.then(Sent::default),
        };
        let tls = options.tls.as_ref();
        let tokens = options.tokens.as_ref();
        Ok(Arc::new(Self {
            cluster,
            address,
            watches,
            log: Mutex::default(),
            faults: Faults::new(),
            by_certificate: tls.is_some_and(|tls| tls.clients.is_some()),
            tls: tls.map(tls::config).transpose()?,
            tokens: Mutex::new(tokens.map(|tokens| tokens.iter().cloned().collect())),
            connections: AtomicUsize::new(0),
        }))
    }

    fn tokens(&self) -> MutexGuard<'_, Option<BTreeSet<String>>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves connections until `stopped`. They end with it, as they belong to it.
    async fn accept(self: Arc<Self>, listener: TcpListener, mut stopped: oneshot::Receiver<()>) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                _ = &mut stopped => return,
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => _ = connections.spawn(self.clone().converse(stream)),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
            }
        }
    }

    async fn converse(self: Arc<Self>, stream: TcpStream) {
        // Watch events are small and must not wait for each other.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let Some(tls) = &self.tls else {
            return self.talk(stream, false).await;
        };
        match TlsAcceptor::from(tls.clone()).accept(stream).await {
            Ok(stream) => {
                let has_certificate = stream.get_ref().1.peer_certificates().is_some();
                self.talk(stream, has_certificate).await;
            }
            Err(error) => tracing::debug!(%error, "no TLS connection"),
        }
    }

    async fn talk(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send,
        has_certificate: bool,
    ) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        let answer =
            hyper::service::service_fn(async |request| self.serve(request, has_certificate).await);
        let connection = hyper::server::conn::http1::Builder::new();
        if let Err(error) = connection
            .serve_connection(TokioIo::new(stream), answer)
            .await
        {
            tracing::debug!(%error, "a connection broke");
        }
    }

    /// Answers a request, or closes its connection with an error.
    async fn serve(
        &self,
        request: hyper::Request<Incoming>,
        has_certificate: bool,
    ) -> io::Result<Response<SentBody>> {
        let uri = request.uri();
        let authorization = header(request.headers(), &AUTHORIZATION);
        let logged = Request {
            method: request.method().to_string(),
            path: uri.path().to_owned(),
            query: uri.query().unwrap_or_default().to_owned(),
            user_agent: header(request.headers(), &USER_AGENT).to_owned(),
            accept: header(request.headers(), &ACCEPT).to_owned(),
            authorization: Credentials(authorization.to_owned()),
        };
        tracing::debug!(
            method = logged.method,
            path = logged.path,
            query = logged.query,
            "request"
        );
        let is_allowed = {
            let authorization = logged.authorization.reveal();
            let tokens = self.tokens();
            let by_certificate = self.by_certificate;
            tls::is_allowed(
                tokens.as_ref(),
                by_certificate,
                has_certificate,
                authorization,
            )
        };
        let (asked, kind) = asked(&logged);
        self.log
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(logged);
        let fault = self.faults.meet(asked, kind);
        let response = match fault {
            Some(Fault::Drop) => {
                return Err(io::Error::new(
                    io::ErrorKind::ConnectionReset,
                    "dropped, as told",
                ));
            }
            Some(Fault::Silence) => std::future::pending().await,
            Some(Fault::Refuse { code, retry_after }) => refusal(code, retry_after),
            Some(Fault::Expire) => {
                let status = Status::expired("the history is gone, as told");
                about_history(asked, &status)
            }
            Some(Fault::Ahead) => about_history(asked, &Status::too_large(2, 1)),
            _ if !is_allowed => {
                let status = Status::unauthorized();
                json_body(status.code, status.to_json().to_string())
            }
            _ => self
                .answer(request)
                .await
                .unwrap_or_else(|status| json_body(status.code, status.to_json().to_string())),
        };
        Ok(response.map(|body| {
            // One that is in memory as a whole is sent as a whole, with its length.
            if body.size_hint().exact().is_some() {
                return body.map_err(|never| match never {}).boxed_unsync();
            }
            let data = BodyDataStream::new(body).map(|data| {
                let Ok(data) = data;
                data
            });
            StreamBody::new(self.faults.spoil(data, fault)).boxed_unsync()
        }))
    }

    async fn answer(&self, request: hyper::Request<Incoming>) -> Result<Response<Body>, Status> {
        let (head, body) = request.into_parts();
        let (method, path) = (head.method, head.uri.path());
        let target = Target::parse(path)?;
        let refused = || Status::method_not_allowed(method.as_str(), path);
        if target == Target::Health {
            return Ok(respond(
                200,
                "text/plain; charset=utf-8",
                Full::from("ok").boxed_unsync(),
            ));
        }
        let accept = header(&head.headers, &ACCEPT);
        if !accepts_json(accept) {
            return Err(Status::not_acceptable(accept));
        }
        let query = Query::parse(head.uri.query().unwrap_or_default())?;
        if method != Method::GET && !query.text("dryRun").is_empty() {
            return Err(Status::bad_request("dryRun: is not offered by this server"));
        }
        let content = header(&head.headers, &CONTENT_TYPE);
        let cluster = &self.cluster;
        let (kind, namespace, name, part) = match target {
            Target::Collection { kind, namespace } => match method {
                Method::GET => return self.collection(kind, namespace, &query),
                Method::POST if namespace.is_some() == kind.resource().namespaced => {
                    let object = object(kind, content, &read(body).await?)?;
                    let object =
                        cluster.write(|state| state.create(kind, namespace.as_deref(), object))?;
                    return Ok(json_object(201, &object));
                }
                _ => return Err(refused()),
            },
            Target::Object {
                kind,
                namespace,
                name,
                part,
            } => (kind, namespace, name, part),
            _ if method != Method::GET => return Err(refused()),
            Target::Sent => {
                let sent = self.watches.sent.as_ref();
                let sent = sent.ok_or_else(|| Status::no_such_path(path))?;
                return Ok(json_body(200, sent.take().to_string()));
            }
            Target::Version | Target::Health => {
                return Ok(json_body(200, discovery::version().to_string()));
            }
            Target::CoreVersions => {
                return Ok(json_body(
                    200,
                    discovery::core_versions(&self.address.to_string()).to_string(),
                ));
            }
            Target::Groups => return Ok(json_body(200, discovery::groups().to_string())),
            Target::Group(group) => {
                return Ok(json_body(200, discovery::group(&group, path)?.to_string()));
            }
            Target::Resources(group) => {
                return Ok(json_body(
                    200,
                    discovery::resources(&group, path)?.to_string(),
                ));
            }
        };
        let key = (namespace.into(), name.into());
        let object = match method {
            Method::GET => {
                let state = cluster.lock();
                if let Some(asked) = query
                    .number("resourceVersion")?
                    .filter(|asked| *asked > state.version)
                {
                    return Err(Status::too_large(asked, state.version));
                }
                state
                    .get(kind, &key)
                    .ok_or_else(|| Status::not_found(kind, &key.1))?
            }
            Method::PUT => {
                let object = object(kind, content, &read(body).await?)?;
                cluster.write(|state| state.replace(kind, &key, part, object))?
            }
            Method::PATCH => {
                let patch = patch(content, &read(body).await?)?;
                cluster.write(|state| state.patch(kind, &key, part, &patch))?
            }
            Method::DELETE if part == Part::Main => {
                let gone = cluster.write(|state| state.delete(kind, &key))?.value();
                let resource = kind.resource();
                let details = json!({
                    "name": key.1, "group": resource.group, "kind": resource.plural,
                    "uid": gone.pointer("/metadata/uid"),
                });
                let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details });
                return Ok(json_body(200, status.to_string()));
            }
            _ => return Err(refused()),
        };
        Ok(json_object(200, &object))
    }

    fn collection(
        &self,
        kind: Kind,
        namespace: Option<String>,
        query: &Query,
    ) -> Result<Response<Body>, Status> {
        let scope = Scope::new(
            kind,
            namespace,
            query.text("labelSelector"),
            query.text("fieldSelector"),
        )?;
        if query.flag("watch") == Some(true) {
            let events = watch::start(&self.cluster, kind, scope, query, &self.watches)?;
            return Ok(json_stream(events));
        }
        let (page, on) = list::page(&self.cluster, kind, &scope, query)?;
        Ok(json_stream(list::body(kind, page, &on, scope.selects())))
    }
}

/// What a request is for, as faults tell requests apart.
fn asked(request: &Request) -> (Asked, Option<Kind>) {
    let Ok(Target::Collection { kind, .. }) = Target::parse(&request.path) else {
        return (Asked::Other, None);
    };
    let asked = match Query::parse(&request.query) {
        Ok(query) if request.method == "GET" => {
            if query.flag("watch") == Some(true) {
                match query.flag("sendInitialEvents") {
                    Some(true) => Asked::StreamedList,
                    _ => Asked::Watch,
                }
            } else if query.text("continue").is_empty() {
                Asked::List
            } else {
                Asked::NextPage
            }
        }
        _ => Asked::Other,
    };
    (asked, Some(kind))
}

fn refusal(code: u16, retry_after: Option<u64>) -> Response<Body> {
    let body = Full::from("refused, as told\n").boxed_unsync();
    let mut response = respond(code, "text/plain; charset=utf-8", body);
    if let Some(seconds) = retry_after {
        let headers = response.headers_mut();
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// A watch is told in its own way.
fn about_history(asked: Asked, status: &Status) -> Response<Body> {
    match asked {
        Asked::Watch | Asked::StreamedList => json_body(200, watch::error(status)),
        _ => json_body(status.code, status.to_json().to_string()),
    }
}

/// The value of a header, empty if it is absent or no text.
fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> &'a str {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

/// Whether plain JSON will do. A client that prefers protobuf or a Table names JSON behind it.
fn accepts_json(accept: &str) -> bool {
    let plain = |range: &str| {
        let mut parts = range.split(';').map(str::trim);
        let json = matches!(
            parts.next(),
            Some("application/json" | "application/*" | "*/*")
        );
        // A Table is for people; anything else that JSON may be transformed to is another object.
        json && parts.all(|part| !part.starts_with("as=") || part == "as=Table")
    };
    accept.is_empty() || accept.split(',').any(plain)
}

async fn read(body: Incoming) -> Result<Bytes, Status> {
    let collected = Limited::new(body, BODY_LIMIT).collect().await;
    collected
        .map(http_body_util::Collected::to_bytes)
        .map_err(|error| {
            if error.is::<LengthLimitError>() {
                Status::too_long(BODY_LIMIT)
            } else {
                Status::bad_request(format!("the body broke off: {error}"))
            }
        })
}

/// The object that a body holds.
fn object(kind: Kind, content: &str, body: &[u8]) -> Result<Value, Status> {
    match content.split(';').next().unwrap_or_default().trim() {
        "" | "application/json" => parse(body),
        "application/vnd.kubernetes.protobuf" if matches!(kind, Kind::Event | Kind::CoreEvent) => {
            protobuf::event(kind, body)
                .map_err(|error| Status::bad_request(format!("the body: {error}")))
        }
        _ => Err(Status::unsupported_media(
            content,
            "application/json, and protobuf for Events",
        )),
    }
}

fn patch(content: &str, body: &[u8]) -> Result<Value, Status> {
    match content.split(';').next().unwrap_or_default().trim() {
        "application/merge-patch+json" | "application/strategic-merge-patch+json" => parse(body),
        _ => Err(Status::unsupported_media(
            content,
            "merge-patch+json, strategic-merge-patch+json",
        )),
    }
}

fn parse(body: &[u8]) -> Result<Value, Status> {
    let value: Value = serde_json::from_slice(body)
        .map_err(|error| Status::bad_request(format!("the body: {error}")))?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(Status::bad_request("the body is not an object"))
    }
}

fn json_object(code: u16, object: &Object) -> Response<Body> {
    json_body(code, object.bytes().clone())
}

fn json_body(code: u16, body: impl Into<Bytes>) -> Response<Body> {
    respond(
        code,
        "application/json",
        Full::new(body.into()).boxed_unsync(),
    )
}

fn json_stream(
    frames: impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + 'static,
) -> Response<Body> {
    respond(
        200,
        "application/json",
        StreamBody::new(frames).boxed_unsync(),
    )
}

fn respond(code: u16, content: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content));
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_found_among_what_is_accepted() {
        for yes in [
            "",
            "*/*",
            "application/json",
            "application/vnd.kubernetes.protobuf, application/json",
            "application/vnd.kubernetes.protobuf, */*",
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
            "application/json;stream=watch",
        ] {
            assert!(accepts_json(yes), "{yes:?}");
        }
        for no in [
            "application/vnd.kubernetes.protobuf",
            "text/html",
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        ] {
            assert!(!accepts_json(no), "{no:?}");
        }
    }
}
