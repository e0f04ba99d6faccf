//! Changes to the model since the last call of [`Model::take_changes`](crate::Model::take_changes).

use std::net::IpAddr;
use std::time::SystemTime;

use hashbrown::{HashMap, HashSet};

use crate::event::Kind;
use crate::names::{FamilySet, IpFamily, NamespacedName};
use crate::object::Service;

/// Changes to the model since the last call of [`Model::take_changes`](crate::Model::take_changes).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Services that were changed or deleted, or whose endpoints have changed.
    pub services: HashSet<NamespacedName>,
    /// Former addresses and node ports of deleted Services, and of Services whose addresses or
    /// ports have changed.
    pub left: HashMap<NamespacedName, FormerPlaces>,
    /// IP families of the changed Services and EndpointSlices.
    pub families: FamilySet,
    /// True if the Node object of this node has changed.
    pub node: bool,
    /// True if the ClusterIP ranges have changed.
    pub service_cidrs: bool,
    /// Number of events that changed a Service.
    pub service_changes: usize,
    /// Number of events that changed an EndpointSlice.
    pub slice_changes: usize,
    /// Trigger times of the changed EndpointSlices, from their annotations. A deleted EndpointSlice
    /// has none, because its annotation contains the time of an earlier change.
    pub triggers: Vec<Trigger>,
    /// Known objects that a new list lacked, with one entry per list.
    pub vanished: Vec<MissingObjects>,
}

/// Time of the event that caused a change to an EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trigger {
    /// Service to which the EndpointSlice belongs.
    pub service: NamespacedName,
    /// IP family of the EndpointSlice.
    pub family: IpFamily,
    /// Time of the event, from the EndpointSlice's annotation
    /// ([`EndpointSlice::change_trigger`](crate::EndpointSlice::change_trigger)).
    pub at: SystemTime,
}

/// Known objects that a new list lacks, although no event reported their deletion. A few missing
/// objects are normal after an outage of the source. If many are missing, the API server has
/// probably lost objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingObjects {
    /// Kind of the objects in the list.
    pub kind: Kind,
    /// Number of objects that the list lacked.
    pub count: usize,
    /// Number of objects that were known before the list, including the missing objects.
    pub known: usize,
    /// The first missing objects by name, at most [`MissingObjects::NAMED`]. The namespace of a
    /// Node is empty.
    pub first: Vec<NamespacedName>,
}

impl MissingObjects {
    /// Largest number of names in [`MissingObjects::first`].
    pub const NAMED: usize = 5;

    /// Returns the objects that the list lacks, or `None` if it lacks no object.
    pub(crate) fn of(kind: Kind, known: usize, gone: &HashSet<NamespacedName>) -> Option<Self> {
        if gone.is_empty() {
            return None;
        }
        let mut names: Vec<_> = gone.iter().collect();
        names.sort_unstable();
        names.truncate(Self::NAMED);
        Some(Self {
            kind,
            count: gone.len(),
            known,
            first: names.into_iter().cloned().collect(),
        })
    }
}

impl Changes {
    /// True if there are no changes.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && !self.node && !self.service_cidrs && self.vanished.is_empty()
    }

    /// True if the changes may affect the kernel entries of this IP family.
    pub fn concerns(&self, family: IpFamily) -> bool {
        self.node || self.service_cidrs || self.families.contains(family)
    }

    /// Records a changed Service, and the IP families of its cluster IPs. The caller passes the old
    /// state, then the new state.
    pub(crate) fn note_service(&mut self, service: &Service) {
        let ips = service.cluster_ips.iter();
        self.families.extend(ips.map(|ip| IpFamily::of(*ip)));
        self.services.insert(service.name.clone());
    }

    /// Records the addresses and node ports of a Service's old state. Records nothing if its new
    /// state `by` has the same addresses and ports.
    pub(crate) fn note_left(&mut self, service: &Service, by: Option<&Service>) {
        if let Some(left) = FormerPlaces::of(service, by) {
            self.leave(service.name.clone(), left);
        }
    }

    pub(crate) fn leave(&mut self, name: NamespacedName, left: FormerPlaces) {
        self.left.entry(name).or_default().extend(left);
    }

    /// Merges later changes into these changes.
    pub fn extend(&mut self, later: Self) {
        let Self {
            services,
            left,
            families,
            node,
            service_cidrs,
            service_changes,
            slice_changes,
            triggers,
            vanished,
        } = later;
        if self.services.is_empty() {
            self.services = services;
        } else {
            self.services.extend(services);
        }
        for (name, left) in left {
            self.leave(name, left);
        }
        let families = IpFamily::ALL
            .into_iter()
            .filter(|of| families.contains(*of));
        self.families.extend(families);
        self.node |= node;
        self.service_cidrs |= service_cidrs;
        self.service_changes += service_changes;
        self.slice_changes += slice_changes;
        self.triggers.extend(triggers);
        self.vanished.extend(vanished);
    }
}

/// Former addresses and node ports of a changed Service, and the estimated cost of compiling its
/// former state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FormerPlaces {
    pub(crate) places: HashSet<ServicePlace>,
    pub(crate) work: usize,
}

impl FormerPlaces {
    /// Returns the addresses and node ports of a Service's old state. Returns `None` if its new
    /// state `by` has the same addresses and ports.
    pub(crate) fn of(service: &Service, by: Option<&Service>) -> Option<Self> {
        let has_all = |by: &Service| {
            by.ports == service.ports
                && by.yielded == service.yielded
                && by.cluster_ips == service.cluster_ips
                && by.ingress_ips == service.ingress_ips
                && by.external_ips == service.external_ips
        };
        (!by.is_some_and(has_all)).then(|| Self {
            places: places(service).collect(),
            work: work(service, 0),
        })
    }

    /// Adds the addresses and node ports of another former state of the same Service.
    pub(crate) fn extend(&mut self, other: Self) {
        self.places.extend(other.places);
        self.work = self.work.max(other.work);
    }
}

/// An address or node port that may move from one Service to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ServicePlace {
    Address(IpAddr),
    NodePort(u16),
}

/// Returns all addresses and node ports of a Service.
pub(crate) fn places(service: &Service) -> impl Iterator<Item = ServicePlace> + use<'_> {
    let addresses = [
        &service.cluster_ips[..],
        &service.ingress_ips,
        &service.external_ips,
    ];
    let addresses = addresses.into_iter().flatten().copied();
    let node_ports = service.ports.iter().filter_map(|port| port.node_port);
    let addresses = addresses.map(ServicePlace::Address);
    addresses.chain(node_ports.map(ServicePlace::NodePort))
}

/// Estimates the cost of compiling a Service with this number of endpoints: ports × addresses ×
/// (endpoints + 1), plus ports × load-balancer addresses × source ranges. All addresses of the node
/// count as one address.
pub(crate) fn work(service: &Service, endpoints: usize) -> usize {
    let ingress = service.ingress_ips.len();
    let addresses = service.cluster_ips.len() + ingress + service.external_ips.len() + 1;
    let ranges = ingress * service.source_ranges.len();
    service.ports.len() * (addresses * (1 + endpoints) + ranges)
}
