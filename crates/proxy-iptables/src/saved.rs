//! What `iptables-save` prints, read line by line: ours by name, the rest passed over.
//!
//! Of the chains of Service ports only a digest is kept; rules in shared chains are kept by the address and port that they are
//! for, which they say themselves.

use std::collections::BTreeSet;
use std::net::IpAddr;

use hashbrown::HashMap;
use ipnet::IpNet;
use proxy::Protocol;

use crate::base::{self, Base, LOCALHOST};
use crate::chain::{Chain, Shared, Table};
use crate::config::Config;
use crate::port::{Content, OWN, Slot};

/// What the kernel holds of this mode, in one family.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Saved {
    /// The chains of Service ports.
    pub chains: HashMap<Chain, Content>,
    /// The rules in shared chains, as lines that end with a line feed each.
    pub slots: HashMap<Slot, String>,
    /// The rest.
    pub base: Base,
    /// Shared chains that are not as this mode leaves them: with rules that are for no address and port, or in a wrong place.
    pub disordered: BTreeSet<Shared>,
    /// What IPVS mode has left beside.
    pub leftovers: Leftovers,
}

/// What IPVS mode has left that this mode does not use: upstream's `pkg/proxy/ipvs/proxier.go`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leftovers {
    /// Chains.
    pub(crate) chains: BTreeSet<(Table, &'static str)>,
    /// Jumps into them, and those into shared chains that this mode does not make, from `-A` on.
    pub(crate) jumps: Vec<(Table, String)>,
}

impl Leftovers {
    const CHAINS: [(Table, &'static str); 6] = [
        (Table::Nat, "KUBE-NODE-PORT"),
        (Table::Nat, "KUBE-LOAD-BALANCER"),
        (Table::Filter, "KUBE-NODE-PORT"),
        (Table::Filter, "KUBE-SOURCE-RANGES-FIREWALL"),
        (Table::Filter, "KUBE-IPVS-FILTER"),
        (Table::Filter, "KUBE-IPVS-OUT-FILTER"),
    ];
    const COMMENTS: [&'static str; 3] = [
        "\"kubernetes health check rules\"",
        "\"kubernetes ipvs access filter\"",
        "\"kube-proxy firewall rules\"",
    ];

    fn find(table: Table, name: &str) -> Option<(Table, &'static str)> {
        let mut chains = Self::CHAINS.into_iter();
        chains.find(|chain| chain.0 == table && chain.1 == name)
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty() && self.jumps.is_empty()
    }
}

/// Reads the lines of `iptables-save`, one after the other.
#[derive(Debug)]
pub struct Reader {
    /// Rules of ours in chains of others.
    guests: BTreeSet<(Table, String)>,
    table: Option<Table>,
    saved: Saved,
}

impl Reader {
    /// A reader that has seen nothing.
    pub fn new(config: &Config) -> Self {
        Self {
            guests: base::guests(config).collect(),
            table: None,
            saved: Saved::default(),
        }
    }

    /// What was read.
    pub fn finish(self) -> Saved {
        self.saved
    }

    /// Takes in a line, without its line feed.
    pub fn line(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix('*') {
            let mut tables = Table::ALL.into_iter();
            self.table = tables.find(|table| table.name() == name.trim());
            return;
        }
        let Some(table) = self.table else { return };
        if let Some(declared) = line.strip_prefix(':') {
            self.declaration(table, declared.split(' ').next().unwrap_or_default());
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let chain = rule.split(' ').next().unwrap_or_default();
            self.rule(table, chain, line);
        }
    }

    fn declaration(&mut self, table: Table, name: &str) {
        if let Some(name) = base::find(table, name) {
            self.saved.base.chains.entry((table, name)).or_default();
        } else if let Some(leftover) = Leftovers::find(table, name) {
            self.saved.leftovers.chains.insert(leftover);
        } else if table == OWN
            && let Some(chain) = Chain::parse(name)
        {
            self.saved.chains.entry(chain).or_default();
        }
    }

    fn rule(&mut self, table: Table, name: &str, line: &str) {
        if let Some(shared) = Shared::find(table, name) {
            self.shared_rule(shared, line);
        } else if table == OWN
            && let Some(chain) = Chain::parse(name)
        {
            self.saved.chains.entry(chain).or_default().add(line);
        } else if name == base::KUBELET || !name.starts_with("KUBE-") {
            let rule = (table, line.to_owned());
            if self.guests.contains(&rule) {
                self.saved.base.guests.insert(rule);
            } else if Leftovers::COMMENTS.iter().any(|known| line.contains(known)) {
                self.saved.leftovers.jumps.push(rule);
            }
        } else if let Some(name) = base::find(table, name) {
            let lines = self.saved.base.chains.entry((table, name)).or_default();
            lines.push(line.to_owned());
        }
    }

    fn shared_rule(&mut self, chain: Shared, line: &str) {
        let key = (chain.table(), chain.name());
        let tail = self.saved.base.chains.entry(key).or_default();
        if chain == Shared::NatServices && is_way_to_node_ports(line) {
            tail.push(line.to_owned());
            return;
        }
        match slot(chain, line) {
            Some(slot) if tail.is_empty() => {
                let lines = self.saved.slots.entry(slot).or_default();
                lines.push_str(line);
                lines.push('\n');
            }
            _ => {
                self.saved.disordered.insert(chain);
            }
        }
    }
}

/// Whether a rule of nat `KUBE-SERVICES` leads to the NodePorts.
fn is_way_to_node_ports(line: &str) -> bool {
    line.ends_with(" -j KUBE-NODEPORTS") && !words(line).any(|word| word == "--dport")
}

/// The slot that a rule is for, if it says one.
fn slot(chain: Shared, line: &str) -> Option<Slot> {
    let (mut address, mut protocol, mut port) = (None, None, None);
    let mut words = words(line).skip(2);
    while let Some(word) = words.next() {
        match word {
            "-d" => {
                let net: IpNet = words.next()?.parse().ok()?;
                if net != LOCALHOST {
                    address = Some(host(net)?);
                }
            }
            "-p" => protocol = Some(named(words.next()?)?),
            "--dport" => port = Some(words.next()?.parse().ok()?),
            // Not for everybody, or the other way round.
            "-s" | "-i" | "!" => return None,
            _ => {}
        }
    }
    Some(Slot {
        chain,
        address,
        protocol: protocol?,
        port: port?,
    })
}

fn host(net: IpNet) -> Option<IpAddr> {
    (net.prefix_len() == net.max_prefix_len()).then(|| net.addr())
}

fn named(name: &str) -> Option<Protocol> {
    let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    all.into_iter().find(|protocol| protocol.lower() == name)
}

/// The words of a line; one in quotation marks is one word, with them.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(' ');
        if rest.is_empty() {
            return None;
        }
        let (mut is_quoted, mut is_escaped) = (false, false);
        let end = rest.find(|character| {
            match character {
                _ if is_escaped => is_escaped = false,
                '\\' => is_escaped = true,
                '"' => is_quoted = !is_quoted,
                ' ' => return !is_quoted,
                _ => {}
            }
            false
        });
        let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
        rest = after;
        Some(word)
    })
}
