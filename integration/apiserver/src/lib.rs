//! An API server fixture that lists and watches over HTTP and HTTPS.
//!
//! It serves what a kube-proxy asks for (Services, EndpointSlices, Nodes, ServiceCIDRs, Events), as
//! JSON and as protobuf, with the semantics that a client relies on: one resource version that only
//! grows, paged and consistent lists, lists from a watch cache, watches that resume, selectors,
//! bookmarks, streamed initial lists, and the defaults that an API server fills in (addresses and
//! ports are none: it allocates nothing). Objects are
//! edited over HTTP or in-process:
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
//! Objects are kept serialised, as JSON and as protobuf, so a list or a watch copies bytes and
//! nothing else; that is what lets a benchmark feed tens of thousands of Services through it. What
//! is asked and sent is counted ([`Server::requests`], `/fixture/requests`).
//!
//! It serves HTTP, or HTTPS with certificates of an [`Authority`] made on the spot, and asks for a
//! bearer token or a client certificate where it is told to. A [`Proxy`] can stand between it and
//! its clients.
//!
//! What it does not do: HTTP/2, discovery, authorization, admission, controllers (no EndpointSlice
//! appears by itself), patches, `dryRun`, Tables, selectors by sets, Events of the core group.

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
pub use faults::{Asked, Fault, Faults, Rule};
pub use object::Recording;
pub use options::{Options, StreamedLists, WatchCache};
pub use proxy::{Proxy, ProxyOptions, Speaks};
pub use request::{Answer, Credentials, Request};
pub use resource::Kind;
pub use server::Server;
pub use status::Status;
pub use tls::{Authority, Identity, Tls};
