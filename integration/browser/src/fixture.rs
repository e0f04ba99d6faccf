//! An HTTP server with the files of the daemon's page `/ui/`, and with API responses from a
//! [`World`].

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use anyhow::Result;
use http::request::Parts;
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube_proxy::serve::ui;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::World;

/// A running HTTP server on 127.0.0.1. Dropping it closes all connections.
#[derive(Debug)]
pub struct Fixture {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Fixture {
    /// Starts an HTTP server on a port of 127.0.0.1. Port 0 chooses a free port.
    ///
    /// # Errors
    ///
    /// Fails if the port is in use.
    pub fn start(world: World, port: u16) -> Result<Self> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let requests = Arc::new(AtomicUsize::new(0));
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let listener = {
            let _entered = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let counter = Arc::clone(&requests);
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve(listener, Arc::new(world), counter) => {}
                    _ = stopped => {}
                }
            });
        });
        Ok(Self {
            address,
            requests,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Returns the URL of the page's view `hash`, such as `#/top`.
    pub fn page(&self, hash: &str) -> String {
        format!("http://{}/ui/{hash}", self.address)
    }

    /// Returns the server's port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns the number of API requests that the server has received.
    pub fn request_count(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

async fn serve(listener: TcpListener, world: Arc<World>, requests: Arc<AtomicUsize>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (world, requests) = (Arc::clone(&world), Arc::clone(&requests));
        tokio::spawn(async move {
            let answer = service_fn(async |request: Request<Incoming>| {
                let (head, _) = request.into_parts();
                if head.uri.path().starts_with("/api/") {
                    requests.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<_, Infallible>(respond(&world, &head))
            });
            // Ignores the error, because the browser may have closed the connection.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), answer)
                .await;
        });
    }
}

fn respond(world: &World, head: &Parts) -> Response<Full<Bytes>> {
    if let Some(answer) = ui::respond(head) {
        return answer;
    }
    let query: Vec<(String, String)> =
        form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes())
            .into_owned()
            .collect();
    let parameter = |name: &str| {
        let found = query.iter().find(|(key, _)| key == name);
        found.map_or("", |(_, value)| value.as_str())
    };
    let Some(path) = head.uri.path().strip_prefix("/api/v1/") else {
        return json(StatusCode::NOT_FOUND, &error("there is no such path"));
    };
    match path {
        "status" => json(StatusCode::OK, &world.status()),
        "top" => json(StatusCode::OK, &world.top()),
        "explain" => json(
            StatusCode::OK,
            &world.explain(parameter("to"), parameter("from")),
        ),
        "services" => {
            let limit = parameter("limit").parse().unwrap_or(500);
            let list = world.services(
                parameter("namespace"),
                parameter("search"),
                parameter("after"),
                limit,
            );
            json(StatusCode::OK, &list)
        }
        path => {
            let name = path.strip_prefix("services/").unwrap_or_default();
            let name: Vec<_> = name
                .split('/')
                .map(|part| percent_encoding::percent_decode_str(part).decode_utf8_lossy())
                .collect();
            let found = match name.as_slice() {
                [namespace, name] => world.service(namespace, name),
                _ => None,
            };
            if let Some(service) = found {
                json(StatusCode::OK, &service)
            } else {
                let says = format!("no Service {} is proxied on this node", name.join("/"));
                json(StatusCode::NOT_FOUND, &error(&says))
            }
        }
    }
}

fn error(says: &str) -> serde_json::Value {
    serde_json::json!({ "error": says })
}

fn json(status: StatusCode, object: &impl Serialize) -> Response<Full<Bytes>> {
    let body = serde_json::to_vec(object).unwrap_or_default();
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let kind = header::HeaderValue::from_static("application/json");
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}
