//! Options of a server and its cluster.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::tls::Tls;

/// Options of a [`crate::Server`] and of its [`crate::Cluster`].
#[derive(Debug)]
pub struct Options {
    /// Listen address, unless `listener` is given. The default is a free port of 127.0.0.1.
    pub address: SocketAddr,
    /// Socket on which the server listens instead of `address`. It may belong to another network
    /// namespace.
    pub listener: Option<std::net::TcpListener>,
    /// True if the server supports streamed initial lists (`sendInitialEvents`, KEP-3157). If
    /// false, it rejects requests for them with 422 Invalid.
    pub watch_list: bool,
    /// Compression of streamed initial lists, for clients that accept gzip.
    pub streamed_lists: StreamedLists,
    /// Watch cache of the server. It affects lists that accept any resource version
    /// (`resourceVersion=0`), and requests for a future resource version.
    pub watch_cache: WatchCache,
    /// Interval between two bookmarks of a watch that requests bookmarks.
    pub bookmark_interval: Duration,
    /// True to create the Service `default/kubernetes` with the ClusterIP 10.96.0.1.
    pub kubernetes_service: bool,
    /// Ranges of ClusterIPs, stored as the cluster's first `ServiceCIDR` object: an IPv4 range that
    /// contains 10.96.0.1, and an IPv6 range.
    pub service_cidrs: [&'static str; 2],
    /// True to record when the server sends the event of each change, for `GET /fixture/sent`.
    pub notes_sent: bool,
    /// Maximum number of changes of each kind in the history. A watch can resume from any of these
    /// changes.
    pub history: usize,
    /// Certificates for HTTPS, or `None` for HTTP.
    pub tls: Option<Tls>,
    /// Bearer tokens that the server accepts. `None`: the server authorizes every client, unless
    /// [`Tls::clients`] requires client certificates.
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

/// Watch cache: the API server's copy of etcd, from which it answers lists that accept any version
/// (`resourceVersion=0`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WatchCache {
    /// The server has a watch cache. A list that accepts any version ignores its limit. A request
    /// for a future version waits for this version.
    #[default]
    Present,
    /// The server has no watch cache. Every list respects its limit. A request for a future version
    /// fails immediately.
    Absent,
}

/// Compression of streamed initial lists, for clients that accept gzip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StreamedLists {
    /// No compression, as in API servers before Kubernetes 1.37.
    #[default]
    Plain,
    /// Compression of the whole watch (`WatchListCompression`). The server flushes each chunk, so
    /// that a client can decompress it immediately.
    Compressed,
}
