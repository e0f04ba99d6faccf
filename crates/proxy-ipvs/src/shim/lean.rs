//! `--ipvs-shim=lean`: the verdicts of upstream's rules, in its chains, with less work for the
//! first packet of a flow.
//!
//! - Jumps lead only into chains with rules.
//! - Cluster IPs come first, because most packets to Services go there. They are looked up once.
//! - Where upstream has chains of RETURNs, one rule has all conditions, the most selective one
//!   first. Packets of established flows leave the access filter at its first condition.
//! - Empty sets are not looked up. The routing table (`addrtype`) is looked up only for possible
//!   node ports, and bridges (`physdev`) never.
//!
//! For operators, `docs/ipvs-shim.md` shows the rules and the two packets that differ.

use iptables::{Field, Jump, Match, Rule, Table, Target};
use kube_rules::{FORWARD, MARK_MASQ, POSTROUTING, SERVICES};
use proxy::Protocol;

use super::{DST, DST_DST, DST_DST_SRC, NEW, Shim, loopback, mark, node_port_fields, not_local};
use crate::config::Config;
use crate::rules::{CHAINS, Chains, JUMPS};
use crate::sets::Set;

impl Shim {
    /// Returns all chains with their rules, and the jumps into chains that have any.
    pub(super) fn lean(&self, config: &Config) -> Chains {
        let chain = |(table, name)| (table, name, self.lean_chain(table, name, config));
        let chains = CHAINS.map(chain);
        let has_rules = |jump: &&Jump| {
            let is_it = |(table, name, _): &&(Table, &str, Vec<Rule>)| {
                (*table, *name) == (jump.table, jump.to)
            };
            chains
                .iter()
                .find(is_it)
                .is_some_and(|(.., rules)| !rules.is_empty())
        };
        Chains {
            jumps: JUMPS.iter().filter(has_rules).collect(),
            chains: chains.into(),
        }
    }

    fn lean_chain(&self, table: Table, name: &str, config: &Config) -> Vec<Rule> {
        let chain = match (table, name) {
            (Table::Nat, SERVICES) => self.lean_services(config),
            (Table::Nat, POSTROUTING) => self.postrouting(config),
            (Table::Nat, "KUBE-NODE-PORT") => self.lean_node_ports(config),
            (Table::Nat, "KUBE-LOAD-BALANCER") => self.lean_load_balancers(config),
            // Network plug-ins jump into this chain as well.
            (Table::Nat, MARK_MASQ) => vec![Rule::new([], mark(config))],
            (Table::Filter, FORWARD) => lean_forward(config),
            (Table::Filter, "KUBE-NODE-PORT") => {
                self.if_filled(Set::HealthCheckNodePort, DST, Target::Accept)
            }
            (Table::Filter, "KUBE-PROXY-FIREWALL") => self.lean_firewall(),
            (Table::Filter, "KUBE-IPVS-FILTER") => self.lean_access_filter(),
            (Table::Filter, "KUBE-IPVS-OUT-FILTER") => self.out_filter(),
            _ => Vec::new(),
        };
        chain.into_iter().map(Rule::without_comments).collect()
    }

    fn lean_services(&self, config: &Config) -> Vec<Rule> {
        let mut chain = Vec::new();
        if self.is_filled(Set::ClusterIp) {
            let (from, fields) = not_local(config);
            let matches = from
                .into_iter()
                .chain([self.in_set(Set::ClusterIp, fields)]);
            chain.push(Rule::new(matches, mark(config)));
            chain.push(self.to(Set::ClusterIp, Target::Accept));
        }
        if self.is_filled(Set::LoadBalancer) {
            chain.push(self.to(Set::LoadBalancer, "KUBE-LOAD-BALANCER"));
        }
        if self.is_filled(Set::ExternalIp) {
            chain.push(self.to(Set::ExternalIp, mark(config)));
            chain.push(self.to(Set::ExternalIp, Target::Accept));
        }
        if self.is_filled(Set::ExternalIpLocal) {
            chain.push(self.to(Set::ExternalIpLocal, Target::Accept));
        }
        if !self.lean_node_ports(config).is_empty() {
            chain.push(Rule::new([], "KUBE-NODE-PORT"));
        }
        if !chain.is_empty() {
            chain.insert(
                0,
                Rule::new([Match::Source(loopback(self.family))], Target::Return),
            );
        }
        chain
    }

    fn lean_load_balancers(&self, config: &Config) -> Vec<Rule> {
        if !self.is_filled(Set::LoadBalancer) {
            return Vec::new();
        }
        let not_pinned = self.unless(Set::LoadBalancerLocal, DST_DST);
        vec![
            Rule::new(not_pinned, mark(config)),
            Rule::new([], Target::Accept),
        ]
    }

    /// Returns the rules for NodePorts. Conditions are ordered by cost: the look-up of the port is
    /// the cheapest, the look-up of the address in the routing table the most expensive.
    fn lean_node_ports(&self, config: &Config) -> Vec<Rule> {
        let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter();
        let filled = protocols.filter(|protocol| self.is_filled(Set::node_port(*protocol)));
        let rule_of = |protocol| {
            let fields = node_port_fields(protocol);
            let is_served = [
                Match::Protocol(protocol),
                self.in_set(Set::node_port(protocol), fields),
            ];
            let matches = is_served
                .into_iter()
                .chain(self.unless(Set::node_port_local(protocol), fields))
                .chain([Match::DestinationLocal]);
            Rule::new(matches, mark(config))
        };
        filled.map(rule_of).collect()
    }

    /// Returns the rules of the firewall. They also match established flows, so a flow ends when
    /// its source range is withdrawn.
    fn lean_firewall(&self) -> Vec<Rule> {
        if !self.is_filled(Set::LoadBalancerFirewall) {
            return Vec::new();
        }
        let ranges = [Set::LoadBalancerSourceCidr, Set::LoadBalancerSourceIp];
        let outside = ranges
            .into_iter()
            .filter_map(|set| self.unless(set, DST_DST_SRC));
        let limited = self.in_set(Set::LoadBalancerFirewall, DST_DST);
        vec![Rule::new(
            [limited].into_iter().chain(outside),
            Target::Drop,
        )]
    }

    fn lean_access_filter(&self) -> Vec<Rule> {
        let others = [
            (Set::LoadBalancer, DST_DST),
            (Set::ExternalIp, DST_DST),
            (Set::ExternalIpLocal, DST_DST),
            (Set::HealthCheckNodePort, DST),
        ];
        let others = others.into_iter();
        let others = others.filter_map(|(set, fields)| self.unless(set, fields));
        let others: Vec<Match> = others.collect();
        let of_cluster_ips = self.unless(Set::ClusterIp, DST_DST);
        let mut chain = Vec::new();
        if self.is_filled(Set::IpvsIps) {
            let matches = [NEW]
                .into_iter()
                .chain(of_cluster_ips.clone())
                .chain([self.in_set(Set::IpvsIps, DST)])
                .chain(others.iter().cloned());
            chain.push(Rule::new(matches, Target::Reject(self.family)));
        }
        let exposed: Vec<Match> = of_cluster_ips.into_iter().chain(others).collect();
        chain.extend(self.range_rules(&exposed));
        chain
    }

    /// Matches packets that are not in a set. Returns `None` for an empty set, which needs no
    /// look-up.
    fn unless(&self, set: Set, fields: &'static [Field]) -> Option<Match> {
        self.is_filled(set).then_some(self.not_in_set(set, fields))
    }

    fn to(&self, set: Set, target: impl Into<Target>) -> Rule {
        Rule::new([self.in_set(set, DST_DST)], target)
    }
}

/// Returns two rules that accept forwarded packets. Nearly all packets belong to established flows,
/// and only pass the first.
fn lean_forward(config: &Config) -> Vec<Rule> {
    let mut chain = Vec::from(kube_rules::forward(config.masquerade_mark));
    chain.reverse();
    chain
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::IpAddr;

    use iptables::{ChainName, FlowState};
    use proxy::{IpFamily, LocalDetector, ServiceAddress};

    use super::*;
    use crate::config::ShimStyle;
    use crate::ranges::Ranges;
    use crate::rules::Rules;

    /// A packet with the fields that rules match.
    #[derive(Debug, Clone)]
    #[allow(
        clippy::struct_excessive_bools,
        reason = "each is a question that a rule asks"
    )]
    struct Packet {
        source: IpAddr,
        in_interface: &'static str,
        protocol: Protocol,
        state: FlowState,
        is_to_local: bool,
        is_from_bridge_port: bool,
        /// True if the packet's source is a service address.
        is_from_cluster_ip: bool,
        is_source_in_range: bool,
        /// Sets that contain the packet's destination, with or without its source.
        sets: BTreeSet<Set>,
        through: Option<ServiceAddress>,
        is_marked: bool,
    }

    impl Packet {
        fn is_in(&self, set: Set, fields: &[Field]) -> bool {
            match (set, fields) {
                (Set::ClusterIp, [Field::Source, Field::Destination]) => self.is_from_cluster_ip,
                (Set::LoadBalancerSourceCidr | Set::LoadBalancerSourceIp, _) => {
                    self.is_source_in_range && self.sets.contains(&set)
                }
                // Each of these sets contains ports of only one protocol.
                (Set::NodePortUdp | Set::NodePortLocalUdp, _) => {
                    self.protocol == Protocol::Udp && self.sets.contains(&set)
                }
                _ => self.sets.contains(&set),
            }
        }

        fn fits(&self, part: &Match) -> bool {
            match part {
                Match::Comment(_) => true,
                Match::Source(net) => net.contains(&self.source),
                Match::NotSource(net) => !net.contains(&self.source),
                Match::NotInInterface(name) => match name.strip_suffix('+') {
                    Some(prefix) => !self.in_interface.starts_with(prefix),
                    None => self.in_interface != name,
                },
                Match::Protocol(protocol) => self.protocol == *protocol,
                Match::InSet(name, fields) => self.is_in(set(name), fields),
                Match::NotInSet(name, fields) => !self.is_in(set(name), fields),
                Match::Mark(_) => self.is_marked,
                Match::NotMark(_) => !self.is_marked,
                Match::DestinationLocal => self.is_to_local,
                Match::SourceNotLocal => {
                    !self.source.is_loopback() && !self.in_interface.is_empty()
                }
                Match::State(states) => states.contains(&self.state),
                Match::NotFromBridgePort => !self.is_from_bridge_port,
                Match::VirtualServer(protocol, address, port) => {
                    let (protocol, address, port) = (*protocol, *address, *port);
                    let key = ServiceAddress::new(address, port, protocol);
                    self.through == Some(key)
                }
                other => panic!("no rule of the shim has this: {other:?}"),
            }
        }
    }

    /// The rules of a shim, and the jumps into its chains.
    struct Made {
        chains: Vec<(Table, &'static str, Vec<Rule>)>,
        jumps: Vec<(Table, &'static str, &'static str)>,
    }

    impl Made {
        fn new(filled: &BTreeSet<Set>, config: &Config) -> Self {
            let shim = Shim {
                family: IpFamily::V4,
                filled: filled.clone(),
                forbidden_to_node: [forbidden()].into(),
                ranges: Ranges::default(),
            };
            let Chains { chains, jumps } = match config.shim {
                ShimStyle::Lean => shim.lean(config),
                _ => shim.upstream(config),
            };
            let jumps = jumps.iter().map(|jump| (jump.table, jump.from, jump.to));
            Self {
                chains,
                // Each jump is inserted at the head of its chain.
                jumps: jumps.rev().collect(),
            }
        }

        /// Evaluates a packet in one hook of a table. Returns the target that ends the evaluation,
        /// or `None` if no rule does.
        fn walk(&self, hook: (Table, &str), packet: &mut Packet) -> Option<String> {
            let jumps = self.jumps.iter().filter(|jump| (jump.0, jump.1) == hook);
            jumps
                .map(|jump| jump.2)
                .find_map(|chain| through(&self.chains, hook.0, chain, packet))
        }

        /// Returns a packet's verdict in each hook. The packet keeps its mark between hooks.
        fn verdicts(&self, packet: &Packet) -> Vec<(Option<String>, bool)> {
            let mut packet = packet.clone();
            let is_sent_here = packet.in_interface.is_empty();
            [
                (
                    Table::Nat,
                    if is_sent_here { "OUTPUT" } else { "PREROUTING" },
                ),
                (Table::Filter, "INPUT"),
                (Table::Filter, "FORWARD"),
                (Table::Filter, "OUTPUT"),
                (Table::Nat, "POSTROUTING"),
            ]
            .map(|hook| {
                let end = self.walk(hook, &mut packet);
                (end, packet.is_marked)
            })
            .to_vec()
        }
    }

    fn through(
        chains: &[(Table, &'static str, Vec<Rule>)],
        table: Table,
        name: &str,
        packet: &mut Packet,
    ) -> Option<String> {
        let (.., rules) = chains
            .iter()
            .find(|chain| (chain.0, chain.1) == (table, name))
            .unwrap();
        for rule in rules {
            if !rule.matches().iter().all(|part| packet.fits(part)) {
                continue;
            }
            let target = rule.target().unwrap();
            match target {
                Target::Return => return None,
                Target::Accept | Target::Drop | Target::Reject(_) | Target::Masquerade(_) => {
                    return target.to_string().split(' ').next().map(str::to_owned);
                }
                Target::Mark { mask, .. } => packet.is_marked = mask != 0,
                Target::Chain(ChainName::Fixed(chain)) => {
                    if let Some(end) = through(chains, table, chain, packet) {
                        return Some(end);
                    }
                }
                other => panic!("no rule of the shim does this: {other:?}"),
            }
        }
        None
    }

    fn set(name: &str) -> Set {
        Set::by_name(name, IpFamily::V4).unwrap()
    }

    /// Returns the kinds of destinations: the sets that contain one, and true if the address is the
    /// node's.
    fn destinations() -> Vec<(Vec<Set>, bool)> {
        use Set::*;
        let limited = [LoadBalancer, LoadBalancerFirewall, IpvsIps];
        let mut all = vec![
            (vec![], false),
            (vec![], true),
            (vec![LoopBack], false),
            // No Service has the port of this packet.
            (vec![IpvsIps], true),
            (vec![ClusterIp, IpvsIps], true),
            (vec![ClusterIp, LoopBack, IpvsIps], true),
            (vec![LoadBalancer, IpvsIps], true),
            (vec![LoadBalancer, LoadBalancerLocal, IpvsIps], true),
            (vec![LoadBalancer, ExternalIp, IpvsIps], true),
            (vec![ExternalIp, IpvsIps], true),
            (vec![ExternalIpLocal, IpvsIps], true),
            (
                vec![LoadBalancer, LoadBalancerLocal, ExternalIpLocal, IpvsIps],
                true,
            ),
            // The address belongs to another interface.
            (vec![ExternalIp], true),
            (vec![LoadBalancer], true),
            (vec![HealthCheckNodePort], true),
            (vec![HealthCheckNodePort, IpvsIps], true),
            (limited.to_vec(), true),
            ([&limited[..], &[LoadBalancerSourceCidr]].concat(), true),
            ([&limited[..], &[LoadBalancerSourceIp]].concat(), true),
            (
                [&limited[..], &[LoadBalancerLocal, LoadBalancerSourceCidr]].concat(),
                true,
            ),
        ];
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            let (port, local) = (Set::node_port(protocol), Set::node_port_local(protocol));
            for is_local in [true, false] {
                all.push((vec![port], is_local));
                all.push((vec![port, local], is_local));
                // A NodePort at a service address.
                all.push((vec![port, IpvsIps], is_local));
            }
        }
        all
    }

    /// Returns packets to a destination, one for each kind of source.
    fn packets(sets: &BTreeSet<Set>, is_to_local: bool) -> Vec<Packet> {
        let sources = [
            ("10.244.1.9", "cni0", true, false),
            ("10.244.1.9", "vethab12", false, false),
            ("172.35.0.9", "eth0", false, false),
            // Packets that the node sends: from its own address, from a service address, and from
            // localhost.
            ("172.35.0.100", "", false, false),
            ("10.96.0.10", "", false, true),
            ("127.0.0.1", "", false, false),
        ];
        let mut all = Vec::new();
        for (source, in_interface, is_from_bridge_port, is_from_cluster_ip) in sources {
            for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
                for state in [FlowState::New, FlowState::Established, FlowState::Invalid] {
                    for [is_source_in_range, is_marked] in
                        [[false, false], [false, true], [true, false], [true, true]]
                    {
                        all.push(Packet {
                            source: source.parse().unwrap(),
                            in_interface,
                            protocol,
                            state,
                            is_to_local,
                            is_from_bridge_port,
                            is_from_cluster_ip,
                            is_source_in_range,
                            sets: sets.clone(),
                            through: is_from_cluster_ip.then(forbidden),
                            is_marked,
                        });
                    }
                }
            }
        }
        all
    }

    fn forbidden() -> ServiceAddress {
        ServiceAddress {
            address: "10.96.0.10".parse().unwrap(),
            port: 80,
            protocol: Protocol::Tcp,
        }
    }

    fn configs() -> Vec<(Config, Config)> {
        let detectors = [
            LocalDetector::None,
            LocalDetector::SourceNet("10.244.0.0/16".parse().unwrap()),
            LocalDetector::Bridge("cni0".into()),
            LocalDetector::InterfacePrefix("veth".into()),
        ];
        let with = |detector: &LocalDetector, masquerade_all, shim| Config {
            detector: detector.clone(),
            masquerade_all,
            shim,
            ..Config::default()
        };
        let both = |detector, all| {
            [ShimStyle::Upstream, ShimStyle::Lean].map(|shim| with(detector, all, shim))
        };
        let all = detectors
            .iter()
            .flat_map(|detector| [both(detector, false), both(detector, true)]);
        all.map(|[upstream, lean]| (upstream, lean)).collect()
    }

    /// Compares the shims twice: with all sets filled, and with only the packet's sets filled.
    #[test]
    fn the_lean_shim_gives_each_packet_upstreams_verdict() {
        let everything: BTreeSet<Set> = Set::all().collect();
        let (mut asked, mut rejected, mut marked) = (0, 0, 0);
        for (upstream, lean) in configs() {
            for (sets, is_to_local) in destinations() {
                let sets: BTreeSet<Set> = sets.into_iter().collect();
                let and_cluster_ip = &sets | &[Set::ClusterIp].into();
                let packets = packets(&sets, is_to_local);
                for filled in [&everything, &sets, &and_cluster_ip] {
                    let [upstream, made] =
                        [&upstream, &lean].map(|config| Made::new(filled, config));
                    let possible = packets.iter().filter(|packet| {
                        !packet.is_from_cluster_ip || filled.contains(&Set::ClusterIp)
                    });
                    for packet in possible {
                        let wanted = upstream.verdicts(packet);
                        let found = made.verdicts(packet);
                        assert_eq!(found, wanted, "{packet:?}, {lean:?}, filled: {filled:?}");
                        asked += 1;
                        rejected += usize::from(wanted[1].0.as_deref() == Some("REJECT"));
                        marked += usize::from(!packet.is_marked && wanted[0].1);
                    }
                }
            }
        }
        assert!(asked > 100_000 && rejected > 1_000 && marked > 1_000);
    }

    fn texts(filled: &[Set]) -> [Rules; 2] {
        let shim = Shim {
            family: IpFamily::V4,
            filled: filled.iter().copied().collect(),
            forbidden_to_node: BTreeSet::new(),
            ranges: Ranges::default(),
        };
        [ShimStyle::Upstream, ShimStyle::Lean].map(|style| {
            shim.rules(&Config {
                shim: style,
                detector: LocalDetector::SourceNet("10.244.0.0/16".parse().unwrap()),
                ..Config::default()
            })
        })
    }

    #[test]
    fn the_lean_shim_has_few_rules_for_a_cluster_ip() {
        let [_, lean] = texts(&[Set::ClusterIp, Set::IpvsIps, Set::LoopBack]);
        let text = lean.restore_text(&Rules::default());
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with(':')).collect();
        assert_eq!(
            lines,
            [
                "*nat",
                "-I OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
                "-I PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
                "-I POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING",
                "-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000",
                "-A KUBE-POSTROUTING -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE",
                "-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN",
                "-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0",
                "-A KUBE-POSTROUTING -j MASQUERADE --random-fully",
                "-A KUBE-SERVICES -s 127.0.0.0/8 -j RETURN",
                "-A KUBE-SERVICES ! -s 10.244.0.0/16 -m set --match-set KUBE-CLUSTER-IP dst,dst -j MARK --set-xmark 0x4000/0x4000",
                "-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT",
                "COMMIT",
                "*filter",
                "-I FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD",
                "-I INPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-FILTER",
                "-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
                "-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT",
                "-A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set ! --match-set KUBE-CLUSTER-IP dst,dst -m set --match-set KUBE-IPVS-IPS dst -j REJECT --reject-with icmp-port-unreachable",
                "COMMIT",
            ]
        );
    }

    #[test]
    fn one_restore_replaces_upstreams_shim_by_the_lean_shim() {
        let all: Vec<_> = Set::all().collect();
        let [upstream, lean] = texts(&[Set::ClusterIp, Set::IpvsIps]);
        let jumps = |text: &str, verb: &str| -> Vec<String> {
            let lines = text.lines().filter_map(|line| line.strip_prefix(verb));
            let target = |line: &str| line.rsplit(' ').next().unwrap_or_default().to_owned();
            lines.map(target).collect()
        };
        let unused = [
            "KUBE-NODE-PORT",
            "KUBE-PROXY-FIREWALL",
            "KUBE-PROXY-FIREWALL",
            "KUBE-IPVS-OUT-FILTER",
        ];
        let to_lean = lean.restore_text(&upstream);
        assert_eq!(
            (jumps(&to_lean, "-D "), jumps(&to_lean, "-I ")),
            (unused.map(str::to_owned).to_vec(), vec![])
        );
        let back = upstream.restore_text(&lean);
        assert_eq!(
            (jumps(&back, "-D "), jumps(&back, "-I ")),
            (vec![], unused.map(str::to_owned).to_vec())
        );
        // The lean shim has no chain or jump that upstream's shim lacks.
        let [upstream, lean] = texts(&all);
        assert!(lean.jumps.is_subset(&upstream.jumps));
        assert!(lean.chains.keys().eq(upstream.chains.keys()));
        let text = lean.restore_text(&Rules::default()).replace("-I ", "-A ");
        assert_eq!(Rules::parse(&text), lean);
    }
}
