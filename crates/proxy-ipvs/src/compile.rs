//! Compiles one Service into the kernel entries that it wants in one IP family. Pure: no clock, no
//! I/O, no log.

use std::net::IpAddr;
use std::sync::Arc;

use proxy::{
    Backends, Endpoints, IpFamily, NodeFacts, Owner, Service, ServiceAddress, ServicePort,
    ServiceView,
};

use crate::balance::{Balance, ServiceSchedulers};
use crate::config::Semantics;
use crate::server::{Destinations, Properties, VirtualServer};
use crate::sets::{Member, Set};
use crate::slow_start::Ramp;

/// Kernel entries that one Service port wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fragment {
    /// Service port that owns the entries of this fragment.
    pub owner: Arc<Owner>,
    /// Virtual servers that the Service port wants, each with its service address.
    pub servers: Vec<(ServiceAddress, VirtualServer)>,
    /// Set members that the Service port wants, each with its set.
    pub members: Vec<(Set, Member)>,
    /// Service addresses that must become local on `kube-ipvs0`.
    pub addresses: Vec<IpAddr>,
    /// Load-balancer addresses whose source ranges exclude this node. Rules reject the node's own
    /// connections to these addresses.
    pub forbidden_to_node: Vec<ServiceAddress>,
    /// Virtual server for clients outside the cluster, with only the local endpoints. `None` if
    /// these clients use the same virtual servers as clients in the cluster.
    pub outside: Option<OutsideServer>,
    /// Slow start of new endpoints, if the Service requests it.
    pub ramp: Option<Ramp>,
}

/// An fwmark virtual server with only the local endpoints (`--ipvs-semantics=exact`). Rules mark
/// packets from clients outside the cluster, so IPVS uses this virtual server instead of the one at
/// the packet's destination address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutsideServer {
    /// The virtual server. It gets its firewall mark later.
    pub server: VirtualServer,
    /// Service addresses at which rules mark packets from outside the cluster.
    pub at: Vec<ServiceAddress>,
    /// True if session affinity needs the scheduler `sh` (source hashing).
    pub hashes_source: bool,
}

impl Fragment {
    /// Creates an empty fragment, with which a Service port wants no entries.
    pub(crate) fn of_nothing(owner: Arc<Owner>) -> Self {
        Self {
            owner,
            servers: Vec::new(),
            members: Vec::new(),
            addresses: Vec::new(),
            forbidden_to_node: Vec::new(),
            outside: None,
            ramp: None,
        }
    }
}

/// Addresses of this node at which it serves NodePorts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodePortAddresses {
    /// Node addresses that serve NodePorts, sorted.
    pub addresses: Vec<IpAddr>,
    /// True if `addresses` is complete. While the node's addresses or its own IP are unknown, the
    /// list has only addresses at which the kernel already serves NodePorts.
    pub are_known: bool,
}

impl NodePortAddresses {
    /// Returns true if it is certain that no node address serves NodePorts.
    fn are_none(&self) -> bool {
        self.are_known && self.addresses.is_empty()
    }
}

/// Compiles a Service into one fragment per port. Returns no fragments if the Service has no
/// cluster IP of this family.
pub fn compile(
    view: &ServiceView<'_>,
    node: &NodeFacts,
    node_ports: &NodePortAddresses,
    schedulers: &ServiceSchedulers,
    semantics: Semantics,
) -> Vec<Fragment> {
    let Some(cluster_ip) = view.service.cluster_ip(node.family) else {
        return Vec::new();
    };
    let endpoints = Endpoints::of(view, node);
    let ports = view.service.ports.iter();
    ports
        .map(|port| {
            let backends = endpoints.serving(port);
            Compiler::new(view.service, port, backends, node, schedulers)
                .with(semantics)
                .compile(view, cluster_ip, node_ports)
        })
        .collect()
}

struct Compiler<'a> {
    service: &'a Service,
    port: &'a ServicePort,
    node: &'a NodeFacts,
    properties: Properties,
    balance: Balance<'a>,
    by_source: Option<&'a Arc<str>>,
    backends: Backends,
    /// Destinations under traffic policy `Cluster`: all endpoints.
    cluster: Destinations,
    local: Destinations,
    semantics: Semantics,
    /// Service addresses for clients outside the cluster that get only local endpoints
    /// (`externalTrafficPolicy: Local`).
    outside: Vec<ServiceAddress>,
    fragment: Fragment,
}

impl<'a> Compiler<'a> {
    fn new(
        service: &'a Service,
        port: &'a ServicePort,
        backends: Backends,
        node: &'a NodeFacts,
        schedulers: &'a ServiceSchedulers,
    ) -> Self {
        let balance = Balance::of(service, &schedulers.own);
        let cluster = balance.destinations(&backends.cluster, &backends);
        // Without a local endpoint, traffic policy `Local` uses all endpoints, as in upstream's
        // IPVS mode since kubernetes/kubernetes#97081.
        let local = if backends.local.is_empty() {
            cluster.clone()
        } else {
            balance.destinations(&backends.local, &backends)
        };
        let fragment = Fragment {
            ramp: balance.ramp,
            ..Fragment::of_nothing(Owner::new(service, port))
        };
        Self {
            service,
            port,
            node,
            properties: balance.properties(service),
            balance,
            by_source: schedulers.by_source.as_ref(),
            backends,
            cluster,
            local,
            semantics: Semantics::Upstream,
            outside: Vec::new(),
            fragment,
        }
    }

    fn with(mut self, semantics: Semantics) -> Self {
        if semantics.is_exact() {
            self.local = self
                .balance
                .destinations(&self.backends.local, &self.backends);
        }
        self.semantics = semantics;
        self
    }

    fn compile(
        mut self,
        view: &ServiceView<'_>,
        cluster_ip: IpAddr,
        node_ports: &NodePortAddresses,
    ) -> Fragment {
        self.hairpin();
        self.cluster_ip(cluster_ip);
        let external: Vec<IpAddr> = self.service.external_ips_of(self.port).collect();
        for ip in self.own(&external) {
            self.external_ip(ip);
            self.bind_unless_foreign(view, ip);
        }
        for ip in self.own(&self.service.ingress_ips) {
            self.ingress_ip(ip);
            self.bind_unless_foreign(view, ip);
        }
        match self.port.node_port {
            // If no node address serves NodePorts, adds neither a virtual server nor the
            // `healthCheckNodePort`, like upstream.
            Some(_) if node_ports.are_none() => {}
            Some(number) => {
                self.node_port(number, &node_ports.addresses);
                self.health_check();
            }
            None => self.health_check(),
        }
        self.serve_outside();
        self.fragment
    }

    fn own(&self, addresses: &[IpAddr]) -> Vec<IpAddr> {
        addresses
            .iter()
            .copied()
            .filter(|ip| IpFamily::of(*ip) == self.node.family)
            .collect()
    }

    /// Adds the set members by which rules masquerade a pod's packets to itself through the Service
    /// (hairpin). Without masquerading, the pod would reply to its own address directly.
    fn hairpin(&mut self) {
        let protocol = self.port.protocol;
        let members = self.backends.on_node.iter().map(|target| {
            (
                Set::LoopBack,
                Member::AddressPortAddress(target.ip, protocol, target.port, target.ip),
            )
        });
        self.fragment.members.extend(members);
    }

    fn cluster_ip(&mut self, ip: IpAddr) {
        self.member(Set::ClusterIp, ip);
        if self.semantics.is_exact() && self.service.internal_local && self.lacks_local() {
            self.member(Set::Unserved, ip);
        }
        self.serve(ip, self.port.port, self.service.internal_local);
        self.bind(ip);
    }

    fn external_ip(&mut self, ip: IpAddr) {
        self.member(
            if self.service.external_local {
                Set::ExternalIpLocal
            } else {
                Set::ExternalIp
            },
            ip,
        );
        self.serve_external(self.properties.clone(), ip, self.port.port);
    }

    fn ingress_ip(&mut self, ip: IpAddr) {
        self.member(Set::LoadBalancer, ip);
        if self.service.external_local {
            self.member(Set::LoadBalancerLocal, ip);
        }
        self.source_ranges(ip);
        self.serve_external(self.properties.clone(), ip, self.port.port);
    }

    /// Adds set members that let only the Service's `loadBalancerSourceRanges` use a load-balancer
    /// address.
    fn source_ranges(&mut self, ip: IpAddr) {
        let (protocol, port) = (self.port.protocol, self.port.port);
        let own = |net: &&ipnet::IpNet| IpFamily::of(net.addr()) == self.node.family;
        let ranges: Vec<_> = self
            .service
            .source_ranges
            .iter()
            .filter(own)
            .copied()
            .collect();
        if ranges.is_empty() {
            return;
        }
        self.member(Set::LoadBalancerFirewall, ip);
        for net in &ranges {
            let member = Member::AddressPortNet(ip, protocol, port, net.trunc());
            self.fragment
                .members
                .push((Set::LoadBalancerSourceCidr, member));
        }
        if self
            .node
            .ip
            .is_some_and(|node_ip| ranges.iter().any(|net| net.contains(&node_ip)))
        {
            // A packet from this node to a local load-balancer address has that address as its
            // source. So the address must be an allowed source.
            let member = Member::AddressPortAddress(ip, protocol, port, ip);
            self.fragment
                .members
                .push((Set::LoadBalancerSourceIp, member));
        } else {
            let at = ServiceAddress::new(ip, port, protocol);
            self.fragment.forbidden_to_node.push(at);
        }
    }

    fn node_port(&mut self, number: u16, addresses: &[IpAddr]) {
        let protocol = self.port.protocol;
        let mut sets = vec![Set::node_port(protocol)];
        if self.service.external_local {
            sets.push(Set::node_port_local(protocol));
        }
        for set in sets {
            if set.kind() == crate::sets::SetKind::Port {
                self.fragment.members.push((set, Member::Port(number)));
            } else {
                let members = addresses
                    .iter()
                    .map(|ip| (set, Member::AddressPort(*ip, protocol, number)));
                self.fragment.members.extend(members);
            }
        }
        let flags = self.properties.flags | Properties::OWNED;
        let properties = Properties {
            flags,
            ..self.properties.clone()
        };
        for ip in addresses {
            self.serve_external(properties.clone(), *ip, number);
        }
    }

    fn health_check(&mut self) {
        if let Some(port) = self.service.health_check_node_port {
            self.fragment
                .members
                .push((Set::HealthCheckNodePort, Member::Port(port)));
        }
    }

    fn member(&mut self, set: Set, ip: IpAddr) {
        let at = ServiceAddress::new(ip, self.port.port, self.port.protocol);
        self.fragment.members.push((set, at.into()));
    }

    /// Adds a virtual server at an external address. With `--ipvs-semantics=exact`, it has all
    /// endpoints even under `externalTrafficPolicy: Local`, because clients outside the cluster
    /// then use an fwmark virtual server.
    fn serve_external(&mut self, properties: Properties, address: IpAddr, port: u16) {
        let is_local = self.service.external_local;
        let is_exact = self.semantics.is_exact();
        if is_exact && is_local {
            let at = ServiceAddress::new(address, port, self.port.protocol);
            self.outside.push(at);
        }
        self.serve_with(properties, address, port, is_local && !is_exact);
    }

    /// Adds an fwmark virtual server with the local endpoints, for clients outside the cluster.
    ///
    /// - If all endpoints are on other nodes, rules drop the packets of these clients.
    /// - If the Service has no endpoint at all, IPVS rejects the packets.
    fn serve_outside(&mut self) {
        if self.outside.is_empty() {
            return;
        }
        let at = std::mem::take(&mut self.outside);
        if self.lacks_local() {
            let members = at.iter().map(|at| (Set::UnservedOutside, (*at).into()));
            self.fragment.members.extend(members);
        }
        let flags = self.properties.flags | Properties::OWNED;
        let is_same_port = |at: &ServiceAddress| {
            let mut targets = self.backends.local.iter();
            targets.all(|target| target.port == at.port)
        };
        // Without an endpoint, destinations may still drain, and their ports are unknown here. So
        // the virtual server is not persistent.
        let keeps_port = !self.backends.local.is_empty() && at.iter().all(is_same_port);
        let mut properties = Properties {
            flags,
            ..self.properties.clone()
        };
        let mut destinations = self.local.clone();
        let hashes_source = self.service.affinity_seconds.is_some() && !keeps_port;
        if hashes_source {
            properties = match self.by_source {
                Some(scheduler) => properties.by_source(scheduler),
                None => properties.without_persistence(),
            };
            // Scheduler `sh` has only 256 slots, and gives a destination as many slots as its
            // weight. All weights here are equal, so weight 1 suffices.
            destinations = self.local.iter().map(|real| real.with_weight(1)).collect();
        }
        self.fragment.outside = Some(OutsideServer {
            server: VirtualServer {
                properties,
                destinations,
            },
            at,
            hashes_source,
        });
    }

    /// Returns true if the Service has endpoints, but none that traffic policy `Local` may use.
    fn lacks_local(&self) -> bool {
        self.backends.local.is_empty() && self.backends.any
    }

    fn serve(&mut self, address: IpAddr, port: u16, is_local: bool) {
        self.serve_with(self.properties.clone(), address, port, is_local);
    }

    fn serve_with(&mut self, properties: Properties, address: IpAddr, port: u16, is_local: bool) {
        let destinations = if is_local {
            self.local.clone()
        } else {
            self.cluster.clone()
        };
        let at = ServiceAddress::new(address, port, self.port.protocol);
        let server = VirtualServer {
            properties,
            destinations,
        };
        self.fragment.servers.push((at, server));
    }

    /// Binds an address to `kube-ipvs0`, unless it is an address of the API server.
    ///
    /// A bound address is local at every port, so this node could no longer reach the API server's
    /// other ports.
    ///
    /// Without the bound address, this node's own packets still use the virtual server. Pods'
    /// packets are routed to the API server's node.
    fn bind_unless_foreign(&mut self, view: &ServiceView<'_>, ip: IpAddr) {
        if !view.is_api_server(ip) {
            self.bind(ip);
        }
    }

    /// Binds an address to `kube-ipvs0`, unless another interface has it. Otherwise, removing the
    /// Service would remove an address of the node (kubernetes/kubernetes#75290). Does nothing
    /// while the node's addresses are unknown.
    fn bind(&mut self, ip: IpAddr) {
        if self.node.has_addresses && !self.node.interface_addresses.contains(&ip) {
            self.fragment.addresses.push(ip);
            self.fragment
                .members
                .push((Set::IpvsIps, Member::Address(ip)));
        }
    }
}
