//! Handles HTTP: accepts connections, authenticates clients, and calls the handler of each request.
//!
//! [`Service::serve`] handles every request, and [`watch::start`] starts every watch. `serve` also
//! injects faults ([`crate::faults`]), before it handles a request or into the response body.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyDataStream, BodyExt as _, LengthLimitError, Limited, StreamBody};
use hyper::body::{Body as _, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Response};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::answer::{self, Body};
use crate::cluster::Cluster;
use crate::faults::{Fault, Faults, Purpose, Rule};
use crate::list::{self, List};
use crate::media::{AcceptedEncodings, Coding, Media};
use crate::meter::{Meter, MeteredStream};
use crate::options::{Options, StreamedLists, WatchCache};
use crate::request::{Log, Request, header};
use crate::resource::Kind;
use crate::route::{Query, Target};
use crate::selector::Scope;
use crate::sent::SendTimes;
use crate::status::Status;
use crate::{protobuf, tls, watch};

/// Maximum size of a request body in bytes, as in a real API server.
const BODY_LIMIT: usize = 3 << 20;
/// Maximum time for which a request waits for a future resource version, as in a real API server's
/// watch cache.
const FRESH_WITHIN: Duration = Duration::from_secs(3);
/// Prefix of the paths by which tests control the fake API server. A real API server has no such
/// paths.
const FIXTURE: &str = "/fixture/";

/// A response body. A fault can end it with an error, which breaks the connection.
type SentBody = UnsyncBoxBody<Bytes, io::Error>;

/// State that all connections of a server share.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) cluster: Cluster,
    cache: WatchCache,
    watches: watch::Policy,
    pub(crate) log: Log,
    pub(crate) faults: Faults,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    /// True if a client with a valid certificate needs no bearer token ([`crate::Tls::clients`]).
    by_certificate: bool,
    tokens: Mutex<Option<BTreeSet<String>>>,
    pub(crate) connections: AtomicUsize,
}

/// True (`Certificate`) if a client has authenticated itself by a valid certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientCertificate {
    Certificate,
    Nothing,
}

impl Service {
    pub(crate) fn new(cluster: Cluster, options: &Options) -> io::Result<Arc<Self>> {
        let watches = watch::Policy {
            watch_list: options.watch_list,
            streamed_lists: options.streamed_lists,
            bookmark_interval: options.bookmark_interval,
            sent: options.notes_sent.then(SendTimes::default),
        };
        let tls = options.tls.as_ref();
        let tokens = options.tokens.as_ref();
        Ok(Arc::new(Self {
            cluster,
            cache: options.watch_cache,
            watches,
            log: Log::default(),
            faults: Faults::new(),
            by_certificate: tls.is_some_and(|tls| tls.clients.is_some()),
            tls: tls.map(tls::config).transpose()?,
            tokens: Mutex::new(tokens.map(|tokens| tokens.iter().cloned().collect())),
            connections: AtomicUsize::new(0),
        }))
    }

    pub(crate) fn tokens(&self) -> MutexGuard<'_, Option<BTreeSet<String>>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts and serves connections until `stopped`, then closes all connections.
    pub(crate) async fn accept(
        self: Arc<Self>,
        listener: TcpListener,
        mut stopped: oneshot::Receiver<()>,
    ) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                _ = &mut stopped => return,
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => _ = connections.spawn(self.clone().serve_connection(stream)),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
            }
        }
    }

    async fn serve_connection(self: Arc<Self>, stream: TcpStream) {
        // Disables Nagle's algorithm: TCP must send small watch events without delay.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let meter = Meter::default();
        let stream = MeteredStream::new(stream, meter.clone());
        let Some(tls) = &self.tls else {
            return self.talk(stream, &meter, ClientCertificate::Nothing).await;
        };
        match TlsAcceptor::from(tls.clone()).accept(stream).await {
            Ok(stream) => {
                let shown = match stream.get_ref().1.peer_certificates() {
                    Some(_) => ClientCertificate::Certificate,
                    None => ClientCertificate::Nothing,
                };
                self.talk(stream, &meter, shown).await;
            }
            Err(error) => tracing::debug!(%error, "no TLS connection"),
        }
    }

    async fn talk(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send,
        meter: &Meter,
        shown: ClientCertificate,
    ) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        let answer =
            hyper::service::service_fn(async |request| self.serve(request, meter, shown).await);
        let connection = hyper::server::conn::http1::Builder::new();
        if let Err(error) = connection
            .serve_connection(TokioIo::new(stream), answer)
            .await
        {
            tracing::debug!(%error, "a connection broke");
        }
    }

    /// Returns the response to a request. An error closes the connection.
    async fn serve(
        &self,
        request: hyper::Request<Incoming>,
        meter: &Meter,
        shown: ClientCertificate,
    ) -> io::Result<Response<SentBody>> {
        if request.uri().path().starts_with(FIXTURE) {
            meter.turn_to(None);
            let answered = self.about_fixture(request).await;
            let response = answered.unwrap_or_else(|status| answer::status(&status, Media::Json));
            return Ok(response.map(infallible));
        }
        let entry = self.log.add(Request::new(&request));
        meter.turn_to(Some(Arc::clone(&entry)));
        let logged = entry.request();
        tracing::debug!(
            method = logged.method,
            path = logged.path,
            query = logged.query,
            "request"
        );
        let is_allowed = tls::is_allowed(
            self.tokens().as_ref(),
            self.by_certificate,
            shown == ClientCertificate::Certificate,
            logged.authorization.reveal(),
        );
        let fault = self.faults.meet(logged.asked, logged.kind);
        let accepted = AcceptedEncodings::negotiate(&logged.accept, &logged.accept_encoding);
        let media = accepted
            .as_ref()
            .map_or(Media::Json, |accepted| accepted.media);
        let refused = |status: &Status| answer::status(status, media);
        let response = match fault {
            Some(Fault::Drop) => {
                return Err(io::Error::new(
                    io::ErrorKind::ConnectionReset,
                    "dropped, as told",
                ));
            }
            Some(Fault::Silence) => std::future::pending().await,
            Some(Fault::Refuse { code, retry_after }) => answer::refusal(code, retry_after),
            Some(Fault::Expire) => {
                let status = Status::expired("the history is gone, as told");
                told(logged.asked, &status, media)
            }
            Some(Fault::Ahead) => told(logged.asked, &Status::too_large(2, 1), media),
            Some(Fault::Timeout) => told(logged.asked, &Status::timeout(), media),
            Some(Fault::NoWatchList) => refused(&Status::no_watch_list()),
            _ if !is_allowed => refused(&Status::unauthorized()),
            _ => match accepted {
                Ok(accepted) => {
                    let answered = self.answer(request, accepted).await;
                    answered.unwrap_or_else(|status| refused(&status))
                }
                Err(status) => refused(&status),
            },
        };
        entry.answered(&response);
        Ok(response.map(|body| {
            // Sends a body that is completely in memory unchanged, with a `Content-Length`. Faults
            // affect only streamed bodies.
            if body.size_hint().exact().is_some() {
                return infallible(body);
            }
            let data = BodyDataStream::new(body).map(|data| {
                let Ok(data) = data;
                data
            });
            StreamBody::new(self.faults.spoil(data, fault)).boxed_unsync()
        }))
    }

    async fn answer(
        &self,
        request: hyper::Request<Incoming>,
        accepted: AcceptedEncodings,
    ) -> Result<Response<Body>, Status> {
        let (head, body) = request.into_parts();
        let (method, path) = (head.method, head.uri.path());
        let refused = || Status::method_not_allowed(method.as_str(), path);
        let query = Query::parse(head.uri.query().unwrap_or_default())?;
        let content = header(&head.headers, &CONTENT_TYPE);
        let cluster = &self.cluster;
        let (kind, namespace, name) = match Target::parse(path)? {
            Target::Collection { kind, namespace } => match method {
                Method::GET => return self.collection(kind, namespace, &query, accepted).await,
                Method::POST if namespace.is_some() == kind.resource().namespaced => {
                    let object = object(kind, content, &read(body).await?)?;
                    let object =
                        cluster.write(|state| state.create(kind, namespace.as_deref(), object))?;
                    return Ok(answer::object(201, &object, accepted));
                }
                _ => return Err(refused()),
            },
            Target::Object {
                kind,
                namespace,
                name,
            } => (kind, namespace, name),
        };
        let key = (namespace.into(), name.into());
        let object = match method {
            Method::GET => {
                let version = query.number("resourceVersion")?.unwrap_or(0);
                self.reach(version).await?;
                cluster
                    .lock()
                    .get(kind, &key)
                    .ok_or_else(|| Status::not_found(kind, &key.1))?
            }
            Method::PUT => {
                let object = object(kind, content, &read(body).await?)?;
                cluster.write(|state| state.replace(kind, &key, object))?
            }
            Method::DELETE => {
                let gone = cluster.write(|state| state.delete(kind, &key))?.value();
                return Ok(answer::json(200, &Status::deleted(kind, &key.1, &gone)));
            }
            _ => return Err(refused()),
        };
        Ok(answer::object(200, &object, accepted))
    }

    async fn collection(
        &self,
        kind: Kind,
        namespace: Option<String>,
        query: &Query,
        accepted: AcceptedEncodings,
    ) -> Result<Response<Body>, Status> {
        let scope = Scope::new(
            kind,
            namespace,
            query.text("labelSelector"),
            query.text("fieldSelector"),
        )?;
        let media = accepted.media;
        if query.flag("watch") == Some(true) {
            let is_list = query.flag("sendInitialEvents") == Some(true);
            if is_list && self.watches.watch_list {
                let version = query.number("resourceVersion")?.unwrap_or(0);
                self.reach(version).await?;
            }
            let events = watch::start(&self.cluster, kind, scope, query, media, &self.watches)?;
            let is_packed = is_list && self.watches.streamed_lists == StreamedLists::Compressed;
            if is_packed && accepted.coding == Coding::Gzip {
                return Ok(answer::compressed_events(events, media));
            }
            return Ok(answer::events(events, media));
        }
        if let Some(version) = list::awaited(query) {
            self.reach(version).await?;
        }
        let (page, on) = list::page(&self.cluster, kind, &scope, query, self.cache)?;
        let list = List::new(kind, page, &on, &scope, media);
        Ok(answer::list(list, accepted))
    }

    /// Waits for the resource version `version` of the cluster. Without a watch cache, only checks
    /// it.
    ///
    /// # Errors
    /// Returns an error (504) if the cluster does not reach the version in time.
    async fn reach(&self, version: u64) -> Result<(), Status> {
        let mut changed = self.cluster.subscribe();
        let reached = async {
            // This wait cannot fail: the task itself holds a clone of the cluster, so the channel
            // stays open.
            _ = changed.wait_for(|current| *current >= version).await;
        };
        if self.cache == WatchCache::Present {
            _ = tokio::time::timeout(FRESH_WITHIN, reached).await;
        }
        let current = self.cluster.version();
        if version > current {
            return Err(Status::too_large(version, current));
        }
        Ok(())
    }

    /// Handles requests that control the fake API server, with JSON responses. Faults do not affect
    /// these requests, and the request log does not contain them.
    ///
    /// ```text
    ///  GET  /fixture/sent       send times of change events since the last call, by version
    ///                           (nanoseconds of CLOCK_MONOTONIC)
    ///  GET  /fixture/requests   requests from number `from` on, except those with the User-Agent
    ///                           `without`: each with its response headers and the bytes sent
    ///  PUT  /fixture/faults     replaces the rules:
    ///                           [{"fault": {"refuse": {"code": 504}}, "on": "watch"}]
    ///  POST /fixture/cut        cuts every response body in transmission
    /// ```
    async fn about_fixture(
        &self,
        request: hyper::Request<Incoming>,
    ) -> Result<Response<Body>, Status> {
        let (head, body) = request.into_parts();
        let path = head.uri.path();
        let what = path.strip_prefix(FIXTURE).unwrap_or_default();
        match (head.method.as_str(), what, &self.watches.sent) {
            ("GET", "sent", Some(sent)) => Ok(answer::json(200, &sent.take())),
            ("GET", "requests", _) => {
                let query = Query::parse(head.uri.query().unwrap_or_default())?;
                let from = query.number("from")?.unwrap_or(0);
                let from = usize::try_from(from).unwrap_or(usize::MAX);
                let told = self.log.since(from, query.text("without"));
                Ok(answer::json(200, &told))
            }
            ("PUT", "faults", _) => {
                let rules: Vec<Rule> = serde_json::from_slice(&read(body).await?)
                    .map_err(|error| Status::bad_request(format!("the body: {error}")))?;
                self.faults.clear();
                for rule in rules {
                    self.faults.add(rule);
                }
                Ok(answer::json(200, &json!({})))
            }
            ("POST", "cut", _) => {
                self.faults.cut();
                Ok(answer::json(200, &json!({})))
            }
            _ => Err(Status::no_such_path(path)),
        }
    }
}

fn infallible(body: Body) -> SentBody {
    body.map_err(|never| match never {}).boxed_unsync()
}

/// Returns an error response: an `ERROR` event for a watch, a `Status` for any other request.
fn told(asked: Purpose, status: &Status, media: Media) -> Response<Body> {
    match asked {
        Purpose::Watch | Purpose::StreamedList => answer::error_event(status, media),
        _ => answer::status(status, media),
    }
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

/// Decodes the object in a request body, JSON or protobuf.
fn object(kind: Kind, content: &str, body: &[u8]) -> Result<Value, Status> {
    let wrong = |error: &dyn std::fmt::Display| Status::bad_request(format!("the body: {error}"));
    match content.split(';').next().unwrap_or_default().trim() {
        "" | "application/json" => serde_json::from_slice(body).map_err(|error| wrong(&error)),
        "application/vnd.kubernetes.protobuf" => {
            protobuf::decode(kind, body).map_err(|error| wrong(&error))
        }
        _ => Err(Status::unsupported_media(content)),
    }
}
