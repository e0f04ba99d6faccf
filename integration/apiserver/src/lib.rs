//! A fake API server for tests and benchmarks: serves lists and watches over HTTP and HTTPS.

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
