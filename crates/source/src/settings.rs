//! What a source is to be: plain data, which whoever reads flags fills in.

use std::path::PathBuf;

/// Where Services come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settings {
    /// A folder of manifests.
    Manifests(PathBuf),
    /// An API server.
    Api(Api),
}

/// An API server, and how it is asked. The default is that of the Pod that this is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Api {
    /// A kubeconfig.
    pub kubeconfig: Option<PathBuf>,
    /// A URL, which overrides that of the kubeconfig.
    pub master: Option<String>,
    /// How lists are asked for.
    pub lists: Lists,
    /// What objects are asked for as.
    pub content_type: ContentType,
    /// Whether ServiceCIDRs are asked for.
    pub service_cidrs: ServiceCidrs,
}

/// Whether a mode asks for the networks that ClusterIPs come from. A folder of manifests tells of
/// them anyway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServiceCidrs {
    /// No mode does.
    #[default]
    Unasked,
    /// The mode in use does. It is served without them where the server does not tell.
    Watched,
}

/// How the objects that there are already are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lists {
    /// As a list out of the server's watch cache; in pages from a server without one.
    #[default]
    Cached,
    /// Object by object, as the beginning of a watch (KEP-3157); as a list from a server that does
    /// not know that.
    Streamed,
}

/// The form in which objects come. Which it is, an answer says itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContentType {
    /// Kubernetes' protobuf, or JSON from a server that has none.
    #[default]
    Protobuf,
    /// JSON alone.
    Json,
}
