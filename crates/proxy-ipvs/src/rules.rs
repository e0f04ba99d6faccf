//! The shim: the few iptables rules that masquerade and filter by the sets. Data first; iptables
//! text is one rendering.
//!
//! Chains, their order and their rules are upstream's (`pkg/proxy/ipvs/proxier.go`); `lean.rs` has
//! rules that come to the same in the same chains, with less work for a packet. The number of rules
//! depends on which sets hold something, never on how many Services there are, except
//! KUBE-IPVS-OUT-FILTER: one rule for each load-balancer address whose source ranges leave this
//! node out.
//!
//! A rule is rendered as `iptables-save` prints it, so that what is wanted can be compared with
//! what is read back.

mod lean;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use iptables::{
    Entry, Field, FlowState, Jump, Match, Rule, RuleLine, SourcePort, Target, entries, restore_text,
};
use kube_rules::{
    FORWARD, FROM_FORWARD, FROM_OUTPUT, FROM_POSTROUTING, FROM_PREROUTING, LOCALHOST, MARK_MASQ,
    POSTROUTING, SERVICES,
};
use proxy::{IpFamily, LocalDetector, Protocol, ServiceAddress};

use crate::config::{Config, ShimStyle};
use crate::native::{self, Content};
use crate::sets::Set;

pub use iptables::Table;

/// The tables that the shim uses, in the order that they are written.
const TABLES: [Table; 2] = [Table::Nat, Table::Filter];

/// Which fields of a packet a set is asked for.
const DST: &[Field] = &[Field::Destination];
const DST_DST: &[Field] = &[Field::Destination, Field::Destination];
const SRC_DST: &[Field] = &[Field::Source, Field::Destination];
const DST_DST_SRC: &[Field] = &[Field::Destination, Field::Destination, Field::Source];

/// The chains that are ours, in the order that upstream makes them.
pub(crate) const CHAINS: [(Table, &str); 11] = [
    (Table::Nat, "KUBE-SERVICES"),
    (Table::Nat, "KUBE-POSTROUTING"),
    (Table::Nat, "KUBE-NODE-PORT"),
    (Table::Nat, "KUBE-LOAD-BALANCER"),
    (Table::Nat, "KUBE-MARK-MASQ"),
    (Table::Filter, "KUBE-FORWARD"),
    (Table::Filter, "KUBE-NODE-PORT"),
    (Table::Filter, "KUBE-PROXY-FIREWALL"),
    (Table::Filter, "KUBE-SOURCE-RANGES-FIREWALL"),
    (Table::Filter, "KUBE-IPVS-FILTER"),
    (Table::Filter, "KUBE-IPVS-OUT-FILTER"),
];

/// The jumps into them from the built-in chains: all of them, or the lean ones among them. Each
/// missing one is put at the head of its chain, in this order, so that in a fresh table the last
/// one comes first.
pub(crate) const JUMPS: [Jump; 9] = {
    const fn jump(from: &'static str, to: &'static str, comment: &'static str) -> Jump {
        Jump::new(Table::Filter, from, to, comment)
    }
    const HEALTH: &str = "kubernetes health check rules";
    const FIREWALL: &str = "kube-proxy firewall rules";
    const ACCESS: &str = "kubernetes ipvs access filter";
    [
        FROM_OUTPUT,
        FROM_PREROUTING,
        FROM_POSTROUTING,
        FROM_FORWARD,
        jump("INPUT", "KUBE-NODE-PORT", HEALTH),
        jump("INPUT", "KUBE-PROXY-FIREWALL", FIREWALL),
        jump("FORWARD", "KUBE-PROXY-FIREWALL", FIREWALL),
        jump("INPUT", "KUBE-IPVS-FILTER", ACCESS),
        jump("OUTPUT", "KUBE-IPVS-OUT-FILTER", ACCESS),
    ]
};

/// The content of the shim in one family: its chains with their rules, and the jumps into them, as
/// lines of `iptables-save`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    /// Our chains and their rules, in order, each from `-A` on.
    chains: BTreeMap<(Table, String), Vec<String>>,
    /// The jumps that exist.
    jumps: BTreeSet<(Table, String)>,
    /// What stands in nftables; of the shim there, and of no other.
    native: Content,
}

/// What decides the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shim {
    /// The family.
    pub family: IpFamily,
    /// The sets that hold something.
    pub filled: BTreeSet<Set>,
    /// See [`Fragment::forbidden_to_node`](crate::compile::Fragment::forbidden_to_node).
    pub forbidden_to_node: BTreeSet<ServiceAddress>,
}

impl Shim {
    /// The rules that this shim is made of.
    pub fn rules(&self, config: &Config) -> Rules {
        self.rules_with(&BTreeSet::new(), config)
    }

    /// The same with source ranges whose prefixes have these lengths. In iptables a set asks for
    /// all of them.
    pub fn rules_with(&self, prefixes: &BTreeSet<u8>, config: &Config) -> Rules {
        if config.shim == ShimStyle::Nftables {
            return Rules::in_nftables(self.native(prefixes, config));
        }
        let mut rules = Rules::default();
        for (table, name, chain) in self.chains(config) {
            let lines = chain.iter().map(|rule| rule.line(name)).collect();
            rules.chains.insert((table, name.to_owned()), lines);
        }
        rules.jumps = self
            .jumps(config)
            .map(|jump| (jump.table, jump.line()))
            .collect();
        rules
    }

    /// All chains with their rules.
    fn chains(&self, config: &Config) -> impl Iterator<Item = (Table, &'static str, Vec<Rule>)> {
        CHAINS.into_iter().map(|(table, name)| {
            let chain = match config.shim {
                ShimStyle::Upstream => self.chain(table, name, config),
                ShimStyle::Lean => self.lean_chain(table, name, config),
                ShimStyle::Nftables => Vec::new(),
            };
            (table, name, chain)
        })
    }

    fn jumps(&self, config: &Config) -> impl Iterator<Item = &'static Jump> {
        JUMPS.iter().filter(|jump| match config.shim {
            ShimStyle::Upstream => true,
            ShimStyle::Lean => !self.lean_chain(jump.table, jump.to, config).is_empty(),
            ShimStyle::Nftables => false,
        })
    }

    fn chain(&self, table: Table, name: &str, config: &Config) -> Vec<Rule> {
        match (table, name) {
            (Table::Nat, SERVICES) => self.services(config),
            (Table::Nat, POSTROUTING) => self.postrouting(config),
            (Table::Nat, "KUBE-NODE-PORT") => self.node_ports(),
            (Table::Nat, "KUBE-LOAD-BALANCER") => self.load_balancers(),
            (Table::Nat, MARK_MASQ) => vec![Rule::new([], mark(config))],
            (Table::Filter, FORWARD) => kube_rules::forward(config.masquerade_mark).into(),
            (Table::Filter, "KUBE-NODE-PORT") => {
                vec![self.set_rule(Set::HealthCheckNodePort, DST, Target::Accept)]
            }
            (Table::Filter, "KUBE-PROXY-FIREWALL") => self.if_filled(
                Set::LoadBalancerFirewall,
                DST_DST,
                "KUBE-SOURCE-RANGES-FIREWALL",
            ),
            (Table::Filter, "KUBE-SOURCE-RANGES-FIREWALL") => self.source_ranges(),
            (Table::Filter, "KUBE-IPVS-FILTER") => self.access_filter(),
            _ => self.out_filter(),
        }
    }

    fn is_filled(&self, set: Set) -> bool {
        self.filled.contains(&set)
    }

    fn if_filled(
        &self,
        set: Set,
        fields: &'static [Field],
        target: impl Into<Target>,
    ) -> Vec<Rule> {
        if self.is_filled(set) {
            vec![self.set_rule(set, fields, target)]
        } else {
            Vec::new()
        }
    }

    /// The packet's fields are a member of a set.
    fn in_set(&self, set: Set, fields: &'static [Field]) -> Match {
        Match::InSet(set.name(self.family).into(), fields)
    }

    fn not_in_set(&self, set: Set, fields: &'static [Field]) -> Match {
        Match::NotInSet(set.name(self.family).into(), fields)
    }

    fn set_rule(&self, set: Set, fields: &'static [Field], target: impl Into<Target>) -> Rule {
        let comment = Match::comment(set.comment());
        Rule::new([comment, self.in_set(set, fields)], target)
    }

    /// nat KUBE-SERVICES: marks what has to be masqueraded, and accepts the rest of what goes to a
    /// service address.
    fn services(&self, config: &Config) -> Vec<Rule> {
        let mut chain = vec![Rule::new([Match::Source(self.loopback())], Target::Return)];
        chain.extend(self.if_filled(Set::LoadBalancer, DST_DST, "KUBE-LOAD-BALANCER"));
        if self.is_filled(Set::ClusterIp) {
            let comment = Match::comment(Set::ClusterIp.comment());
            let (from, fields) = not_local(config);
            let to_set = [comment, self.in_set(Set::ClusterIp, fields)];
            chain.push(Rule::new(from.into_iter().chain(to_set), MARK_MASQ));
        }
        if self.is_filled(Set::ExternalIp) {
            chain.push(self.set_rule(Set::ExternalIp, DST_DST, MARK_MASQ));
            chain.extend(self.accept_external(Set::ExternalIp));
        }
        if self.is_filled(Set::ExternalIpLocal) {
            chain.extend(self.accept_external(Set::ExternalIpLocal));
        }
        chain.push(Rule::new([Match::DestinationLocal], "KUBE-NODE-PORT"));
        for set in [Set::ClusterIp, Set::LoadBalancer]
            .into_iter()
            .filter(|set| self.is_filled(*set))
        {
            chain.push(Rule::new([self.in_set(set, DST_DST)], Target::Accept));
        }
        chain
    }

    /// Traffic to an external IP is accepted if it does not come from a pod behind a bridge or from
    /// the node itself, and if the address is local here.
    fn accept_external(&self, set: Set) -> [Rule; 2] {
        let to_set = || {
            let comment = Match::comment(set.comment());
            [comment, self.in_set(set, DST_DST)].into_iter()
        };
        let from_elsewhere = [Match::NotFromBridgePort, Match::SourceNotLocal];
        [
            Rule::new(to_set().chain(from_elsewhere), Target::Accept),
            Rule::new(to_set().chain([Match::DestinationLocal]), Target::Accept),
        ]
    }

    /// nat KUBE-POSTROUTING: masquerades what is marked, and pods that call themselves.
    fn postrouting(&self, config: &Config) -> Vec<Rule> {
        let hairpin = Target::Masquerade(SourcePort::Kept);
        let mut chain = self.if_filled(Set::LoopBack, DST_DST_SRC, hairpin);
        let marked = kube_rules::masquerade(config.masquerade_mark, config.source_port);
        chain.extend(marked);
        chain
    }

    fn node_ports(&self) -> Vec<Rule> {
        let mut chain = Vec::new();
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            for (set, target) in [
                (Set::node_port_local(protocol), Target::Return),
                (Set::node_port(protocol), MARK_MASQ.into()),
            ] {
                if self.is_filled(set) {
                    let matches = [
                        Match::Protocol(protocol),
                        Match::comment(set.comment()),
                        self.in_set(set, node_port_fields(protocol)),
                    ];
                    chain.push(Rule::new(matches, target));
                }
            }
        }
        chain
    }

    fn load_balancers(&self) -> Vec<Rule> {
        let mut chain = self.if_filled(Set::LoadBalancerLocal, DST_DST, Target::Return);
        chain.push(Rule::new([], MARK_MASQ));
        chain
    }

    fn source_ranges(&self) -> Vec<Rule> {
        let mut chain = self.if_filled(Set::LoadBalancerSourceCidr, DST_DST_SRC, Target::Return);
        chain.extend(self.if_filled(Set::LoadBalancerSourceIp, DST_DST_SRC, Target::Return));
        chain.push(Rule::new([], Target::Drop));
        chain
    }

    /// filter KUBE-IPVS-FILTER: service addresses are addresses of this node, so ports that no
    /// Service exposes must not reach the node's own processes (k/k#72236).
    fn access_filter(&self) -> Vec<Rule> {
        let exposed = [
            (Set::LoadBalancer, DST_DST),
            (Set::ClusterIp, DST_DST),
            (Set::ExternalIp, DST_DST),
            (Set::ExternalIpLocal, DST_DST),
            (Set::HealthCheckNodePort, DST),
        ];
        let mut chain: Vec<_> = exposed
            .into_iter()
            .map(|(set, fields)| Rule::new([self.in_set(set, fields)], Target::Return))
            .collect();
        let rest = [NEW, self.in_set(Set::IpvsIps, DST)];
        chain.push(Rule::new(rest, Target::Reject(self.family)));
        chain
    }

    fn out_filter(&self) -> Vec<Rule> {
        let forbid = |at: &ServiceAddress| {
            let from_itself = [
                Match::Source(at.address.into()),
                Match::VirtualServer(at.protocol, at.address, at.port),
            ];
            Rule::new(from_itself, Target::Drop)
        };
        self.forbidden_to_node.iter().map(forbid).collect()
    }

    fn loopback(&self) -> IpNet {
        loopback(self.family)
    }
}

/// Where the node calls itself.
pub(crate) fn loopback(family: IpFamily) -> IpNet {
    match family {
        IpFamily::V4 => LOCALHOST,
        IpFamily::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST).into(),
    }
}

/// The first packet of a flow.
const NEW: Match = Match::State(&[FlowState::New]);

/// The fields that the set of a protocol's NodePorts is asked for.
fn node_port_fields(protocol: Protocol) -> &'static [Field] {
    match protocol {
        Protocol::Sctp => DST_DST,
        Protocol::Tcp | Protocol::Udp => DST,
    }
}

/// Which packets to a cluster IP are to be masqueraded: a match, and the fields of the packet that
/// the set is asked for. Where local traffic cannot be told apart, at least what a Service's own
/// address sent is.
fn not_local(config: &Config) -> (Option<Match>, &'static [Field]) {
    match &config.detector {
        _ if config.masquerade_all => (None, DST_DST),
        LocalDetector::None => (None, SRC_DST),
        detector => (kube_rules::not_local(detector), DST_DST),
    }
}

/// The target that marks a packet to be masqueraded.
fn mark(config: &Config) -> Target {
    Target::set_mark(config.masquerade_mark)
}

impl Rules {
    /// Those of the shim on nftables.
    pub(crate) fn in_nftables(native: Content) -> Self {
        Self {
            native,
            ..Self::default()
        }
    }

    /// In what they stand.
    pub(crate) fn carrier(&self) -> &'static str {
        if self.native.is_empty() {
            "iptables"
        } else {
            "nftables"
        }
    }

    /// What of them stands in nftables.
    pub(crate) fn native(&self) -> &Content {
        &self.native
    }

    /// The sets that some rule of these is about which is not among those installed.
    pub(crate) fn uncovered(&self, installed: &Self, family: IpFamily) -> BTreeSet<Set> {
        let missing = self.chains.iter().flat_map(|(chain, lines)| {
            let there = installed.chains.get(chain).map_or(&[][..], Vec::as_slice);
            lines.iter().filter(|line| !there.contains(line))
        });
        let missing: Vec<&String> = missing.collect();
        let is_about = |set: &Set| {
            let name = set.name(family);
            let mut rules = missing.iter().filter_map(|line| RuleLine::parse(line));
            rules.any(|rule| rule.asks_set(&name))
        };
        let native = self.native.uncovered(&installed.native, family);
        Set::all()
            .filter(|set| native.contains(set) || is_about(set))
            .collect()
    }

    /// Finds the shim in what `iptables-save` (or `ip6tables-save`) printed. What is not ours is
    /// passed over.
    pub fn parse(saved: &str) -> Self {
        let mut rules = Self::default();
        for (table, entry) in entries(saved) {
            let chain = match entry {
                Entry::Chain(name) => name,
                Entry::Rule(rule) => rule.chain,
            };
            if CHAINS.contains(&(table, chain)) {
                let lines = rules.chains.entry((table, chain.to_owned())).or_default();
                if let Entry::Rule(rule) = entry {
                    lines.push(rule.text.to_owned());
                }
            } else if let Entry::Rule(rule) = entry {
                let mut jumps = JUMPS.iter().filter(|jump| jump.table == table);
                if jumps.any(|jump| jump.from == chain && jump.line() == rule.text) {
                    rules.jumps.insert((table, rule.text.to_owned()));
                }
            }
        }
        rules
    }

    /// Whether nothing of the shim is there.
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.jumps.is_empty() && self.native.is_empty()
    }

    /// The input of `iptables-restore --noflush` that brings the shim from `installed` to this.
    /// Chains of others and their rules are not named in it, and so stay.
    pub fn restore_text(&self, installed: &Self) -> String {
        restore_text(|restore| {
            for table in TABLES {
                restore.begin(table)?;
                // Naming a chain empties it, in the same transaction that fills it again.
                for (_, name) in CHAINS.iter().filter(|chain| chain.0 == table) {
                    restore.declare(name)?;
                }
                for jump in JUMPS.iter().filter(|jump| jump.table == table) {
                    let jump = (table, jump.line());
                    match (self.jumps.contains(&jump), installed.jumps.contains(&jump)) {
                        (true, false) => restore.insert(&jump.1)?,
                        (false, true) => restore.delete(&jump.1)?,
                        _ => {}
                    }
                }
                let chains = self.chains.iter().filter(|((of, _), _)| *of == table);
                for line in chains.flat_map(|(_, lines)| lines) {
                    restore.append(line)?;
                }
                restore.commit()?;
            }
            Ok(())
        })
    }

    /// Lists the writes that make these rules of `installed`, for the operator, a line each.
    pub fn differences(&self, installed: &Self) -> Vec<String> {
        self.compare(installed, &TO_DO)
    }

    /// Lists what somebody has done to `before`, of which these rules came, a line each.
    pub fn changes_since(&self, before: &Self) -> Vec<String> {
        self.compare(before, &DONE)
    }

    fn compare(&self, before: &Self, verbs: &Verbs) -> Vec<String> {
        let (own, there) = (self.lines(), before.lines());
        let tell = |verb: &'static str| {
            move |(table, line): &(Table, String)| {
                format!("{verb} in table {}: {line}", table.name())
            }
        };
        let mut lines: Vec<String> = own.difference(&there).map(tell(verbs.add)).collect();
        lines.extend(there.difference(&own).map(tell(verbs.remove)));
        let (own, there) = (self.native.lines(), before.native.lines());
        let tell = |verb: &'static str| {
            move |line: &String| format!("{verb} in nftables {}: {line}", native::TABLE)
        };
        lines.extend(own.difference(&there).map(tell(verbs.add)));
        lines.extend(there.difference(&own).map(tell(verbs.remove)));
        if lines.is_empty() && self != before {
            lines.push(verbs.order.to_owned());
        }
        lines
    }

    fn lines(&self) -> BTreeSet<(Table, String)> {
        let chains = self.chains.iter().flat_map(|((table, name), lines)| {
            let chain = [format!("-N {name}")];
            let lines = chain.into_iter().chain(lines.iter().cloned());
            lines.map(|line| (*table, line))
        });
        chains.chain(self.jumps.iter().cloned()).collect()
    }

    /// The rules of its chains, each with its table.
    pub fn rules(&self) -> impl Iterator<Item = (Table, &str)> {
        self.chains
            .iter()
            .flat_map(|((table, _), lines)| lines.iter().map(|line| (*table, line.as_str())))
    }

    /// How many rules it holds, for reports.
    pub fn len(&self) -> usize {
        let chains = self.chains.values().map(Vec::len);
        chains.sum::<usize>() + self.jumps.len() + self.native.len()
    }
}

/// Words for how rules differ.
struct Verbs {
    add: &'static str,
    remove: &'static str,
    order: &'static str,
}

const TO_DO: Verbs = Verbs {
    add: "add",
    remove: "remove",
    order: "put the rules of a chain in another order",
};
const DONE: Verbs = Verbs {
    add: "added",
    remove: "removed",
    order: "the rules of a chain are in another order",
};

#[cfg(test)]
mod tests {
    use super::*;

    fn shim(family: IpFamily, filled: &[Set]) -> Shim {
        Shim {
            family,
            filled: filled.iter().copied().collect(),
            forbidden_to_node: BTreeSet::new(),
        }
    }

    #[test]
    fn modules_of_the_usual_rules_are_known() {
        for shim in [ShimStyle::Upstream, ShimStyle::Lean] {
            for family in IpFamily::ALL {
                let shim = Config {
                    shim,
                    ..Config::default()
                };
                let filled = Set::all().collect();
                let forbidden_to_node = BTreeSet::new();
                let rules = Shim {
                    family,
                    filled,
                    forbidden_to_node,
                }
                .rules(&shim);
                let text = rules.restore_text(&Rules::default());
                let words: Vec<&str> = text.split_whitespace().collect();
                let of = |option| {
                    let pairs = words.windows(2);
                    pairs.filter_map(move |pair| (pair[0] == option).then_some(pair[1]))
                };
                // The kernel's own targets, and those of bridges alone, have none to be loaded.
                let known = |name: &&str| {
                    !["ACCEPT", "DROP", "RETURN", "physdev"].contains(name)
                        && !name.starts_with("KUBE-")
                };
                let mut seen = 0;
                for name in of("-m").chain(of("-j")).filter(known) {
                    // xt_mark is both.
                    let alias = format!("ipt_{}", name.replace("MARK", "mark"));
                    let mut loaded = iptables::MODULES.iter().chain(&crate::MODULES);
                    assert!(loaded.any(|module| *module == alias), "{alias}");
                    seen += 1;
                }
                assert!(seen > 10, "{text}");
            }
        }
    }

    #[test]
    fn what_is_restored_reads_back_equal() {
        for family in IpFamily::ALL {
            let all: Vec<_> = Set::all().collect();
            let rules = shim(family, &all).rules(&Config::default());
            let text = rules.restore_text(&Rules::default()).replace("-I ", "-A ");
            assert_eq!(Rules::parse(&text), rules);
            assert!(
                !rules.restore_text(&rules).contains("-I "),
                "jumps that exist are not added again"
            );
        }
    }

    #[test]
    fn foreign_chains_are_neither_read_nor_written() {
        let saved = "*nat\n:OTHER - [0:0]\n:KUBE-SERVICES - [0:0]\n-A OTHER -j RETURN\n-A POSTROUTING -j OTHER\n\
                     -A KUBE-SERVICES -d 9.9.9.9/32 -j RETURN\nCOMMIT\n*mangle\n:KUBE-SERVICES - [0:0]\nCOMMIT\n";
        let found = Rules::parse(saved);
        assert_eq!(found.len(), 1);
        assert!(
            !shim(IpFamily::V4, &[])
                .rules(&Config::default())
                .restore_text(&found)
                .contains("OTHER")
        );
    }

    #[test]
    fn differences_are_told_by_the_line() {
        let rules = |filled: &[Set]| shim(IpFamily::V4, filled).rules(&Config::default());
        let (few, more) = (rules(&[]), rules(&[Set::LoadBalancerLocal]));
        let line = "in table nat: -A KUBE-LOAD-BALANCER -m comment --comment \"Kubernetes service load balancer ip + port with \
                    externalTrafficPolicy=local\" -m set --match-set KUBE-LOAD-BALANCER-LOCAL dst,dst -j RETURN";
        assert_eq!(more.differences(&few), [format!("add {line}")]);
        assert_eq!(few.differences(&more), [format!("remove {line}")]);
        assert!(few.differences(&few).is_empty());
        assert_eq!(more.changes_since(&few), [format!("added {line}")]);
        assert_eq!(few.changes_since(&more), [format!("removed {line}")]);
        assert_eq!(
            few.differences(&Rules::default()).len(),
            few.len() + CHAINS.len()
        );
        let mut turned = few.clone();
        turned.chains.values_mut().for_each(|lines| lines.reverse());
        assert_eq!(
            turned.differences(&few),
            ["put the rules of a chain in another order"]
        );
    }

    #[test]
    fn detectors_decide_who_is_masqueraded() {
        let line = |config: &Config| {
            let rules = shim(IpFamily::V4, &[Set::ClusterIp]).rules(config);
            let chain = &rules.chains[&(Table::Nat, "KUBE-SERVICES".to_owned())];
            chain
                .iter()
                .find(|line| line.ends_with("KUBE-MARK-MASQ"))
                .unwrap()
                .clone()
        };
        let with = |detector| Config {
            detector,
            ..Config::default()
        };
        let comment =
            "-m comment --comment \"Kubernetes service cluster ip + port for masquerade purpose\"";
        let end = |fields| {
            format!("{comment} -m set --match-set KUBE-CLUSTER-IP {fields} -j KUBE-MARK-MASQ")
        };
        assert_eq!(
            line(&with(LocalDetector::None)),
            format!("-A KUBE-SERVICES {}", end("src,dst"))
        );
        assert_eq!(
            line(&with(LocalDetector::SourceNet(
                "10.244.0.0/16".parse().unwrap()
            ))),
            format!("-A KUBE-SERVICES ! -s 10.244.0.0/16 {}", end("dst,dst"))
        );
        assert_eq!(
            line(&with(LocalDetector::Bridge("cni0".into()))),
            format!("-A KUBE-SERVICES ! -i cni0 {}", end("dst,dst"))
        );
        assert_eq!(
            line(&with(LocalDetector::InterfacePrefix("veth".into()))),
            format!("-A KUBE-SERVICES ! -i veth+ {}", end("dst,dst"))
        );
        let all = Config {
            masquerade_all: true,
            ..with(LocalDetector::Bridge("cni0".into()))
        };
        assert_eq!(line(&all), format!("-A KUBE-SERVICES {}", end("dst,dst")));
    }
}
