//! Questions to the model.

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
    /// Whether Services and slices have both been listed once: before that, nothing is programmed.
    pub fn is_complete(&self) -> bool {
        self.service_list.has_completed && self.slice_list.has_completed
    }

    /// Whether every Service and slice that exists is, or was, known. Before that, what the kernel
    /// holds and no known Service wants may belong to one that could not be read, and so may not be
    /// deleted. Once true, always true.
    pub fn is_whole(&self) -> bool {
        self.service_list.is_whole() && self.slice_list.is_whole()
    }

    /// Whether a kind has been listed once.
    pub fn is_listed(&self, kind: Kind) -> bool {
        match kind {
            Kind::Service => self.service_list.has_completed,
            Kind::EndpointSlice => self.slice_list.has_completed,
            Kind::Node => self.is_node_listed(),
            Kind::ServiceCidr => self.are_service_cidrs_listed(),
        }
    }

    /// Whether the own Node has been listed once (it need not exist).
    pub fn is_node_listed(&self) -> bool {
        self.node_list.has_completed
    }

    /// Whether ServiceCIDRs have been listed once, or it is known that they cannot be.
    pub fn are_service_cidrs_listed(&self) -> bool {
        self.service_cidr_list.has_completed
    }

    /// The networks of a family that ClusterIPs come from, as [`NodeFacts`] has them.
    ///
    /// [`NodeFacts`]: crate::NodeFacts::service_cidrs
    pub fn service_cidrs(&self, family: IpFamily) -> Option<Vec<IpNet>> {
        self.service_cidrs.of(family)
    }

    /// External and load-balancer addresses that are not served, and whose they are, in no order.
    pub fn refused_addresses(&self) -> impl Iterator<Item = (&NamespacedName, &RefusedAddress)> {
        self.admission.refused()
    }

    /// Those of one Service.
    pub fn addresses_refused_to(&self, name: &NamespacedName) -> &[RefusedAddress] {
        self.admission.refused_to(name)
    }

    /// The Services that are larger than the [limits](crate::limits), and the part that is not
    /// served, in no order.
    pub fn oversized(&self) -> impl Iterator<Item = (&NamespacedName, &Excess)> {
        self.admission.excess()
    }

    /// The part of one Service that is above the limits, at most one for each family.
    pub fn excess_of(&self, name: &NamespacedName) -> &[Excess] {
        self.admission.excess_of(name)
    }

    /// The Services that name this as an external or load-balancer address, in no order; those that
    /// it is refused to, too.
    pub fn naming_externally(&self, address: IpAddr) -> impl Iterator<Item = &Service> {
        let names = self.admission.asking(address);
        names.filter_map(|name| self.services.get(name).map(|service| &**service))
    }

    /// The Services that name an address of a network as an external or load-balancer address, each
    /// with the address. Costs O(those).
    pub fn naming_within(&self, net: IpNet) -> impl Iterator<Item = (IpAddr, &Service)> {
        let asking = self.admission.asking_within(net);
        asking.filter_map(|(address, name)| Some((address, &**self.services.get(name)?)))
    }

    /// All Services, in no order.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.values().map(|service| &**service)
    }

    /// The Services that have options, in no order. Costs O(those).
    pub fn services_with_options(&self) -> impl Iterator<Item = (&Service, &ServiceOptions)> {
        self.with_options.iter().filter_map(|name| {
            let service = self.services.get(name)?;
            Some((&**service, service.options.as_deref()?))
        })
    }

    /// Another number whenever [`services_with_options`](Self::services_with_options) may say something
    /// else.
    pub fn options_version(&self) -> u64 {
        self.options_version
    }

    /// Whose cluster IP this is. Looks at all Services.
    pub fn service_at(&self, cluster_ip: IpAddr) -> Option<&NamespacedName> {
        let mut all = self.services();
        let has = |service: &&Service| service.cluster_ips.contains(&cluster_ip);
        all.find(has).map(|service| &service.name)
    }

    /// The Service whose load balancer has this, the first of several by age and name.
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

    /// The Service that has this node port, the first of several by age and name. Looks at all
    /// Services.
    pub fn node_port_of(&self, number: u16, protocol: Protocol) -> Option<&NamespacedName> {
        let has = |service: &&Service| {
            let mut ports = service.ports.iter();
            ports.any(|port| (port.node_port, port.protocol) == (Some(number), protocol))
        };
        let age = |service: &&Service| (service.created.unwrap_or(i64::MAX), service.name.clone());
        let all = self.services().filter(has);
        all.min_by_key(age).map(|service| &service.name)
    }

    /// Takes over the addresses of this node that serve NodePorts, sorted: no external IP takes a
    /// node port of another Service there.
    pub fn serve_node_ports_at(&mut self, addresses: &[IpAddr]) {
        self.admission.serve_node_ports_at(addresses);
        self.judge_again();
    }

    /// Another number whenever what [`refused_addresses`](Self::refused_addresses) and
    /// [`naming_externally`](Self::naming_externally) say may be something else.
    pub fn external_addresses_version(&self) -> u64 {
        self.admission.version()
    }

    /// What changed since the last call.
    pub fn take_changes(&mut self) -> Changes {
        mem::take(&mut self.changes)
    }

    /// Whether [`take_changes`](Self::take_changes) would return something.
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// What [`take_changes`](Self::take_changes) would return.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// One Service with its slices; `None` if there is no such Service.
    pub fn view(&self, name: &NamespacedName) -> Option<ServiceView<'_>> {
        let service = self.services.get(name)?;
        Some(ServiceView {
            service,
            slices: slices_of(&self.slices, name),
            left_out: self.admission.slices_left_out(name),
            api_servers: self.admission.api_servers(),
        })
    }

    /// The addresses and ports of the API server that no Service may take, sorted: those at which
    /// the source reaches it, and the endpoints of `default/kubernetes`.
    pub fn api_servers(&self) -> &[SocketAddr] {
        self.admission.api_servers()
    }

    /// The names of all Services, in no order.
    pub fn service_names(&self) -> impl Iterator<Item = &NamespacedName> {
        self.services.keys()
    }

    /// Another number whenever [`service_names`](Self::service_names) may tell others, or in
    /// another order.
    pub fn names_version(&self) -> u64 {
        self.names_version
    }

    /// How many Services there are.
    pub fn service_count(&self) -> usize {
        self.services.len()
    }

    /// How many EndpointSlices there are, those of Services that are not proxied included.
    pub fn slice_count(&self) -> usize {
        self.service_of.len()
    }

    /// The own Node, if it was ever seen.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// Whether the own Node exists; `None` before that was told. What [`node`](Self::node) says
    /// stays when it is deleted.
    pub fn has_node(&self) -> Option<bool> {
        self.has_node
    }
}
