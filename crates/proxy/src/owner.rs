//! Owners of kernel entries, and their order.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::names::{NamespacedName, ServicePortName};
use crate::object::{Service, ServicePort};

/// A Service port that wants a kernel entry. Owners are sorted by age, then by name. In every mode,
/// if several owners claim an address and port, the first owner gets it. The model has already
/// removed claims that conflict with a load balancer's address.
#[derive(Debug, Clone)]
pub struct Owner {
    /// Creation time of the Service (`metadata.creationTimestamp`), in seconds since the epoch. A
    /// Service without this time counts as the youngest.
    pub created: i64,
    /// Service, port name and protocol of the Service port.
    pub name: ServicePortName,
    /// Rank of the Service in the order of writes.
    pub rank: Rank,
}

/// Rank of a Service in the order of writes, which matters on nodes with many entries. The rank
/// does not affect which Service gets an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rank {
    /// The Service `default/kubernetes`. All other work on the node needs the API server first
    /// (kubernetes/kubernetes#133773).
    ApiServer,
    /// Cluster DNS. Nearly all other work on the node needs DNS.
    Dns,
    /// Any other Service.
    Other,
}

impl Rank {
    /// Returns the rank of the Service with this name.
    pub fn of(service: &NamespacedName) -> Self {
        match (service.namespace(), service.name()) {
            ("default", "kubernetes") => Self::ApiServer,
            ("kube-system", name) if name.contains("dns") => Self::Dns,
            _ => Self::Other,
        }
    }
}

impl Owner {
    /// Creates the owner for a port of a Service.
    pub fn new(service: &Service, port: &ServicePort) -> Arc<Self> {
        Arc::new(Self {
            created: service.created.unwrap_or(i64::MAX),
            rank: Rank::of(&service.name),
            name: ServicePortName {
                service: service.name.clone(),
                port: port.name.clone(),
                protocol: port.protocol,
            },
        })
    }

    /// Returns the sort key. The key has no rank, because the name determines the rank.
    fn key(&self) -> (i64, &ServicePortName) {
        (self.created, &self.name)
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Owner {}

impl Hash for Owner {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl PartialOrd for Owner {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Owner {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Protocol;

    fn owner(created: i64, namespace: &str, name: &str) -> Owner {
        let service = NamespacedName::new(namespace, name);
        Owner {
            created,
            rank: Rank::of(&service),
            name: ServicePortName {
                service,
                port: "".into(),
                protocol: Protocol::Tcp,
            },
        }
    }

    #[test]
    fn the_older_service_owns_an_address_regardless_of_rank() {
        let old = owner(1, "default", "web");
        let api = owner(2, "default", "kubernetes");
        let dns = owner(2, "kube-system", "kube-dns");
        assert!(old < api && api < dns, "by age, then by name");
        assert!(api.rank < dns.rank && dns.rank < old.rank);
        assert_eq!(old, owner(1, "default", "web"));
        assert_eq!(owner(1, "a", "kube-dns").rank, Rank::Other);
    }
}
