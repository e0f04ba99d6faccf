//! The base: this mode's rules that do not depend on Services.
//!
//! * the chains that all Services share;
//! * the jumps to these chains;
//! * the rules that masquerade and forward packets.
//!
//! Source: docs/design/iptables-mode.md, sections 3, 6, 8 and 9.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use footprint::Footprint;
use iptables::{FlowState, Jump, Match, Packets, Rule, Table, Target};
use kube_rules::{
    FORWARD, FROM_FORWARD, FROM_OUTPUT, FROM_POSTROUTING, FROM_PREROUTING, LOCALHOST, MARK_MASQ,
    POSTROUTING,
};
use proxy::IpFamily;

use crate::chain::{Purpose, Shared};
use crate::config::Config;
use crate::nfacct::Counter;

/// Name of an empty chain in each table. If the chain is missing, the mode concludes that another
/// program has flushed the table.
pub(crate) const CANARY: &str = "KUBE-PROXY-CANARY";
/// Chain of the kubelet. This mode creates the chain if necessary and adds a rule, but never
/// empties the chain.
pub(crate) const KUBELET: &str = "KUBE-FIREWALL";

/// Chains that this mode creates even if there is no Service. Some of them also contain rules of
/// Services.
const CHAINS: [(Table, &str); 13] = [
    (Table::Mangle, CANARY),
    (Table::Filter, CANARY),
    (Table::Filter, "KUBE-EXTERNAL-SERVICES"),
    (Table::Filter, KUBELET),
    (Table::Filter, FORWARD),
    (Table::Filter, "KUBE-NODEPORTS"),
    (Table::Filter, "KUBE-PROXY-FIREWALL"),
    (Table::Filter, "KUBE-SERVICES"),
    (Table::Nat, CANARY),
    (Table::Nat, MARK_MASQ),
    (Table::Nat, "KUBE-NODEPORTS"),
    (Table::Nat, POSTROUTING),
    (Table::Nat, "KUBE-SERVICES"),
];

/// Name prefixes of the chains of Service ports.
const PREFIXES: [(Table, &str); 6] = [
    (Table::Nat, Purpose::Cluster.prefix()),
    (Table::Nat, Purpose::Local.prefix()),
    (Table::Nat, Purpose::Endpoint.prefix()),
    (Table::Nat, Purpose::Firewall.prefix()),
    (Table::Nat, Purpose::External.prefix()),
    // Prefix that Kubernetes used until 1.24. KUBE-SVL- and KUBE-EXT- replaced it.
    (Table::Nat, "KUBE-XLB-"),
];

/// Footprint of this mode: all chains and jumps that it creates in the kernel.
pub const FOOTPRINT: Footprint = Footprint {
    chains: &CHAINS,
    prefixes: &PREFIXES,
    jumps: &JUMPS,
    older_comments: &["kubernetes ", "kube-proxy "],
    origins: &crate::origins::ORIGINS,
    ..Footprint::none("iptables")
};

/// Returns the constant name of a chain in [`CHAINS`], or `None` for any other chain.
pub(crate) fn find(table: Table, name: &str) -> Option<&'static str> {
    let mut chains = CHAINS.iter();
    let found = chains.find(|chain| chain.0 == table && chain.1 == name)?;
    Some(found.1)
}

/// Jumps to the chains in [`CHAINS`]. A sync inserts each missing jump at the head of its chain, in
/// the order of this list. In an empty chain, the last jump of this list therefore becomes the
/// first rule.
const JUMPS: [Jump; 14] = {
    const fn jump(from: &'static str, to: &'static str, comment: &'static str) -> Jump {
        Jump::new(Table::Filter, from, to, comment)
    }
    const fn kubelet(from: &'static str) -> Jump {
        Jump {
            table: Table::Filter,
            from,
            to: KUBELET,
            comment: None,
            packets: Packets::All,
        }
    }
    const EXTERNAL: &str = "kubernetes externally-visible service portals";
    const PORTALS: &str = "kubernetes service portals";
    const FIREWALL: &str = "kubernetes load balancer firewall";
    const HEALTH: &str = "kubernetes health check service ports";
    [
        jump("INPUT", "KUBE-EXTERNAL-SERVICES", EXTERNAL).of_first_packets(),
        jump("FORWARD", "KUBE-EXTERNAL-SERVICES", EXTERNAL).of_first_packets(),
        jump("INPUT", "KUBE-NODEPORTS", HEALTH),
        jump("FORWARD", "KUBE-SERVICES", PORTALS).of_first_packets(),
        jump("OUTPUT", "KUBE-SERVICES", PORTALS).of_first_packets(),
        FROM_FORWARD,
        jump("INPUT", "KUBE-PROXY-FIREWALL", FIREWALL).of_first_packets(),
        jump("OUTPUT", "KUBE-PROXY-FIREWALL", FIREWALL).of_first_packets(),
        jump("FORWARD", "KUBE-PROXY-FIREWALL", FIREWALL).of_first_packets(),
        FROM_OUTPUT,
        FROM_PREROUTING,
        FROM_POSTROUTING,
        kubelet("INPUT"),
        kubelet("OUTPUT"),
    ]
};

/// Returns the rule that drops packets from other hosts to localhost. The kubelet writes the same
/// rule.
///
/// The mode sets `route_localnet` for NodePorts on localhost. Without this rule, other hosts in the
/// network could then reach programs that listen on localhost (kubernetes/kubernetes#90259).
fn martian_rule() -> String {
    let matches = [
        Match::NotSource(LOCALHOST),
        Match::Destination(LOCALHOST),
        Match::comment("block incoming localnet connections"),
        Match::NotState(&[FlowState::Related, FlowState::Established, FlowState::Dnat]),
    ];
    Rule::new(matches, Target::Drop).line(KUBELET)
}

/// Returns the rules that this mode adds to chains of other programs, and to built-in chains.
pub(crate) fn guests(config: &Config) -> impl Iterator<Item = (Table, String)> {
    let martian = config
        .localhost_node_ports
        .then(|| (Table::Filter, martian_rule()));
    let jumps = JUMPS.iter().map(|jump| (jump.table, jump.line()));
    jumps.chain(martian)
}

/// The base in one IP family: chains with rules that do not depend on Services, and this mode's
/// rules in built-in chains and other programs' chains.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Base {
    /// Rules that do not depend on Services, by chain. In a shared chain, these rules follow the
    /// rules of Services.
    pub(crate) chains: BTreeMap<(Table, &'static str), Vec<String>>,
    pub(crate) guests: BTreeSet<(Table, String)>,
}

impl Base {
    /// Creates the wanted base. `node_ports` contains the addresses that serve NodePorts, or is
    /// `None` if all addresses of the node do.
    pub(crate) fn new(family: IpFamily, config: &Config, node_ports: Option<&[IpAddr]>) -> Self {
        let chain = |(table, name): (Table, &'static str)| {
            let rules = match (table, name) {
                (Table::Nat, "KUBE-SERVICES") => to_node_ports(family, config, node_ports),
                (Table::Nat, MARK_MASQ) => {
                    vec![Rule::new([], Target::set_mark(config.masquerade_mark))]
                }
                (Table::Nat, POSTROUTING) => {
                    kube_rules::masquerade(config.masquerade_mark, config.source_port).into()
                }
                (Table::Filter, FORWARD) => forward(config),
                _ => Vec::new(),
            };
            let lines = rules.iter().map(|rule| rule.line(name)).collect();
            ((table, name), lines)
        };
        Self {
            chains: CHAINS.into_iter().map(chain).collect(),
            guests: guests(config).collect(),
        }
    }

    /// Replaces the wanted jumps for NodePort addresses by the jumps that the kernel has
    /// (`installed`).
    pub(crate) fn keep_node_ports(&mut self, installed: &Self) {
        let chain = Shared::NatServices;
        let key = (chain.table(), chain.name());
        self.chains.insert(key, installed.tail(chain).to_vec());
    }

    /// Returns the chains of this base that `installed` lacks, or has with other rules.
    pub(crate) fn differing<'a>(
        &'a self,
        installed: &'a Self,
    ) -> impl Iterator<Item = (Table, &'static str, &'a [String])> {
        self.chains
            .iter()
            .filter(|(key, lines)| installed.chains.get(*key) != Some(*lines))
            .map(|((table, name), lines)| (*table, *name, lines.as_slice()))
    }

    /// Returns the edits that add the rules that `installed` lacks to built-in chains and other
    /// programs' chains, in order.
    pub(crate) fn missing_guests(&self, installed: &Self) -> Vec<(Table, Edit)> {
        let wanted = JUMPS.iter().map(|jump| (jump.table, jump.line()));
        let jumps = wanted
            .filter(|jump| !installed.guests.contains(jump))
            .map(|(table, line)| (table, Edit::Insert(line)));
        let others = self.guests.difference(&installed.guests);
        let others = others
            .filter(|(_, line)| JUMPS.iter().all(|jump| jump.line() != *line))
            .map(|(table, line)| (*table, Edit::Append(line.clone())));
        jumps.chain(others).collect()
    }

    /// Returns the base rules at the end of a shared chain, after the rules of Services.
    pub(crate) fn tail(&self, chain: Shared) -> &[String] {
        let tail = self.chains.get(&(chain.table(), chain.name()));
        tail.map_or(&[], Vec::as_slice)
    }

    /// Returns the number of base rules in a table, without this mode's rules in other chains.
    pub(crate) fn rules(&self, table: Table) -> usize {
        let chains = self.chains.iter().filter(|((of, _), _)| *of == table);
        chains.map(|(_, lines)| lines.len()).sum()
    }

    /// Reports whether the table still has the canary chain. A flush of the table deletes this
    /// chain.
    pub(crate) fn has_canary(&self, table: Table) -> bool {
        self.chains.contains_key(&(table, CANARY))
    }
}

/// Addition of one rule to a built-in chain or another program's chain, which keeps its other
/// rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Edit {
    /// Adds the rule at the head of the chain.
    Insert(String),
    /// Adds the rule at the end of the chain.
    Append(String),
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Insert(line) | Self::Append(line) => f.write_str(line),
        }
    }
}

/// Returns the rules at the end of chain `KUBE-SERVICES` in table nat, which jump to
/// `KUBE-NODEPORTS`.
fn to_node_ports(family: IpFamily, config: &Config, addresses: Option<&[IpAddr]>) -> Vec<Rule> {
    let last = "kubernetes service nodeports; NOTE: this must be the last rule in this chain";
    let comment = || Match::comment(last);
    let target = Shared::NatNodePorts.name();
    let Some(addresses) = addresses else {
        // Excludes localhost if the kernel cannot serve NodePorts there. IPv4 needs the setting
        // route_localnet (`localhost_node_ports`). IPv6 has no such setting.
        let but = match family {
            IpFamily::V6 => Some(Match::NotDestination(
                IpAddr::V6(Ipv6Addr::LOCALHOST).into(),
            )),
            IpFamily::V4 => {
                (!config.localhost_node_ports).then_some(Match::NotDestination(LOCALHOST))
            }
        };
        let matches = but.into_iter().chain([comment(), Match::DestinationLocal]);
        return vec![Rule::new(matches, target)];
    };
    let rule = |address: &IpAddr| {
        let destination = Match::Destination((*address).into());
        Rule::new([destination, comment()], target)
    };
    addresses.iter().map(rule).collect()
}

/// Returns the rules of chain `KUBE-FORWARD`. They accept forwarded traffic of Services, even on a
/// node whose firewall drops forwarded traffic.
fn forward(config: &Config) -> Vec<Rule> {
    // The kernel does not translate the addresses of INVALID packets back. A forwarded INVALID
    // packet would make its receiver reset the connection (kubernetes/kubernetes#74839).
    let invalid = (!config.lets_invalid_pass).then(|| {
        let counter = Counter::InvalidDropped.name();
        let counted = config.has_counters.then_some(Match::Counted(counter));
        let invalid = Match::State(&[FlowState::Invalid]);
        Rule::new([invalid].into_iter().chain(counted), Target::Drop)
    });
    let rules = kube_rules::forward(config.masquerade_mark);
    invalid.into_iter().chain(rules).collect()
}
