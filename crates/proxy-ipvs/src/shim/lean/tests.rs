use std::collections::BTreeSet;
use std::net::IpAddr;

use iptables::{ChainName, FlowState};
use proxy::{IpFamily, LocalDetector, ServiceAddress};

use super::*;
use crate::config::{MarkBits, Semantics, ShimStyle};
use crate::ranges::Ranges;
use crate::rules::Rules;

/// A simulated packet, with the properties that the shims' rules match.
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
    /// Sets that contain the packet's destination, alone or with its source.
    sets: BTreeSet<Set>,
    through: Option<ServiceAddress>,
    is_marked: bool,
    /// True if a rule has given the packet the firewall mark of a set member.
    is_numbered: bool,
}

impl Packet {
    fn is_in(&self, set: Set, fields: &[Field]) -> bool {
        match (set, fields) {
            (Set::ClusterIp, [Field::Source, Field::Destination]) => self.is_from_cluster_ip,
            (Set::LoadBalancerSourceCidr | Set::LoadBalancerSourceIp, _) => {
                self.is_source_in_range && self.sets.contains(&set)
            }
            // These two sets contain only UDP ports.
            (Set::NodePortUdp | Set::NodePortLocalUdp, _) => {
                self.protocol == Protocol::Udp && self.sets.contains(&set)
            }
            _ => self.sets.contains(&set),
        }
    }

    fn is_own(&self) -> bool {
        self.source.is_loopback() || self.in_interface.is_empty()
    }

    fn fits(&self, part: &Match) -> bool {
        match part {
            Match::Comment(_) => true,
            Match::Source(net) => net.contains(&self.source),
            Match::NotSource(net) => !net.contains(&self.source),
            Match::InInterface(name) => self.in_interface == name,
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
            Match::SourceLocal => self.is_own(),
            Match::SourceNotLocal => !self.is_own(),
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

/// Rules of a shim, and the jumps from built-in chains.
struct ShimRules {
    chains: Vec<(Table, &'static str, Vec<Rule>)>,
    jumps: Vec<(Table, &'static str, &'static str)>,
}

impl ShimRules {
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

    /// Evaluates a packet at one hook of a table. Returns the target of the rule that ends the
    /// evaluation, or `None` if no rule does.
    fn walk(&self, hook: (Table, &str), packet: &mut Packet) -> Option<String> {
        let jumps = self.jumps.iter().filter(|jump| (jump.0, jump.1) == hook);
        jumps
            .map(|jump| jump.2)
            .find_map(|chain| through(&self.chains, hook.0, chain, packet))
    }

    /// Returns the target that ends the evaluation of a packet at each hook, in order, and
    /// `is_marked` and `is_numbered` after each hook. A mark from one hook stays for the later
    /// ones.
    fn verdicts(&self, packet: &Packet) -> Vec<(Option<String>, [bool; 2])> {
        let mut packet = packet.clone();
        let is_sent_here = packet.in_interface.is_empty();
        let hook = |own, other| if is_sent_here { own } else { other };
        [
            (Table::Nat, hook("OUTPUT", "PREROUTING")),
            (Table::Mangle, hook("OUTPUT", "INPUT")),
            (Table::Filter, "INPUT"),
            (Table::Filter, "FORWARD"),
            (Table::Filter, "OUTPUT"),
            (Table::Nat, "POSTROUTING"),
        ]
        .map(|hook| {
            let end = self.walk(hook, &mut packet);
            (end, [packet.is_marked, packet.is_numbered])
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
            Target::MapMark(name, fields) => {
                if packet.is_in(set(name), fields) {
                    packet.is_marked = false;
                    packet.is_numbered = true;
                }
            }
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

/// Returns all kinds of destinations: the sets that contain it, and true for a local address.
fn destinations() -> Vec<(Vec<Set>, bool)> {
    use Set::*;
    let limited = [LoadBalancer, LoadBalancerFirewall, IpvsIps];
    let mut all = vec![
        (vec![], false),
        (vec![], true),
        (vec![LoopBack], false),
        // Service address with a port that no Service uses.
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
        // Service address that is on another interface than kube-ipvs0.
        (vec![ExternalIp], true),
        (vec![LoadBalancer], true),
        (vec![HealthCheckNodePort], true),
        (vec![HealthCheckNodePort, IpvsIps], true),
        (limited.to_vec(), true),
        (
            vec![LoadBalancer, LoadBalancerLocal, LocalMark, IpvsIps],
            true,
        ),
        (vec![ExternalIpLocal, LocalMark, IpvsIps], true),
        (vec![ExternalIpLocal, UnservedOutside, IpvsIps], true),
        (vec![ClusterIp, Unserved, IpvsIps], true),
        (vec![NodePortTcp, NodePortLocalTcp, LocalMark], true),
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
            // NodePort at a service address.
            all.push((vec![port, IpvsIps], is_local));
        }
    }
    all
}

/// Returns one packet to this destination from each kind of source.
fn packets(sets: &BTreeSet<Set>, is_to_local: bool) -> Vec<Packet> {
    let sources = [
        ("10.244.1.9", "cni0", true, false),
        ("10.244.1.9", "vethab12", false, false),
        ("172.35.0.9", "eth0", false, false),
        // The node's own packets: from a node address, from a service address, and from localhost.
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
                        is_numbered: false,
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
    let both = |detector: &LocalDetector, masquerade_all, semantics| {
        [ShimStyle::Upstream, ShimStyle::Lean].map(|shim| Config {
            detector: detector.clone(),
            masquerade_all,
            shim,
            semantics,
            ..Config::default()
        })
    };
    let all = detectors.iter().flat_map(|detector| {
        [Semantics::Upstream, Semantics::Exact(MarkBits::DEFAULT)]
            .into_iter()
            .flat_map(|of| [both(detector, false, of), both(detector, true, of)])
    });
    all.map(|[upstream, lean]| (upstream, lean)).collect()
}

/// Compares the verdicts of the lean shim with upstream's three times: with members in all sets,
/// only in the packet's sets, and only in these sets and KUBE-CLUSTER-IP.
#[test]
fn the_lean_shim_gives_each_packet_upstreams_verdict() {
    let everything: BTreeSet<Set> = Set::every().collect();
    let (mut asked, mut rejected, mut marked) = (0, 0, 0);
    let (mut numbered, mut dropped) = (0, 0);
    for (upstream, lean) in configs() {
        for (sets, is_to_local) in destinations() {
            let sets: BTreeSet<Set> = sets.into_iter().collect();
            let and_cluster_ip = &sets | &[Set::ClusterIp].into();
            let packets = packets(&sets, is_to_local);
            for filled in [&everything, &sets, &and_cluster_ip] {
                let [upstream, made] =
                    [&upstream, &lean].map(|config| ShimRules::new(filled, config));
                let possible = packets.iter().filter(|packet| {
                    !packet.is_from_cluster_ip || filled.contains(&Set::ClusterIp)
                });
                for packet in possible {
                    let wanted = upstream.verdicts(packet);
                    let found = made.verdicts(packet);
                    assert_eq!(found, wanted, "{packet:?}, {lean:?}, filled: {filled:?}");
                    asked += 1;
                    rejected += usize::from(wanted[2].0.as_deref() == Some("REJECT"));
                    marked += usize::from(!packet.is_marked && wanted[0].1[0]);
                    numbered += usize::from(wanted[1].1[1]);
                    dropped += usize::from(wanted[1].0.as_deref() == Some("DROP"));
                }
            }
        }
    }
    assert!(asked > 100_000 && rejected > 1_000 && marked > 1_000);
    assert!(numbered > 100 && dropped > 100, "{numbered}, {dropped}");
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
fn one_restore_replaces_upstreams_shim_with_the_lean_shim() {
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
    // Upstream's shim has each chain and jump of the lean shim.
    let [upstream, lean] = texts(&all);
    assert!(lean.jumps.is_subset(&upstream.jumps));
    assert!(lean.chains.keys().eq(upstream.chains.keys()));
    let text = lean.restore_text(&Rules::default()).replace("-I ", "-A ");
    assert_eq!(Rules::parse(&text), lean);
}

/// Checks the additional rule of `--ipvs-answer-ping`, which must precede the first rule that
/// rejects packets.
#[test]
fn the_ping_option_admits_only_echo_requests_to_service_addresses() {
    for (family, net, rule) in [
        (
            IpFamily::V4,
            "10.96.0.0/12",
            "-A KUBE-IPVS-FILTER -p icmp -m icmp --icmp-type 8 -m set --match-set KUBE-IPVS-IPS dst -j RETURN",
        ),
        (
            IpFamily::V6,
            "fd96::/112",
            "-A KUBE-IPVS-FILTER -p ipv6-icmp -m icmp6 --icmpv6-type 128 -m set --match-set KUBE-6-IPVS-IPS dst -j RETURN",
        ),
    ] {
        let lines = |shim: ShimStyle, filled: &[Set], answers_ping| -> Vec<String> {
            let ranges = Ranges {
                nets: [net.parse().unwrap()].into(),
                ..Ranges::default()
            };
            let rules = Shim {
                family,
                filled: filled.iter().copied().collect(),
                forbidden_to_node: BTreeSet::new(),
                ranges,
            }
            .rules(&Config {
                shim,
                answers_ping,
                ..Config::default()
            });
            let text = rules.restore_text(&Rules::default());
            let lines = text
                .lines()
                .filter(|line| line.starts_with("-A KUBE-IPVS-FILTER"));
            lines.map(str::to_owned).collect()
        };
        for shim in [ShimStyle::Upstream, ShimStyle::Lean] {
            let filled = [Set::ClusterIp, Set::IpvsIps];
            let mut expected = lines(shim, &filled, false);
            let rejects = |line: &String| line.contains("-j REJECT");
            let at = expected.iter().position(rejects).unwrap();
            expected.insert(at, rule.to_owned());
            assert_eq!(lines(shim, &filled, true), expected);
            // Without service addresses, the option adds no rule.
            assert_eq!(lines(shim, &[], true), lines(shim, &[], false));
        }
    }
}
