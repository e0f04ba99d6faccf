//! The shim's rules in nftables: they give packets the verdicts of upstream's rules, with as little
//! work as possible for the first packet of a flow.
//!
//! ```text
//! prerouting ─ nat-prerouting ─┬─▶ input ─ filter-input ─ IPVS ─┬─ filter-input-behind-ipvs ▶ node
//!                              │                                └─▶ nat-postrouting ─▶ endpoint
//!                              └─▶ forward ─ filter-forward ─▶ nat-postrouting
//! output ─ filter-output ─ nat-output ─ IPVS ─▶ nat-postrouting ─▶ endpoint
//! ```
//!
//! - **Hook input**: IPVS takes its packets here. Rules that reject packets, for example to a port
//!   without a Service, come after IPVS, so packets that IPVS forwards never reach them.
//! - **nat**: after an accept in our chains, other programs' nat chains could still translate a
//!   packet's destination. A rule that translates the destination to itself prevents this. So our
//!   nat chains come just before others: their priority is one below the usual one.
//! - **FORWARD**: upstream's rules in this chain have no counterpart, because an accept in our
//!   table cannot overrule another program's drop.
//! - **Omitted**: chains without rules, and look-ups in empty sets.
//!
//! For operators, `docs/ipvs-shim.md` shows the rules, and the packets that they handle differently
//! from upstream's.

use std::collections::BTreeSet;

use ipnet::IpNet;
use iptables::SourcePort;
use kube_rules::nft::Sense;
use nftables_netlink::{Activity, BaseChain, ChainKind, Hook, Name, Policy, Rule, Verdict};
use proxy::{IpFamily, LocalDetector, Protocol, ServiceAddress};

use super::early::{Clients, EarlyAction, EarlyHook, EarlyRule, LOOPBACK};
use super::words::{
    BY_SOURCE, Clause, FROM_TO, TO, TO_FROM, address_in_set, destination, echo_request, flip_mark,
    from_interface, in_set, in_set_by_prefix, keep_destination, mark_by, marked, masquerade,
    new_flow, not_local, port_in_set, port_not_in_set, reject, restore_mark, set_mark, source,
    to_local, verdict,
};
use super::{Shim, loopback};
use crate::config::{Config, MarkBits, Semantics};
use crate::native::{Content, FORBIDDEN, HeldChain, definition, prefix_set};
use crate::ranges::Ranges;
use crate::sets::Set;

const KEEP_DESTINATION: &str = "KUBE-KEEP-DESTINATION";
const LOAD_BALANCER: &str = "KUBE-LOAD-BALANCER";
const NODE_PORT: &str = "KUBE-NODE-PORT";
const SOURCE_RANGES: &str = "KUBE-SOURCE-RANGES-FIREWALL";
const ACCESS: &str = "KUBE-IPVS-FILTER";

/// Priorities just before other programs' nat chains (`NF_IP_PRI_NAT_DST`, `NF_IP_PRI_NAT_SRC`).
/// They do not change the priority at which the kernel translates addresses.
const DNAT: i32 = -101;
const SNAT: i32 = 99;
/// Priority of the filter chains (`NF_IP_PRI_FILTER`).
const FILTER: i32 = 0;
/// Priority after IPVS at hook input (`ip_vs_ops4`: 98 and 99) and after the kernel's source NAT
/// (100).
const BEHIND_IPVS: i32 = 101;
/// Priority before IPVS at hook input, but after other programs' filters, which then see the
/// packet's original mark.
const JUST_BEFORE_IPVS: i32 = 97;
/// Priority before IPVS at hook output (-99), equal to `NF_IP_PRI_MANGLE`.
const BEFORE_IPVS: i32 = -150;

/// Sets of the ports that Services expose at their addresses.
const EXPOSED: [Set; 4] = [
    Set::ClusterIp,
    Set::LoadBalancer,
    Set::ExternalIp,
    Set::ExternalIpLocal,
];

/// Hook of a nat chain for packets to service addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NatHook {
    In,
    Out,
}

impl Shim {
    /// Returns the chains of the nftables shim, and the load-balancer addresses to which the node
    /// must not connect.
    pub(crate) fn native(&self, prefixes: &BTreeSet<u8>, config: &Config) -> Content {
        let mut content = Content {
            chains: [
                nat(
                    "nat-prerouting",
                    Hook::Prerouting,
                    DNAT,
                    self.nat(NatHook::In, config),
                ),
                nat(
                    "nat-output",
                    Hook::Output,
                    DNAT,
                    self.nat(NatHook::Out, config),
                ),
                nat(
                    "nat-postrouting",
                    Hook::Postrouting,
                    SNAT,
                    self.nat_postrouting(config),
                ),
                filter("filter-input", Hook::Input, FILTER, self.firewall()),
                filter("filter-forward", Hook::Forward, FILTER, self.firewall()),
                filter(
                    "filter-input-behind-ipvs",
                    Hook::Input,
                    BEHIND_IPVS,
                    self.access(),
                ),
                filter(
                    "filter-input-before-ipvs",
                    Hook::Input,
                    JUST_BEFORE_IPVS,
                    self.native_early(EarlyHook::In, config),
                ),
                filter(
                    "filter-output",
                    Hook::Output,
                    BEFORE_IPVS,
                    self.filter_output(config),
                ),
                chain(KEEP_DESTINATION, self.keep_destination()),
                chain(LOAD_BALANCER, self.native_load_balancers(config)),
                chain(NODE_PORT, self.native_node_ports(config)),
                chain(SOURCE_RANGES, self.native_source_ranges(prefixes)),
                chain(ACCESS, self.native_access_filter(config)),
            ]
            .into(),
            // With `--ipvs-semantics=exact`, source ranges apply to the node's own packets
            // directly, so the list of forbidden addresses is empty.
            forbidden: match config.semantics {
                Semantics::Upstream => self.forbidden_to_node.clone(),
                Semantics::Exact(_) => BTreeSet::new(),
            },
            activity: Activity::Active,
        };
        content.chains.retain(|_, chain| !chain.rules.is_empty());
        content
    }

    fn has(&self, set: Set) -> bool {
        self.filled.contains(&set)
    }

    fn set_name(&self, set: Set) -> Name {
        set.name(self.family).into()
    }

    /// Matches packets whose destination address, protocol and port are in a set.
    fn packet_to(&self, set: Set) -> Clause {
        in_set(self.family, TO, self.set_name(set), Sense::Is)
    }

    fn packet_not_to(&self, set: Set) -> Clause {
        in_set(self.family, TO, self.set_name(set), Sense::IsNot)
    }

    /// Returns the nat rules of a hook: they mark packets to service addresses for masquerading,
    /// and exempt them from other programs' nat rules.
    fn nat(&self, way: NatHook, config: &Config) -> Vec<Rule> {
        let mark = || set_mark(config.masquerade_mark);
        let keep = || verdict(Verdict::Goto(KEEP_DESTINATION.into()));
        let mut rules = Vec::new();
        if self.has(Set::ClusterIp) {
            rules.extend(self.mark_cluster_ips(way, config));
            let why = Set::ClusterIp.comment();
            rules.push(rule([self.packet_to(Set::ClusterIp), keep()], why));
        }
        // With `--ipvs-semantics=exact`, the node may use all endpoints under any traffic policy,
        // so all its packets are marked for masquerading.
        let marks_all = way == NatHook::Out && config.semantics.is_exact();
        if self.has(Set::LoadBalancer) {
            let why = Set::LoadBalancer.comment();
            let to = self.packet_to(Set::LoadBalancer);
            rules.push(if marks_all {
                rule([to, mark(), keep()], why)
            } else {
                rule([to, verdict(Verdict::Goto(LOAD_BALANCER.into()))], why)
            });
        }
        if self.has(Set::ExternalIp) {
            let why = Set::ExternalIp.comment();
            rules.push(rule([self.packet_to(Set::ExternalIp), mark(), keep()], why));
        }
        if self.has(Set::ExternalIpLocal) {
            let why = Set::ExternalIpLocal.comment();
            let to = self.packet_to(Set::ExternalIpLocal);
            let marked = if marks_all { mark() } else { Vec::new() };
            rules.push(rule([to, marked, keep()], why));
        }
        if marks_all {
            rules.extend(self.node_port_rules(config, false));
        } else if !self.native_node_ports(config).is_empty() {
            let why = "node ports, for masquerade purpose";
            rules.push(rule([verdict(Verdict::Goto(NODE_PORT.into()))], why));
        }
        // Exempts packets from localhost. Only the node itself sends them, so only hook output has
        // this rule.
        if way == NatHook::Out && !rules.is_empty() {
            let from = source(self.family, Sense::Is, &loopback(self.family));
            let why = "what the node sends from localhost is left alone";
            rules.insert(0, rule([from, verdict(Verdict::Return)], why));
        }
        rules
    }

    /// Returns the rule that marks packets to cluster IPs for masquerading, unless a pod of this
    /// node sent them. A detector by interface cannot match the node's own packets, which have no
    /// input interface.
    fn mark_cluster_ips(&self, way: NatHook, config: &Config) -> Option<Rule> {
        let all = || self.packet_to(Set::ClusterIp);
        let (from, to) = match &config.detector {
            _ if config.masquerade_all => (Vec::new(), all()),
            // Without a detector, rules masquerade only packets whose source is a service address.
            // Only the node itself sends such packets, and none with `--ipvs-semantics=exact`. So
            // no rule is needed.
            LocalDetector::None if way == NatHook::In || config.semantics.is_exact() => {
                return None;
            }
            LocalDetector::None => {
                let name = self.set_name(Set::ClusterIp);
                let by_source = in_set(self.family, BY_SOURCE, name, Sense::Is);
                (Vec::new(), by_source)
            }
            // This network contains every address, so all packets count as local and no rule is
            // needed.
            LocalDetector::SourceNet(net) if net.prefix_len() == 0 => return None,
            LocalDetector::Bridge(_) | LocalDetector::InterfacePrefix(_) if way == NatHook::Out => {
                (Vec::new(), all())
            }
            detector => (not_local(self.family, detector), all()),
        };
        let mark = set_mark(config.masquerade_mark);
        Some(rule([from, to, mark], Set::ClusterIp.comment()))
    }

    fn native_load_balancers(&self, config: &Config) -> Vec<Rule> {
        if !self.has(Set::LoadBalancer) {
            return Vec::new();
        }
        let not_pinned = if self.has(Set::LoadBalancerLocal) {
            self.packet_not_to(Set::LoadBalancerLocal)
        } else {
            Vec::new()
        };
        let mark = set_mark(config.masquerade_mark);
        vec![
            rule(
                [not_pinned, mark],
                "for masquerade purpose, unless externalTrafficPolicy=local",
            ),
            rule(
                [verdict(Verdict::Goto(KEEP_DESTINATION.into()))],
                Set::LoadBalancer.comment(),
            ),
        ]
    }

    /// Returns the rules that exempt packets to service addresses from other programs' nat rules.
    fn keep_destination(&self) -> Vec<Rule> {
        if !EXPOSED.iter().any(|set| self.has(*set)) {
            return Vec::new();
        }
        let why = "IPVS has it: no DNAT rule of others may";
        let keep = |protocol| rule([keep_destination(self.family, protocol)], why);
        [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
            .map(keep)
            .into()
    }

    /// Returns the rules for NodePorts. The cheapest condition of a rule comes first (look-up of
    /// the port in a set), the dearest last (look-up of the address in the routing table).
    fn native_node_ports(&self, config: &Config) -> Vec<Rule> {
        self.node_port_rules(config, true)
    }

    fn node_port_rules(&self, config: &Config, has_exemptions: bool) -> Vec<Rule> {
        let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter();
        let filled = protocols.filter(|protocol| self.has(Set::node_port(*protocol)));
        let rule_of = |protocol| {
            let (set, local) = (Set::node_port(protocol), Set::node_port_local(protocol));
            let (served, not_pinned) = match protocol {
                Protocol::Sctp => (self.packet_to(set), self.packet_not_to(local)),
                Protocol::Tcp | Protocol::Udp => (
                    port_in_set(protocol, self.set_name(set)),
                    port_not_in_set(self.set_name(local)),
                ),
            };
            let not_pinned = if has_exemptions && self.has(local) {
                not_pinned
            } else {
                Vec::new()
            };
            let mark = set_mark(config.masquerade_mark);
            rule([served, not_pinned, to_local(), mark], set.comment())
        };
        filled.map(rule_of).collect()
    }

    /// Returns the rules that masquerade marked packets, and packets of pods that connect to
    /// themselves through a Service.
    fn nat_postrouting(&self, config: &Config) -> Vec<Rule> {
        let mut rules = Vec::new();
        if self.has(Set::LoopBack) {
            let name = self.set_name(Set::LoopBack);
            let itself = in_set(self.family, TO_FROM, name, Sense::Is);
            let masquerade = masquerade(SourcePort::Kept);
            rules.push(rule([itself, masquerade], Set::LoopBack.comment()));
        }
        let mark = config.masquerade_mark;
        let why = "kubernetes service traffic requiring SNAT";
        rules.push(rule(
            [
                marked(mark),
                flip_mark(mark),
                masquerade(config.source_port),
            ],
            why,
        ));
        rules
    }

    /// Returns the rules that drop packets from outside a load balancer's source ranges. They match
    /// established flows as well, so withdrawing a source range also ends its flows.
    fn firewall(&self) -> Vec<Rule> {
        if !self.has(Set::LoadBalancerFirewall) {
            return Vec::new();
        }
        let to_chain = verdict(Verdict::Goto(SOURCE_RANGES.into()));
        let limited = self.packet_to(Set::LoadBalancerFirewall);
        let why = Set::LoadBalancerFirewall.comment();
        vec![rule([limited, to_chain], why)]
    }

    fn native_source_ranges(&self, prefixes: &BTreeSet<u8>) -> Vec<Rule> {
        if !self.has(Set::LoadBalancerFirewall) {
            return Vec::new();
        }
        let ranges = Set::LoadBalancerSourceCidr;
        let prefixes = prefixes.iter().filter(|_| self.has(ranges)).rev();
        let mut rules: Vec<Rule> = prefixes
            .map(|prefix| {
                let name = prefix_set(ranges, *prefix, self.family);
                let allowed = in_set_by_prefix(self.family, *prefix, name);
                rule([allowed, verdict(Verdict::Return)], ranges.comment())
            })
            .collect();
        let own = Set::LoadBalancerSourceIp;
        if self.has(own) {
            let allowed = in_set(self.family, TO_FROM, self.set_name(own), Sense::Is);
            rules.push(rule([allowed, verdict(Verdict::Return)], own.comment()));
        }
        rules.push(rule(
            [verdict(Verdict::Drop)],
            "outside of loadBalancerSourceRanges",
        ));
        rules
    }

    fn access(&self) -> Vec<Rule> {
        let to_chain = || verdict(Verdict::Goto(ACCESS.into()));
        let why = "kubernetes ipvs access filter";
        let mut rules = Vec::new();
        if self.has(Set::IpvsIps) {
            let name = self.set_name(Set::IpvsIps);
            let to_service = address_in_set(self.family, name);
            rules.push(rule([new_flow(), to_service, to_chain()], why));
        }
        rules.extend(self.ranges.except.iter().map(|net| {
            let pass = [destination(self.family, net), verdict(Verdict::Return)];
            rule(pass, "not a service address")
        }));
        rules.extend(self.ranges.nets.iter().map(|net| {
            let to_range = destination(self.family, net);
            rule([to_range, new_flow(), to_chain()], why)
        }));
        rules
    }

    /// Returns the rules that protect the node's own processes. Service addresses are local, so
    /// packets to a port without a Service would reach these processes
    /// (kubernetes/kubernetes#72236).
    fn native_access_filter(&self, config: &Config) -> Vec<Rule> {
        if !self.has(Set::IpvsIps) && self.ranges.nets.is_empty() {
            return Vec::new();
        }
        let exposed = EXPOSED.into_iter().filter(|set| self.has(*set));
        let mut rules: Vec<Rule> = exposed
            .map(|set| {
                rule(
                    [self.packet_to(set), verdict(Verdict::Return)],
                    set.comment(),
                )
            })
            .collect();
        let checks = Set::HealthCheckNodePort;
        if self.has(checks) {
            // Only TCP and UDP ports are checked, as by an iptables rule that matches a set of
            // ports.
            rules.extend([Protocol::Tcp, Protocol::Udp].map(|protocol| {
                let to_port = port_in_set(protocol, self.set_name(checks));
                rule([to_port, verdict(Verdict::Return)], checks.comment())
            }));
        }
        if self.lets_ping_pass(config) {
            let to_service = address_in_set(self.family, self.set_name(Set::IpvsIps));
            let pass = verdict(Verdict::Return);
            let why = "service addresses answer ping";
            rules.push(rule([echo_request(self.family), to_service, pass], why));
        }
        rules.push(rule([reject(self.family)], "no Service exposes this port"));
        rules
    }

    /// Renders the early rules of a hook, which precede IPVS (`--ipvs-semantics=exact`).
    fn native_early(&self, hook: EarlyHook, config: &Config) -> Vec<Rule> {
        let rules = self.early_rules(hook, config).into_iter();
        let render = |of: EarlyRule| {
            let (clients, set, action) = match of {
                EarlyRule::SkipNode => {
                    let why = "the node is no client from outside";
                    return rule([from_interface(LOOPBACK), verdict(Verdict::Return)], why);
                }
                EarlyRule::To {
                    clients,
                    set,
                    action,
                } => (clients, set, action),
            };
            let from = match clients {
                Clients::All => Vec::new(),
                Clients::Outside => not_local(self.family, &config.detector),
            };
            let act = match action {
                EarlyAction::Drop => [self.packet_to(set), verdict(Verdict::Drop)].concat(),
                EarlyAction::Mark => mark_by(self.family, self.set_name(set)),
            };
            rule([new_flow(), from, act], set.comment())
        };
        rules.map(render).collect()
    }

    /// Returns the rules that filter the node's own packets. With `--ipvs-semantics=exact`, their
    /// source is a node address, so only source ranges matter.
    fn filter_output(&self, config: &Config) -> Vec<Rule> {
        if !config.semantics.is_exact() {
            return self.forbid();
        }
        let mut rules = self.firewall();
        rules.extend(self.native_early(EarlyHook::Out, config));
        // Restores the packet's earlier mark once IPVS has used ours, because another program may
        // need it: Calico's rules choose network policies by such marks.
        let bits = config.semantics.mark_bits();
        if let Some(MarkBits(bits)) = bits.filter(|_| self.has(Set::LocalMark)) {
            let why = "IPVS has used our mark, so the former one returns";
            rules.insert(0, rule([new_flow(), restore_mark(bits)], why));
        }
        rules
    }

    fn forbid(&self) -> Vec<Rule> {
        if self.forbidden_to_node.is_empty() {
            return Vec::new();
        }
        let from_itself = in_set(self.family, FROM_TO, FORBIDDEN.into(), Sense::Is);
        vec![rule(
            [from_itself, verdict(Verdict::Drop)],
            "source ranges leave this node out",
        )]
    }
}

/// Returns the names of all chains and sets that an IP family's table may have, except the sets of
/// source ranges, whose names depend on prefix lengths.
pub fn names(family: IpFamily) -> BTreeSet<String> {
    let chains = everything(family).chains.into_keys();
    let chains = chains.map(|name| name.to_string());
    let sets = Set::every().filter_map(|set| definition(set, family));
    let sets = sets.map(|set| set.name.to_string());
    chains.chain(sets).chain([FORBIDDEN.to_owned()]).collect()
}

/// Returns content with every chain and set that the shim may have.
pub(crate) fn everything(family: IpFamily) -> Content {
    let address = family.localhost();
    let shim = Shim {
        family,
        filled: Set::every().collect(),
        forbidden_to_node: [ServiceAddress::new(address, 1, Protocol::Tcp)].into(),
        ranges: Ranges::default(),
    };
    let detector = LocalDetector::SourceNet(IpNet::new_assert(address, 31));
    let config = Config {
        detector,
        ..Config::default()
    };
    let mut content = shim.native(&[24, 31].into(), &config);
    let exact = Config {
        semantics: Semantics::Exact(MarkBits::DEFAULT),
        ..config
    };
    for (name, chain) in shim.native(&[24, 31].into(), &exact).chains {
        content.chains.entry(name).or_insert(chain);
    }
    content
}

fn rule<const N: usize>(clauses: [Clause; N], comment: &str) -> Rule {
    Rule {
        expressions: clauses.into_iter().flatten().collect(),
        comment: Some(comment.into()),
    }
}

fn nat(name: &str, hook: Hook, priority: i32, rules: Vec<Rule>) -> (Name, HeldChain) {
    base(name, ChainKind::Nat, hook, priority, rules)
}

fn filter(name: &str, hook: Hook, priority: i32, rules: Vec<Rule>) -> (Name, HeldChain) {
    base(name, ChainKind::Filter, hook, priority, rules)
}

fn base(
    name: &str,
    kind: ChainKind,
    hook: Hook,
    priority: i32,
    rules: Vec<Rule>,
) -> (Name, HeldChain) {
    let base = BaseChain {
        kind,
        hook,
        priority,
        policy: Policy::Accept,
    };
    let base = Some(base);
    (name.into(), HeldChain { base, rules })
}

fn chain(name: &str, rules: Vec<Rule>) -> (Name, HeldChain) {
    (name.into(), HeldChain { base: None, rules })
}
