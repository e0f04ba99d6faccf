//! Compiles Service ports, and renders their rules. This code is pure: it uses no clock, I/O, log
//! or kernel.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use iptables::{Match, Rule, Table, Target};
use kube_rules::{LOCALHOST, MARK_MASQ, local, not_local};
use proxy::{Endpoints, IpFamily, NodeFacts, Owner, Protocol, ServicePort, ServiceView};

use crate::chain::{Chain, Hash, Purpose, Shared};
use crate::config::Config;
use crate::nfacct::Counter;

/// Key of the rules for one address and port in one shared chain. Such a chain contains rules of
/// many Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// The shared chain that contains the rules.
    pub chain: Shared,
    /// The destination address, or `None` for all addresses of this node.
    pub address: Option<IpAddr>,
    /// The transport protocol that the rules match.
    pub protocol: Protocol,
    /// The destination port that the rules match.
    pub port: u16,
}

impl Slot {
    /// Returns the address, port and protocol of the slot, without the chain.
    pub(crate) fn place(&self) -> ServiceAddress {
        ServiceAddress {
            address: self.address,
            protocol: self.protocol,
            port: self.port,
        }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place().fmt(f)
    }
}

/// An address and port, independent of a chain. One Service port owns all rules for an address and
/// port: rules of a second Service port could drop or reject the owner's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ServiceAddress {
    /// The destination address, or `None` for all addresses of this node.
    address: Option<IpAddr>,
    protocol: Protocol,
    port: u16,
}

impl fmt::Display for ServiceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, protocol, .. } = self;
        match self.address {
            Some(address) => write!(f, "{}/{protocol}", SocketAddr::new(address, *port)),
            None => write!(f, "port {port}/{protocol} of this node"),
        }
    }
}

/// Settings that affect the rules of all Service ports.
#[derive(Debug, Clone, Copy)]
pub struct RuleContext<'a> {
    /// Settings of the mode for this family.
    pub config: &'a Config,
    /// True if the comments of rules omit endpoints, because the family has too many endpoints
    /// (upstream: more than 1,000).
    pub is_terse: bool,
}

/// An endpoint, with the hash in its chain's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Endpoint {
    at: SocketAddr,
    hash: Hash,
}

impl Endpoint {
    fn chain(&self) -> Chain {
        Chain {
            purpose: Purpose::Endpoint,
            hash: self.hash,
        }
    }
}

/// A compiled Service port in one family.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each says something else about a Service"
)]
pub struct ServedPort {
    /// Service port that was compiled, which owns the rules.
    pub owner: Arc<Owner>,
    /// Number of the Service port's endpoints on all nodes, in any state.
    pub endpoints: usize,
    family: IpFamily,
    /// Service port as `namespace/name:port`.
    name: String,
    hash: Hash,
    cluster_ip: IpAddr,
    port: u16,
    node_port: Option<u16>,
    external_ips: Vec<IpAddr>,
    ingress_ips: Vec<IpAddr>,
    source_ranges: Vec<IpNet>,
    /// True if the Service's source ranges include this node's address.
    admits_node: bool,
    affinity: Option<u32>,
    internal_local: bool,
    external_local: bool,
    /// `healthCheckNodePort`, with the names of all ports of the Service. Set only for the first
    /// port of the Service.
    health_check: Option<(u16, Vec<String>)>,
    /// Endpoints, sorted as text like upstream's: `10.0.0.10:80` precedes `10.0.0.9:80`.
    cluster: Vec<Endpoint>,
    local: Vec<Endpoint>,
    /// True if any endpoint is serving, on any node.
    any: bool,
}

/// Compiles each port of a Service. Returns an empty list if the Service has no cluster IP of this
/// family.
pub fn compile(view: &ServiceView<'_>, node: &NodeFacts) -> Vec<ServedPort> {
    let service = view.service;
    let Some(cluster_ip) = service.cluster_ip(node.family) else {
        return Vec::new();
    };
    let own = |ips: &[IpAddr]| {
        let own = ips.iter().filter(|ip| IpFamily::of(**ip) == node.family);
        own.copied().collect::<Vec<_>>()
    };
    let source_ranges: Vec<IpNet> = service
        .source_ranges
        .iter()
        .filter(|net| IpFamily::of(net.addr()) == node.family)
        .copied()
        .collect();
    let served = Endpoints::of(view, node);
    let compile = |(index, port): (usize, &ServicePort)| {
        let owner = Owner::new(service, port);
        let name = owner.name.to_string();
        let backends = served.serving(port);
        let endpoints = |targets: &[proxy::Target]| {
            let mut endpoints: Vec<Endpoint> = targets
                .iter()
                .map(|target| SocketAddr::new(target.ip, target.port))
                .map(|at| Endpoint {
                    at,
                    hash: Hash::of_endpoint(&name, port.protocol, at),
                })
                .collect();
            endpoints.sort_by_cached_key(|endpoint| endpoint.at.to_string());
            endpoints
        };
        let health_check = service
            .health_check_node_port
            .filter(|_| index == 0)
            .map(|number| {
                let names = service.ports.iter().map(|port| Owner::new(service, port));
                (number, names.map(|of| of.name.to_string()).collect())
            });
        ServedPort {
            hash: Hash::of_port(&name, port.protocol),
            cluster: endpoints(&backends.cluster),
            local: endpoints(&backends.local),
            name,
            owner,
            endpoints: backends.total,
            family: node.family,
            cluster_ip,
            port: port.port,
            node_port: port.node_port,
            external_ips: own(&service.external_ips_of(port).collect::<Vec<_>>()),
            ingress_ips: own(&service.ingress_ips),
            admits_node: node
                .ip
                .is_some_and(|ip| source_ranges.iter().any(|net| net.contains(&ip))),
            source_ranges: source_ranges.clone(),
            affinity: service.affinity_seconds,
            internal_local: service.internal_local,
            external_local: service.external_local,
            health_check,
            any: backends.any,
        }
    };
    service.ports.iter().enumerate().map(compile).collect()
}

impl ServedPort {
    // ---- traffic policies ----

    fn chain(&self, purpose: Purpose) -> Chain {
        let hash = self.hash;
        Chain { purpose, hash }
    }

    fn policy_chain(&self, is_local: bool) -> Chain {
        self.chain(if is_local {
            Purpose::Local
        } else {
            Purpose::Cluster
        })
    }

    /// Reports whether traffic of a policy has an endpoint. Policy `Local` (`is_local`) never falls
    /// back to endpoints on other nodes.
    fn is_served(&self, is_local: bool) -> bool {
        if is_local {
            !self.local.is_empty()
        } else {
            self.any
        }
    }

    fn is_reachable_from_outside(&self) -> bool {
        self.node_port.is_some() || !self.external_ips.is_empty() || !self.ingress_ips.is_empty()
    }

    fn has_firewall(&self) -> bool {
        self.any && !self.ingress_ips.is_empty() && !self.source_ranges.is_empty()
    }

    /// Reports whether packets from outside reach no endpoint on this node, although some node has
    /// endpoints. The cause is `externalTrafficPolicy: Local`.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.any && self.is_reachable_from_outside() && !self.is_served(self.external_local)
    }

    /// Returns the chain for packets from outside (`KUBE-EXT-`).
    pub(crate) fn external_chain(&self) -> Chain {
        self.chain(Purpose::External)
    }

    /// Returns the comment and the target of the rule for packets without an endpoint. The rule
    /// drops packets if the Service port has endpoints that the traffic policy excludes. Otherwise,
    /// it rejects packets.
    fn stop(&self) -> (String, Target) {
        if self.any {
            (
                format!("{} has no local endpoints", self.name),
                Target::Drop,
            )
        } else {
            let reject = Target::Reject(self.family);
            (format!("{} has no endpoints", self.name), reject)
        }
    }

    /// Returns a sort key: the features of the port that need rarely used iptables modules. If the
    /// kernel lacks a module, all ports with its feature fail together.
    pub(crate) fn traits(&self) -> (bool, Protocol, bool) {
        let protocol = self.owner.name.protocol;
        (self.affinity.is_some(), protocol, self.has_firewall())
    }

    // ---- shared chains ----

    /// Returns the port's rules in shared chains, by slot (chain, address and port), as lines that
    /// end with a line feed.
    pub fn slots(&self, style: RuleContext<'_>) -> Vec<(Slot, Arc<str>)> {
        let mut slots = Slots(Vec::new());
        let protocol = self.owner.name.protocol;
        let at = |chain: Shared, address: IpAddr| Slot {
            chain,
            address: Some(address),
            protocol,
            port: self.port,
        };
        let name = &self.name;
        let to_service = |comment: String| {
            move |slot: Slot| {
                let address = slot.address.map(|ip| Match::Destination(ip.into()));
                let matches = [
                    Match::Protocol(protocol),
                    Match::comment(comment.clone()),
                    Match::Port(protocol, slot.port),
                ];
                address.into_iter().chain(matches)
            }
        };
        let (why, how) = self.stop();
        let stopped = to_service(why.clone());
        let internal = to_service(format!("{name} cluster IP"));
        if self.is_served(self.internal_local) {
            let slot = at(Shared::NatServices, self.cluster_ip);
            let target = self.policy_chain(self.internal_local);
            slots.push(slot, [Rule::new(internal(slot), target)]);
        } else {
            let slot = at(Shared::FilterServices, self.cluster_ip);
            slots.push(slot, [Rule::new(stopped(slot), how)]);
        }
        let external = self.chain(Purpose::External);
        let is_served_outside = self.is_served(self.external_local);
        for ip in &self.external_ips {
            if self.any {
                let slot = at(Shared::NatServices, *ip);
                let matches = to_service(format!("{name} external IP"))(slot);
                slots.push(slot, [Rule::new(matches, external)]);
            }
        }
        for ip in &self.ingress_ips {
            if self.any {
                let slot = at(Shared::NatServices, *ip);
                let matches = to_service(format!("{name} loadbalancer IP"))(slot);
                let target = if self.has_firewall() {
                    self.chain(Purpose::Firewall)
                } else {
                    external
                };
                slots.push(slot, [Rule::new(matches, target)]);
            }
            if self.has_firewall() {
                let slot = at(Shared::FilterFirewall, *ip);
                let firewall = self.chain(Purpose::Firewall);
                let comment = format!("{name} traffic not accepted by {firewall}");
                slots.push(slot, [Rule::new(to_service(comment)(slot), Target::Drop)]);
            }
        }
        if !is_served_outside {
            for ip in self.external_ips.iter().chain(&self.ingress_ips) {
                let slot = at(Shared::FilterExternal, *ip);
                slots.push(slot, [Rule::new(stopped(slot), how)]);
            }
        }
        if let Some(port) = self.node_port {
            let at_node = |chain: Shared| Slot {
                chain,
                address: None,
                protocol,
                port,
            };
            if self.any {
                let slot = at_node(Shared::NatNodePorts);
                let matches = || to_service(name.clone())(slot);
                let config = style.config;
                let counted = (config.localhost_node_ports && config.has_counters).then(|| {
                    let localhost = Match::Destination(LOCALHOST);
                    let counter = Match::Counted(Counter::LocalhostNodePorts.name());
                    Rule::new(matches().chain([localhost, counter]), external)
                });
                let plain = Rule::new(matches(), external);
                slots.push(slot, counted.into_iter().chain([plain]));
            }
            if !is_served_outside {
                let slot = at_node(Shared::FilterExternal);
                let rule = Rule::new(
                    [
                        Match::Protocol(protocol),
                        Match::comment(why),
                        Match::DestinationLocal,
                        Match::Port(protocol, port),
                    ],
                    how,
                );
                slots.push(slot, [rule]);
            }
        }
        if let Some((port, names)) = &self.health_check {
            let slot = Slot {
                chain: Shared::FilterNodePorts,
                address: None,
                protocol: Protocol::Tcp,
                port: *port,
            };
            let rule = |name: &String| {
                let matches = [
                    Match::Protocol(Protocol::Tcp),
                    Match::comment(format!("{name} health check node port")),
                    Match::Port(Protocol::Tcp, *port),
                ];
                Rule::new(matches, Target::Accept)
            };
            slots.push(slot, names.iter().map(rule));
        }
        slots.0
    }

    // ---- chains of one port ----

    /// Passes each rule of the port's own chains to `tell(chain, rule)`, one chain after the other.
    fn rules(&self, style: RuleContext<'_>, tell: &mut dyn FnMut(Chain, Rule)) {
        if !self.any {
            return;
        }
        if self.is_reachable_from_outside() {
            self.external_rules(style, tell);
        }
        if self.has_firewall() {
            self.firewall_rules(tell);
        }
        for (is_local, endpoints) in [(false, &self.cluster), (true, &self.local)] {
            if !endpoints.is_empty() {
                self.policy_rules(is_local, endpoints, style, tell);
            }
        }
        for endpoint in &self.cluster {
            self.endpoint_rules(endpoint, style, tell);
        }
        for endpoint in &self.local {
            let text = endpoint.at.to_string();
            let found = self
                .cluster
                .binary_search_by(|other| other.at.to_string().cmp(&text));
            if found.is_err() {
                self.endpoint_rules(endpoint, style, tell);
            }
        }
    }

    fn external_rules(&self, style: RuleContext<'_>, tell: &mut dyn FnMut(Chain, Rule)) {
        let (chain, name) = (self.chain(Purpose::External), &self.name);
        let of = |what: &str| Match::comment(format!("{what} {name} external destinations"));
        if self.external_local {
            // The rules treat packets from pods and from the node itself as if they went out to an
            // external load balancer and came back in. So policy Local does not apply to these
            // packets.
            let cluster = self.chain(Purpose::Cluster);
            let from_here = || Match::SourceLocal;
            if let Some(from_pod) = local(&style.config.detector) {
                tell(chain, Rule::new([of("pod traffic for"), from_pod], cluster));
            }
            let masquerade = [of("masquerade LOCAL traffic for"), from_here()];
            tell(chain, Rule::new(masquerade, MARK_MASQ));
            let route = [of("route LOCAL traffic for"), from_here()];
            tell(chain, Rule::new(route, cluster));
        } else {
            tell(chain, Rule::new([of("masquerade traffic for")], MARK_MASQ));
        }
        if self.is_served(self.external_local) {
            tell(chain, Rule::new([], self.policy_chain(self.external_local)));
        }
    }

    fn firewall_rules(&self, tell: &mut dyn FnMut(Chain, Rule)) {
        let (chain, name) = (self.chain(Purpose::Firewall), &self.name);
        let ranges = self.source_ranges.iter().copied();
        // A packet from the node to a load-balancer address may have this same address as its
        // source. So if the source ranges include the node, the chain accepts this source as well.
        let own = self.ingress_ips.iter().filter(|_| self.admits_node);
        for net in ranges.chain(own.map(|ip| IpNet::from(*ip))) {
            let comment = Match::comment(format!("{name} loadbalancer IP"));
            let external = self.chain(Purpose::External);
            tell(chain, Rule::new([Match::Source(net), comment], external));
        }
        let rest = format!("other traffic to {name} will be dropped by KUBE-PROXY-FIREWALL");
        tell(chain, Rule::without_target([Match::comment(rest)]));
    }

    /// Passes the rules of one traffic policy's chain (`KUBE-SVC-` or `KUBE-SVL-`) to `tell`: first
    /// the rule that masquerades packets to the cluster IP, then the rules for endpoints.
    fn policy_rules(
        &self,
        is_local: bool,
        endpoints: &[Endpoint],
        style: RuleContext<'_>,
        tell: &mut dyn FnMut(Chain, Rule),
    ) {
        let (chain, protocol) = (self.policy_chain(is_local), self.owner.name.protocol);
        let config = style.config;
        let from_outside = not_local(&config.detector).filter(|_| !config.masquerade_all);
        if is_local == self.internal_local && (config.masquerade_all || from_outside.is_some()) {
            let to_cluster_ip = [
                Match::Destination(self.cluster_ip.into()),
                Match::Protocol(protocol),
                Match::comment(format!("{} cluster IP", self.name)),
                Match::Port(protocol, self.port),
            ];
            let matches = to_cluster_ip.into_iter().chain(from_outside);
            tell(chain, Rule::new(matches, MARK_MASQ));
        }
        let to = |endpoint: &Endpoint| {
            let comment = format!("{} -> {}", self.name, endpoint.at);
            (!style.is_terse).then_some(Match::comment(comment))
        };
        if let Some(seconds) = self.affinity {
            for endpoint in endpoints {
                let seen = Match::SeenWithin(endpoint.chain().into(), seconds, self.family);
                let matches = to(endpoint).into_iter().chain([seen]);
                tell(chain, Rule::new(matches, endpoint.chain()));
            }
        }
        for (at, endpoint) in endpoints.iter().enumerate() {
            let left = endpoints.len() - at;
            let chance = (left > 1).then_some(Match::OneIn(left));
            let matches = to(endpoint).into_iter().chain(chance);
            tell(chain, Rule::new(matches, endpoint.chain()));
        }
    }

    fn endpoint_rules(
        &self,
        endpoint: &Endpoint,
        style: RuleContext<'_>,
        tell: &mut dyn FnMut(Chain, Rule),
    ) {
        let (chain, protocol) = (endpoint.chain(), self.owner.name.protocol);
        let comment = || (!style.is_terse).then(|| Match::comment(self.name.clone()));
        // Hairpin: if a pod connects to itself through the Service, SNAT gives the packet another
        // source address. Otherwise, the pod would reply to itself directly, without reverse
        // translation.
        let hairpin = comment()
            .into_iter()
            .chain([Match::Source(endpoint.at.ip().into())]);
        tell(chain, Rule::new(hairpin, MARK_MASQ));
        let remember = self
            .affinity
            .map(|_| Match::Remember(chain.into(), self.family));
        let matches = comment()
            .into_iter()
            .chain(remember)
            .chain([Match::Protocol(protocol), Match::Module(protocol)]);
        tell(chain, Rule::new(matches, Target::Dnat(endpoint.at)));
    }

    /// Returns the port's own chains, each with the number of its rules and a digest of their
    /// lines.
    pub fn chains(&self, style: RuleContext<'_>) -> Vec<(Chain, Content)> {
        let mut chains: Vec<(Chain, Content)> = Vec::new();
        let mut line = String::new();
        self.rules(style, &mut |chain, rule| {
            if chains.last().is_none_or(|(last, _)| *last != chain) {
                chains.push((chain, Content::default()));
            }
            line.clear();
            rule.render(chain, &mut line);
            if let Some((_, content)) = chains.last_mut() {
                content.add(&line);
            }
        });
        chains
    }

    /// Passes the rules of the port's own chains that are `wanted` to `write`, as lines that end
    /// with a line feed.
    pub fn write(
        &self,
        style: RuleContext<'_>,
        wanted: &dyn Fn(Chain) -> bool,
        write: &mut dyn FnMut(&str),
    ) {
        let mut line = String::new();
        self.rules(style, &mut |chain, rule| {
            if wanted(chain) {
                line.clear();
                rule.render(chain, &mut line);
                line.push('\n');
                write(&line);
            }
        });
    }
}

/// Table that contains all chains of single Service ports.
pub(crate) const OWN: Table = Table::Nat;

/// Rules by slot, in order. If two entries have the same slot, the first entry counts.
struct Slots(Vec<(Slot, Arc<str>)>);

impl Slots {
    fn push(&mut self, slot: Slot, rules: impl IntoIterator<Item = Rule>) {
        let mut text = String::new();
        for rule in rules {
            rule.render(slot.chain.name(), &mut text);
            text.push('\n');
        }
        self.0.push((slot, text.into()));
    }
}

/// A digest of a chain's rules. Different rules have the same digest only with a probability of
/// 2⁻⁶⁴.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Content {
    /// Number of rules in the chain.
    pub rules: u32,
    digest: u64,
}

impl Content {
    /// Adds a rule, which is a line without a line feed, to the end of the chain.
    pub fn add(&mut self, line: &str) {
        use std::hash::{DefaultHasher, Hash as _, Hasher as _};
        let mut hasher = DefaultHasher::new();
        (self.digest, line).hash(&mut hasher);
        self.digest = hasher.finish();
        self.rules = self.rules.saturating_add(1);
    }
}
