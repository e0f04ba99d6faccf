//! Decides which external and load-balancer addresses a Service may have (CVE-2020-8554).
//!
//! The API server assigns each cluster IP and node port to only one Service. But two fields may
//! contain an address of another tenant:
//!
//! - `spec.externalIPs`: users who may write a Service choose these addresses.
//! - `status.loadBalancer`: users who may write the status of a Service choose these addresses.
//!
//! In every mode, the model rejects the following addresses, regardless of the Service's age:
//!
//! - addresses outside the allowed networks, if any are set;
//! - another Service's cluster IP;
//! - the API server's address and port: a node that redirected packets for this address would lose
//!   the API server, and so would never receive a correction of the Service;
//! - an external IP, at each port that another Service's load balancer serves at the same address;
//! - an external IP that belongs to this node, at the node ports of other Services.
//!
//! The model also rejects a load-balancer address if `spec.loadBalancerSourceRanges` has an invalid
//! range and no valid range of the address's IP family.
//!
//! So an address that the API server or a controller has assigned takes precedence over an address
//! that a user has chosen.
//!
//! The model removes the rejected addresses from the Service. It decides again whenever a cluster
//! IP, a load balancer's address, a node port or an address of this node appears or disappears. So
//! the result does not depend on the order of events.
//!
//! Then the model applies its [limits](crate::limits) to the Service.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::mem;
use std::net::{IpAddr, SocketAddr};

use hashbrown::{HashMap, HashSet};
use ipnet::IpNet;

use crate::limits::{Excess, RemovedParts, cut, is_within};
use crate::names::{IpFamily, NamespacedName, Protocol};
use crate::object::{EndpointSlice, Service, ServiceAddress, ServicePort};
use crate::owner::Rank;

/// Rules that decide which external and load-balancer addresses Services may have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressRules {
    /// Allowed networks, or `None` to allow every address. A network with a single address allows
    /// this address even if it is the API server's.
    pub allowed: Option<Vec<IpNet>>,
}

impl AddressRules {
    /// True if the allowed networks contain a network with only this address (`/32`, `/128`). Such
    /// a network allows the address even if it is the API server's.
    pub fn names(&self, address: IpAddr) -> bool {
        let nets = self.allowed.iter().flatten();
        let mut hosts = nets.filter(|net| net.prefix_len() == net.max_prefix_len());
        hosts.any(|net| net.addr() == address)
    }
}

/// Field of a Service that contains an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressField {
    /// The field `spec.externalIPs`.
    ExternalIps,
    /// The field `status.loadBalancer.ingress`.
    Ingress,
}

impl AddressField {
    /// Returns the field's path in the API, such as `spec.externalIPs`.
    pub fn name(self) -> &'static str {
        match self {
            Self::ExternalIps => "spec.externalIPs",
            Self::Ingress => "status.loadBalancer.ingress",
        }
    }
}

/// Reason why the model rejects an external or load-balancer address of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Refusal {
    /// The address is another Service's cluster IP.
    ClusterIp,
    /// The API server is reachable at the address, on this port.
    ApiServer(u16),
    /// No allowed network contains the address.
    NotAllowed,
    /// `spec.loadBalancerSourceRanges` has no valid range of the address's IP family.
    SourceRanges,
    /// Another Service's load balancer serves this port and protocol at the address. It has
    /// precedence, because a controller assigned its address, whereas a user chose the external IP.
    LoadBalancer(u16, Protocol),
    /// The address belongs to this node, and this port is another Service's node port. The node
    /// port has precedence, because the API server assigned it to that Service alone.
    NodePort(u16, Protocol),
}

/// An address of a Service that the model rejects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RefusedAddress {
    /// Field that contains the address.
    pub field: AddressField,
    /// The rejected address.
    pub address: IpAddr,
    /// Reason why the model rejects the address.
    pub why: Refusal,
}

/// External and load-balancer addresses of all Services, and decisions on which of them to reject.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    rules: AddressRules,
    /// Number of Services per cluster IP.
    cluster_ips: HashMap<IpAddr, u32>,
    /// Names of the Services that list each external or load-balancer address, even if it is
    /// rejected.
    asked: BTreeMap<IpAddr, HashSet<NamespacedName>>,
    /// Addresses and ports to which the source connects to reach the API server.
    reached_at: Vec<SocketAddr>,
    /// Endpoints of the Service `default/kubernetes`, which are API servers.
    endpoints: Vec<SocketAddr>,
    /// The addresses of `reached_at` and `endpoints`, sorted.
    api_servers: Vec<SocketAddr>,
    refused: HashMap<NamespacedName, Box<RestrictedService>>,
    /// Names of the Services that list each external IP, even if it is rejected.
    external: HashMap<IpAddr, HashSet<NamespacedName>>,
    /// Load-balancer addresses and ports of each Service, without rejected ones.
    balanced: HashMap<NamespacedName, Vec<ServiceAddress>>,
    /// Number of Services per load-balancer address and port, without rejected addresses.
    balancers: HashMap<IpAddr, HashMap<ServiceAddress, u32>>,
    /// Addresses of this node that serve NodePorts, sorted.
    node_addresses: Vec<IpAddr>,
    /// Number of Service ports per node port.
    node_ports: HashMap<(u16, Protocol), u32>,
    /// Names of the Services with external IPs, by the number and protocol of each of their ports.
    external_ports: HashMap<(u16, Protocol), HashSet<NamespacedName>>,
    /// Names of Services whose external IPs the model must check again.
    doubted_names: HashSet<NamespacedName>,
    /// Addresses to check again, in every Service that lists one of them.
    doubted: HashSet<IpAddr>,
    /// Number that increases whenever the set of rejected addresses or listed addresses may have
    /// changed.
    version: u64,
}

/// A Service that the proxy serves only in part: the original Service, and the parts that the proxy
/// does not serve.
#[derive(Debug, PartialEq, Eq)]
struct RestrictedService {
    given: Service,
    refused: Vec<RefusedAddress>,
    cut: RemovedParts,
}

/// Subtracts one from the count of a key. Removes the key once its count is zero.
fn release<K: Hash + Eq>(counts: &mut HashMap<K, u32>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Admission {
    pub(crate) fn new(rules: AddressRules) -> Self {
        Self {
            rules,
            ..Self::default()
        }
    }

    /// Returns the addresses and ports of the API server.
    pub(crate) fn api_servers(&self) -> &[SocketAddr] {
        &self.api_servers
    }

    /// Returns a version number that increases whenever the result of [`refused`](Self::refused) or
    /// [`asking`](Self::asking) may change.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Returns the addresses that the model rejects, with their Services, in arbitrary order.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (&NamespacedName, &RefusedAddress)> {
        let all = self.refused.iter();
        all.flat_map(|(name, held)| held.refused.iter().map(move |one| (name, one)))
    }

    /// Returns the addresses that the model rejects for one Service.
    pub(crate) fn refused_to(&self, name: &NamespacedName) -> &[RefusedAddress] {
        self.refused.get(name).map_or(&[], |held| &held.refused)
    }

    /// Returns the parts of all Services that exceed the limits, with the Services' names, in
    /// arbitrary order.
    pub(crate) fn excess(&self) -> impl Iterator<Item = (&NamespacedName, &Excess)> {
        let all = self.refused.iter();
        all.flat_map(|(name, held)| held.cut.excess.iter().map(move |one| (name, one)))
    }

    /// True if the model has removed parts of this Service that exceed the limits.
    pub(crate) fn has_excess(&self, name: &NamespacedName) -> bool {
        let held = self.refused.get(name);
        held.is_some_and(|held| held.cut != RemovedParts::default())
    }

    /// Returns the parts of one Service that exceed the limits.
    pub(crate) fn excess_of(&self, name: &NamespacedName) -> &[Excess] {
        self.refused.get(name).map_or(&[], |held| &held.cut.excess)
    }

    /// Returns the EndpointSlices of a Service that exceed its limits, so that they are not served.
    /// Returns `None` if all EndpointSlices are served.
    pub(crate) fn slices_left_out(
        &self,
        name: &NamespacedName,
    ) -> Option<&HashSet<NamespacedName>> {
        let held = self.refused.get(name)?;
        (!held.cut.slices.is_empty()).then_some(&held.cut.slices)
    }

    /// Returns the Services that list this external or load-balancer address, in arbitrary order.
    /// Includes Services for which the model rejects the address.
    pub(crate) fn asking(&self, address: IpAddr) -> impl Iterator<Item = &NamespacedName> {
        self.asked.get(&address).into_iter().flatten()
    }

    /// Returns all external and load-balancer addresses in a network, each with the Services that
    /// list it.
    pub(crate) fn asking_within(
        &self,
        net: IpNet,
    ) -> impl Iterator<Item = (IpAddr, &NamespacedName)> {
        let asked = self.asked.range(net.network()..=net.broadcast());
        asked.flat_map(|(address, names)| names.iter().map(|name| (*address, name)))
    }

    /// Returns the full Service from which the model has made `served` by removing rejected parts.
    pub(crate) fn as_given<'a>(&'a self, served: &'a Service) -> &'a Service {
        let held = self.refused.get(&served.name);
        held.map_or(served, |held| &held.given)
    }

    /// True if `given` equals the full Service that [`as_given`](Self::as_given) returns for
    /// `served`.
    pub(crate) fn is_as_given(&self, served: &Service, given: &Service) -> bool {
        self.as_given(served) == given
    }

    /// Records the addresses and node ports of an added Service, including addresses that the model
    /// rejects.
    pub(crate) fn enter(&mut self, given: &Service) {
        for ip in &given.cluster_ips {
            *self.cluster_ips.entry(*ip).or_default() += 1;
            self.doubt(*ip);
        }
        for ip in given.external_ips.iter().chain(&given.ingress_ips) {
            let names = self.asked.entry(*ip).or_default();
            names.insert(given.name.clone());
            self.version += 1;
        }
        for ip in &given.external_ips {
            let names = self.external.entry(*ip).or_default();
            names.insert(given.name.clone());
        }
        for port in &given.ports {
            if !given.external_ips.is_empty() {
                let at = (port.port, port.protocol);
                let names = self.external_ports.entry(at).or_default();
                names.insert(given.name.clone());
            }
            if let Some(number) = port.node_port {
                let at = (number, port.protocol);
                *self.node_ports.entry(at).or_default() += 1;
                self.doubt_external_port(at);
            }
        }
    }

    /// Forgets the addresses and node ports of a Service, including addresses that the model
    /// rejects.
    pub(crate) fn leave(&mut self, given: &Service) {
        for ip in &given.cluster_ips {
            release(&mut self.cluster_ips, ip);
            self.doubt(*ip);
        }
        for ip in given.external_ips.iter().chain(&given.ingress_ips) {
            if let Some(names) = self.asked.get_mut(ip) {
                names.remove(&given.name);
                if names.is_empty() {
                    self.asked.remove(ip);
                }
            }
            self.version += 1;
        }
        for ip in &given.external_ips {
            if let Some(names) = self.external.get_mut(ip) {
                names.remove(&given.name);
                if names.is_empty() {
                    self.external.remove(ip);
                }
            }
        }
        for port in &given.ports {
            let at = (port.port, port.protocol);
            if let Some(names) = self.external_ports.get_mut(&at) {
                names.remove(&given.name);
                if names.is_empty() {
                    self.external_ports.remove(&at);
                }
            }
            if let Some(number) = port.node_port {
                let at = (number, port.protocol);
                release(&mut self.node_ports, &at);
                self.doubt_external_port(at);
            }
        }
        self.balance(&given.name, Vec::new());
        self.refused.remove(&given.name);
    }

    /// Sets the addresses of this node that serve NodePorts, which must be sorted. Marks Services
    /// whose external IPs the model must check again.
    pub(crate) fn serve_node_ports_at(&mut self, addresses: &[IpAddr]) {
        if self.node_addresses == addresses {
            return;
        }
        let before = mem::replace(&mut self.node_addresses, addresses.to_vec());
        let has = |all: &[IpAddr], ip: &IpAddr| all.binary_search(ip).is_ok();
        let lost = before.iter().filter(|ip| !has(addresses, ip));
        let new = addresses.iter().filter(|ip| !has(&before, ip));
        let names = lost.chain(new).filter_map(|ip| self.external.get(ip));
        self.doubted_names.extend(names.flatten().cloned());
    }

    fn is_of_node(&self, address: &IpAddr) -> bool {
        self.node_addresses.binary_search(address).is_ok()
    }

    fn doubt_external_port(&mut self, at: (u16, Protocol)) {
        let names = self.external_ports.get(&at).into_iter().flatten();
        self.doubted_names.extend(names.cloned());
    }

    /// Sets the load-balancer addresses and ports at which a Service is served. Marks other
    /// Services that have one of these addresses as an external IP, so that the model checks them
    /// again.
    fn balance(&mut self, name: &NamespacedName, now: Vec<ServiceAddress>) {
        let before = self.balanced.get(name).map_or(&[][..], Vec::as_slice);
        if before == now {
            return;
        }
        let mut doubted: Vec<IpAddr> = before.iter().chain(&now).map(|of| of.address).collect();
        doubted.dedup();
        for of in &now {
            let at = self.balancers.entry(of.address).or_default();
            *at.entry(*of).or_default() += 1;
        }
        let before = if now.is_empty() {
            self.balanced.remove(name)
        } else {
            self.balanced.insert(name.clone(), now)
        };
        for of in before.into_iter().flatten() {
            if let Some(at) = self.balancers.get_mut(&of.address) {
                release(at, &of);
                if at.is_empty() {
                    self.balancers.remove(&of.address);
                }
            }
        }
        for ip in doubted {
            let names = self.external.get(&ip).into_iter().flatten();
            self.doubted_names.extend(names.cloned());
        }
    }

    /// Returns the external IPs and ports of a Service at which another Service is served instead,
    /// sorted. Each entry has the reason: the other Service's node port or load balancer.
    fn yielded(&self, service: &Service) -> Vec<(ServiceAddress, Refusal)> {
        let balanced = self.balanced.get(&service.name);
        let balanced = balanced.map_or(&[][..], Vec::as_slice);
        let contested = service.external_ips.iter().filter_map(|ip| {
            let balancers = self.balancers.get(ip);
            let is_of_node = self.is_of_node(ip) && !self.node_ports.is_empty();
            (balancers.is_some() || is_of_node).then_some((ip, balancers, is_of_node))
        });
        let all = contested.flat_map(|(ip, balancers, is_of_node)| {
            let ports = service.ports.iter();
            ports.filter_map(move |port| {
                let (number, protocol) = (port.port, port.protocol);
                let of = ServiceAddress::new(*ip, number, protocol);
                let own = u32::from(balanced.binary_search(&of).is_ok());
                let balancers = balancers.and_then(|at| at.get(&of));
                if balancers.is_some_and(|all| *all > own) {
                    return Some((of, Refusal::LoadBalancer(number, protocol)));
                }
                let is_taken = is_of_node && self.is_node_port_of_others(service, number, protocol);
                is_taken.then_some((of, Refusal::NodePort(number, protocol)))
            })
        });
        let mut yielded: Vec<(ServiceAddress, Refusal)> = all.collect();
        yielded.sort_unstable();
        yielded.dedup();
        yielded
    }

    fn is_node_port_of_others(&self, service: &Service, number: u16, protocol: Protocol) -> bool {
        let Some(all) = self.node_ports.get(&(number, protocol)) else {
            return false;
        };
        let ports = service.ports.iter();
        let is_it =
            |port: &&ServicePort| (port.node_port, port.protocol) == (Some(number), protocol);
        usize::try_from(*all).is_ok_and(|all| all > ports.filter(is_it).count())
    }

    /// Removes all rejected parts from a Service. The caller must have called
    /// [`enter`](Self::enter) for this Service.
    pub(crate) fn admit(&mut self, service: &mut Service, slices: &[EndpointSlice]) {
        self.admit_only(service, slices);
        let ports = service.ports.iter();
        let mut balanced: Vec<ServiceAddress> = ports
            .flat_map(|port| {
                let ips = service.ingress_ips.iter();
                ips.map(|ip| ServiceAddress::new(*ip, port.port, port.protocol))
            })
            .collect();
        balanced.sort_unstable();
        balanced.dedup();
        self.balance(&service.name, balanced);
    }

    fn admit_only(&mut self, service: &mut Service, slices: &[EndpointSlice]) {
        let mut refused = self.judge_all(service);
        let bad = refused
            .iter()
            .filter(|one| one.why != Refusal::SourceRanges);
        let bad: HashSet<IpAddr> = bad.map(|one| one.address).collect();
        let mut yielded = self.yielded(service);
        yielded.retain(|(of, _)| !bad.contains(&of.address));
        let is_within = refused.is_empty() && yielded.is_empty() && is_within(service, slices);
        if is_within {
            self.version += u64::from(self.refused.remove(&service.name).is_some());
            return;
        }
        let given = service.clone();
        service.external_ips.retain(|ip| !bad.contains(ip));
        let closed = service.closed;
        let is_open = |ip: &IpAddr| !closed.contains(IpFamily::of(*ip));
        service
            .ingress_ips
            .retain(|ip| !bad.contains(ip) && is_open(ip));
        refused.extend(yielded.iter().map(|(of, why)| RefusedAddress {
            field: AddressField::ExternalIps,
            address: of.address,
            why: *why,
        }));
        service.yielded = yielded.into_iter().map(|(of, _)| of).collect();
        // Keeps an external IP if at least one port of the Service is still served there.
        let is_left = |ip: &IpAddr| {
            let mut ports = service.ports.iter();
            ports.any(|port| {
                let at = ServiceAddress::new(*ip, port.port, port.protocol);
                service.yielded.binary_search(&at).is_err()
            })
        };
        let left: HashSet<IpAddr> = if service.yielded.is_empty() {
            HashSet::new()
        } else {
            let ips = service.external_ips.iter().copied();
            ips.filter(|ip| !is_left(ip)).collect()
        };
        service.external_ips.retain(|ip| !left.contains(ip));
        let partly = service.yielded.iter();
        let partly = partly.filter(|of| !left.contains(&of.address)).copied();
        service.yielded = partly.collect();
        let cut = cut(service, slices);
        let held = RestrictedService {
            given,
            refused,
            cut,
        };
        let before = self.refused.insert(service.name.clone(), held.into());
        self.version +=
            u64::from(before.as_deref() != self.refused.get(&service.name).map(|v| &**v));
    }

    fn judge_all(&self, service: &Service) -> Vec<RefusedAddress> {
        let fields = [
            (AddressField::ExternalIps, &service.external_ips),
            (AddressField::Ingress, &service.ingress_ips),
        ];
        let named = fields.into_iter().flat_map(|(field, addresses)| {
            let addresses = addresses.iter();
            addresses.map(move |address| (field, *address))
        });
        let judged = named.filter_map(|(field, address)| {
            let is_closed =
                field == AddressField::Ingress && service.closed.contains(IpFamily::of(address));
            let closed = is_closed.then_some(Refusal::SourceRanges);
            let why = self.judge(service, address).or(closed)?;
            Some(RefusedAddress {
                field,
                address,
                why,
            })
        });
        judged.collect()
    }

    fn judge(&self, service: &Service, address: IpAddr) -> Option<Refusal> {
        let own = u32::from(service.cluster_ips.contains(&address));
        if self.cluster_ips.get(&address).is_some_and(|all| *all > own) {
            return Some(Refusal::ClusterIp);
        }
        if self.rules.names(address) {
            return None;
        }
        let at = self.api_servers.iter().filter(|at| at.ip() == address);
        let is_it = |port: u16| at.clone().any(|at| at.port() == port);
        let mut ports = service.ports.iter();
        let port = ports.find(|port| port.protocol == Protocol::Tcp && is_it(port.port));
        if let Some(port) = port.filter(|_| Rank::of(&service.name) != Rank::ApiServer) {
            return Some(Refusal::ApiServer(port.port));
        }
        let nets = self.rules.allowed.as_deref();
        let is_allowed = nets.is_none_or(|nets| nets.iter().any(|net| net.contains(&address)));
        (!is_allowed).then_some(Refusal::NotAllowed)
    }

    /// Learns the API server's addresses from the endpoints in these EndpointSlices of
    /// `default/kubernetes`.
    pub(crate) fn learn_api_servers(&mut self, slices: &[EndpointSlice]) {
        let endpoints = slices.iter().flat_map(|slice| {
            let ports = slice.ports.iter();
            let ports = ports.filter(|port| port.protocol == Protocol::Tcp);
            ports.flat_map(|port| {
                let all = slice.endpoints.iter();
                all.map(|endpoint| SocketAddr::new(endpoint.address, port.port))
            })
        });
        self.endpoints = endpoints.collect();
        self.combine_api_servers();
    }

    /// Sets the addresses and ports at which the source reaches the API server.
    pub(crate) fn reach_api_server_at(&mut self, addresses: Vec<SocketAddr>) {
        self.reached_at = addresses;
        self.combine_api_servers();
    }

    fn combine_api_servers(&mut self) {
        let both = self.reached_at.iter().chain(&self.endpoints);
        let mut all: Vec<SocketAddr> = both.copied().collect();
        all.sort_unstable();
        all.dedup();
        if all != self.api_servers {
            let before = mem::replace(&mut self.api_servers, all.clone());
            for at in before.into_iter().chain(all) {
                self.doubt(at.ip());
            }
        }
    }

    fn doubt(&mut self, address: IpAddr) {
        if self.asked.contains_key(&address) {
            self.doubted.insert(address);
        }
    }

    /// Removes and returns the names of Services that the model must check again.
    pub(crate) fn take_doubted(&mut self) -> HashSet<NamespacedName> {
        let doubted = mem::take(&mut self.doubted);
        let names = doubted.iter().filter_map(|ip| self.asked.get(ip));
        let mut all = mem::take(&mut self.doubted_names);
        all.extend(names.flatten().cloned());
        all
    }
}
