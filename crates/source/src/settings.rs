//! Settings of a source of Services.

use std::path::PathBuf;

/// Source from which the proxy reads Services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settings {
    /// A directory of Kubernetes manifests.
    Manifests(PathBuf),
    /// The API server of a cluster.
    Api(Api),
}

/// Settings of an API server. The default is the API server of this Pod's cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Api {
    /// Kubeconfig file. `None`: this Pod's service account, or `master` alone.
    pub kubeconfig: Option<PathBuf>,
    /// URL of the server, if given. It overrides the kubeconfig's URL.
    pub master: Option<String>,
    /// Method by which the source lists existing objects.
    pub lists: Lists,
    /// Encoding of objects in the API server's responses.
    pub content_type: ContentType,
    /// Setting that turns the watch of ServiceCIDRs on or off.
    pub service_cidrs: ServiceCidrWatch,
}

/// Use of ServiceCIDRs, the networks of ClusterIPs. This setting has no effect on a directory of
/// manifests, whose ServiceCIDRs are always read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServiceCidrWatch {
    /// The source does not watch ServiceCIDRs.
    #[default]
    Off,
    /// The source watches ServiceCIDRs, and works without them if the server does not serve this
    /// kind.
    On,
}

/// Method by which the source lists existing objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lists {
    /// A list from the server's watch cache. A server without a watch cache sends pages.
    #[default]
    Cached,
    /// The beginning of a watch (KEP-3157), or a plain list if the server does not support such a
    /// watch.
    Streamed,
}

/// Requested format of objects. Each response states its own format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContentType {
    /// Kubernetes' protobuf encoding, or JSON if the server does not support protobuf.
    #[default]
    Protobuf,
    /// JSON only.
    Json,
}
