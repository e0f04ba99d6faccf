//! What an object comes to, whatever it was read from.

use std::fmt;

use proxy::{EndpointSlice, Event, Kind, NamespacedName, Node, Service, ServiceCidr};

/// Which object: displayed as `Service default/web`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) kind: Kind,
    pub(crate) name: NamespacedName,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            kind if kind.is_cluster_scoped() => {
                write!(f, "{} {}", kind_name(kind), self.name.name().escape_debug())
            }
            kind => {
                let (namespace, name) = (self.name.namespace(), self.name.name());
                let (namespace, name) = (namespace.escape_debug(), name.escape_debug());
                write!(f, "{} {namespace}/{name}", kind_name(kind))
            }
        }
    }
}

/// `kind` as objects carry it.
pub const fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Service => "Service",
        Kind::EndpointSlice => "EndpointSlice",
        Kind::Node => "Node",
        Kind::ServiceCidr => "ServiceCIDR",
    }
}

/// An object that was read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Decoded {
    pub(crate) key: Key,
    /// `metadata.resourceVersion`.
    pub(crate) version: Option<Box<str>>,
    pub(crate) content: Content,
    /// What was left out, and why it is unusable if it is.
    pub(crate) problems: Vec<Problem>,
}

/// What an object comes to.
#[derive(Debug, Clone, PartialEq)]
#[allow(
    clippy::large_enum_variant,
    reason = "one is held at a time, and most objects are served"
)]
pub(crate) enum Content {
    /// It is served.
    Proxied(Object),
    /// It is not for this proxy, and why.
    Ignored(&'static str),
    /// Nothing of it can be used.
    Unusable,
}

/// An object that is served.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Object {
    Service(Service),
    EndpointSlice(EndpointSlice),
    Node(Node),
    ServiceCidr(ServiceCidr),
}

impl Decoded {
    /// What the model is told.
    pub(crate) fn into_event(self) -> Event {
        self.content.into_event(self.key)
    }
}

impl Content {
    /// What the model is told of the object with this key.
    pub(crate) fn into_event(self, key: Key) -> Event {
        match self {
            Self::Proxied(Object::Service(service)) => Event::ServiceApplied(service),
            Self::Proxied(Object::EndpointSlice(slice)) => Event::SliceApplied(slice),
            Self::Proxied(Object::Node(node)) => Event::NodeApplied(node),
            Self::Proxied(Object::ServiceCidr(cidr)) => Event::ServiceCidrApplied(cidr),
            Self::Ignored(_) => key.into_deletion(),
            Self::Unusable => Event::Unreadable(key.kind, key.name),
        }
    }
}

impl Key {
    /// What the model is told when the object is gone.
    pub(crate) fn into_deletion(self) -> Event {
        match self.kind {
            Kind::Service => Event::ServiceDeleted(self.name),
            Kind::EndpointSlice => Event::SliceDeleted(self.name),
            Kind::Node => Event::NodeDeleted(self.name.name().into()),
            Kind::ServiceCidr => Event::ServiceCidrDeleted(self.name.name().into()),
        }
    }
}

/// Something wrong in an object: which, where, what it says, and what comes of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{object}: {field} is {value}: {advice}")]
pub(crate) struct Problem {
    /// `Service default/web`.
    pub(crate) object: String,
    /// `spec.ports[0].port`.
    pub(crate) field: String,
    /// The value as it was written.
    pub(crate) value: String,
    /// Why it is wrong, what is done instead, and what to do.
    pub(crate) advice: String,
}

/// An object without a name: nothing can be said of it but that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} without metadata.name: it is left out; name it")]
pub(crate) struct Unnamed {
    pub(crate) kind: &'static str,
}
