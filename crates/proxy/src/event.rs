//! Events of a source. The API watch and a folder of manifests send the same events.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::names::NamespacedName;
use crate::object::{EndpointSlice, Node, Service, ServiceCidr};

/// The kinds of objects that a source watches.
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
    /// All kinds. The kinds that every mode needs come first.
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

/// An event of a source. A list consists of a `ListStarted`, its objects as `…Applied` or
/// `Unreadable`, and a `ListComplete`. The end of a whole list deletes all objects that are missing
/// from the list. After an interrupted list, another `ListStarted` follows. Until a list is
/// complete, no object is deleted.
///
/// A list may be complete but not whole: it has every readable object, but an unreadable source,
/// such as a broken manifest file, may have more. Known objects that the list lacks then stay. Once
/// every source is readable, a whole `ListComplete` follows without a `ListStarted`. If a server
/// does not serve an optional kind (ServiceCIDRs), the source sends a `ListComplete` that is not
/// whole, also without a `ListStarted`.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A list of this kind begins.
    ListStarted(Kind),
    /// All objects of the list were sent.
    ListComplete {
        /// Kind of the list.
        kind: Kind,
        /// True if the list names every existing object.
        is_whole: bool,
    },
    /// An object exists but cannot be decoded. Its last known state stays in use. If there is none,
    /// kernel entries that may belong to the object stay.
    Unreadable(Kind, NamespacedName),
    /// A Service was added or changed.
    ServiceApplied(Service),
    /// A Service was deleted, or no longer belongs to this proxy.
    ServiceDeleted(NamespacedName),
    /// A slice was added or changed.
    SliceApplied(EndpointSlice),
    /// A slice was deleted, or no longer belongs to this proxy. The name is the slice's own.
    SliceDeleted(NamespacedName),
    /// The own Node was added or changed.
    NodeApplied(Node),
    /// The own Node was deleted.
    NodeDeleted(Arc<str>),
    /// A ServiceCIDR was added or changed.
    ServiceCidrApplied(ServiceCidr),
    /// A ServiceCIDR was deleted.
    ServiceCidrDeleted(Arc<str>),
    /// All addresses and ports at which the source reaches its API server. No Service may take one.
    /// A source sends this event before any event that it reads over a connection to a new address.
    ApiServerAt(Vec<SocketAddr>),
}
