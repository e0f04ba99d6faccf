//! Limits on the kernel entries of one Service.
//!
//! A Service object of 90 KB can contain 5,000 external IPs and 100 ports. In IPVS mode, such a
//! Service needs 500,000 virtual servers on every node. So each Service has limits on two products,
//! in each IP family:
//!
//! | product | entries |
//! |---|---|
//! | ports × addresses | entries of a Service in each mode |
//! | ports × addresses × endpoints | destinations of a Service in IPVS mode |
//!
//! Other modes write each endpoint only once. They have the same limits, so that every mode serves
//! the same part of a Service.
//!
//! Addresses that exceed a limit are not served:
//!
//! - Addresses are kept in this order: the cluster IP, NodePorts, load-balancer addresses, external
//!   IPs. Within each kind, the order is that of the object.
//! - Ports and EndpointSlices are removed only if the cluster IP and NodePorts alone exceed a
//!   limit.
//! - The result depends only on the objects, so every mode and every node serves the same part.

use std::fmt;

use hashbrown::{HashMap, HashSet};

use crate::names::{IpFamily, NamespacedName};
use crate::object::{EndpointSlice, Service};

/// Largest number of addresses × ports of one Service, in one IP family. All addresses of the node
/// at which NodePorts are served count as one address.
pub const MAX_FRONTENDS: usize = 4_096;

/// Largest number of addresses × ports × endpoints of one Service, in one IP family. The same limit
/// applies to load-balancer addresses × ports × source ranges.
pub const MAX_DESTINATIONS: usize = 100_000;

/// Largest number of addresses × ports × endpoints of one Service, in one IP family, if the Service
/// has at most [`FEW_FRONTENDS`] addresses × ports.
///
/// This limit is larger than [`MAX_DESTINATIONS`]: a tenant can add addresses and ports at no cost,
/// but must create a pod for each endpoint. In IPVS mode, such a Service needs some 190 MB of
/// kernel memory (`ipvs-netlink/examples/memory_cost.rs`).
pub const MAX_DESTINATIONS_OF_FEW: usize = 300_000;

/// Largest number of endpoints of one Service port in one IP family. Kubernetes is tested with a
/// tenth of this number. The limit protects IPVS mode: for each added destination, the kernel
/// searches all destinations of the virtual server.
pub const MAX_ENDPOINTS: usize = 50_000;

/// Largest number of addresses × ports of one Service, in one IP family, up to which the limit
/// [`MAX_DESTINATIONS_OF_FEW`] applies.
pub const FEW_FRONTENDS: usize = 16;

/// Returns the largest number of addresses × ports × endpoints for a Service with this number of
/// frontends (addresses × ports).
fn max_destinations(frontends: usize) -> usize {
    if frontends <= FEW_FRONTENDS {
        MAX_DESTINATIONS_OF_FEW
    } else {
        MAX_DESTINATIONS
    }
}

/// The part of a Service that exceeds the limits, in one IP family. The proxy does not serve this
/// part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Excess {
    /// IP family in which the Service exceeds the limits.
    pub family: IpFamily,
    /// Number of load-balancer addresses that the proxy does not serve: the last ones in the list.
    pub ingress_ips: usize,
    /// Number of external IPs that the proxy does not serve: the last ones in the list.
    pub external_ips: usize,
    /// Number of ports that the proxy does not serve: the last ones in the list.
    pub ports: usize,
    /// Number of endpoints that the proxy does not serve. The proxy skips whole EndpointSlices.
    pub endpoints: usize,
}

impl Excess {
    fn none(family: IpFamily) -> Self {
        Self {
            family,
            ingress_ips: 0,
            external_ips: 0,
            ports: 0,
            endpoints: 0,
        }
    }

    /// Returns the number of external and load-balancer addresses that are not served.
    pub fn addresses(&self) -> usize {
        self.ingress_ips + self.external_ips
    }
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            (self.ports, "of its ports"),
            (self.endpoints, "of its endpoints"),
            (self.ingress_ips, "of its load-balancer addresses"),
            (self.external_ips, "of its external IPs"),
        ];
        let mut before = "";
        for (count, kind) in kinds.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, "{before}{count} {kind}")?;
            before = ", ";
        }
        Ok(())
    }
}

/// Parts that [`cut`] removes from a Service.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RemovedParts {
    /// Numbers of removed parts, with at most one entry for each IP family.
    pub(crate) excess: Vec<Excess>,
    /// EndpointSlices that the proxy does not serve.
    pub(crate) slices: HashSet<NamespacedName>,
}

/// True if [`cut`] would remove no part of a Service. Costs O(1) for a Service of usual size, and
/// O(slices) otherwise.
pub(crate) fn is_within(service: &Service, slices: &[EndpointSlice]) -> bool {
    let addresses = 2 + service.ingress_ips.len() + service.external_ips.len();
    let ports = service.ports.len();
    let endpoints = slices.iter().map(|slice| slice.endpoints.len());
    let loads = slices
        .iter()
        .map(|slice| slice.endpoints.len() * slice.ports.len().min(ports));
    let load: usize = loads.sum();
    let ranges = service.ingress_ips.len().max(1) * service.source_ranges.len();
    let is_small = addresses * ports <= MAX_FRONTENDS
        && endpoints.sum::<usize>() <= MAX_ENDPOINTS
        && addresses * load <= max_destinations(addresses * ports)
        && ports * ranges <= MAX_DESTINATIONS;
    // Checks each IP family separately: both families together may exceed a limit although neither
    // family does.
    is_small || {
        let mut copy = service.clone();
        cut(&mut copy, slices) == RemovedParts::default() && copy == *service
    }
}

/// Removes from a Service all parts that exceed the limits. Costs O(addresses + slices).
pub(crate) fn cut(service: &mut Service, slices: &[EndpointSlice]) -> RemovedParts {
    // Never removes the cluster IP, nor the node's addresses if the Service has NodePorts.
    let has_node_port = service.ports.iter().any(|port| port.node_port.is_some());
    let fixed = 1 + usize::from(has_node_port);
    let ports = service.ports.len().min(MAX_FRONTENDS / fixed);
    let left_ports = service.ports.len() - ports;
    service.ports.truncate(ports);
    let mut cut = RemovedParts::default();
    for family in IpFamily::ALL {
        if service.cluster_ip(family).is_none() {
            continue;
        }
        let mut excess = Excess {
            ports: left_ports,
            ..Excess::none(family)
        };
        let mut load = 0_usize;
        let mut of_ports: HashMap<&str, usize> = HashMap::new();
        for slice in slices.iter().filter(|slice| slice.family == family) {
            // Counts each port of the Service at most once per EndpointSlice, because port names
            // are unique.
            let of_slice = slice.endpoints.len() * slice.ports.len().min(ports);
            let count = slice.endpoints.len();
            let has_room = slice.ports.iter().all(|port| {
                let before = of_ports.get(&*port.name).copied().unwrap_or_default();
                before + count <= MAX_ENDPOINTS
            });
            if has_room && (load + of_slice) * fixed <= max_destinations(fixed * ports) {
                load += of_slice;
                for port in &slice.ports {
                    *of_ports.entry(&port.name).or_default() += count;
                }
            } else {
                excess.endpoints += count;
                cut.slices.insert(slice.name.clone());
            }
        }
        let most_of = |frontends, destinations: usize| {
            let of_destinations: usize = destinations / load.max(1);
            of_destinations.min(frontends / ports.max(1))
        };
        let few = most_of(FEW_FRONTENDS, MAX_DESTINATIONS_OF_FEW);
        let most = few.max(most_of(MAX_FRONTENDS, MAX_DESTINATIONS));
        let room = most.saturating_sub(fixed);
        let nets = service.source_ranges.iter();
        let ranges = nets
            .filter(|net| IpFamily::of(net.addr()) == family)
            .count();
        let room_for_ingress = room.min(MAX_DESTINATIONS / (ports * ranges).max(1));
        let (kept, left) = keep_first(&mut service.ingress_ips, family, room_for_ingress);
        excess.ingress_ips = left;
        (_, excess.external_ips) = keep_first(&mut service.external_ips, family, room - kept);
        if excess != Excess::none(family) {
            cut.excess.push(excess);
        }
    }
    // Removes the source ranges if no load-balancer address is left, because they apply only to
    // such addresses.
    if service.ingress_ips.is_empty() && ports * service.source_ranges.len() > MAX_DESTINATIONS {
        service.source_ranges.clear();
    }
    cut
}

/// Keeps only the first `most` addresses of an IP family, and all addresses of the other family.
/// Returns how many addresses of the family were kept and removed.
fn keep_first(
    addresses: &mut Vec<std::net::IpAddr>,
    family: IpFamily,
    most: usize,
) -> (usize, usize) {
    let mut seen = 0;
    addresses.retain(|address| {
        let is_own = IpFamily::of(*address) == family;
        seen += usize::from(is_own);
        !is_own || seen <= most
    });
    let kept = seen.min(most);
    (kept, seen - kept)
}
