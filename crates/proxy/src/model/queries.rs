//! Queries of the model: its objects, its pending changes, and numbers that tell whether a result
//! has changed.

use std::mem;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::{Model, slices_of};
use crate::admission::RefusedAddress;
use crate::changes::Changes;
use crate::event::Kind;
use crate::limits::Excess;
use crate::names::{IpFamily, NamespacedName, Protocol};
use crate::object::{Node, Service, ServiceAddress};
use crate::options::ServiceOptions;
use crate::view::ServiceView;

impl Model {
    /// Reports whether the source has listed Services and EndpointSlices at least once. Until then,
    /// the daemon writes no kernel entry.
    pub fn is_complete(&self) -> bool {
        self.service_list.has_completed && self.slice_list.has_completed
    }

    /// Reports whether the model has known every existing Service and EndpointSlice at least once.
    /// Until then, the daemon keeps kernel entries without a known Service, because they may belong
    /// to an unreadable Service. Never becomes false again.
    pub fn is_whole(&self) -> bool {
        self.service_list.is_whole() && self.slice_list.is_whole()
    }

    /// Reports whether all objects of a kind have been listed at least once.
    pub fn is_listed(&self, kind: Kind) -> bool {
        match kind {
            Kind::Service => self.service_list.has_completed,
            Kind::EndpointSlice => self.slice_list.has_completed,
            Kind::Node => self.is_node_listed(),
            Kind::ServiceCidr => self.are_service_cidrs_listed(),
        }
    }

    /// Reports whether the source has asked the API server for this node's Node object at least
    /// once, even if the object does not exist.
    pub fn is_node_listed(&self) -> bool {
        self.node_list.has_completed
    }

    /// Reports whether the source has listed ServiceCIDRs at least once, or the API server cannot
    /// list ServiceCIDRs.
    pub fn are_service_cidrs_listed(&self) -> bool {
        self.service_cidr_list.has_completed
    }

    /// Returns the ClusterIP ranges of a family, sorted, or `None` while they are unknown (see
    /// [`NodeFacts`]).
    ///
    /// [`NodeFacts`]: crate::NodeFacts::service_cidrs
    pub fn service_cidrs(&self, family: IpFamily) -> Option<Vec<IpNet>> {
        self.service_cidrs.of(family)
    }

    /// Returns the rejected external and load-balancer addresses of all Services, each with its
    /// Service's name, in arbitrary order.
    pub fn refused_addresses(&self) -> impl Iterator<Item = (&NamespacedName, &RefusedAddress)> {
        self.admission.refused()
    }

    /// Returns the external and load-balancer addresses that the model rejects for one Service.
    pub fn addresses_refused_to(&self, name: &NamespacedName) -> &[RefusedAddress] {
        self.admission.refused_to(name)
    }

    /// Returns the parts of all Services that exceed the [limits](crate::limits), each with its
    /// Service's name, in arbitrary order.
    pub fn oversized(&self) -> impl Iterator<Item = (&NamespacedName, &Excess)> {
        self.admission.excess()
    }

    /// Returns the parts of one Service that exceed the limits: at most one part for each IP
    /// family.
    pub fn excess_of(&self, name: &NamespacedName) -> &[Excess] {
        self.admission.excess_of(name)
    }

    /// Returns the Services that list this external or load-balancer address, in arbitrary order.
    /// Includes Services for which the model rejects the address.
    pub fn naming_externally(&self, address: IpAddr) -> impl Iterator<Item = &Service> {
        let names = self.admission.asking(address);
        names.filter_map(|name| self.services.get(name).map(|service| &**service))
    }

    /// Returns the Services that list an external or load-balancer address within a network, each
    /// with that address. O(results).
    pub fn naming_within(&self, net: IpNet) -> impl Iterator<Item = (IpAddr, &Service)> {
        let asking = self.admission.asking_within(net);
        asking.filter_map(|(address, name)| Some((address, &**self.services.get(name)?)))
    }

    /// Returns all Services, in arbitrary order.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.values().map(|service| &**service)
    }

    /// Returns the Services that have options, in arbitrary order. O(results).
    pub fn services_with_options(&self) -> impl Iterator<Item = (&Service, &ServiceOptions)> {
        self.with_options.iter().filter_map(|name| {
            let service = self.services.get(name)?;
            Some((&**service, service.options.as_deref()?))
        })
    }

    /// Returns a version that changes whenever the result of
    /// [`services_with_options`](Self::services_with_options) may change.
    pub fn options_version(&self) -> u64 {
        self.options_version
    }

    /// Returns the name of the Service with this cluster IP. Costs O(Services).
    pub fn service_at(&self, cluster_ip: IpAddr) -> Option<&NamespacedName> {
        let mut all = self.services();
        let has = |service: &&Service| service.cluster_ips.contains(&cluster_ip);
        all.find(has).map(|service| &service.name)
    }

    /// Returns the name of the Service whose load balancer serves this address and port. If several
    /// Services match, returns the oldest, then the first by name.
    pub fn load_balancer_at(&self, at: ServiceAddress) -> Option<&NamespacedName> {
        let has = |service: &&Service| {
            let mut ports = service.ports.iter();
            service.ingress_ips.contains(&at.address)
                && ports.any(|port| (port.port, port.protocol) == (at.port, at.protocol))
        };
        let all = self.naming_externally(at.address).filter(has);
        let age = |service: &&Service| (service.created.unwrap_or(i64::MAX), service.name.clone());
        all.min_by_key(age).map(|service| &service.name)
    }

    /// Returns the name of the Service that has this node port. If several Services match, returns
    /// the oldest, then the first by name. Costs O(Services).
    pub fn node_port_of(&self, number: u16, protocol: Protocol) -> Option<&NamespacedName> {
        let has = |service: &&Service| {
            let mut ports = service.ports.iter();
            ports.any(|port| (port.node_port, port.protocol) == (Some(number), protocol))
        };
        let age = |service: &&Service| (service.created.unwrap_or(i64::MAX), service.name.clone());
        let all = self.services().filter(has);
        all.min_by_key(age).map(|service| &service.name)
    }

    /// Sets the addresses of this node that serve NodePorts. The addresses must be sorted. At these
    /// addresses, the node port of one Service has precedence over the external IP of another
    /// Service.
    pub fn serve_node_ports_at(&mut self, addresses: &[IpAddr]) {
        self.admission.serve_node_ports_at(addresses);
        self.judge_again();
    }

    /// Returns a version that changes whenever the result of
    /// [`refused_addresses`](Self::refused_addresses) or
    /// [`naming_externally`](Self::naming_externally) may change.
    pub fn external_addresses_version(&self) -> u64 {
        self.admission.version()
    }

    /// Removes and returns the changes since the last call.
    pub fn take_changes(&mut self) -> Changes {
        mem::take(&mut self.changes)
    }

    /// Reports whether [`take_changes`](Self::take_changes) would return any change.
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Returns the changes that [`take_changes`](Self::take_changes) would return.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Returns a Service with its EndpointSlices, or `None` if the Service does not exist.
    pub fn view(&self, name: &NamespacedName) -> Option<ServiceView<'_>> {
        let service = self.services.get(name)?;
        Some(ServiceView {
            service,
            slices: slices_of(&self.slices, name),
            left_out: self.admission.slices_left_out(name),
            api_servers: self.admission.api_servers(),
        })
    }

    /// Returns the sorted addresses and ports of the API server: the addresses to which the source
    /// connects, and the endpoints of `default/kubernetes`. No Service may capture packets that are
    /// sent to these addresses.
    pub fn api_servers(&self) -> &[SocketAddr] {
        self.admission.api_servers()
    }

    /// Returns the names of all Services, in arbitrary order.
    pub fn service_names(&self) -> impl Iterator<Item = &NamespacedName> {
        self.services.keys()
    }

    /// Returns a version that changes whenever [`service_names`](Self::service_names) may return
    /// other names or another order.
    pub fn names_version(&self) -> u64 {
        self.names_version
    }

    /// Returns the number of Services.
    pub fn service_count(&self) -> usize {
        self.services.len()
    }

    /// Returns the number of EndpointSlices, including those of Services that this proxy does not
    /// serve.
    pub fn slice_count(&self) -> usize {
        self.service_of.len()
    }

    /// Returns the last known state of this node's Node object, or `None` if no state was ever
    /// known.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// Returns the name of another node if this node's own name is probably wrong: it has no Node
    /// object, and no EndpointSlice has named it.
    pub fn only_other_node(&self) -> Option<&str> {
        let is_unknown = self.has_node == Some(false) && !self.node_names.has_own;
        self.node_names.other.as_deref().filter(|_| is_unknown)
    }

    /// Reports whether this node's Node object exists, or returns `None` if this is unknown. After
    /// the object's deletion, [`node`](Self::node) still returns its last state.
    pub fn has_node(&self) -> Option<bool> {
        self.has_node
    }
}
