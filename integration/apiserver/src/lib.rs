//! A fake API server for tests and benchmarks: serves lists and watches over HTTP and HTTPS.
//!
//! The fake API server serves the resources that a kube-proxy reads (Services, EndpointSlices,
//! Nodes, ServiceCIDRs, Events), as JSON and as protobuf. It has the semantics that clients rely
//! on: an increasing resource version, paged and consistent lists, lists from a watch cache,
//! resumable watches, selectors, bookmarks, and streamed initial lists. It sets default values but
//! allocates neither addresses nor ports. Tests edit objects over HTTP or in-process:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use apiserver::{Kind, Options, Server};
//! let server = Server::start(Options::default()).await?;
//! server.apply_yaml("{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {ports: [{port: 80}]}}")?;
//! assert_eq!(server.list(Kind::Service).len(), 1);
//! println!("http://{}", server.address());
//! # Ok(()) }
//! ```
//!
//! ```text
//!  HTTP ─▶ service ─▶ route, media ─┬─▶ list, watch ─▶ cluster (objects, history, resource version)
//!    (requests, faults, meter)      └─▶ write ───────▶    ▲  defaults
//!  tests ──────────────────── apply, delete ──────────────┘
//! ```
//!
//! The fake API server stores objects as encoded JSON and protobuf, so a list or a watch only
//! copies bytes. A benchmark can therefore serve tens of thousands of Services. The fake API server
//! counts requests and sent bytes ([`Server::requests`], `/fixture/requests`).
//!
//! The fake API server serves HTTP, or HTTPS with certificates of an [`Authority`], which a test
//! creates at run time. On request, it requires a bearer token or a client certificate. A test can
//! put a [`Proxy`] between the server and its clients.
//!
//! Not supported: HTTP/2, discovery, authorization, admission, controllers (no EndpointSlice
//! appears by itself), patches, `dryRun`, Tables, set-based selectors, Events of the core group.

mod answer;
mod cluster;
mod defaults;
mod faults;
mod list;
mod media;
mod meter;
mod object;
mod options;
mod protobuf;
mod proxy;
mod request;
mod resource;
mod route;
mod selector;
mod sent;
mod server;
mod service;
mod status;
mod time;
mod tls;
mod watch;
mod write;

pub use cluster::{ApplyError, Cluster};
pub use faults::{Fault, Faults, Purpose, Rule};
pub use object::Recording;
pub use options::{Options, StreamedLists, WatchCache};
pub use proxy::{Proxy, ProxyOptions, ProxyProtocol};
pub use request::{Credentials, LoggedResponse, Request};
pub use resource::Kind;
pub use server::Server;
pub use status::Status;
pub use tls::{Authority, Identity, Tls};
