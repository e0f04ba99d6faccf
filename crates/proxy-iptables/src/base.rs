//! What is there whatever the Services are: the shared chains, the jumps into them, and the rules that masquerade and forward.
//!
//! Source: docs/iptables-mode.md, sections 3, 6, 8 and 9.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net};
use proxy::IpFamily;

use crate::chain::{Shared, Table};
use crate::config::Config;
use crate::nfacct::Counter;
use crate::port::MARK_MASQ;
use crate::rule::{Match, Rule};

/// 127.0.0.0/8
pub(crate) const LOCALHOST: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8));

/// An empty chain in each table: where it is gone, somebody has flushed the table.
pub(crate) const CANARY: &str = "KUBE-PROXY-CANARY";
/// The kubelet's, too: it is made, and a rule is put into it, but it is never emptied.
pub(crate) const KUBELET: &str = "KUBE-FIREWALL";
const POSTROUTING: &str = "KUBE-POSTROUTING";
const FORWARD: &str = "KUBE-FORWARD";

/// The chains that are there whatever the Services are.
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

/// One of the chains above, by its constant name.
pub(crate) fn find(table: Table, name: &str) -> Option<&'static str> {
    let mut chains = CHAINS.iter();
    let found = chains.find(|chain| chain.0 == table && chain.1 == name)?;
    Some(found.1)
}

/// A jump from a built-in chain.
struct Jump {
    table: Table,
    from: &'static str,
    to: &'static str,
    comment: Option<&'static str>,
    /// Only for the first packet of a connection.
    is_new: bool,
}

/// Each missing one is put at the head of its chain, in this order, so that in an empty table the last one comes first.
const JUMPS: [Jump; 14] = {
    const fn jump(
        table: Table,
        from: &'static str,
        to: &'static str,
        comment: &'static str,
        is_new: bool,
    ) -> Jump {
        Jump {
            table,
            from,
            to,
            comment: Some(comment),
            is_new,
        }
    }
    const fn kubelet(from: &'static str) -> Jump {
        Jump {
            table: Table::Filter,
            from,
            to: KUBELET,
            comment: None,
            is_new: false,
        }
    }
    const EXTERNAL: &str = "kubernetes externally-visible service portals";
    const PORTALS: &str = "kubernetes service portals";
    const FIREWALL: &str = "kubernetes load balancer firewall";
    [
        jump(
            Table::Filter,
            "INPUT",
            "KUBE-EXTERNAL-SERVICES",
            EXTERNAL,
            true,
        ),
        jump(
            Table::Filter,
            "FORWARD",
            "KUBE-EXTERNAL-SERVICES",
            EXTERNAL,
            true,
        ),
        jump(
            Table::Filter,
            "INPUT",
            "KUBE-NODEPORTS",
            "kubernetes health check service ports",
            false,
        ),
        jump(Table::Filter, "FORWARD", "KUBE-SERVICES", PORTALS, true),
        jump(Table::Filter, "OUTPUT", "KUBE-SERVICES", PORTALS, true),
        jump(
            Table::Filter,
            "FORWARD",
            FORWARD,
            "kubernetes forwarding rules",
            false,
        ),
        jump(
            Table::Filter,
            "INPUT",
            "KUBE-PROXY-FIREWALL",
            FIREWALL,
            true,
        ),
        jump(
            Table::Filter,
            "OUTPUT",
            "KUBE-PROXY-FIREWALL",
            FIREWALL,
            true,
        ),
        jump(
            Table::Filter,
            "FORWARD",
            "KUBE-PROXY-FIREWALL",
            FIREWALL,
            true,
        ),
        jump(Table::Nat, "OUTPUT", "KUBE-SERVICES", PORTALS, false),
        jump(Table::Nat, "PREROUTING", "KUBE-SERVICES", PORTALS, false),
        jump(
            Table::Nat,
            "POSTROUTING",
            POSTROUTING,
            "kubernetes postrouting rules",
            false,
        ),
        kubelet("INPUT"),
        kubelet("OUTPUT"),
    ]
};

impl Jump {
    fn line(&self) -> String {
        let state = self.is_new.then_some(Match::State("--ctstate NEW"));
        let comment = self.comment.map(|text| Match::Comment(text.to_owned()));
        Rule::new(state.into_iter().chain(comment), self.to).line(self.from)
    }
}

/// The rule that the kubelet also writes: with `route_localnet`, neighbours could reach what listens on localhost (k/k#90259).
fn martian_rule() -> String {
    let matches = [
        Match::NotSource(LOCALHOST),
        Match::Destination(LOCALHOST),
        Match::Comment("block incoming localnet connections".to_owned()),
        Match::State("! --ctstate RELATED,ESTABLISHED,DNAT"),
    ];
    Rule::new(matches, "DROP").line(KUBELET)
}

/// Rules that stand beside those of others, in chains that are not ours.
pub(crate) fn guests(config: &Config) -> impl Iterator<Item = (Table, String)> {
    let martian = config
        .localhost_node_ports
        .then(|| (Table::Filter, martian_rule()));
    let jumps = JUMPS.iter().map(|jump| (jump.table, jump.line()));
    jumps.chain(martian)
}

/// The base in one family: chains with their rules, and the rules in chains of others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Base {
    /// Of a shared chain: what comes behind the rules of the Services.
    pub(crate) chains: BTreeMap<(Table, &'static str), Vec<String>>,
    pub(crate) guests: BTreeSet<(Table, String)>,
}

impl Base {
    /// The base that is wanted. `node_ports`: the addresses that serve NodePorts, if it is not all of this node.
    pub(crate) fn new(family: IpFamily, config: &Config, node_ports: Option<&[IpAddr]>) -> Self {
        let chain = |(table, name): (Table, &'static str)| {
            let rules = match (table, name) {
                (Table::Nat, "KUBE-SERVICES") => to_node_ports(family, config, node_ports),
                (Table::Nat, MARK_MASQ) => vec![Rule::new(
                    [],
                    set_mark(config.masquerade_mark, config.masquerade_mark),
                )],
                (Table::Nat, POSTROUTING) => postrouting(config),
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

    /// Serves NodePorts where those `installed` do.
    pub(crate) fn keep_node_ports(&mut self, installed: &Self) {
        let chain = Shared::NatServices;
        let key = (chain.table(), chain.name());
        self.chains.insert(key, installed.tail(chain).to_vec());
    }

    /// The chains that differ from those `installed`.
    pub(crate) fn differing<'a>(
        &'a self,
        installed: &'a Self,
    ) -> impl Iterator<Item = (Table, &'static str, &'a [String])> {
        self.chains
            .iter()
            .filter(|(key, lines)| installed.chains.get(*key) != Some(*lines))
            .map(|((table, name), lines)| (*table, *name, lines.as_slice()))
    }

    /// The commands that add the rules in chains of others that are not `installed`, in order.
    pub(crate) fn missing_guests(&self, installed: &Self) -> Vec<(Table, String)> {
        let wanted = JUMPS.iter().map(|jump| (jump.table, jump.line()));
        let jumps = wanted
            .filter(|jump| !installed.guests.contains(jump))
            .map(|(table, line)| (table, line.replacen("-A", "-I", 1)));
        let others = self.guests.difference(&installed.guests);
        let others = others
            .filter(|(_, line)| JUMPS.iter().all(|jump| jump.line() != *line))
            .cloned();
        jumps.chain(others).collect()
    }

    /// What of a shared chain comes behind the rules of the Services.
    pub(crate) fn tail(&self, chain: Shared) -> &[String] {
        let tail = self.chains.get(&(chain.table(), chain.name()));
        tail.map_or(&[], Vec::as_slice)
    }

    /// How many rules it has in a table, without those in chains of others.
    pub(crate) fn rules(&self, table: Table) -> usize {
        let chains = self.chains.iter().filter(|((of, _), _)| *of == table);
        chains.map(|(_, lines)| lines.len()).sum()
    }

    /// Whether the table's canary is there.
    pub(crate) fn has_canary(&self, table: Table) -> bool {
        self.chains.contains_key(&(table, CANARY))
    }
}

/// The end of nat `KUBE-SERVICES`.
fn to_node_ports(family: IpFamily, config: &Config, addresses: Option<&[IpAddr]>) -> Vec<Rule> {
    let last = "kubernetes service nodeports; NOTE: this must be the last rule in this chain";
    let comment = || Match::Comment(last.to_owned());
    let target = Shared::NatNodePorts.name();
    let Some(addresses) = addresses else {
        // Localhost's NodePorts need route_localnet, which IPv6 has not.
        let but = match family {
            IpFamily::V6 => Some(Match::NotDestination(
                IpAddr::V6(Ipv6Addr::LOCALHOST).into(),
            )),
            IpFamily::V4 => {
                (!config.localhost_node_ports).then_some(Match::NotDestination(LOCALHOST))
            }
        };
        let here = Match::AddressType("--dst-type LOCAL");
        let matches = but.into_iter().chain([comment(), here]);
        return vec![Rule::new(matches, target)];
    };
    let rule = |address: &IpAddr| {
        let destination = Match::Destination((*address).into());
        Rule::new([destination, comment()], target)
    };
    addresses.iter().map(rule).collect()
}

fn set_mark(value: u32, mask: u32) -> String {
    // `--or-mark M` and `--xor-mark M` as iptables-save prints them.
    format!("MARK --set-xmark {value:#x}/{mask:#x}")
}

/// Masquerades what is marked, once.
fn postrouting(config: &Config) -> Vec<Rule> {
    let mark = config.masquerade_mark;
    let masquerade = if config.random_fully {
        "MASQUERADE --random-fully"
    } else {
        "MASQUERADE"
    };
    let why = Match::Comment("kubernetes service traffic requiring SNAT".to_owned());
    vec![
        Rule::new([Match::NotMark(mark)], "RETURN"),
        Rule::new([], set_mark(mark, 0)),
        Rule::new([why], masquerade),
    ]
}

/// Lets service traffic through a firewall that forwards nothing else.
fn forward(config: &Config) -> Vec<Rule> {
    let comment = |text: &str| Match::Comment(text.to_owned());
    // What is INVALID is not translated back, and its receiver would reset the connection (k/k#74839).
    let invalid = (!config.lets_invalid_pass).then(|| {
        let counted = config
            .has_counters
            .then_some(Match::Counted(Counter::InvalidDropped));
        let invalid = Match::State("--ctstate INVALID");
        Rule::new([invalid].into_iter().chain(counted), "DROP")
    });
    let marked = [
        comment("kubernetes forwarding rules"),
        Match::Mark(config.masquerade_mark),
    ];
    let known = [
        comment("kubernetes forwarding conntrack rule"),
        Match::State("--ctstate RELATED,ESTABLISHED"),
    ];
    invalid
        .into_iter()
        .chain([Rule::new(marked, "ACCEPT"), Rule::new(known, "ACCEPT")])
        .collect()
}
