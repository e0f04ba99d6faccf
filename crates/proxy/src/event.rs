//! Events of a source: the API watch, or a directory of manifests.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::names::NamespacedName;
use crate::object::{EndpointSlice, Node, Service, ServiceCidr};

/// Kinds of objects that a source watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Services (v1).
    Service,
    /// EndpointSlices (discovery.k8s.io/v1).
    EndpointSlice,
    /// Nodes (v1). The source watches only this node's object.
    Node,
    /// ServiceCIDRs (networking.k8s.io/v1), if the mode needs them.
    ServiceCidr,
}

impl Kind {
    /// All kinds. The kinds that every mode needs come first.
    pub const ALL: [Self; 4] = [
        Self::Service,
        Self::EndpointSlice,
        Self::Node,
        Self::ServiceCidr,
    ];

    /// True if objects of this kind have no namespace.
    pub fn is_cluster_scoped(self) -> bool {
        matches!(self, Self::Node | Self::ServiceCidr)
    }
}

/// An event of a source.
///
/// A list consists of `ListStarted`, its objects as `…Applied` or `Unreadable`, and `ListComplete`:
///
/// - A list is *whole* if it contains every existing object. After a broken manifest, for example,
///   more objects may exist, so the list is not whole.
/// - At the end of a whole list, the model deletes all known objects that the list lacks. No other
///   list deletes objects.
/// - After an interrupted list, the source sends `ListStarted` again.
///
/// Without a `ListStarted`, the source sends a `ListComplete` in two cases:
///
/// * Every manifest file has become readable. This `ListComplete` is whole.
/// * The API server does not serve an optional kind (ServiceCIDRs). This `ListComplete` is not
///   whole.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A list of all objects of this kind begins.
    ListStarted(Kind),
    /// The source has sent all readable objects of a list.
    ListComplete {
        /// Kind of the listed objects.
        kind: Kind,
        /// True if the list contains every existing object of the kind.
        is_whole: bool,
    },
    /// An object exists, but the source cannot decode it. The model keeps the object's last known
    /// state. If no state is known, the proxy keeps kernel entries that may belong to the object.
    Unreadable(Kind, NamespacedName),
    /// A Service was added or changed.
    ServiceApplied(Service),
    /// A Service was deleted, or has become one that this proxy does not serve, such as a headless
    /// Service.
    ServiceDeleted(NamespacedName),
    /// An EndpointSlice was added or changed.
    SliceApplied(EndpointSlice),
    /// An EndpointSlice was deleted, or has become one that this proxy does not serve.
    SliceDeleted(NamespacedName),
    /// The Node object of this node was added or changed. A Node of another name shows only that
    /// the source knows Nodes.
    NodeApplied(Node),
    /// The Node object of this node was deleted.
    NodeDeleted(Arc<str>),
    /// A ServiceCIDR was added or changed.
    ServiceCidrApplied(ServiceCidr),
    /// A ServiceCIDR was deleted.
    ServiceCidrDeleted(Arc<str>),
    /// All addresses and ports at which the source reaches its API server. No Service may capture
    /// packets that are sent to these addresses. Before the source reads events over a connection
    /// to a new address, it sends this event.
    ApiServerAt(Vec<SocketAddr>),
}
