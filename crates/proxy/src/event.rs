//! Events of a source: the API watch, or a folder of manifests.

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
    /// Nodes (v1), only this node's object.
    Node,
    /// ServiceCIDRs (networking.k8s.io/v1), if the mode uses them.
    ServiceCidr,
}

impl Kind {
    /// All kinds. Those that every mode needs are first.
    pub const ALL: [Self; 4] = [
        Self::Service,
        Self::EndpointSlice,
        Self::Node,
        Self::ServiceCidr,
    ];

    /// Reports whether objects of the kind have no namespace.
    pub fn is_cluster_scoped(self) -> bool {
        matches!(self, Self::Node | Self::ServiceCidr)
    }
}

/// An event of a source. A list consists of `ListStarted`, its objects as `…Applied` or
/// `Unreadable`, and `ListComplete`. The end of a whole list deletes all objects that the list
/// lacks. After an interrupted list, the source sends `ListStarted` again. No list deletes an
/// object before its end.
///
/// A complete list may not be whole: it has every readable object, but an unreadable file, such as
/// a broken manifest, may contain more. Known objects that the list lacks then stay. Once every
/// file is readable, the source sends a `ListComplete` that is whole, without a `ListStarted`. If a
/// server does not serve an optional kind (ServiceCIDRs), the source sends a `ListComplete` that is
/// not whole, also without a `ListStarted`.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A list of this kind begins.
    ListStarted(Kind),
    /// The source has sent all objects of the list.
    ListComplete {
        /// Kind of the listed objects.
        kind: Kind,
        /// True if the list contains every existing object.
        is_whole: bool,
    },
    /// An object exists, but the source cannot decode it. Its last known state stays in use. If no
    /// state is known, kernel entries that may belong to the object stay.
    Unreadable(Kind, NamespacedName),
    /// A Service was added or changed.
    ServiceApplied(Service),
    /// A Service was deleted, or is no longer this proxy's to serve.
    ServiceDeleted(NamespacedName),
    /// A slice was added or changed.
    SliceApplied(EndpointSlice),
    /// A slice was deleted, or is no longer this proxy's to serve. The name is that of the slice.
    SliceDeleted(NamespacedName),
    /// This node's Node was added or changed.
    NodeApplied(Node),
    /// This node's Node was deleted.
    NodeDeleted(Arc<str>),
    /// A ServiceCIDR was added or changed.
    ServiceCidrApplied(ServiceCidr),
    /// A ServiceCIDR was deleted.
    ServiceCidrDeleted(Arc<str>),
    /// All addresses and ports at which the source reaches its API server. No Service may redirect
    /// them. Before a source reads events over a connection to a new address, it sends this event.
    ApiServerAt(Vec<SocketAddr>),
}
