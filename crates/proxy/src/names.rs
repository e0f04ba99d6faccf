//! Names of Kubernetes objects, IP families and protocols.

use std::fmt;
use std::sync::Arc;

pub use inet::{IpFamily, Protocol};

/// Namespace and name of an object, as `namespace/name`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespacedName(Arc<str>);

impl NamespacedName {
    /// Joins a namespace and a name. The namespace of cluster-scoped objects is empty.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self([namespace, "/", name].concat().into())
    }

    /// Returns the namespace, which is empty for cluster-scoped objects.
    pub fn namespace(&self) -> &str {
        self.0
            .split_once('/')
            .map_or("", |(namespace, _)| namespace)
    }

    /// Returns the name without its namespace.
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&*self.0, |(_, name)| name)
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A port of a Service: upstream's `ServicePortName`. Displayed like upstream's: `ns/name:port`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServicePortName {
    /// Namespace and name of the Service that has the port.
    pub service: NamespacedName,
    /// Name of the port. May be empty if the Service has only one port.
    pub port: Arc<str>,
    /// Protocol of the port. As in upstream, it is part of the key: TCP port `dns` and UDP port
    /// `dns` are two ports.
    pub protocol: Protocol,
}

impl fmt::Display for ServicePortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.port.is_empty() {
            write!(f, "{}", self.service)
        } else {
            write!(f, "{}:{}", self.service, self.port)
        }
    }
}

/// A set of IP families.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FamilySet {
    v4: bool,
    v6: bool,
}

impl FamilySet {
    /// True if the set contains this IP family.
    pub fn contains(self, family: IpFamily) -> bool {
        match family {
            IpFamily::V4 => self.v4,
            IpFamily::V6 => self.v6,
        }
    }
}

impl Extend<IpFamily> for FamilySet {
    fn extend<T: IntoIterator<Item = IpFamily>>(&mut self, families: T) {
        for family in families {
            match family {
                IpFamily::V4 => self.v4 = true,
                IpFamily::V6 => self.v6 = true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_names_and_service_port_names_are_split_and_formatted() {
        let name = NamespacedName::new("default", "web");
        assert_eq!((name.namespace(), name.name()), ("default", "web"));
        assert_eq!(name.to_string(), "default/web");
        let port = ServicePortName {
            service: name,
            port: "http".into(),
            protocol: Protocol::Tcp,
        };
        assert_eq!(port.to_string(), "default/web:http");
    }
}
