//! Options of a server and its cluster.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::tls::Tls;

/// Options of a server and its cluster.
#[derive(Debug)]
pub struct Options {
    /// Address to listen at, unless `listener` is given. The default is a free port of 127.0.0.1.
    pub address: SocketAddr,
    /// A socket that listens already, in whatever network namespace it was made.
    pub listener: Option<std::net::TcpListener>,
    /// True to serve streamed initial lists (KEP-3157). Otherwise a request for one gets 422
    /// Invalid.
    pub watch_list: bool,
    /// Form of streamed lists.
    pub streamed_lists: StreamedLists,
    /// Watch cache for lists of any version.
    pub watch_cache: WatchCache,
    /// Interval of bookmarks for watches that want them.
    pub bookmark_interval: Duration,
    /// True for a Service `default/kubernetes` at 10.96.0.1.
    pub kubernetes_service: bool,
    /// Ranges of cluster IPs, also in the first `ServiceCIDR`: an IPv4 range that holds 10.96.0.1,
    /// and an IPv6 one.
    pub service_cidrs: [&'static str; 2],
    /// True to note when events of changes are sent, for `GET /fixture/sent`.
    pub notes_sent: bool,
    /// Number of changes of each kind that a watch can go back.
    pub history: usize,
    /// HTTPS instead of HTTP.
    pub tls: Option<Tls>,
    /// The bearer tokens that are good; without, everybody may ask (unless [`Tls::clients`] is
    /// given).
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

/// Presence of a watch cache, for lists and objects of any version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WatchCache {
    /// No pages; requests wait for a version that is still to come.
    #[default]
    Present,
    /// Lists have pages where they are asked for, and a version that is still to come is refused at
    /// once.
    Absent,
}

/// Form of streamed lists for clients that accept gzip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StreamedLists {
    /// Not compressed, as from servers before Kubernetes 1.37.
    #[default]
    Plain,
    /// Compressed (`WatchListCompression`): the whole watch that begins with the list, each piece so
    /// that it can be read at once.
    Compressed,
}
