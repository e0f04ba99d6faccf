//! Options of a server and its cluster.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::tls::Tls;

/// Options of a server and its cluster.
#[derive(Debug)]
pub struct Options {
    /// Listen address, unless `listener` is given. The default is a free port of 127.0.0.1.
    pub address: SocketAddr,
    /// Listening socket that the server uses instead of `address`, if given. It may belong to
    /// another network namespace.
    pub listener: Option<std::net::TcpListener>,
    /// True to support streamed initial lists (KEP-3157). If false, the server rejects requests for
    /// such lists with 422 Invalid.
    pub watch_list: bool,
    /// Compression of streamed initial lists by the server.
    pub streamed_lists: StreamedLists,
    /// Presence of a watch cache in the server. The cache affects lists that accept any resource
    /// version (`resourceVersion=0`), and requests for a future resource version.
    pub watch_cache: WatchCache,
    /// Interval between the bookmarks of a watch, if the watch requests bookmarks.
    pub bookmark_interval: Duration,
    /// True to create the Service `default/kubernetes` at 10.96.0.1.
    pub kubernetes_service: bool,
    /// Ranges of cluster IPs: an IPv4 range with 10.96.0.1, and an IPv6 range. The first
    /// `ServiceCIDR` object has the same ranges.
    pub service_cidrs: [&'static str; 2],
    /// True to record the send times of change events, for `GET /fixture/sent`.
    pub notes_sent: bool,
    /// Number of changes that the server's history keeps for each kind. A watch can resume from any
    /// of these changes.
    pub history: usize,
    /// Certificates for HTTPS. `None`: the server uses HTTP.
    pub tls: Option<Tls>,
    /// Bearer tokens that the server accepts. `None`: every client is authorized, unless
    /// [`Tls::clients`] is set.
    pub tokens: Option<Vec<String>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            listener: None,
            watch_list: true,
            streamed_lists: StreamedLists::default(),
            watch_cache: WatchCache::default(),
            bookmark_interval: Duration::from_mins(1),
            kubernetes_service: false,
            service_cidrs: ["10.96.0.0/12", "fd00:96::/112"],
            notes_sent: false,
            history: 100_000,
            tls: None,
            tokens: None,
        }
    }
}

/// Presence of a watch cache, from which the server answers requests for any version
/// (`resourceVersion=0`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WatchCache {
    /// Lists that accept any version have no pages. A request for a future version waits for this
    /// version.
    #[default]
    Present,
    /// Lists have pages if the client sets a limit. A request for a future version fails
    /// immediately.
    Absent,
}

/// Compression of streamed lists for clients that accept gzip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StreamedLists {
    /// Not compressed, as in servers before Kubernetes 1.37.
    #[default]
    Plain,
    /// Compressed (`WatchListCompression`), including the changes after the list. A client can
    /// decompress each chunk as soon as the chunk arrives.
    Compressed,
}
