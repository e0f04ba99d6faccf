//! Compiles Service ports into their chains, sets and elements. This code is pure: it uses no
//! clock, I/O, log or kernel.
//!
//! ```text
//!   ServiceView ─▶ compile ─▶ ServedPort ─┬─▶ slots     routes of the port's addresses
//!                                         ├─▶ members   the ClusterIP, and endpoints on this node
//!                                         ├─▶ chains    the port's chains, rule by rule
//!                                         └─▶ affinity  a set of clients for each endpoint
//! ```
//!
//! The mode stores each [`ServedPort`], but builds its rules only for a write.
//!
//! In upstream's layout, chains, rules, their order and their comments equal those of upstream
//! (docs/nftables-mode.md). The module [`flat`] compiles the objects of the layout `flat`.

mod endpoints;
mod flat;

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use nftables_netlink::{Name, Rule, Verdict};
use proxy::{
    Endpoints as Backing, IpFamily, NodeFacts, Owner, Protocol, ServicePort, ServiceView, Target,
};

use relay::PortBackends;

use crate::choice::Choices;
use crate::clients::Clients;
use crate::config::{Config, LocalhostNodePorts};
use crate::content::Content;
use crate::layout::Layout;
use crate::name::{NameBase, Purpose, REJECT, is_of_service};
use endpoints::Endpoints;
use kube_rules::nft::{Line, SOURCE, Sense, Side};

/// Destination of packets: an address and port, or a NodePort at this node's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// Address, or `None` for all addresses of this node that serve NodePorts.
    pub address: Option<IpAddr>,
    /// Transport protocol of the packets.
    pub protocol: Protocol,
    /// Destination port of the packets.
    pub port: u16,
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, protocol, .. } = self;
        match self.address {
            Some(address) => write!(f, "{}/{protocol}", SocketAddr::new(address, *port)),
            None => write!(f, "port {port}/{protocol} of this node"),
        }
    }
}

/// Verdicts and endpoints for packets to a slot (an address and port). If several Service ports
/// claim a slot, one of them owns the whole route.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Route {
    /// Verdict for the slot in the map `service-ips` or `service-nodeports`, usually a goto to a
    /// chain. `None` if the map has no element for the slot.
    pub to: Option<Verdict>,
    /// Policy for packets without an endpoint, as an element of the map `no-endpoint-services` or
    /// `no-endpoint-nodeports`. `None` if there is no such element.
    pub unserved: Option<EmptyPortPolicy>,
    /// Chain to which the map `firewall-ips` leads packets to the slot, if any.
    pub firewall: Option<Name>,
    /// Endpoints of the slot in the shared maps of the layout `flat`.
    pub choices: Choices,
}

impl Route {
    /// Returns this route with its endpoints at the positions that they have in `before`, an
    /// earlier route of the slot.
    #[must_use]
    pub(crate) fn arranged(self, before: Option<&Self>) -> Self {
        let choices = self.choices.arranged(before.map(|before| &before.choices));
        Self { choices, ..self }
    }

    /// Returns true if the route leads at least some clients to endpoints.
    fn leads(&self) -> bool {
        let is_chain = |to: &Verdict| matches!(to, Verdict::Goto(chain) if **chain != *REJECT);
        self.to.as_ref().is_some_and(is_chain) || self.choices != Choices::default()
    }

    /// Returns true if this route leads more clients to endpoints than `other`: some instead of
    /// none, or all instead of some.
    fn serves_more_than(&self, other: &Self) -> bool {
        let leads_all = |route: &Self| route.leads() && route.unserved.is_none();
        (self.leads() && !other.leads()) || (leads_all(self) && !leads_all(other))
    }

    /// Returns the chains of Service ports to which the route leads.
    pub(crate) fn chains(&self) -> impl Iterator<Item = &Name> {
        let to = match &self.to {
            Some(Verdict::Goto(chain)) if is_of_service(chain) => Some(chain),
            _ => None,
        };
        to.into_iter().chain(&self.firewall)
    }
}

/// Policy for packets to a Service port that has no endpoint for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EmptyPortPolicy {
    /// The rules reject the packets, because the Service has no endpoint.
    Reject,
    /// The rules drop the packets, because the traffic policy excludes all existing endpoints.
    Drop,
    /// Any other verdict in the kernel, which this program does not write.
    Other,
}

/// An element of a set that Service ports share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Member {
    /// Element of the set `cluster-ips`.
    ClusterIp(IpAddr),
    /// Element of the set `hairpin-connections`: an endpoint on this node that may connect to
    /// itself.
    Hairpin(IpAddr, Protocol, u16),
    /// Element of the set `localhost-nodeports`: a NodePort that the rules reject on localhost.
    LocalhostNodePort(Protocol, u16),
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClusterIp(address) => address.fmt(f),
            Self::Hairpin(address, protocol, port) => {
                write!(f, "{}/{protocol}", SocketAddr::new(*address, *port))
            }
            Self::LocalhostNodePort(protocol, port) => {
                write!(f, "port {port}/{protocol} of localhost")
            }
        }
    }
}

/// A compiled Service port, for one IP family.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each says something else about a Service"
)]
pub struct ServedPort {
    /// Service port that was compiled, which owns the objects.
    pub owner: Arc<Owner>,
    /// Number of the port's endpoints on all nodes, in any state.
    pub endpoints: usize,
    family: IpFamily,
    cluster_ip: IpAddr,
    port: u16,
    node_port: Option<u16>,
    external_ips: Box<[IpAddr]>,
    ingress_ips: Box<[IpAddr]>,
    source_ranges: Box<[IpNet]>,
    /// True if the Service's source ranges include this node's address.
    admits_node: bool,
    affinity: Option<u32>,
    internal_local: bool,
    external_local: bool,
    cluster: Endpoints,
    local: Endpoints,
    /// Endpoints on this node that are also in `cluster` or `local`.
    on_node: Endpoints,
    /// True if at least one endpoint on any node is serving.
    any: bool,
}

/// Compiles each port of a Service. Returns an empty list if the Service has no cluster IP of this
/// family.
pub fn compile(view: &ServiceView<'_>, node: &NodeFacts) -> Vec<ServedPort> {
    let service = view.service;
    let family = node.family;
    let Some(cluster_ip) = service.cluster_ip(family) else {
        return Vec::new();
    };
    let own = |ips: &[IpAddr]| -> Box<[IpAddr]> {
        let own = ips.iter().filter(|ip| IpFamily::of(**ip) == family);
        own.copied().collect()
    };
    let source_ranges: Box<[IpNet]> = service
        .source_ranges
        .iter()
        .filter(|net| IpFamily::of(net.addr()) == family)
        .copied()
        .collect();
    // Like upstream, uses the loopback address if the node has no address of this family.
    let node_ip = node.ip.unwrap_or(family.localhost());
    let served = Backing::of(view, node);
    let compile = |port: &ServicePort| {
        let backends = served.serving(port);
        let on_node: Vec<Target> = backends
            .on_node
            .iter()
            .filter(|of| {
                backends.cluster.binary_search(of).is_ok()
                    || backends.local.binary_search(of).is_ok()
            })
            .copied()
            .collect();
        ServedPort {
            owner: Owner::new(service, port),
            endpoints: backends.total,
            family,
            cluster_ip,
            port: port.port,
            node_port: port.node_port,
            external_ips: own(&service.external_ips_of(port).collect::<Vec<_>>()),
            ingress_ips: own(&service.ingress_ips),
            admits_node: source_ranges.iter().any(|net| net.contains(&node_ip)),
            source_ranges: source_ranges.clone(),
            affinity: service.affinity_seconds,
            internal_local: service.internal_local,
            external_local: service.external_local,
            cluster: Endpoints::new(family, &backends.cluster),
            local: Endpoints::new(family, &backends.local),
            on_node: Endpoints::new(family, &on_node),
            any: backends.any,
        }
    };
    service.ports.iter().map(compile).collect()
}

impl ServedPort {
    // ---- routes of traffic ----

    fn protocol(&self) -> Protocol {
        self.owner.name.protocol
    }

    /// Returns true if traffic of a policy has an endpoint. For policy `Local` (`is_local`), only
    /// endpoints on this node count.
    fn is_served(&self, is_local: bool) -> bool {
        let endpoints = if is_local { &self.local } else { &self.cluster };
        self.any && !endpoints.is_empty()
    }

    fn is_reachable_from_outside(&self) -> bool {
        self.node_port.is_some() || !self.external_ips.is_empty() || !self.ingress_ips.is_empty()
    }

    fn has_firewall(&self) -> bool {
        !self.ingress_ips.is_empty() && !self.source_ranges.is_empty()
    }

    /// Returns the policy for packets if their traffic policy admits no endpoint.
    fn unserved(&self) -> EmptyPortPolicy {
        if self.any {
            EmptyPortPolicy::Drop
        } else {
            EmptyPortPolicy::Reject
        }
    }

    fn policy(is_local: bool) -> Purpose {
        if is_local {
            Purpose::Local
        } else {
            Purpose::Cluster
        }
    }

    // ---- elements ----

    /// Returns the addresses of the port with their routes.
    pub fn slots(&self, layout: Layout) -> Vec<(Slot, Route)> {
        let base = NameBase::of_port(&self.owner.name);
        let protocol = self.protocol();
        let at = |address: IpAddr| Slot {
            address: Some(address),
            protocol,
            port: self.port,
        };
        let mut slots = Vec::with_capacity(1);
        // If an address occurs twice, its first route counts. So an external IP that is also a
        // load-balancer IP keeps its source ranges.
        if self.is_reachable_from_outside() {
            let route = self.external(&base, layout);
            let walled = self.walled(&base, &route, layout);
            slots.extend(self.ingress_ips.iter().map(|ip| (at(*ip), walled.clone())));
            slots.extend(self.external_ips.iter().map(|ip| (at(*ip), route.clone())));
            let node_port = self.node_port.map(|port| Slot {
                address: None,
                protocol,
                port,
            });
            slots.extend(node_port.map(|slot| (slot, route)));
        }
        slots.push((at(self.cluster_ip), self.internal(&base, layout)));
        slots
    }

    /// Returns the route for packets to the ClusterIP.
    fn internal(&self, base: &NameBase, layout: Layout) -> Route {
        match layout {
            Layout::Upstream => {
                let is_served = self.is_served(self.internal_local);
                let to = base.chain(Self::policy(self.internal_local));
                Route {
                    to: is_served.then_some(Verdict::Goto(to)),
                    unserved: (!is_served).then(|| self.unserved()),
                    ..Route::default()
                }
            }
            Layout::Flat => self.flat_internal(base),
        }
    }

    /// Returns the route for packets to the external IPs and the NodePort.
    fn external(&self, base: &NameBase, layout: Layout) -> Route {
        let external = base.chain(Purpose::External);
        match layout {
            Layout::Upstream => {
                let is_served = self.is_served(self.external_local);
                Route {
                    to: self.any.then_some(Verdict::Goto(external)),
                    unserved: (!is_served).then(|| self.unserved()),
                    ..Route::default()
                }
            }
            Layout::Flat => Route {
                to: Some(self.flat_external(base)),
                ..Route::default()
            },
        }
    }

    /// Returns the route for packets to the load balancer's IPs: a check of the source ranges, then
    /// the route `external`.
    fn walled(&self, base: &NameBase, external: &Route, layout: Layout) -> Route {
        if !self.has_firewall() {
            return external.clone();
        }
        let firewall = base.chain(Purpose::Firewall);
        match layout {
            Layout::Upstream => Route {
                firewall: Some(firewall),
                ..external.clone()
            },
            Layout::Flat => Route {
                to: Some(Verdict::Goto(firewall)),
                ..Route::default()
            },
        }
    }

    // ---- Kubernetes objects that cannot be read ----

    /// Returns true if some clients of the port have no endpoint, because their traffic policy
    /// admits none.
    pub(crate) fn is_cut_off(&self) -> bool {
        !self.is_served(self.internal_local)
            || (self.is_reachable_from_outside() && !self.is_served(self.external_local))
    }

    /// Returns true if the route `there` in the kernel must stay, because it leads more clients to
    /// endpoints than the compiled route. The missing endpoints may be in an object that the source
    /// cannot read.
    pub(crate) fn goes_on(&self, there: &Route, compiled: &Route) -> bool {
        let base = NameBase::of_port(&self.owner.name);
        let mut chains = there.chains();
        chains.all(|chain| base.has(chain)) && there.serves_more_than(compiled)
    }

    /// Returns true if the wanted chain leads to no endpoint, although the chain in the kernel may
    /// still lead to endpoints.
    pub(crate) fn ends_in_nothing(&self, chain: &Name, layout: Layout) -> bool {
        let base = NameBase::of_port(&self.owner.name);
        let is_of = |purpose| base.chain(purpose) == *chain;
        let is_way =
            is_of(Purpose::External) || (layout == Layout::Flat && is_of(Purpose::Firewall));
        is_way && !self.is_served(self.external_local)
    }

    /// Returns the port's elements of the shared sets.
    pub fn members(&self, localhost: LocalhostNodePorts) -> impl Iterator<Item = Member> {
        let protocol = self.protocol();
        let is_refused = match localhost {
            LocalhostNodePorts::Off => false,
            LocalhostNodePorts::Refused => true,
            LocalhostNodePorts::Served => protocol != Protocol::Tcp,
        };
        let refused = self.node_port.filter(|_| is_refused);
        let refused = refused.map(|port| Member::LocalhostNodePort(protocol, port));
        let hairpin = move |at: SocketAddr| Member::Hairpin(at.ip(), protocol, at.port());
        let cluster_ip = [Member::ClusterIp(self.cluster_ip)];
        cluster_ip
            .into_iter()
            .chain(self.on_node.iter().map(hairpin))
            .chain(refused)
    }

    /// Returns the port's NodePort number and its endpoints, for the relay on localhost. Returns
    /// `None` if the relay does not serve this port.
    pub(crate) fn on_localhost(
        &self,
        localhost: LocalhostNodePorts,
    ) -> Option<(u16, PortBackends)> {
        let is_local = self.external_local;
        let is_served = localhost == LocalhostNodePorts::Served
            && self.protocol() == Protocol::Tcp
            && self.is_served(is_local);
        let port = self.node_port.filter(|_| is_served)?;
        let endpoints = if is_local { &self.local } else { &self.cluster };
        let mut endpoints: Vec<SocketAddr> = endpoints.iter().collect();
        endpoints.sort_unstable();
        let seconds = self.affinity.map(u64::from);
        let serving = PortBackends {
            endpoints: endpoints.into(),
            affinity: seconds.map(Duration::from_secs),
            sources: None,
        };
        Some((port, serving))
    }

    /// Returns the sets of session affinity clients, one for each endpoint of the port.
    pub(crate) fn affinity(&self) -> impl Iterator<Item = (Name, Clients)> {
        let clients = self.affinity.into_iter().map(Clients::new);
        clients.flat_map(|clients| {
            let endpoints = self.reachable().into_iter();
            let name = &self.owner.name;
            endpoints.map(move |at| (NameBase::of_endpoint(name, at).affinity(), clients))
        })
    }

    // ---- chains ----

    /// Returns true if the Service has session affinity.
    pub(crate) fn has_affinity(&self) -> bool {
        self.affinity.is_some()
    }

    /// Returns the names of the two chains that choose an endpoint. With session affinity, their
    /// rules use the sets of clients. The kernel need not have these chains.
    pub(crate) fn chains_that_name_affinity(&self) -> [Name; 2] {
        let base = NameBase::of_port(&self.owner.name);
        [Purpose::Cluster, Purpose::Local].map(|purpose| base.chain(purpose))
    }

    /// Returns all endpoints that packets can reach under some traffic policy.
    fn reachable(&self) -> BTreeSet<SocketAddr> {
        self.cluster.iter().chain(self.local.iter()).collect()
    }

    /// Calls `tell(chain, rules)` for each wanted chain of the port. Also calls `tell` for external
    /// and firewall chains that are not wanted, because their few rules cost little to build.
    fn rules(
        &self,
        config: &Config,
        wanted: &dyn Fn(&Name) -> bool,
        tell: &mut dyn FnMut(Name, Vec<Rule>),
    ) {
        let base = NameBase::of_port(&self.owner.name);
        if self.affinity.is_some() {
            for at in self.reachable() {
                let base = NameBase::of_endpoint(&self.owner.name, at);
                let chain = base.chain(Purpose::Endpoint);
                if wanted(&chain) {
                    tell(chain, self.endpoint_rules(&base, at));
                }
            }
        }
        let policies = [(false, &self.cluster), (true, &self.local)];
        let has_chains = config.layout == Layout::Upstream || !self.is_flat();
        for (is_local, endpoints) in policies.into_iter().filter(|_| has_chains) {
            if self.is_served(is_local) {
                let chain = base.chain(Self::policy(is_local));
                // Builds the rules only if the chain is wanted, because a port with many endpoints
                // has many rules.
                if wanted(&chain) {
                    tell(chain, self.policy_rules(endpoints));
                }
            }
        }
        if self.any && self.is_reachable_from_outside() {
            let mut rules = self.external_rules(&base, config);
            if config.layout == Layout::Flat {
                rules.extend(self.flat_end_of_external());
            }
            tell(base.chain(Purpose::External), rules);
        }
        if self.has_firewall() {
            let mut rules = self.firewall_rules();
            if config.layout == Layout::Flat {
                rules.push(self.flat_end_of_firewall(&base));
            }
            tell(base.chain(Purpose::Firewall), rules);
        }
    }

    fn line(&self) -> Line {
        Line::new(self.family)
    }

    /// Returns the rules that choose an endpoint: the client's previous endpoint if there is one,
    /// and otherwise a random endpoint.
    fn policy_rules(&self, endpoints: &Endpoints) -> Vec<Rule> {
        if self.affinity.is_none() {
            let line = self.line().protocol(self.protocol());
            return vec![line.translate_to_one_of(endpoints.iter()).rule()];
        }
        let bases = endpoints.iter().map(|at| {
            let base = NameBase::of_endpoint(&self.owner.name, at);
            (base.affinity(), base.chain(Purpose::Endpoint))
        });
        let bases: Vec<(Name, Name)> = bases.collect();
        let seen = bases.iter().map(|(set, chain)| {
            let line = self.line().in_set(&[SOURCE], Sense::Is, Arc::clone(set));
            line.goto(Arc::clone(chain)).rule()
        });
        let mut rules: Vec<Rule> = seen.collect();
        let chains = bases.iter().map(|(_, chain)| Arc::clone(chain));
        rules.push(self.line().goto_one_of(chains).rule());
        rules
    }

    fn endpoint_rules(&self, base: &NameBase, at: SocketAddr) -> Vec<Rule> {
        vec![
            self.line().remember(base.affinity()).rule(),
            self.line().protocol(self.protocol()).translate(at).rule(),
        ]
    }

    fn external_rules(&self, base: &NameBase, config: &Config) -> Vec<Rule> {
        let cluster = base.chain(Purpose::Cluster);
        let masquerade = |line: Line, why| line.set_mark(config.masquerade_mark).comment(why);
        let mut rules = Vec::new();
        if !self.external_local {
            rules.push(masquerade(self.line(), "masquerade"));
            if self.is_served(false) {
                rules.push(self.line().goto(cluster).rule());
            }
            return rules;
        }
        // Packets from this node or its pods may reach all endpoints even with policy Local, as if
        // they had left the node and an external load balancer had chosen a node with an endpoint.
        let is_served = self.is_served(false);
        let from_pod = self.line().pod_traffic(Sense::Is, &config.detector);
        if let Some(from_pod) = from_pod.filter(|_| is_served) {
            let line = from_pod.goto(Arc::clone(&cluster));
            rules.push(line.comment("short-circuit pod traffic"));
        }
        let from_here = || self.line().of_this_node(Side::Source);
        rules.push(masquerade(from_here(), "masquerade local traffic"));
        if is_served {
            let line = from_here().goto(cluster);
            rules.push(line.comment("short-circuit local traffic"));
        }
        if self.is_served(true) {
            rules.push(self.line().goto(base.chain(Purpose::Local)).rule());
        }
        rules
    }

    fn firewall_rules(&self) -> Vec<Rule> {
        // Admits the source ranges. If they include the node's address, also admits the load
        // balancer's addresses: a packet from the node to such an address may have the same address
        // as its source.
        let own = self.ingress_ips.iter().filter(|_| self.admits_node);
        let ranges = self.source_ranges.iter().map(IpNet::trunc);
        let ranges: Vec<IpNet> = ranges.chain(own.map(|ip| IpNet::from(*ip))).collect();
        let line = self.line().in_nets(Side::Source, Sense::IsNot, &ranges);
        vec![line.drop().rule()]
    }

    /// Returns the names of the port's chains, each with the digest of its rules.
    pub fn chains(&self, config: &Config) -> Vec<(Name, Content)> {
        let mut chains = Vec::with_capacity(1);
        self.rules(config, &|_| true, &mut |chain, rules| {
            chains.push((chain, Content::of(&rules)));
        });
        chains
    }

    /// Calls `write` with the rules of each wanted chain.
    pub fn write(
        &self,
        config: &Config,
        wanted: &dyn Fn(&Name) -> bool,
        write: &mut dyn FnMut(Name, Vec<Rule>),
    ) {
        self.rules(config, wanted, &mut |chain, rules| {
            if wanted(&chain) {
                write(chain, rules);
            }
        });
    }
}
