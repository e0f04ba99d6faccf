//! The base: this mode's objects in the nftables table that do not depend on Services.
//!
//! * the table itself;
//! * the sets and maps that all Services share;
//! * the base chains (at netfilter hooks), and the chains to which they lead every packet.
//!
//! Source: docs/nftables-mode.md; upstream's `pkg/proxy/nftables/proxier.go` (`setupNFTables`).

mod flat;
mod upstream;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use nftables_netlink::{
    Activity, BaseChain, Chain, ChainKind, DataType, Hook, Name, Policy, Rule, Set, SetKind, Table,
};
use proxy::{IpFamily, Protocol};

use footprint::Footprint;

use crate::choice::{Chooser, Map};
use crate::config::{Config, LocalhostNodePorts};
use crate::content::Content;
use crate::layout::Layout;
use crate::name::{
    CLUSTER_IPS, FIREWALL_IPS, HAIRPIN, LOCALHOST_CHECK, LOCALHOST_NODE_PORTS,
    NO_ENDPOINT_NODE_PORTS, NO_ENDPOINT_SERVICES, NODE_PORT_IPS, REJECT, SERVICE_IPS,
    SERVICE_NODE_PORTS, TABLE, is_of_service, localhost_counter,
};
use kube_rules::nft::{
    CONNECTION, DESTINATION, Field, Line, PORT, Sense, Side, SourcePort, address_type,
};

const SERVICES: &str = "services";
const MASQUERADING: &str = "masquerading";
const NODE_PORTS_CHECK: &str = "nodeport-endpoints-check";
const SERVICES_CHECK: &str = "service-endpoints-check";
const FIREWALL_CHECK: &str = "firewall-check";
const CLUSTER_IPS_CHECK: &str = "cluster-ips-check";

/// Key of an object in the base: its kind and its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum BaseKey {
    Table,
    Set(&'static str),
    Chain(&'static str),
    Counter(&'static str),
    /// Chain of the layout `flat` that chooses an endpoint. The base has one such chain for each
    /// protocol and each number of endpoints (above three) that a Service has.
    Chooser(Chooser),
}

impl BaseKey {
    /// Returns true for a chain that uses the set `set`, if the mode does not want this chain. Such
    /// a chain may still exist in the kernel. There are two kinds:
    ///
    /// * a chain of upstream's layout, if the mode wants the layout `flat`;
    /// * a chooser chain for a number of endpoints that no Service has.
    ///
    /// All other chains of an unwanted layout use only sets that are also unwanted. The mode
    /// deletes these sets together with the chains.
    pub(crate) fn names_unwanted(&self, set: &str) -> bool {
        match self {
            Self::Chain(name) => *name == NODE_PORTS_CHECK && *set == *NODE_PORT_IPS,
            Self::Chooser(chooser) => chooser.map().name() == Some(set),
            Self::Table | Self::Set(_) | Self::Counter(_) => false,
        }
    }
}

impl fmt::Display for BaseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table => write!(f, "table {TABLE}"),
            Self::Set(name) => write!(f, "set {name}"),
            Self::Chain(name) => write!(f, "chain {name}"),
            Self::Counter(name) => write!(f, "counter {name}"),
            Self::Chooser(chooser) => write!(f, "chain {}", chooser.name()),
        }
    }
}

/// Key of the chain `services`, which leads packets to the chains of Services.
pub(crate) const SERVICES_CHAIN: BaseKey = BaseKey::Chain(SERVICES);

/// Key of a chain by which the mode recognizes upstream's layout, because the layout `flat` lacks
/// it.
pub(crate) const UPSTREAM_ONLY: BaseKey = BaseKey::Chain(SERVICES_CHECK);

/// Definition of an object in the base, without the object's comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BaseValue {
    Table(Activity),
    Set(Definition),
    Counter,
    Chain(Option<BaseChain>, Content),
}

/// Definition of a set in the base, without the set's comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Definition {
    key: Vec<DataType>,
    kind: SetKind,
    has_more: bool,
}

impl Definition {
    /// Returns the definition of `set`, without its comment.
    pub(crate) fn of(set: &Set) -> Self {
        Self {
            key: set.key.clone(),
            kind: set.kind.clone(),
            has_more: set.intervals || set.dynamic || set.timeout.is_some(),
        }
    }
}

/// Wanted objects that do not depend on Services, for one IP family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Base {
    family: IpFamily,
    layout: Layout,
    sets: BTreeMap<&'static str, Set>,
    counters: BTreeSet<&'static str>,
    chains: BTreeMap<BaseKey, (Chain, Vec<Rule>)>,
}

/// Footprint of this mode: the names of its objects in the kernel.
pub const FOOTPRINT: Footprint = Footprint {
    origins: &crate::origins::ORIGINS,
    ..footprint::NFTABLES
};

/// Returns the names of all chains, sets and maps in the base of a family, in both layouts.
pub fn names(family: IpFamily) -> BTreeSet<String> {
    let all_node_ports = [NodePortIps::All, NodePortIps::InSet];
    let layouts = [Layout::Upstream, Layout::Flat].into_iter();
    let bases = layouts.flat_map(|layout| {
        let config = Config {
            layout,
            localhost: LocalhostNodePorts::Refused,
            ..Config::default()
        };
        all_node_ports.map(|node_ports| Base::new(family, &config, node_ports, None))
    });
    bases
        .flat_map(|base| {
            let sets: Vec<String> = base.sets.values().map(|set| set.name.to_string()).collect();
            let chains = base.chains.into_values();
            let chains = chains.map(|(chain, _)| chain.name.to_string());
            chains.chain(sets).collect::<Vec<_>>()
        })
        .collect()
}

/// Input from which a layout computes its part of the base.
struct LayoutInput<'a> {
    config: &'a Config,
    node_ports: NodePortIps,
    unallocated: Option<Rule>,
}

/// Addresses of the node at which NodePorts are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodePortIps {
    /// NodePorts are served at every address of the node.
    All,
    /// NodePorts are served only at the addresses in the set `nodeport-ips`.
    InSet,
}

impl Base {
    /// Builds the wanted base of an IP family. The rule `unallocated` drops packets to unallocated
    /// ClusterIPs.
    pub(crate) fn new(
        family: IpFamily,
        config: &Config,
        node_ports: NodePortIps,
        unallocated: Option<Rule>,
    ) -> Self {
        let mut base = Self {
            family,
            layout: config.layout,
            sets: BTreeMap::new(),
            counters: BTreeSet::new(),
            chains: BTreeMap::new(),
        };
        base.add_sets(node_ports);
        let wanted = LayoutInput {
            config,
            node_ports,
            unallocated,
        };
        base.add_localhost(config.localhost);
        base.add_masquerading(config);
        match config.layout {
            Layout::Upstream => upstream::add(&mut base, wanted),
            Layout::Flat => flat::add(&mut base, wanted),
        }
        base
    }

    /// Adds the chooser chains of `choosers` to the base.
    #[must_use]
    pub(crate) fn with_choosers(mut self, choosers: &BTreeSet<Chooser>) -> Self {
        for chooser in choosers {
            flat::add_chooser(&mut self, *chooser);
        }
        self
    }

    fn line(&self) -> Line {
        Line::new(self.family)
    }

    fn add_set(&mut self, name: &'static str, key: &[DataType], kind: SetKind, comment: &str) {
        let set = Set {
            comment: Some(comment.into()),
            ..Set::new(Name::from(name), key.to_vec(), kind)
        };
        self.sets.insert(name, set);
    }

    /// Returns the types of a key that consists of destination address, protocol and port.
    fn destination(&self) -> [DataType; 3] {
        [
            address_type(self.family),
            DataType::InetProto,
            DataType::InetService,
        ]
    }

    fn add_sets(&mut self, node_ports: NodePortIps) {
        let at = self.destination();
        let [address, protocol, port] = at;
        let set = || SetKind::Set;
        let map = || SetKind::Verdicts;
        self.add_set(CLUSTER_IPS, &[address], set(), "Active ClusterIPs");
        if node_ports == NodePortIps::InSet {
            let comment = "IPs that accept NodePort traffic";
            self.add_set(NODE_PORT_IPS, &[address], set(), comment);
        }
        let hairpin = [address, address, protocol, port];
        self.add_set(HAIRPIN, &hairpin, set(), "service hairpin connections");
        let comment = "ClusterIP, ExternalIP and LoadBalancer IP traffic";
        self.add_set(SERVICE_IPS, &at, map(), comment);
        let by_port = [protocol, port];
        self.add_set(SERVICE_NODE_PORTS, &by_port, map(), "NodePort traffic");
    }

    fn add_base_chain(
        &mut self,
        name: &'static str,
        (kind, hook, priority): (ChainKind, Hook, i32),
        rules: Vec<Rule>,
    ) {
        let base = BaseChain {
            kind,
            hook,
            priority,
            policy: Policy::Accept,
        };
        self.add_any_chain(BaseKey::Chain(name), name.into(), Some(base), None, rules);
    }

    fn add_chain(&mut self, name: &'static str, rules: Vec<Rule>) {
        self.add_any_chain(BaseKey::Chain(name), name.into(), None, None, rules);
    }

    fn add_any_chain(
        &mut self,
        key: BaseKey,
        name: Name,
        base: Option<BaseChain>,
        comment: Option<&str>,
        rules: Vec<Rule>,
    ) {
        let comment = comment.map(Into::into);
        let chain = Chain {
            name,
            base,
            comment,
        };
        self.chains.insert(key, (chain, rules));
    }

    /// Adds the base chains of type `nat` (prerouting, output and postrouting), which both layouts
    /// have.
    fn add_nat_chains(&mut self) {
        let to = |chain: &'static str| vec![self.line().jump(chain).rule()];
        let mut services = to(SERVICES);
        if self.layout == Layout::Flat {
            // The check comes after the jump to `services`. Packets that rules in `services`
            // translated do not return to this chain, so only untranslated packets reach the check.
            services.extend(to(CLUSTER_IPS_CHECK));
        }
        let (before, after) = (services.clone(), to(MASQUERADING));
        if self.layout == Layout::Flat {
            services.extend(self.to_localhost_check());
        }
        for (name, hook, priority, rules) in [
            ("nat-prerouting", Hook::Prerouting, -100, before),
            ("nat-output", Hook::Output, -100, services),
            ("nat-postrouting", Hook::Postrouting, 100, after),
        ] {
            self.add_base_chain(name, (ChainKind::Nat, hook, priority), rules);
        }
    }

    fn add_masquerading(&mut self, config: &Config) {
        self.add_nat_chains();
        let mark = config.masquerade_mark;
        let marked = self
            .line()
            .marked(mark)
            .flip_mark(mark)
            .masquerade(SourcePort::Random)
            .rule();
        let hairpin = self
            .line()
            .translated()
            .in_set(CONNECTION, Sense::Is, HAIRPIN);
        let masquerading = vec![marked, hairpin.masquerade(SourcePort::Random).rule()];
        self.add_chain(MASQUERADING, masquerading);
    }

    /// Adds the set, counters and chain that reject and count packets to NodePorts on localhost.
    /// NodePorts that a relay serves there are not in the set.
    fn add_localhost(&mut self, localhost: LocalhostNodePorts) {
        if localhost == LocalhostNodePorts::Off {
            return;
        }
        let by_port = [DataType::InetProto, DataType::InetService];
        let comment = "NodePorts that are rejected on localhost";
        self.add_set(LOCALHOST_NODE_PORTS, &by_port, SetKind::Set, comment);
        let refuse = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].map(|protocol| {
            let counter = localhost_counter(protocol);
            self.counters.insert(counter);
            let line = self.line().protocol(protocol);
            let line = line
                .in_set(PORT, Sense::Is, LOCALHOST_NODE_PORTS)
                .count_in(counter);
            // Rejects TCP with a reset instead of an ICMP error. An ICMP error would arrive while
            // the client's socket is still sending the packet. So the socket would miss the error,
            // and retry only after a second.
            let line = match protocol {
                Protocol::Tcp => line.reset(),
                Protocol::Udp | Protocol::Sctp => line.reject(),
            };
            line.rule()
        });
        self.add_chain(LOCALHOST_CHECK, refuse.into());
    }

    /// Returns the rule that sends the node's own packets to localhost through the chain
    /// `localhost-nodeports-check`. Returns `None` if no rule rejects NodePorts on localhost.
    fn to_localhost_check(&self) -> Option<Rule> {
        let line = self.line();
        let is_there = !self.counters.is_empty();
        is_there.then(|| {
            let to = Side::Destination;
            let line = line.in_net(to, Sense::Is, localhost(self.family));
            line.jump(LOCALHOST_CHECK).rule()
        })
    }

    /// Adds to `line` a match for packets to the node's addresses at which NodePorts are served.
    fn at_node(&self, line: Line, node_ports: NodePortIps) -> Line {
        let to = Side::Destination;
        match node_ports {
            NodePortIps::All => line.in_net(to, Sense::IsNot, localhost(self.family)),
            NodePortIps::InSet => line.in_set(&[Field::Address(to)], Sense::Is, NODE_PORT_IPS),
        }
    }

    /// Returns the rule that looks up a packet's port in the map `service-nodeports`, and sends the
    /// packet to the chain of the NodePort's Service.
    fn by_node_port(&self, node_ports: NodePortIps) -> Rule {
        let line = match node_ports {
            NodePortIps::All => self.line().of_this_node(Side::Destination),
            NodePortIps::InSet => self.line(),
        };
        self.at_node(line, node_ports)
            .verdict_by(PORT, SERVICE_NODE_PORTS)
            .rule()
    }

    /// Adds the chain that rejects packets to unused ports of ClusterIPs. The rule `unallocated` of
    /// this chain drops packets to unallocated ClusterIPs.
    fn add_cluster_ips_check(&mut self, unallocated: Option<Rule>) {
        let to_cluster_ip = self.line().in_set(&[DESTINATION], Sense::Is, CLUSTER_IPS);
        let comment = "Reject traffic to invalid ports of ClusterIPs";
        let invalid_port = to_cluster_ip.reject().comment(comment);
        let check = [invalid_port].into_iter().chain(unallocated).collect();
        self.add_chain(CLUSTER_IPS_CHECK, check);
    }

    fn add_reject_chain(&mut self, comment: &str) {
        let reject = vec![self.line().reject().rule()];
        let key = BaseKey::Chain(REJECT);
        self.add_any_chain(key, REJECT.into(), None, Some(comment), reject);
    }

    /// Returns all objects of the base, each with its key.
    pub(crate) fn entries(&self) -> Vec<(BaseKey, BaseValue)> {
        let sets = self.sets.iter();
        let sets =
            sets.map(|(name, set)| (BaseKey::Set(name), BaseValue::Set(Definition::of(set))));
        let chains = self.chains.iter().map(|(key, (chain, rules))| {
            let value = BaseValue::Chain(chain.base, Content::of(rules));
            (key.clone(), value)
        });
        let table = [(BaseKey::Table, BaseValue::Table(Activity::Active))];
        let counters = self.counters.iter();
        let counters = counters.map(|name| (BaseKey::Counter(name), BaseValue::Counter));
        let all = table.into_iter().chain(sets).chain(chains);
        all.chain(counters).collect()
    }

    /// Returns the layout to which the base belongs.
    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the definition of the nftables table.
    pub(crate) fn table(&self) -> Table {
        Table {
            comment: Some("rules for kube-proxy".into()),
            ..Table::new(self.family.into(), TABLE.into())
        }
    }

    /// Returns the definition of the set `name`, or `None` if the base lacks it.
    pub(crate) fn set(&self, name: &str) -> Option<&Set> {
        self.sets.get(name)
    }

    /// Returns the rule that drops packets to unallocated ClusterIPs, if any.
    pub(crate) fn unallocated(&self) -> Option<&Rule> {
        let (_, rules) = self.chains.get(&BaseKey::Chain(CLUSTER_IPS_CHECK))?;
        rules
            .iter()
            .find(|rule| is_unallocated(CLUSTER_IPS_CHECK, rule))
    }

    /// Returns the definition and the rules of the chain with the key `key`, or `None` if the base
    /// lacks it.
    pub(crate) fn chain(&self, key: &BaseKey) -> Option<&(Chain, Vec<Rule>)> {
        self.chains.get(key)
    }
}

/// Comment that identifies the rule for unallocated ClusterIPs.
const UNALLOCATED: &str = "Drop traffic to unallocated ClusterIPs";

/// Returns the rule that drops packets to unallocated ClusterIPs in the ranges `nets`, or `None` if
/// `nets` is empty.
pub(crate) fn unallocated(family: IpFamily, nets: &[IpNet]) -> Option<Rule> {
    let line = Line::new(family).in_nets(Side::Destination, Sense::Is, nets);
    (!nets.is_empty()).then(|| line.drop().comment(UNALLOCATED))
}

/// Returns true if `rule` is the rule that drops packets to unallocated ClusterIPs. The ranges in
/// the rule do not matter.
pub(crate) fn is_unallocated(chain: &str, rule: &Rule) -> bool {
    chain == CLUSTER_IPS_CHECK && rule.comment.as_deref() == Some(UNALLOCATED)
}

/// Names of this mode's chains in both layouts, except chains of Services.
const CHAINS: [&str; 16] = [
    "filter-prerouting-pre-dnat",
    "filter-output-pre-dnat",
    "filter-input",
    "filter-forward",
    "filter-output",
    "nat-prerouting",
    "nat-output",
    "nat-postrouting",
    SERVICES,
    MASQUERADING,
    NODE_PORTS_CHECK,
    SERVICES_CHECK,
    FIREWALL_CHECK,
    CLUSTER_IPS_CHECK,
    REJECT,
    LOCALHOST_CHECK,
];

/// Names of this mode's sets in both layouts, except sets of Services.
const SETS: [&str; 9] = [
    CLUSTER_IPS,
    NODE_PORT_IPS,
    HAIRPIN,
    SERVICE_IPS,
    SERVICE_NODE_PORTS,
    FIREWALL_IPS,
    NO_ENDPOINT_SERVICES,
    NO_ENDPOINT_NODE_PORTS,
    LOCALHOST_NODE_PORTS,
];

/// Returns the key of the base's chain with the name `name`, or `None` for any other chain.
pub(crate) fn find_chain(name: &str) -> Option<BaseKey> {
    if is_of_service(name) {
        return None;
    }
    let fixed = CHAINS.iter().find(|known| **known == name);
    let fixed = fixed.map(|name| BaseKey::Chain(name));
    fixed.or_else(|| Chooser::find(name).map(BaseKey::Chooser))
}

/// Returns `name` as a constant if the base may contain a set with this name, or else `None`.
pub(crate) fn find_set(name: &str) -> Option<&'static str> {
    let fixed = SETS.iter().find(|known| **known == name).copied();
    fixed.or_else(|| Map::find(name)?.name())
}

fn localhost(family: IpFamily) -> IpNet {
    use std::net::{Ipv4Addr, Ipv6Addr};
    match family {
        IpFamily::V4 => Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8).into(),
        IpFamily::V6 => Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128).into(),
    }
}

#[cfg(test)]
mod tests;
