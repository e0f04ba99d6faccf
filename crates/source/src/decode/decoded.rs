//! Result of decoding a Kubernetes object from JSON, YAML or protobuf.

use std::fmt;

use proxy::{EndpointSlice, Event, Kind, NamespacedName, Node, Service, ServiceCidr};

/// Identity of an object. Displayed as `Service default/web`.
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

/// Returns the kind's name as objects spell it in their `kind` field, for example `EndpointSlice`.
pub const fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Service => "Service",
        Kind::EndpointSlice => "EndpointSlice",
        Kind::Node => "Node",
        Kind::ServiceCidr => "ServiceCIDR",
    }
}

/// A decoded object: its key, its content and its problems.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DecodedObject {
    pub(crate) key: Key,
    /// Resource version of the object (`metadata.resourceVersion`), if any.
    pub(crate) version: Option<Box<str>>,
    pub(crate) content: Content,
    /// Ignored parts of the object. For an unusable object, also the reason.
    pub(crate) problems: Vec<Problem>,
}

/// Content of a decoded object: an object for the model, an ignored object, or an unusable object.
#[derive(Debug, Clone, PartialEq)]
#[allow(
    clippy::large_enum_variant,
    reason = "one is held at a time, and most objects are served"
)]
pub(crate) enum Content {
    /// Valid content of an object that the proxy uses.
    Proxied(Object),
    /// The proxy does not have to serve the object, for this reason. For example, the object is a
    /// headless Service, or belongs to another proxy.
    Ignored(&'static str),
    /// No part of the object is valid, so the model keeps the last valid content.
    Unusable,
}

/// An object of one of the four kinds, in the model's compact form.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Object {
    Service(Service),
    EndpointSlice(EndpointSlice),
    Node(Node),
    ServiceCidr(ServiceCidr),
}

impl DecodedObject {
    /// Returns the event that tells the model about this object.
    pub(crate) fn into_event(self) -> Event {
        self.content.into_event(self.key)
    }
}

impl Content {
    /// Returns the event for the model about the object with this key.
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
    /// Returns the event that reports the deletion of the object to the model.
    pub(crate) fn into_deletion(self) -> Event {
        match self.kind {
            Kind::Service => Event::ServiceDeleted(self.name),
            Kind::EndpointSlice => Event::SliceDeleted(self.name),
            Kind::Node => Event::NodeDeleted(self.name.name().into()),
            Kind::ServiceCidr => Event::ServiceCidrDeleted(self.name.name().into()),
        }
    }
}

/// An invalid field of an object, with its value and advice.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{object}: {field} is {value}: {advice}")]
pub(crate) struct Problem {
    /// Object that has the invalid field, such as `Service default/web`.
    pub(crate) object: String,
    /// Path of the field, such as `spec.ports[0].port`.
    pub(crate) field: String,
    /// Invalid value of the field, as text.
    pub(crate) value: String,
    /// Text about the error and its consequence, with advice.
    pub(crate) advice: String,
}

/// Error of an object without a name, which cannot be reported by name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} without metadata.name is ignored: name it")]
pub(crate) struct MissingName {
    pub(crate) kind: &'static str,
}
