//! The shim: the few iptables rules that masquerade and filter by the sets. Data first; iptables text is one rendering.
//!
//! Chains, their order and their rules are upstream's (`pkg/proxy/ipvs/proxier.go`); `lean.rs` has rules that come to the same
//! in the same chains, with less work for a packet. The number of rules depends on which sets hold something, never on how
//! many Services there are, except KUBE-IPVS-OUT-FILTER: one rule for each load-balancer address whose source ranges leave
//! this node out.
//!
//! A rule is rendered as `iptables-save` prints it, so that what is wanted can be compared with what is read back.

mod lean;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use ipnet::IpNet;
use proxy::{IpFamily, LocalDetector, Protocol};

use crate::config::{Config, ShimStyle};
use crate::server::VirtualServerKey;
use crate::sets::Set;

/// An iptables table that the shim uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// `nat`
    Nat,
    /// `filter`
    Filter,
}

impl Table {
    const ALL: [Self; 2] = [Self::Nat, Self::Filter];

    /// As iptables names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nat => "nat",
            Self::Filter => "filter",
        }
    }
}

/// The chains that are ours, in the order that upstream makes them.
const CHAINS: [(Table, &str); 11] = [
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

/// The jumps into them from the built-in chains: all of them, or the lean ones among them. Each missing one is put at the head of its chain, in this order, so that
/// in a fresh table the last one comes first.
const JUMPS: [(Table, &str, &str, &str); 9] = [
    (
        Table::Nat,
        "OUTPUT",
        "KUBE-SERVICES",
        "kubernetes service portals",
    ),
    (
        Table::Nat,
        "PREROUTING",
        "KUBE-SERVICES",
        "kubernetes service portals",
    ),
    (
        Table::Nat,
        "POSTROUTING",
        "KUBE-POSTROUTING",
        "kubernetes postrouting rules",
    ),
    (
        Table::Filter,
        "FORWARD",
        "KUBE-FORWARD",
        "kubernetes forwarding rules",
    ),
    (
        Table::Filter,
        "INPUT",
        "KUBE-NODE-PORT",
        "kubernetes health check rules",
    ),
    (
        Table::Filter,
        "INPUT",
        "KUBE-PROXY-FIREWALL",
        "kube-proxy firewall rules",
    ),
    (
        Table::Filter,
        "FORWARD",
        "KUBE-PROXY-FIREWALL",
        "kube-proxy firewall rules",
    ),
    (
        Table::Filter,
        "INPUT",
        "KUBE-IPVS-FILTER",
        "kubernetes ipvs access filter",
    ),
    (
        Table::Filter,
        "OUTPUT",
        "KUBE-IPVS-OUT-FILTER",
        "kubernetes ipvs access filter",
    ),
];

/// Whether a chain is one of the shim's. The iptables mode has some of the same names.
pub(crate) fn is_chain_of_the_shim(table: &str, chain: &str) -> bool {
    CHAINS
        .iter()
        .any(|(of, name)| of.name() == table && *name == chain)
}

/// Whether a line of `iptables-save` is one of the shim's jumps.
pub(crate) fn is_jump_of_the_shim(table: &str, line: &str) -> bool {
    JUMPS
        .iter()
        .any(|jump| jump.0.name() == table && render_jump(jump) == line)
}

/// What a rule matches. Each is rendered as `iptables-save` does.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Match {
    Source(IpNet),
    NotSource(IpNet),
    NotInInterface(String),
    Protocol(Protocol),
    Comment(&'static str),
    /// Set and which fields of the packet: `dst,dst`.
    InSet(Set, &'static str),
    NotInSet(Set, &'static str),
    Mark(u32),
    NotMark(u32),
    /// `addrtype` options.
    AddressType(&'static str),
    /// `conntrack` states.
    State(&'static str),
    NotFromBridgePort,
    ToVirtualServer(VirtualServerKey),
}

/// One rule of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    matches: Vec<Match>,
    target: String,
}

/// The content of the shim in one family: its chains with their rules, and the jumps into them, as lines of
/// `iptables-save`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    /// Our chains and their rules, in order, each from `-A` on.
    chains: BTreeMap<(Table, String), Vec<String>>,
    /// The jumps that exist.
    jumps: BTreeSet<(Table, String)>,
}

/// What decides the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shim {
    /// The family.
    pub family: IpFamily,
    /// The sets that hold something.
    pub filled: BTreeSet<Set>,
    /// See [`Fragment::forbidden_to_node`](crate::compile::Fragment::forbidden_to_node).
    pub forbidden_to_node: BTreeSet<VirtualServerKey>,
}

impl Shim {
    /// The rules that this shim is made of.
    pub fn rules(&self, config: &Config) -> Rules {
        let mut rules = Rules::default();
        for (table, name, chain) in self.chains(config) {
            let lines = chain
                .iter()
                .map(|rule| rule.render(name, self.family))
                .collect();
            rules.chains.insert((table, name.to_owned()), lines);
        }
        rules.jumps = self
            .jumps(config)
            .map(|jump| (jump.0, render_jump(jump)))
            .collect();
        rules
    }

    /// All chains with their rules.
    fn chains(&self, config: &Config) -> impl Iterator<Item = (Table, &'static str, Vec<Rule>)> {
        CHAINS.into_iter().map(|(table, name)| {
            let chain = match config.shim {
                ShimStyle::Upstream => self.chain(table, name, config),
                ShimStyle::Lean => self.lean_chain(table, name, config),
            };
            (table, name, chain)
        })
    }

    fn jumps(
        &self,
        config: &Config,
    ) -> impl Iterator<Item = &'static (Table, &'static str, &'static str, &'static str)> {
        JUMPS.iter().filter(|(table, _, to, _)| match config.shim {
            ShimStyle::Upstream => true,
            ShimStyle::Lean => !self.lean_chain(*table, to, config).is_empty(),
        })
    }

    fn chain(&self, table: Table, name: &str, config: &Config) -> Vec<Rule> {
        match (table, name) {
            (Table::Nat, "KUBE-SERVICES") => self.services(config),
            (Table::Nat, "KUBE-POSTROUTING") => self.postrouting(config),
            (Table::Nat, "KUBE-NODE-PORT") => self.node_ports(),
            (Table::Nat, "KUBE-LOAD-BALANCER") => self.load_balancers(),
            (Table::Nat, "KUBE-MARK-MASQ") => vec![rule([], mark(config))],
            (Table::Filter, "KUBE-FORWARD") => forward(config),
            (Table::Filter, "KUBE-NODE-PORT") => {
                vec![set_rule(Set::HealthCheckNodePort, "dst", "ACCEPT")]
            }
            (Table::Filter, "KUBE-PROXY-FIREWALL") => self.if_filled(
                Set::LoadBalancerFirewall,
                "dst,dst",
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

    fn if_filled(&self, set: Set, fields: &'static str, target: &str) -> Vec<Rule> {
        if self.is_filled(set) {
            vec![set_rule(set, fields, target)]
        } else {
            Vec::new()
        }
    }

    /// nat KUBE-SERVICES: marks what has to be masqueraded, and accepts the rest of what goes to a service address.
    fn services(&self, config: &Config) -> Vec<Rule> {
        let mut chain = vec![rule([Match::Source(self.loopback())], "RETURN")];
        chain.extend(self.if_filled(Set::LoadBalancer, "dst,dst", "KUBE-LOAD-BALANCER"));
        if self.is_filled(Set::ClusterIp) {
            let comment = Match::Comment(Set::ClusterIp.comment());
            let (from, fields) = not_local(config);
            let matches = from
                .into_iter()
                .chain([comment, Match::InSet(Set::ClusterIp, fields)]);
            chain.push(rule(matches, "KUBE-MARK-MASQ"));
        }
        if self.is_filled(Set::ExternalIp) {
            chain.push(set_rule(Set::ExternalIp, "dst,dst", "KUBE-MARK-MASQ"));
            chain.extend(accept_external(Set::ExternalIp));
        }
        if self.is_filled(Set::ExternalIpLocal) {
            chain.extend(accept_external(Set::ExternalIpLocal));
        }
        chain.push(rule(
            [Match::AddressType("--dst-type LOCAL")],
            "KUBE-NODE-PORT",
        ));
        for set in [Set::ClusterIp, Set::LoadBalancer]
            .into_iter()
            .filter(|set| self.is_filled(*set))
        {
            chain.push(rule([Match::InSet(set, "dst,dst")], "ACCEPT"));
        }
        chain
    }

    /// nat KUBE-POSTROUTING: masquerades what is marked, and pods that call themselves.
    fn postrouting(&self, config: &Config) -> Vec<Rule> {
        let mark = config.masquerade_mark;
        let mut chain = self.if_filled(Set::LoopBack, "dst,dst,src", "MASQUERADE");
        chain.push(rule([Match::NotMark(mark)], "RETURN"));
        chain.push(rule([], set_mark(mark, 0)));
        chain.push(rule(
            [Match::Comment("kubernetes service traffic requiring SNAT")],
            masquerade(config),
        ));
        chain
    }

    fn node_ports(&self) -> Vec<Rule> {
        let mut chain = Vec::new();
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            let fields = if protocol == Protocol::Sctp {
                "dst,dst"
            } else {
                "dst"
            };
            for (set, target) in [
                (Set::node_port_local(protocol), "RETURN"),
                (Set::node_port(protocol), "KUBE-MARK-MASQ"),
            ] {
                if self.is_filled(set) {
                    let comment = Match::Comment(set.comment());
                    chain.push(rule(
                        [
                            Match::Protocol(protocol),
                            comment,
                            Match::InSet(set, fields),
                        ],
                        target,
                    ));
                }
            }
        }
        chain
    }

    fn load_balancers(&self) -> Vec<Rule> {
        let mut chain = self.if_filled(Set::LoadBalancerLocal, "dst,dst", "RETURN");
        chain.push(rule([], "KUBE-MARK-MASQ"));
        chain
    }

    fn source_ranges(&self) -> Vec<Rule> {
        let mut chain = self.if_filled(Set::LoadBalancerSourceCidr, "dst,dst,src", "RETURN");
        chain.extend(self.if_filled(Set::LoadBalancerSourceIp, "dst,dst,src", "RETURN"));
        chain.push(rule([], "DROP"));
        chain
    }

    /// filter KUBE-IPVS-FILTER: service addresses are addresses of this node, so ports that no Service exposes must not reach
    /// the node's own processes (k/k#72236).
    fn access_filter(&self) -> Vec<Rule> {
        let exposed = [
            (Set::LoadBalancer, "dst,dst"),
            (Set::ClusterIp, "dst,dst"),
            (Set::ExternalIp, "dst,dst"),
            (Set::ExternalIpLocal, "dst,dst"),
            (Set::HealthCheckNodePort, "dst"),
        ];
        let mut chain: Vec<_> = exposed
            .into_iter()
            .map(|(set, fields)| rule([Match::InSet(set, fields)], "RETURN"))
            .collect();
        chain.push(rule(
            [Match::State("NEW"), Match::InSet(Set::IpvsIps, "dst")],
            self.reject(),
        ));
        chain
    }

    fn reject(&self) -> &'static str {
        match self.family {
            IpFamily::V4 => "REJECT --reject-with icmp-port-unreachable",
            IpFamily::V6 => "REJECT --reject-with icmp6-port-unreachable",
        }
    }

    fn out_filter(&self) -> Vec<Rule> {
        let forbid = |key: &VirtualServerKey| {
            rule(
                [
                    Match::Source(key.address.into()),
                    Match::ToVirtualServer(*key),
                ],
                "DROP",
            )
        };
        self.forbidden_to_node.iter().map(forbid).collect()
    }

    fn loopback(&self) -> IpNet {
        match self.family {
            IpFamily::V4 => IpNet::V4(ipnet::Ipv4Net::new_assert(
                std::net::Ipv4Addr::new(127, 0, 0, 0),
                8,
            )),
            IpFamily::V6 => std::net::IpAddr::V6(std::net::Ipv6Addr::LOCALHOST).into(),
        }
    }
}

fn rule(matches: impl IntoIterator<Item = Match>, target: impl Into<String>) -> Rule {
    Rule {
        matches: matches.into_iter().collect(),
        target: target.into(),
    }
}

fn set_rule(set: Set, fields: &'static str, target: &str) -> Rule {
    rule(
        [Match::Comment(set.comment()), Match::InSet(set, fields)],
        target,
    )
}

/// Which packets to a cluster IP are to be masqueraded: a match, and the fields of the packet that the set is asked for. Where
/// local traffic cannot be told apart, at least what a Service's own address sent is.
fn not_local(config: &Config) -> (Option<Match>, &'static str) {
    match &config.detector {
        _ if config.masquerade_all => (None, "dst,dst"),
        LocalDetector::None => (None, "src,dst"),
        LocalDetector::SourceNet(net) => (Some(Match::NotSource(*net)), "dst,dst"),
        LocalDetector::Bridge(name) => (Some(Match::NotInInterface(name.clone())), "dst,dst"),
        LocalDetector::InterfacePrefix(prefix) => {
            (Some(Match::NotInInterface(format!("{prefix}+"))), "dst,dst")
        }
    }
}

fn masquerade(config: &Config) -> &'static str {
    if config.random_fully {
        "MASQUERADE --random-fully"
    } else {
        "MASQUERADE"
    }
}

/// The target that marks a packet to be masqueraded.
fn mark(config: &Config) -> String {
    set_mark(config.masquerade_mark, config.masquerade_mark)
}

fn set_mark(value: u32, mask: u32) -> String {
    // `--or-mark M` and `--xor-mark M` as iptables-save prints them.
    format!("MARK --set-xmark {value:#x}/{mask:#x}")
}

fn forward(config: &Config) -> Vec<Rule> {
    vec![
        rule(
            [
                Match::Comment("kubernetes forwarding rules"),
                Match::Mark(config.masquerade_mark),
            ],
            "ACCEPT",
        ),
        rule(
            [
                Match::Comment("kubernetes forwarding conntrack rule"),
                Match::State("RELATED,ESTABLISHED"),
            ],
            "ACCEPT",
        ),
    ]
}

/// Traffic to an external IP is accepted if it does not come from a pod behind a bridge or from the node itself, and if the
/// address is local here.
fn accept_external(set: Set) -> [Rule; 2] {
    let to_set = || [Match::Comment(set.comment()), Match::InSet(set, "dst,dst")];
    [
        rule(
            to_set().into_iter().chain([
                Match::NotFromBridgePort,
                Match::AddressType("! --src-type LOCAL"),
            ]),
            "ACCEPT",
        ),
        rule(
            to_set()
                .into_iter()
                .chain([Match::AddressType("--dst-type LOCAL")]),
            "ACCEPT",
        ),
    ]
}

fn render_jump((_, from, to, comment): &(Table, &str, &str, &str)) -> String {
    format!("-A {from} -m comment --comment \"{comment}\" -j {to}")
}

impl Rule {
    fn render(&self, chain: &str, family: IpFamily) -> String {
        let mut line = format!("-A {chain}");
        for part in &self.matches {
            // Writing to a String cannot fail.
            let _ = write!(line, " {}", Rendered(part, family));
        }
        let _ = write!(line, " -j {}", self.target);
        line
    }
}

struct Rendered<'a>(&'a Match, IpFamily);

impl fmt::Display for Rendered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(part, family) = self;
        match part {
            Match::Source(net) => write!(f, "-s {net}"),
            Match::NotSource(net) => write!(f, "! -s {}", net.trunc()),
            Match::NotInInterface(name) => write!(f, "! -i {name}"),
            Match::Protocol(protocol) => write!(f, "-p {}", protocol.lower()),
            Match::Comment(text) => {
                write!(f, "-m comment --comment \"{}\"", text.replace('\'', "\\'"))
            }
            Match::InSet(set, fields) => {
                write!(f, "-m set --match-set {} {fields}", set.name(*family))
            }
            Match::NotInSet(set, fields) => {
                write!(f, "-m set ! --match-set {} {fields}", set.name(*family))
            }
            Match::Mark(mark) => write!(f, "-m mark --mark {mark:#x}/{mark:#x}"),
            Match::NotMark(mark) => write!(f, "-m mark ! --mark {mark:#x}/{mark:#x}"),
            Match::AddressType(options) => write!(f, "-m addrtype {options}"),
            Match::State(states) => write!(f, "-m conntrack --ctstate {states}"),
            Match::NotFromBridgePort => f.write_str("-m physdev ! --physdev-is-in"),
            Match::ToVirtualServer(key) => write!(
                f,
                "-m ipvs --vproto {} --vaddr {} --vport {}",
                key.protocol.number(),
                key.address,
                key.port
            ),
        }
    }
}

impl Rules {
    /// The sets that some rule of these is about which is not among those installed.
    pub(crate) fn uncovered(&self, installed: &Self, family: IpFamily) -> BTreeSet<Set> {
        let missing = self.chains.iter().flat_map(|(chain, lines)| {
            let there = installed.chains.get(chain).map_or(&[][..], Vec::as_slice);
            lines.iter().filter(|line| !there.contains(line))
        });
        let missing: Vec<&String> = missing.collect();
        let is_about = |set: &Set| {
            let part = format!("--match-set {} ", set.name(family));
            missing.iter().any(|line| line.contains(&part))
        };
        Set::all().filter(is_about).collect()
    }

    /// Finds the shim in what `iptables-save` (or `ip6tables-save`) printed. What is not ours is passed over.
    pub fn parse(saved: &str) -> Self {
        let mut rules = Self::default();
        let mut table = None;
        for line in saved.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = Table::ALL
                    .into_iter()
                    .find(|table| table.name() == name.trim());
                continue;
            }
            let Some(table) = table else { continue };
            if let Some(declaration) = line.strip_prefix(':') {
                let name = declaration.split_whitespace().next().unwrap_or_default();
                if CHAINS.contains(&(table, name)) {
                    rules.chains.entry((table, name.to_owned())).or_default();
                }
            } else if let Some(appended) = line.strip_prefix("-A ") {
                let name = appended.split_whitespace().next().unwrap_or_default();
                if CHAINS.contains(&(table, name)) {
                    rules
                        .chains
                        .entry((table, name.to_owned()))
                        .or_default()
                        .push(line.to_owned());
                } else if JUMPS
                    .iter()
                    .any(|jump| jump.0 == table && render_jump(jump) == line)
                {
                    rules.jumps.insert((table, line.to_owned()));
                }
            }
        }
        rules
    }

    /// Whether nothing of the shim is there.
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.jumps.is_empty()
    }

    /// The input of `iptables-restore --noflush` that brings the shim from `installed` to this. Chains of others and their
    /// rules are not named in it, and so stay.
    pub fn restore_text(&self, installed: &Self) -> String {
        let mut text = String::new();
        for table in Table::ALL {
            let _ = writeln!(text, "*{}", table.name());
            // Naming a chain empties it, in the same transaction that fills it again.
            for name in CHAINS
                .iter()
                .filter(|chain| chain.0 == table)
                .map(|chain| chain.1)
            {
                let _ = writeln!(text, ":{name} - [0:0]");
            }
            for jump in JUMPS.iter().filter(|jump| jump.0 == table) {
                let jump = (table, render_jump(jump));
                let (is_wanted, is_there) =
                    (self.jumps.contains(&jump), installed.jumps.contains(&jump));
                let verb = match (is_wanted, is_there) {
                    (true, false) => "-I",
                    (false, true) => "-D",
                    _ => continue,
                };
                let _ = writeln!(text, "{}", jump.1.replacen("-A", verb, 1));
            }
            for lines in self
                .chains
                .iter()
                .filter(|((of, _), _)| *of == table)
                .map(|(_, lines)| lines)
            {
                for line in lines {
                    let _ = writeln!(text, "{line}");
                }
            }
            text.push_str("COMMIT\n");
        }
        text
    }

    /// What is different from `installed`, for the operator, a line each.
    pub fn differences(&self, installed: &Self) -> Vec<String> {
        let (wanted, there) = (self.lines(), installed.lines());
        let tell = |verb: &'static str| {
            move |(table, line): &(Table, String)| {
                format!("{verb} in table {}: {line}", table.name())
            }
        };
        let mut differences: Vec<String> = wanted.difference(&there).map(tell("add")).collect();
        differences.extend(there.difference(&wanted).map(tell("remove")));
        if differences.is_empty() && self != installed {
            differences.push("put the rules of a chain in another order".to_owned());
        }
        differences
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
    pub(crate) fn rules(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.chains
            .iter()
            .flat_map(|((table, _), lines)| lines.iter().map(|line| (table.name(), line.as_str())))
    }

    /// How many rules it holds, for reports.
    pub fn len(&self) -> usize {
        self.chains.values().map(Vec::len).sum::<usize>() + self.jumps.len()
    }
}

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
