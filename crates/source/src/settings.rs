//! Settings of a source, as plain data.

use std::path::PathBuf;

/// Origin of Services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settings {
    /// A folder of manifests.
    Manifests(PathBuf),
    /// An API server.
    Api(Api),
}

/// Settings of an API server. The default is the server of this Pod's cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Api {
    /// The kubeconfig file.
    pub kubeconfig: Option<PathBuf>,
    /// The server's URL, which overrides the kubeconfig's.
    pub master: Option<String>,
    /// Method of listing.
    pub lists: Lists,
    /// Format of objects.
    pub content_type: ContentType,
    /// Use of ServiceCIDRs.
    pub service_cidrs: ServiceCidrs,
}

/// Use of ServiceCIDRs, the networks of ClusterIPs. A folder of manifests always reads them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServiceCidrs {
    /// ServiceCIDRs are not watched.
    #[default]
    NotWatched,
    /// The mode uses ServiceCIDRs, and works without them if the server has none.
    Watched,
}

/// Method of listing the existing objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lists {
    /// A list from the server's watch cache, or pages from a server without one.
    #[default]
    Cached,
    /// The beginning of a watch (KEP-3157), or a list if the server does not support that.
    Streamed,
}

/// Requested format of objects. Each response names its own format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContentType {
    /// Kubernetes' protobuf, or JSON if the server has no protobuf.
    #[default]
    Protobuf,
    /// JSON only.
    Json,
}
