//! Changes of the model since it was last asked.

use std::net::IpAddr;
use std::time::SystemTime;

use hashbrown::{HashMap, HashSet};

use crate::event::Kind;
use crate::names::{IpFamily, NamespacedName};
use crate::object::Service;

/// Changes since [`Model::take_changes`](crate::Model::take_changes) was last called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Services that changed, or whose endpoints did, or that are gone.
    pub services: HashSet<NamespacedName>,
    /// The former places of those of them that may have fewer now.
    pub left: HashMap<NamespacedName, Left>,
    /// Families in which these Services have a cluster IP, or had one, or whose endpoints changed.
    pub families: FamilySet,
    /// Whether the own Node changed.
    pub node: bool,
    /// Whether the networks that ClusterIPs come from did.
    pub service_cidrs: bool,
    /// How often a Service changed.
    pub service_changes: usize,
    /// How often an EndpointSlice did.
    pub slice_changes: usize,
    /// What led to the slices' changes. Not for slices that are gone: theirs is of the change
    /// before.
    pub triggers: Vec<Trigger>,
    /// What lists no longer named, one entry for each list that did not name something.
    pub vanished: Vec<Vanished>,
}

/// IP families.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FamilySet {
    v4: bool,
    v6: bool,
}

impl FamilySet {
    /// Reports whether a family is one of them.
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

/// What led to a change of an EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trigger {
    /// Whose endpoints the slice has.
    pub service: NamespacedName,
    /// Their family.
    pub family: IpFamily,
    /// The time at which it happened, by [`EndpointSlice::change_trigger`](crate::EndpointSlice::change_trigger).
    pub at: SystemTime,
}

/// Objects that were known, that a list no longer named, and of whose deletion nothing had told
/// before: normal for some after the source was away, and for many only where the source has lost
/// them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vanished {
    /// What was listed.
    pub kind: Kind,
    /// How many were not named.
    pub count: usize,
    /// How many were known, these included.
    pub known: usize,
    /// The first of those that were not named, by name, at most [`Vanished::NAMED`]. A Node's has
    /// no namespace.
    pub first: Vec<NamespacedName>,
}

impl Vanished {
    /// How many are named at most.
    pub const NAMED: usize = 5;

    /// `None` if all were named.
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
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && !self.node && !self.service_cidrs && self.vanished.is_empty()
    }

    /// Reports whether anything of these may change what a family has in the kernel.
    pub fn concerns(&self, family: IpFamily) -> bool {
        self.node || self.service_cidrs || self.families.contains(family)
    }

    /// Notes a change of a Service, as it was or as it is.
    pub(crate) fn note_service(&mut self, service: &Service) {
        let ips = service.cluster_ips.iter();
        self.families.extend(ips.map(|ip| IpFamily::of(*ip)));
        self.services.insert(service.name.clone());
    }

    /// Notes what a Service has less from now on, if another one that it becomes has less.
    pub(crate) fn note_left(&mut self, service: &Service, by: Option<&Service>) {
        if let Some(left) = Left::of(service, by) {
            self.leave(service.name.clone(), left);
        }
    }

    pub(crate) fn leave(&mut self, name: NamespacedName, left: Left) {
        self.left.entry(name).or_default().extend(left);
    }

    /// Adds those that came after these.
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

/// The former places of a changed Service, and the work that it was.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Left {
    pub(crate) places: HashSet<Place>,
    pub(crate) work: usize,
}

impl Left {
    /// All that a Service has; `None` if another one has no less.
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

    /// Adds what was left before.
    pub(crate) fn extend(&mut self, other: Self) {
        self.places.extend(other.places);
        self.work = self.work.max(other.work);
    }
}

/// A place that one Service can leave to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Address(IpAddr),
    NodePort(u16),
}

/// All places of a Service.
pub(crate) fn places(service: &Service) -> impl Iterator<Item = Place> + use<'_> {
    let addresses = [
        &service.cluster_ips[..],
        &service.ingress_ips,
        &service.external_ips,
    ];
    let addresses = addresses.into_iter().flatten().copied();
    let node_ports = service.ports.iter().filter_map(|port| port.node_port);
    let addresses = addresses.map(Place::Address);
    addresses.chain(node_ports.map(Place::NodePort))
}

/// The work that it is to compute a Service with so many endpoints: its ports × addresses × endpoints,
/// and × source ranges. All of the node's addresses count as one.
pub(crate) fn work(service: &Service, endpoints: usize) -> usize {
    let ingress = service.ingress_ips.len();
    let addresses = service.cluster_ips.len() + ingress + service.external_ips.len() + 1;
    let ranges = ingress * service.source_ranges.len();
    service.ports.len() * (addresses * (1 + endpoints) + ranges)
}
