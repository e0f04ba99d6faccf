//! The shim's rules: iptables chains with rules and jumps, or the content of an nftables table.
//!
//! iptables rules are stored as lines of `iptables-save`, so the proxy compares wanted rules with
//! the kernel's as text.

use std::collections::{BTreeMap, BTreeSet};

use iptables::{Entry, Jump, Rule, RuleLine, entries, restore_text};
use kube_rules::{FROM_FORWARD, FROM_OUTPUT, FROM_POSTROUTING, FROM_PREROUTING};
use proxy::IpFamily;

use crate::native::{Content, TABLE};
use crate::sets::Set;

pub use iptables::Table;

/// iptables tables of the shim (the rules beside IPVS), in the order of writing, because the kernel
/// replaces each table separately. `mangle` is first: packets must have their mark before rules in
/// `nat` let them pass to IPVS.
const TABLES: [Table; 3] = [Table::Mangle, Table::Nat, Table::Filter];

/// Chains of `--ipvs-semantics=exact` that packets pass before IPVS. They are in table mangle,
/// because at hook output, table filter comes after IPVS.
pub(crate) const BEFORE_IPVS: &str = "KUBE-IPVS-BEFORE";
pub(crate) const OUT_BEFORE_IPVS: &str = "KUBE-IPVS-OUT-BEFORE";
pub(crate) const EARLY_CHAINS: [(Table, &str); 2] = [
    (Table::Mangle, BEFORE_IPVS),
    (Table::Mangle, OUT_BEFORE_IPVS),
];

/// All chains that an iptables shim may have.
#[allow(
    clippy::indexing_slicing,
    reason = "the compiler evaluates the constant"
)]
pub(crate) const ALL_CHAINS: [(Table, &str); 13] = {
    let mut all = [EARLY_CHAINS[0]; 13];
    let mut at = 0;
    while at < CHAINS.len() {
        all[at] = CHAINS[at];
        at += 1;
    }
    [all[11], all[12]] = EARLY_CHAINS;
    all
};

/// Chains that upstream has as well, in upstream's order of creation.
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

/// Jumps from built-in chains to our chains; some exist only when needed. The proxy inserts each
/// missing jump at the head of its built-in chain, in the order of this list. So in an empty chain,
/// the last jump of this list becomes the first rule.
pub(crate) const JUMPS: [Jump; 11] = {
    const fn jump(from: &'static str, to: &'static str, comment: &'static str) -> Jump {
        Jump::new(Table::Filter, from, to, comment)
    }
    const HEALTH: &str = "kubernetes health check rules";
    const FIREWALL: &str = "kube-proxy firewall rules";
    const ACCESS: &str = "kubernetes ipvs access filter";
    const EARLY: &str = "kubernetes ipvs exact semantics";
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
        Jump::new(Table::Mangle, "INPUT", BEFORE_IPVS, EARLY),
        Jump::new(Table::Mangle, "OUTPUT", OUT_BEFORE_IPVS, EARLY),
    ]
};

/// The shim's rules for one IP family. For iptables: chains with rules, and jumps, as lines of
/// `iptables-save`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    /// Our iptables chains, each with its rules in order. Each rule begins with `-A`.
    pub(crate) chains: BTreeMap<(Table, String), Vec<String>>,
    /// Jumps from built-in chains to our chains.
    pub(crate) jumps: BTreeSet<(Table, String)>,
    /// Content of our nftables table, or empty if the shim is in iptables.
    native: Content,
}

/// Chains of an iptables shim with their rules in order, and the jumps into these chains.
pub(crate) struct Chains {
    pub(crate) chains: Vec<(Table, &'static str, Vec<Rule>)>,
    pub(crate) jumps: Vec<&'static Jump>,
}

impl Rules {
    /// Renders an iptables shim as lines of `iptables-save`.
    pub(crate) fn in_iptables(of: &Chains) -> Self {
        let chains = of.chains.iter().map(|(table, name, chain)| {
            let lines = chain.iter().map(|rule| rule.line(name)).collect();
            ((*table, (*name).to_owned()), lines)
        });
        let jumps = of.jumps.iter().map(|jump| (jump.table, jump.line()));
        Self {
            chains: chains.collect(),
            jumps: jumps.collect(),
            native: Content::default(),
        }
    }

    /// Returns the rules of an nftables shim with this content.
    pub(crate) fn in_nftables(native: Content) -> Self {
        Self {
            native,
            ..Self::default()
        }
    }

    /// Returns `iptables` or `nftables`, the kernel interface of these rules.
    pub(crate) fn carrier(&self) -> &'static str {
        if self.native.is_empty() {
            "iptables"
        } else {
            "nftables"
        }
    }

    /// Returns the content of our nftables table, which is empty for an iptables shim.
    pub(crate) fn native(&self) -> &Content {
        &self.native
    }

    /// Returns the sets that these rules match, but the installed rules do not match.
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
        Set::every()
            .filter(|set| native.contains(set) || is_about(set))
            .collect()
    }

    /// Parses the shim (the rules beside IPVS) from `iptables-save` or `ip6tables-save` output.
    /// Ignores other programs' rules.
    pub fn parse(saved: &str) -> Self {
        let mut rules = Self::default();
        for (table, entry) in entries(saved) {
            let chain = match entry {
                Entry::Chain(name) => name,
                Entry::Rule(rule) => rule.chain,
            };
            if ALL_CHAINS.contains(&(table, chain)) {
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

    /// Returns true if no chain, rule or jump of the shim exists.
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.jumps.is_empty() && self.native.is_empty()
    }

    /// Renders the `iptables-restore --noflush` input that turns `installed` into these rules.
    /// Other programs' chains stay, because the input does not name them.
    pub fn restore_text(&self, installed: &Self) -> String {
        restore_text(|restore| {
            for table in TABLES {
                // Writes table mangle only if the wanted or the installed shim has chains in it.
                let is_on_demand = table == Table::Mangle;
                if is_on_demand && !self.has_chain_in(table) && !installed.has_chain_in(table) {
                    continue;
                }
                let is_in = |rules: &Self, name: &str| {
                    let mut chains = rules.chains.keys();
                    chains.any(|(of, chain)| *of == table && chain == name)
                };
                restore.begin(table)?;
                // Declaring a chain empties it. The same transaction then adds its rules again.
                let chains = ALL_CHAINS.iter().filter(|chain| chain.0 == table);
                for (_, name) in chains.clone() {
                    if !is_on_demand || is_in(self, name) || is_in(installed, name) {
                        restore.declare(name)?;
                    }
                }
                for jump in JUMPS.iter().filter(|jump| jump.table == table) {
                    let jump = (table, jump.line());
                    match (self.jumps.contains(&jump), installed.jumps.contains(&jump)) {
                        (true, false) => restore.insert(&jump.1)?,
                        (false, true) => restore.delete(&jump.1)?,
                        _ => {}
                    }
                }
                let own = self.chains.iter().filter(|((of, _), _)| *of == table);
                for line in own.flat_map(|(_, lines)| lines) {
                    restore.append(line)?;
                }
                for (_, name) in chains.filter(|_| is_on_demand) {
                    if !is_in(self, name) && is_in(installed, name) {
                        restore.remove(name)?;
                    }
                }
                restore.commit()?;
            }
            Ok(())
        })
    }

    fn has_chain_in(&self, table: Table) -> bool {
        self.chains.keys().any(|(of, _)| *of == table)
    }

    /// Lists for operators, one per line, the writes that turn `installed` into these rules.
    pub fn differences(&self, installed: &Self) -> Vec<String> {
        self.compare(installed, &TO_DO)
    }

    /// Lists, one per line, what another program has changed since `before`.
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
        let tell =
            |verb: &'static str| move |line: &String| format!("{verb} in nftables {TABLE}: {line}");
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

    /// Returns the iptables rules, each with its table.
    pub fn rules(&self) -> impl Iterator<Item = (Table, &str)> {
        self.chains
            .iter()
            .flat_map(|((table, _), lines)| lines.iter().map(|line| (*table, line.as_str())))
    }

    /// Returns the number of rules in iptables or nftables, including jumps.
    pub fn len(&self) -> usize {
        let chains = self.chains.values().map(Vec::len);
        chains.sum::<usize>() + self.jumps.len() + self.native.len()
    }
}

/// Verbs for a list of differences, which describes planned writes or another program's changes.
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
    use proxy::LocalDetector;

    use super::*;
    use crate::config::{Config, MarkBits, Semantics, ShimStyle};
    use crate::shim::Shim;

    fn shim(family: IpFamily, filled: &[Set]) -> Shim {
        Shim {
            family,
            filled: filled.iter().copied().collect(),
            forbidden_to_node: BTreeSet::new(),
            ranges: crate::ranges::Ranges::default(),
        }
    }

    #[test]
    fn each_match_and_target_of_the_shim_has_a_known_kernel_module() {
        for shim in [ShimStyle::Upstream, ShimStyle::Lean] {
            for family in IpFamily::ALL {
                let shim = Config { shim, ..exact() };
                let filled = Set::every().collect();
                let forbidden_to_node = BTreeSet::new();
                let rules = Shim {
                    family,
                    filled,
                    forbidden_to_node,
                    ranges: crate::ranges::Ranges::default(),
                }
                .rules(&shim);
                let text = rules.restore_text(&Rules::default());
                let words: Vec<&str> = text.split_whitespace().collect();
                let of = |option| {
                    let pairs = words.windows(2);
                    pairs.filter_map(move |pair| (pair[0] == option).then_some(pair[1]))
                };
                // Skips names that need no kernel module of our list: built-in targets, the bridge
                // match `physdev`, and our chains.
                let known = |name: &&str| {
                    !["ACCEPT", "DROP", "RETURN", "physdev"].contains(name)
                        && !name.starts_with("KUBE-")
                };
                let mut seen = 0;
                for name in of("-m").chain(of("-j")).filter(known) {
                    // Writes the target's name as a match, because xt_mark and xt_set provide both
                    // a match and a target.
                    let name = name.replace("MARK", "mark").replace("SET", "set");
                    let alias = format!("ipt_{name}");
                    let mut loaded = iptables::MODULES.iter().chain(&crate::MODULES);
                    assert!(loaded.any(|module| *module == alias), "{alias}");
                    seen += 1;
                }
                assert!(seen > 10, "{text}");
            }
        }
    }

    #[test]
    fn the_restore_text_of_a_shim_parses_to_the_same_rules() {
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

    fn exact() -> Config {
        Config {
            semantics: Semantics::Exact(MarkBits::DEFAULT),
            detector: LocalDetector::SourceNet("10.244.0.0/16".parse().unwrap()),
            ..Config::default()
        }
    }

    #[test]
    fn with_exact_semantics_table_mangle_has_no_empty_chains() {
        let all: Vec<_> = Set::every().collect();
        for style in [ShimStyle::Upstream, ShimStyle::Lean] {
            let shim_of = |filled: &[Set], of: &Config| {
                let config = Config {
                    shim: style,
                    ..of.clone()
                };
                shim(IpFamily::V4, filled).rules(&config)
            };
            let (full, none) = (shim_of(&all, &exact()), shim_of(&[], &exact()));
            let upstream = shim_of(&all, &Config::default());
            let mangle = |from: &Rules, to: &Rules| {
                let text = to.restore_text(from);
                let part = text.split_once("*mangle\n").map(|(_, part)| part);
                let part = part.and_then(|part| part.split_once("COMMIT\n"));
                part.map(|(lines, _)| lines.to_owned()).unwrap_or_default()
            };
            assert_eq!(mangle(&none, &none) + &mangle(&upstream, &upstream), "");
            let comment = |text| match style {
                ShimStyle::Lean => String::new(),
                _ => format!("-m comment --comment \"{text}\" "),
            };
            let [unserved, outside, mark] = [Set::Unserved, Set::UnservedOutside, Set::LocalMark]
                .map(|set| comment(set.comment()));
            let new = "-m conntrack --ctstate NEW";
            let jump = "-m comment --comment \"kubernetes ipvs exact semantics\" -j";
            let written = format!(
                ":KUBE-IPVS-BEFORE - [0:0]\n:KUBE-IPVS-OUT-BEFORE - [0:0]\n\
                 -I INPUT {jump} KUBE-IPVS-BEFORE\n-I OUTPUT {jump} KUBE-IPVS-OUT-BEFORE\n\
                 -A KUBE-IPVS-BEFORE {new} {unserved}-m set --match-set KUBE-UNSERVED dst,dst -j DROP\n\
                 -A KUBE-IPVS-BEFORE -i lo -j RETURN\n\
                 -A KUBE-IPVS-BEFORE ! -s 10.244.0.0/16 {new} {outside}-m set --match-set KUBE-UNSERVED-OUTSIDE dst,dst -j DROP\n\
                 -A KUBE-IPVS-BEFORE ! -s 10.244.0.0/16 {new} {mark}-j SET --map-set KUBE-LOCAL-MARK dst,dst --map-mark\n\
                 -A KUBE-IPVS-OUT-BEFORE -m set --match-set KUBE-LOAD-BALANCER-FW dst,dst \
                 -m set ! --match-set KUBE-LOAD-BALANCER-SOURCE-CIDR dst,dst,src \
                 -m set ! --match-set KUBE-LOAD-BALANCER-SOURCE-IP dst,dst,src -j DROP\n\
                 -A KUBE-IPVS-OUT-BEFORE {new} {unserved}-m set --match-set KUBE-UNSERVED dst,dst -j DROP\n"
            );
            assert_eq!(mangle(&none, &full), written);
            let text = full.restore_text(&Rules::default());
            assert_eq!(Rules::parse(&text.replace("-I ", "-A ")), full);
            let removed = format!(
                ":KUBE-IPVS-BEFORE - [0:0]\n:KUBE-IPVS-OUT-BEFORE - [0:0]\n\
                 -D INPUT {jump} KUBE-IPVS-BEFORE\n-D OUTPUT {jump} KUBE-IPVS-OUT-BEFORE\n\
                 -X KUBE-IPVS-BEFORE\n-X KUBE-IPVS-OUT-BEFORE\n"
            );
            for without in [&none, &upstream] {
                assert_eq!(mangle(&full, without), removed);
            }
        }
    }

    #[test]
    fn a_missing_rule_that_uses_the_set_of_marks_is_detected() {
        let family = IpFamily::V6;
        let rules = |filled: &[Set]| shim(family, filled).rules(&exact());
        let few = rules(&[Set::ClusterIp]);
        let more = rules(&[Set::ClusterIp, Set::LocalMark]);
        assert_eq!(more.uncovered(&few, family), [Set::LocalMark].into());
    }

    #[test]
    fn parsing_rules_ignores_the_chains_of_other_programs() {
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
    fn differences_between_rules_are_reported_line_by_line() {
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
    fn the_local_traffic_detector_decides_which_sources_are_masqueraded() {
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
