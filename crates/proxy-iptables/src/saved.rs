//! Reads the output of `iptables-save` line by line, and stores the rules of this mode.
//!
//! It stores the chains of each Service port as digests, and the rules in shared chains by address
//! and port.

use std::collections::BTreeSet;
use std::net::IpAddr;

use footprint::{Finder, ReferencedChain};
use hashbrown::HashMap;
use ipnet::IpNet;
use iptables::{Entry, RuleLine, Table};
use kube_rules::LOCALHOST;
use proxy::Protocol;

use crate::base::{self, Base};
use crate::chain::{Chain, Shared};
use crate::config::Config;
use crate::port::{Content, OWN, Slot};

pub use footprint::Leftovers;

/// Rules of this mode in the kernel, in one family.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Saved {
    /// Chains of Service ports, as digests.
    pub chains: HashMap<Chain, Content>,
    /// Rules in shared chains by address and port, as lines that end with a line feed.
    pub slots: HashMap<Slot, String>,
    /// Rules of this mode that do not depend on Services.
    pub base: Base,
    /// Shared chains that have a rule without an address and port, or a rule at a wrong position.
    pub disordered: BTreeSet<Shared>,
    /// Leftovers of other modes.
    pub leftovers: Leftovers,
}

/// A reader of the output of `iptables-save`, line by line.
#[derive(Debug)]
pub struct Reader {
    /// Rules of this mode to look for in built-in chains and other programs' chains.
    guests: BTreeSet<(Table, String)>,
    lines: iptables::Reader,
    others: Finder,
    saved: Saved,
}

impl Reader {
    /// Creates a reader that looks for rules of this mode, and for leftovers of the modes in
    /// `config`.
    pub fn new(config: &Config) -> Self {
        Self {
            guests: base::guests(config).collect(),
            lines: iptables::Reader::default(),
            // Plans to delete leftover chains even if a rule of another program jumps to them. The
            // kernel refuses such a deletion, so the mode reports the chain and retries.
            others: Finder::beside(&base::FOOTPRINT, config.modes, ReferencedChain::Delete),
            saved: Saved::default(),
        }
    }

    /// Returns this mode's rules and the leftovers in the lines read so far.
    pub fn finish(self) -> Saved {
        Saved {
            leftovers: self.others.finish(),
            ..self.saved
        }
    }

    /// Reads a line, which has no line feed.
    pub fn line(&mut self, line: &str) {
        match self.lines.read(line) {
            Some((table, Entry::Chain(name))) => self.declaration(table, name),
            Some((table, Entry::Rule(rule))) => self.rule(table, rule),
            None => {}
        }
    }

    fn declaration(&mut self, table: Table, name: &str) {
        if let Some(name) = base::find(table, name) {
            self.saved.base.chains.entry((table, name)).or_default();
        } else if table == OWN
            && let Some(chain) = Chain::parse(name)
        {
            self.saved.chains.entry(chain).or_default();
        } else {
            self.others.chain(table, name);
        }
    }

    fn rule(&mut self, table: Table, rule: RuleLine<'_>) {
        if let Some(shared) = Shared::find(table, rule.chain) {
            self.shared_rule(shared, rule);
        } else if table == OWN
            && let Some(chain) = Chain::parse(rule.chain)
        {
            let content = self.saved.chains.entry(chain).or_default();
            content.add(rule.text);
        } else if let Some(name) =
            base::find(table, rule.chain).filter(|name| *name != base::KUBELET)
        {
            let lines = self.saved.base.chains.entry((table, name)).or_default();
            lines.push(rule.text.to_owned());
        } else {
            let guest = (table, rule.text.to_owned());
            if self.guests.contains(&guest) {
                self.saved.base.guests.insert(guest);
            } else {
                self.others.rule(table, rule);
            }
        }
    }

    fn shared_rule(&mut self, chain: Shared, rule: RuleLine<'_>) {
        let key = (chain.table(), chain.name());
        let tail = self.saved.base.chains.entry(key).or_default();
        if chain == Shared::NatServices && is_way_to_node_ports(rule) {
            tail.push(rule.text.to_owned());
            return;
        }
        match slot(chain, rule) {
            Some(slot) if tail.is_empty() => {
                let lines = self.saved.slots.entry(slot).or_default();
                lines.push_str(rule.text);
                lines.push('\n');
            }
            _ => {
                self.saved.disordered.insert(chain);
            }
        }
    }
}

/// Reports whether a rule of chain `KUBE-SERVICES` in table nat is the jump to `KUBE-NODEPORTS`.
fn is_way_to_node_ports(rule: RuleLine<'_>) -> bool {
    rule.text.ends_with(" -j KUBE-NODEPORTS") && !rule.options().any(|word| word == "--dport")
}

/// Returns the slot (chain, address and port) of a rule, or `None` if the rule has no address and
/// port.
fn slot(chain: Shared, rule: RuleLine<'_>) -> Option<Slot> {
    let (mut address, mut protocol, mut port) = (None, None, None);
    let mut options = rule.options().skip(2);
    while let Some(option) = options.next() {
        match &*option {
            "-d" => {
                let net: IpNet = options.next()?.parse().ok()?;
                if net != LOCALHOST {
                    address = Some(host(net)?);
                }
            }
            "-p" => protocol = Some(Protocol::from_lower(&options.next()?)?),
            "--dport" => port = Some(options.next()?.parse().ok()?),
            // The rule matches only some of the packets to its address and port, so it belongs to
            // no slot.
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
