//! What a kube-proxy has left in iptables, and how to remove it: of this mode, and of upstream's iptables mode.
//!
//! All of it for `--cleanup`, and for the backend of iptables that is not used; beside the shim only what the shim does not
//! share with the iptables mode: that serves until the shim is there, then goes.
//!
//! The names of the chains say whose they are. A jump into one of them is ours if it stands in a built-in chain and has one of
//! kube-proxy's comments; any other one is somebody else's rule, so it stays, and the chain that it needs stays with it, empty.
//!
//! Not removed: `KUBE-FIREWALL`, `KUBE-MARK-DROP`, `KUBE-KUBELET-CANARY` and `KUBE-IPTABLES-HINT`, which are the kubelet's, even
//! where the iptables mode shares the first one. Upstream leaves them too.
//!
//! Source: upstream's `pkg/proxy/iptables/cleanup.go`, `pkg/proxy/ipvs/cleanup.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use iptables::Backend;

use crate::rules::{self, Rules};

/// By table: the chains of both modes, older names included.
const CHAINS: [(&str, &[&str]); 3] = [
    ("mangle", &["KUBE-PROXY-CANARY"]),
    (
        "nat",
        &[
            "KUBE-SERVICES",
            "KUBE-POSTROUTING",
            "KUBE-MARK-MASQ",
            "KUBE-NODE-PORT",
            "KUBE-LOAD-BALANCER",
            "KUBE-NODEPORTS",
            "KUBE-PROXY-CANARY",
        ],
    ),
    (
        "filter",
        &[
            "KUBE-FORWARD",
            "KUBE-NODE-PORT",
            "KUBE-PROXY-FIREWALL",
            "KUBE-SOURCE-RANGES-FIREWALL",
            "KUBE-IPVS-FILTER",
            "KUBE-IPVS-OUT-FILTER",
            "KUBE-SERVICES",
            "KUBE-EXTERNAL-SERVICES",
            "KUBE-NODEPORTS",
            "KUBE-PROXY-CANARY",
        ],
    ),
];
/// The iptables mode's chains for Services and endpoints, in table nat.
const PREFIXES: [&str; 6] = [
    "KUBE-SVC-",
    "KUBE-SVL-",
    "KUBE-SEP-",
    "KUBE-FW-",
    "KUBE-EXT-",
    "KUBE-XLB-",
];
const BUILT_IN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
/// How the comments of all jumps into our chains begin.
const COMMENTS: [&str; 2] = ["kubernetes ", "kube-proxy "];

/// Where another mode, or a run with the other backend of iptables, has left something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// Beside the shim, in the same backend.
    Beside(Backend),
    /// In the backend that is not used.
    Other(Backend),
    /// In nftables: the table `kube-proxy` of upstream's nftables mode. Its [`Leftovers`] are empty: it goes as a whole.
    Nftables,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Beside(backend) | Self::Other(backend) => write!(f, "iptables ({backend})"),
            Self::Nftables => f.write_str("nftables"),
        }
    }
}

/// What a kube-proxy has left in iptables, of one family and backend.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leftovers {
    tables: BTreeMap<&'static str, Chains>,
}

/// The same of one table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Chains {
    names: BTreeSet<String>,
    /// The jumps into them, from `-A` on.
    jumps: Vec<String>,
    /// Rules of others that jump into one of them.
    holds: BTreeMap<String, String>,
}

/// Which chains and jumps of a kube-proxy are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    All,
    BesideTheShim,
}

impl Scope {
    fn includes(self, table: &str, chain: &str) -> bool {
        is_known(table, chain) && (self == Self::All || !rules::is_chain_of_the_shim(table, chain))
    }
}

/// Whether a chain is a kube-proxy's, in either mode.
fn is_known(table: &str, chain: &str) -> bool {
    CHAINS
        .iter()
        .any(|(known, names)| *known == table && names.contains(&chain))
        || (table == "nat" && PREFIXES.iter().any(|prefix| chain.starts_with(prefix)))
}

impl Leftovers {
    /// Finds all of them in what `iptables-save` printed.
    pub(crate) fn all(saved: &str) -> Self {
        Self::find(saved, Scope::All)
    }

    /// Finds those that the shim has no use for: of the iptables mode, and of older versions. A chain that is empty already and
    /// stays because others jump to it is none.
    pub fn beside_the_shim(saved: &str) -> Self {
        let mut found = Self::find(saved, Scope::BesideTheShim);
        for chains in found.tables.values_mut() {
            let is_empty = |chain: &str| !saved.contains(&format!("\n-A {chain} "));
            chains
                .holds
                .retain(|chain, _| !(is_empty(chain) && chains.names.remove(chain)));
        }
        found
            .tables
            .retain(|_, chains| !(chains.names.is_empty() && chains.jumps.is_empty()));
        found
    }

    fn find(saved: &str, scope: Scope) -> Self {
        let mut tables: BTreeMap<_, Chains> = BTreeMap::new();
        let mut table = None;
        for line in saved.lines() {
            if let Some(name) = line.strip_prefix('*') {
                let name = name.trim();
                table = CHAINS
                    .iter()
                    .find(|known| known.0 == name)
                    .map(|known| known.0);
                continue;
            }
            let Some(table) = table else {
                continue;
            };
            if let Some(declared) = line.strip_prefix(':') {
                let name = declared.split(' ').next().unwrap_or_default();
                if scope.includes(table, name) {
                    let names = &mut tables.entry(table).or_default().names;
                    names.insert(name.to_owned());
                }
            } else if let Some(rule) = Rule::parse(line) {
                let Some(target) = rule.target.as_ref().filter(|to| is_known(table, to)) else {
                    continue;
                };
                let is_shared = !scope.includes(table, target);
                if is_known(table, &rule.chain)
                    || (is_shared && rules::is_jump_of_the_shim(table, line))
                {
                    continue;
                }
                if rule.is_jump_of_ours() {
                    let jumps = &mut tables.entry(table).or_default().jumps;
                    jumps.push(line.to_owned());
                } else if !is_shared {
                    let holds = &mut tables.entry(table).or_default().holds;
                    holds.insert(target.clone(), line.to_owned());
                }
            }
        }
        Self { tables }
    }

    /// Whether rules of the shim's chains, as they are, lead into these: then another mode serves.
    pub fn serve(&self, installed: &Rules) -> bool {
        installed.rules().any(|(table, line)| {
            let Some(chains) = self.tables.get(table) else {
                return false;
            };
            Rule::parse(line)
                .and_then(|rule| rule.target)
                .is_some_and(|target| chains.names.contains(&target))
        })
    }

    /// Whether there is nothing to remove.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// How many chains and jumps go.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let chains = |of: &Chains| of.names.len().saturating_sub(of.holds.len());
        (
            self.tables.values().map(chains).sum(),
            self.tables.values().map(|of| of.jumps.len()).sum(),
        )
    }

    /// The chains that stay, each in a sentence.
    pub(crate) fn held(&self) -> impl Iterator<Item = String> {
        self.tables.iter().flat_map(|(table, chains)| {
            chains.holds.iter().map(move |(chain, rule)| {
                format!(
                    "chain {chain} of table {table} is empty but stays, because a rule of somebody else jumps to it: `{rule}`; \
                     remove that rule, then run this again"
                )
            })
        })
    }

    /// The input of `iptables-restore --noflush` that removes them. Whatever is not named in it stays.
    pub(crate) fn restore_text(&self) -> String {
        let mut text = String::new();
        for (table, chains) in &self.tables {
            let _ = writeln!(text, "*{table}");
            // Naming a chain empties it. None refers to another one then.
            for name in &chains.names {
                let _ = writeln!(text, ":{name} - [0:0]");
            }
            for jump in &chains.jumps {
                let _ = writeln!(text, "{}", jump.replacen("-A", "-D", 1));
            }
            for name in &chains.names {
                if !chains.holds.contains_key(name) {
                    let _ = writeln!(text, "-X {name}");
                }
            }
            text.push_str("COMMIT\n");
        }
        text
    }
}

/// The parts of a rule that say whose it is.
struct Rule {
    chain: String,
    target: Option<String>,
    comment: Option<String>,
}

impl Rule {
    fn parse(line: &str) -> Option<Self> {
        let words = words(line);
        let value = |options: &[&str]| {
            let mut words = words.iter();
            words.find(|word| options.contains(&word.as_str()))?;
            words.next().cloned()
        };
        // A comment may say `-j`, but is one word.
        Some(Self {
            chain: value(&["-A"])?,
            target: value(&["-j", "-g"]),
            comment: value(&["--comment"]),
        })
    }

    fn is_jump_of_ours(&self) -> bool {
        let begins = |comment: &str| COMMENTS.iter().any(|known| comment.starts_with(known));
        BUILT_IN.contains(&self.chain.as_str()) && self.comment.as_deref().is_some_and(begins)
    }
}

/// Splits a line as iptables-restore does: `"` groups, `\` takes the next character as it is.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut is_quoted) = (Vec::new(), None::<String>, false);
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            '\\' => word.get_or_insert_default().extend(characters.next()),
            ' ' if !is_quoted => words.extend(word.take()),
            character => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proxy::IpFamily;

    use super::*;
    use crate::config::Config;
    use crate::rules::{Rules, Shim};
    use crate::sets::Set;

    const UPSTREAM: &str = include_str!("../tests/iptables-mode/iptables-save");

    /// What is left of `saved` when all is done that the text says, which holds only commands that take effect.
    fn after(saved: &str, text: &str) -> String {
        let table_of = |wanted: &str| {
            let mut table = "";
            text.lines()
                .filter(|line| {
                    if let Some(name) = line.strip_prefix('*') {
                        table = name;
                    }
                    table == wanted
                })
                .collect::<Vec<_>>()
        };
        let (mut left, mut commands) = (String::new(), Vec::new());
        for line in saved.lines() {
            if let Some(name) = line.strip_prefix('*') {
                commands = table_of(name);
            }
            let says = |command: String| commands.contains(&command.as_str());
            let first = line.split(' ').nth(usize::from(line.starts_with("-A")));
            let chain = first.unwrap_or_default().trim_start_matches(':');
            let is_gone = if line.starts_with(':') {
                says(format!("-X {chain}"))
            } else {
                line.starts_with("-A")
                    && (says(format!(":{chain} - [0:0]")) || says(line.replacen("-A", "-D", 1)))
            };
            if !is_gone {
                left.push_str(line);
                left.push('\n');
            }
        }
        left
    }

    fn left_of(saved: &str) -> String {
        after(saved, &Leftovers::all(saved).restore_text())
    }

    #[test]
    fn of_the_iptables_mode_only_the_kubelets_chain_stays() {
        let left = left_of(UPSTREAM);
        let kube: Vec<_> = left.lines().filter(|line| line.contains("KUBE")).collect();
        assert!(
            kube.len() == 4 && kube.iter().all(|line| line.contains("KUBE-FIREWALL")),
            "{left}"
        );
        assert_eq!(left.matches("COMMIT").count(), 3);
        let found = Leftovers::all(UPSTREAM);
        assert_eq!((found.counts(), found.held().count()), ((18, 12), 0));
        assert!(Leftovers::all(&left).is_empty());
    }

    #[test]
    fn of_the_shim_nothing_stays() {
        for family in IpFamily::ALL {
            let shim = Shim {
                family,
                filled: Set::all().collect(),
                forbidden_to_node: BTreeSet::new(),
            };
            let rules = shim.rules(&Config::default());
            let saved = rules.restore_text(&Rules::default()).replace("-I ", "-A ");
            assert_eq!(Leftovers::all(&saved).counts(), (11, 9));
            assert_eq!(left_of(&saved), "*nat\nCOMMIT\n*filter\nCOMMIT\n");
        }
    }

    #[test]
    fn beside_the_shim_goes_what_it_does_not_share() {
        let shim = Shim {
            family: IpFamily::V4,
            filled: Set::all().collect(),
            forbidden_to_node: BTreeSet::new(),
        };
        let rules = shim.rules(&Config::default());
        let installed = Rules::parse(UPSTREAM);
        let found = Leftovers::beside_the_shim(UPSTREAM);
        assert!(found.serve(&installed) && !found.serve(&rules));
        let left = after(UPSTREAM, &found.restore_text());
        let chains: Vec<_> = left
            .lines()
            .filter(|line| line.starts_with(":KUBE"))
            .collect();
        let kept = [
            ":KUBE-FIREWALL ",
            ":KUBE-FORWARD ",
            ":KUBE-PROXY-FIREWALL ",
            ":KUBE-MARK-MASQ ",
            ":KUBE-POSTROUTING ",
            ":KUBE-SERVICES ",
        ];
        assert!(
            chains.len() == kept.len()
                && chains
                    .iter()
                    .zip(kept)
                    .all(|(chain, kept)| chain.starts_with(kept)),
            "{chains:?}"
        );
        // Of the jumps only those that the shim has too, and the kubelet's.
        let jumps = left.lines().filter(|line| {
            BUILT_IN
                .iter()
                .any(|chain| line.starts_with(&format!("-A {chain} ")))
        });
        let of_the_shim = |line: &str| {
            ["nat", "filter"]
                .iter()
                .any(|table| rules::is_jump_of_the_shim(table, line))
        };
        assert!(jumps.clone().count() > 4);
        assert!(
            jumps
                .clone()
                .all(|line| of_the_shim(line) || line.contains("KUBE-FIREWALL")),
            "{left}"
        );
        assert!(Leftovers::beside_the_shim(&left).is_empty());
        let of_the_shim = rules.restore_text(&Rules::default()).replace("-I ", "-A ");
        assert!(Leftovers::beside_the_shim(&of_the_shim).is_empty());
    }

    #[test]
    fn beside_the_shim_a_chain_that_others_hold_is_emptied_once() {
        let saved = "*nat\n:CNI-X - [0:0]\n:KUBE-NODEPORTS - [0:0]\n-A CNI-X -j KUBE-NODEPORTS\n\
                     -A CNI-X -j KUBE-MARK-MASQ\n-A KUBE-NODEPORTS -j RETURN\nCOMMIT\n";
        let found = Leftovers::beside_the_shim(saved);
        assert_eq!(
            found.restore_text(),
            "*nat\n:KUBE-NODEPORTS - [0:0]\nCOMMIT\n"
        );
        let emptied = saved.replace("-A KUBE-NODEPORTS -j RETURN\n", "");
        assert!(Leftovers::beside_the_shim(&emptied).is_empty());
    }

    #[test]
    fn what_is_of_others_stays() {
        let foreign = "*mangle\n:KUBE-KUBELET-CANARY - [0:0]\n:KUBE-SERVICES - [0:0]\n-A OUTPUT -j KUBE-SERVICES\nCOMMIT\n\
                       *raw\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n\
                       *filter\n:KUBE-POD-FW-X - [0:0]\n:KUBE-SVC-X - [0:0]\n:KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-POD-FW-X\n\
                       -A INPUT -m comment --comment \"kubernetes -j KUBE-FORWARD\" -j ACCEPT\nCOMMIT\n";
        let found = Leftovers::all(foreign);
        assert!(found.is_empty(), "{found:?}");
        assert_eq!(found.restore_text(), "");
    }

    #[test]
    fn a_chain_that_others_use_stays_empty() {
        let saved = "*nat\n:CNI-X - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n-A POSTROUTING -j KUBE-MARK-MASQ\n\
                     -A CNI-X -s 10.0.0.1/32 -g KUBE-MARK-MASQ\n-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\nCOMMIT\n";
        let found = Leftovers::all(saved);
        assert_eq!(
            found.restore_text(),
            "*nat\n:KUBE-MARK-MASQ - [0:0]\nCOMMIT\n"
        );
        let held: Vec<_> = found.held().collect();
        assert!(
            matches!(&held[..], [one] if one.contains("-A CNI-X -s 10.0.0.1/32 -g KUBE-MARK-MASQ")),
            "{held:?}"
        );
        assert_eq!(found.counts(), (0, 0));
    }

    #[test]
    fn words_are_iptables_words() {
        assert_eq!(
            words(r#"-A X --comment "a \"b\" -j c" "" -j D"#),
            ["-A", "X", "--comment", r#"a "b" -j c"#, "", "-j", "D"]
        );
    }

    proptest! {
        #[test]
        fn foreign_text_never_panics(saved in "(\\*nat\n|:KUBE-SVC-A - \\[0:0\\]\n|-A [A-Z \"\\\\-]*\n|.*\n){0,8}") {
            let found = Leftovers::all(&saved);
            let _ = (found.restore_text(), found.held().count(), found.counts());
        }
    }
}
