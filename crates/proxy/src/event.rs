//! What a source says: one small vocabulary for the API watch and for a folder of manifests.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::names::NamespacedName;
use crate::object::{EndpointSlice, Node, Service, ServiceCidr};

/// The kinds that are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// v1 Service.
    Service,
    /// discovery.k8s.io/v1 EndpointSlice.
    EndpointSlice,
    /// v1 Node, the own one only.
    Node,
    /// networking.k8s.io/v1 ServiceCIDR, where the mode in use wants them.
    ServiceCidr,
}

impl Kind {
    /// Every kind, those that every mode needs first.
    pub const ALL: [Self; 4] = [
        Self::Service,
        Self::EndpointSlice,
        Self::Node,
        Self::ServiceCidr,
    ];

    /// Whether objects of the kind are in no namespace.
    pub fn is_cluster_scoped(self) -> bool {
        matches!(self, Self::Node | Self::ServiceCidr)
    }
}

/// One thing that a source says. A list is a `ListStarted`, its objects as `…Applied` or
/// `Unreadable`, and a `ListComplete`; objects that a whole list does not name are gone. A list
/// that breaks off is followed by another `ListStarted`, and until one completes nothing is taken
/// away.
///
/// A list that is complete but not whole holds every object that could be read, while others are
/// known to exist without their names being known (a broken manifest file). What it does not name
/// stays. When the others have become known, a further `ListComplete` that is whole follows, with
/// no `ListStarted` before it. Where a server does not know a kind, or does not tell of it, and
/// that is no error (ServiceCIDRs), it is one that is not whole, with no `ListStarted` either.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A list of this kind begins.
    ListStarted(Kind),
    /// The list of this kind has been told to its end.
    ListComplete {
        /// What was listed.
        kind: Kind,
        /// Whether it names every object that there is.
        is_whole: bool,
    },
    /// An object exists, but cannot be read. What was known of it before stays; and if nothing was,
    /// then what the kernel holds of it from before this process must stay too.
    Unreadable(Kind, NamespacedName),
    /// A Service was added or changed.
    ServiceApplied(Service),
    /// A Service was deleted, or is no longer one that this proxy serves.
    ServiceDeleted(NamespacedName),
    /// A slice was added or changed.
    SliceApplied(EndpointSlice),
    /// A slice (by its own name) was deleted, or is no longer one that this proxy reads.
    SliceDeleted(NamespacedName),
    /// The own Node was added or changed.
    NodeApplied(Node),
    /// The own Node was deleted.
    NodeDeleted(Arc<str>),
    /// A ServiceCIDR was added or changed.
    ServiceCidrApplied(ServiceCidr),
    /// A ServiceCIDR was deleted.
    ServiceCidrDeleted(Arc<str>),
    /// The addresses and ports at which the source reaches its API server, all of them: no Service
    /// may take one. Comes before anything that the source has learned over one of them.
    ApiServerAt(Vec<SocketAddr>),
}
