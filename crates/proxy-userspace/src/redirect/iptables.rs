//! Redirects in iptables: rules in upstream's chains of the table nat.
//!
//! ```text
//!   PREROUTING ─▶ KUBE-PORTALS-CONTAINER    -d 10.96.0.1 -p tcp --dport 80 -j DNAT to this node
//!              └▶ KUBE-NODEPORT-CONTAINER   the same for NodePorts
//!   OUTPUT     ─▶ KUBE-PORTALS-HOST         the same -j DNAT to localhost
//!              └▶ KUBE-NODEPORT-HOST        the same for NodePorts
//! ```
//!
//! In PREROUTING, rules translate destinations to the node's own address. The target `REDIRECT`
//! would use the first address of the packet's interface instead. Interfaces of pods often have no
//! address, and `REDIRECT` would then drop the packet.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};

use footprint::{Finder, Footprint, ReferencedChain, ServedBy};
use hashbrown::HashMap;
use ipnet::IpNet;
use iptables::{
    Entry, Iptables, Jump, Match, Reader, Restore, Rule, RuleLine, Table, Target, restore_text,
};
use kube_rules::{LOCALHOST, local};
use proxy::{IpFamily, LocalDetector, Protocol, Unreadable};

use super::Redirect;
use crate::config::Config;
use crate::part_state::RedirectState;
use crate::plan::{Base, Extent, NodePortsAt, RedirectTarget, Redirects, Refusal, RefusalMeaning};
use crate::port::Portal;

/// Table that contains all chains of this mode.
const NAT: Table = Table::Nat;

/// Chain for packets to service addresses that arrive on an interface. The next constant is the
/// corresponding chain for NodePorts.
const CONTAINER: &str = "KUBE-PORTALS-CONTAINER";
const NODE_PORT_CONTAINER: &str = "KUBE-NODEPORT-CONTAINER";
/// Chain for packets to service addresses that this node sends. The next constant is the
/// corresponding chain for NodePorts.
const HOST: &str = "KUBE-PORTALS-HOST";
const NODE_PORT_HOST: &str = "KUBE-NODEPORT-HOST";

const CHAINS: [&str; 4] = [CONTAINER, HOST, NODE_PORT_CONTAINER, NODE_PORT_HOST];

const FIRST: &str = "handle ClusterIPs; NOTE: this must be before the NodePort rules";
const LAST: &str = "handle service NodePorts; NOTE: this must be the last rule in the chain";

/// Footprint of userspace mode: the kernel entries by which this program recognizes it.
///
/// Source: upstream's `pkg/proxy/userspace/proxier.go` of Kubernetes 1.25. This program does not
/// write upstream's rules in the table filter.
pub const FOOTPRINT: Footprint = Footprint {
    chains: &[
        (NAT, CONTAINER),
        (NAT, HOST),
        (NAT, NODE_PORT_CONTAINER),
        (NAT, NODE_PORT_HOST),
        (Table::Filter, "KUBE-NODEPORT-NON-LOCAL"),
    ],
    jumps: &[
        Jump::new(NAT, "PREROUTING", CONTAINER, FIRST),
        Jump::new(NAT, "OUTPUT", HOST, FIRST),
        Jump::new(NAT, "PREROUTING", NODE_PORT_CONTAINER, LAST),
        Jump::new(NAT, "OUTPUT", NODE_PORT_HOST, LAST),
    ],
    nft_tables: &[super::nftables::TABLE],
    older_comments: &["Ensure that non-local NodePort traffic can flow"],
    served_by: ServedBy::Process,
    origins: &super::origins::ORIGINS,
    ..Footprint::none("userspace")
};

/// Access to redirects in iptables, through the programs `iptables-save` and `iptables-restore`.
pub(crate) struct IptablesRedirect {
    family: IpFamily,
    iptables: Iptables,
    /// Jumps from built-in chains to this mode's chains, as last read or written.
    jumps: BTreeSet<String>,
}

impl IptablesRedirect {
    /// Creates access to redirects for one IP family. `iptables` runs the programs.
    pub(crate) fn new(family: IpFamily, iptables: Iptables) -> Self {
        Self {
            family,
            iptables,
            jumps: BTreeSet::new(),
        }
    }
}

impl Redirect for IptablesRedirect {
    fn read(&mut self, config: &Config) -> Result<RedirectState, Unreadable> {
        let mut saved = SaveReader::new(self.family, config);
        let mut line = |line: &str| saved.line(line);
        let read = self.iptables.save_lines(self.family, None, &mut line);
        read.map_err(|error| Unreadable::new(crate::kinds::Part::Rules.name(), error))?;
        let (held, jumps) = saved.finish();
        self.jumps = jumps;
        Ok(held)
    }

    fn write(&mut self, plan: &Redirects) -> Result<(), Refusal> {
        let text = restore_text(|restore| write(self.family, plan, &self.jumps, restore));
        let written = self.iptables.restore(self.family, &text);
        written.map_err(|error| Refusal {
            blame: if error.kind().is_general() {
                RefusalMeaning::None
            } else {
                RefusalMeaning::One
            },
            reason: error.to_string(),
        })?;
        if let Some(base) = &plan.base {
            self.jumps = jumps(self.family, base).into_iter().collect();
        }
        Ok(())
    }
}

/// Writes a plan as input of `iptables-restore`. `installed` are the current jumps in the kernel,
/// which a new base replaces.
fn write(
    family: IpFamily,
    plan: &Redirects,
    installed: &BTreeSet<String>,
    restore: &mut Restore<'_>,
) -> io::Result<()> {
    restore.begin(NAT)?;
    // Declares the chains, because `iptables-restore` empties a declared chain. A plan that
    // replaces all redirects contains all rules.
    if plan.extent == Extent::Whole {
        for chain in CHAINS {
            restore.declare(chain)?;
        }
    }
    if let Some(base) = &plan.base {
        for line in installed {
            restore.delete(line)?;
        }
        let (first, last): (Vec<String>, Vec<String>) = jumps(family, base)
            .into_iter()
            .partition(|line| line.contains(FIRST));
        for line in first {
            restore.insert(&line)?;
        }
        for line in last {
            restore.append(&line)?;
        }
    }
    for change in &plan.changes {
        let lines = |aim: &Option<RedirectTarget>| {
            let aim = aim.as_ref();
            aim.map_or_else(Vec::new, |aim| {
                lines(family, &change.portal, aim, &plan.detector)
            })
        };
        let (before, after) = (lines(&change.before), lines(&change.after));
        if plan.extent == Extent::Changes {
            for line in before {
                restore.delete(&line)?;
            }
        }
        for line in after {
            restore.append(&line)?;
        }
    }
    restore.commit()?;
    if !plan.leftovers.is_empty() {
        plan.leftovers.write(restore)?;
    }
    Ok(())
}

/// Returns the rules in PREROUTING and OUTPUT that jump to this mode's chains.
fn jumps(family: IpFamily, base: &Base) -> Vec<String> {
    let jump = |from: &str, to: &'static str, mut matches: Vec<Match>| {
        // Exempts packets of the relay itself from the redirects.
        let own = base.own_mark.filter(|_| from == "OUTPUT");
        matches.extend(own.map(Match::NotMark));
        Rule::new(matches, to).line(from)
    };
    let first = |from: &str, to: &'static str| jump(from, to, vec![Match::comment(FIRST)]);
    let mut lines = vec![first("PREROUTING", CONTAINER), first("OUTPUT", HOST)];
    let to_node_ports = |matches: Vec<Match>| {
        [
            ("PREROUTING", NODE_PORT_CONTAINER),
            ("OUTPUT", NODE_PORT_HOST),
        ]
        .map(|(from, to)| jump(from, to, matches.clone()))
    };
    let comment = || Match::comment(LAST);
    match &base.node_ports {
        NodePortsAt::Everywhere => {
            lines.extend(to_node_ports(vec![Match::DestinationLocal, comment()]));
        }
        NodePortsAt::NotAtLocalhost => {
            let localhost = match family {
                IpFamily::V4 => LOCALHOST,
                IpFamily::V6 => family.localhost().into(),
            };
            let but = Match::NotDestination(localhost);
            lines.extend(to_node_ports(vec![but, Match::DestinationLocal, comment()]));
        }
        NodePortsAt::These(addresses) => {
            for address in addresses {
                let to = Match::Destination((*address).into());
                lines.extend(to_node_ports(vec![to, comment()]));
            }
        }
    }
    lines
}

/// Returns the rules of one portal's redirect, in the order of writing.
fn lines(
    family: IpFamily,
    portal: &Portal,
    aim: &RedirectTarget,
    detector: &LocalDetector,
) -> Vec<String> {
    let (container, host) = chains_of(portal);
    let matches = || {
        let address = portal
            .address
            .map(|address| Match::Destination(address.into()));
        address.into_iter().chain([
            Match::Protocol(portal.protocol),
            Match::comment(aim.name.to_string()),
            Match::Port(portal.protocol, portal.port),
        ])
    };
    let to = |address: IpAddr, port| Target::Dnat(SocketAddr::new(address, port));
    let mut lines = Vec::new();
    if let Some(via) = aim.via {
        let pods = local(detector).filter(|_| aim.pods != aim.outside);
        if let Some(pods) = pods {
            let rule = Rule::new([pods].into_iter().chain(matches()), to(via, aim.pods));
            lines.push(rule.line(container));
        }
        lines.push(Rule::new(matches(), to(via, aim.outside)).line(container));
    }
    let localhost = family.localhost();
    lines.push(Rule::new(matches(), to(localhost, aim.node)).line(host));
    lines
}

fn chains_of(portal: &Portal) -> (&'static str, &'static str) {
    match portal.address {
        Some(_) => (CONTAINER, HOST),
        None => (NODE_PORT_CONTAINER, NODE_PORT_HOST),
    }
}

/// Parser that finds this mode's redirects in the output of `iptables-save`, line by line.
pub(crate) struct SaveReader<'a> {
    family: IpFamily,
    config: &'a Config,
    lines: Reader,
    others: Finder,
    chains: BTreeSet<String>,
    jumps: Vec<String>,
    redirects: HashMap<Portal, RedirectRules>,
    is_ordered: bool,
}

/// Rules of one redirect that were read from the kernel.
#[derive(Default)]
struct RedirectRules {
    name: String,
    via: Option<IpAddr>,
    outside: Option<u16>,
    pods: Option<u16>,
    node: Option<u16>,
    /// Rules of the redirect, in the kernel's order.
    lines: Vec<String>,
}

impl<'a> SaveReader<'a> {
    pub(crate) fn new(family: IpFamily, config: &'a Config) -> Self {
        Self {
            family,
            config,
            lines: Reader::default(),
            others: Finder::beside(&FOOTPRINT, config.modes, ReferencedChain::Delete),
            chains: BTreeSet::new(),
            jumps: Vec::new(),
            redirects: HashMap::new(),
            is_ordered: true,
        }
    }

    pub(crate) fn line(&mut self, line: &str) {
        match self.lines.read(line) {
            Some((NAT, Entry::Chain(name))) if CHAINS.contains(&name) => {
                self.chains.insert(name.to_owned());
            }
            Some((NAT, Entry::Rule(rule))) if CHAINS.contains(&rule.chain) => self.rule(rule),
            Some((NAT, Entry::Rule(rule))) if is_way(rule) => {
                self.jumps.push(rule.text.to_owned());
            }
            Some((table, entry)) => self.others.entry(table, entry),
            None => {}
        }
    }

    fn rule(&mut self, rule: RuleLine<'_>) {
        // A rule that belongs to no redirect was not written by this mode, so the mode must write
        // its chains again.
        let known = parse(rule).is_some_and(|parsed| self.take(rule, &parsed));
        self.is_ordered &= known;
    }

    fn take(&mut self, rule: RuleLine<'_>, parsed: &ParsedRule) -> bool {
        let rules = self.redirects.entry(parsed.portal).or_default();
        if rules.lines.is_empty() {
            rules.name.clone_from(&parsed.name);
        }
        rules.lines.push(rule.text.to_owned());
        let (container, host) = chains_of(&parsed.portal);
        let (address, port) = (parsed.to.ip(), parsed.to.port());
        let place = if rule.chain == host {
            &mut rules.node
        } else if rule.chain == container && parsed.is_of_pods {
            &mut rules.pods
        } else if rule.chain == container {
            &mut rules.outside
        } else {
            return false;
        };
        if rule.chain == container {
            rules.via = Some(address);
        }
        place.replace(port).is_none()
    }

    pub(crate) fn finish(mut self) -> (RedirectState, BTreeSet<String>) {
        let mut redirects = HashMap::with_capacity(self.redirects.len());
        for (portal, rules) in std::mem::take(&mut self.redirects) {
            let node = rules.node.unwrap_or_default();
            // If no rule redirects packets from other hosts, no packet uses the port `outside`, so
            // any open port is suitable.
            let outside = rules.outside.unwrap_or(node);
            let aim = RedirectTarget {
                name: rules.name.into(),
                via: rules.via,
                outside,
                pods: rules.pods.unwrap_or(outside),
                node,
            };
            // Compares the kernel's rules with those that this mode would write, in the order of
            // each chain.
            let mut own = lines(self.family, &portal, &aim, &self.config.detector);
            let mut found = rules.lines;
            let chain = |line: &String| line.contains("-HOST ");
            own.sort_by_key(chain);
            found.sort_by_key(chain);
            self.is_ordered &= own == found;
            redirects.insert(portal, aim);
        }
        let base = self.find_base();
        let base = base.filter(|_| self.is_ordered && self.chains.len() == CHAINS.len());
        let held = RedirectState {
            base,
            redirects,
            leftovers: self.others.finish(),
        };
        (held, self.jumps.into_iter().collect())
    }

    /// Returns the addresses for NodePorts and the mark for which this mode would write exactly the
    /// jumps that the kernel has. Returns `None` if no addresses fit.
    fn find_base(&self) -> Option<Base> {
        let addresses = self.jumps.iter().filter_map(|line| {
            let rule = RuleLine::parse(line)?;
            let mut options = rule.options();
            options.find(|option| option == "-d" || option == "!")?;
            let net: IpNet = options.next()?.parse().ok()?;
            (rule.chain == "OUTPUT").then(|| net.addr())
        });
        let these = NodePortsAt::These(addresses.collect());
        let all = [NodePortsAt::Everywhere, NodePortsAt::NotAtLocalhost, these];
        let mut found = self.jumps.clone();
        found.sort();
        all.into_iter()
            .map(|node_ports| Base {
                node_ports,
                own_mark: self.config.own_mark,
            })
            .find(|base| {
                let mut own = jumps(self.family, base);
                own.sort();
                own == found
            })
    }
}

/// A parsed DNAT rule of this mode.
struct ParsedRule {
    portal: Portal,
    name: String,
    is_of_pods: bool,
    to: SocketAddr,
}

/// True if a rule in a built-in chain jumps to one of this mode's chains.
fn is_way(rule: RuleLine<'_>) -> bool {
    let target = rule.target();
    target.is_some_and(|target| CHAINS.contains(&&*target))
}

fn parse(rule: RuleLine<'_>) -> Option<ParsedRule> {
    let (mut address, mut protocol, mut port, mut to) = (None, None, None, None);
    let mut is_of_pods = false;
    let mut options = rule.options().skip(2);
    while let Some(option) = options.next() {
        match &*option {
            "-d" => {
                let net: IpNet = options.next()?.parse().ok()?;
                let is_host = net.prefix_len() == net.max_prefix_len();
                address = Some(is_host.then(|| net.addr())?);
            }
            "-p" => protocol = Some(Protocol::from_lower(&options.next()?)?),
            "--dport" => port = Some(options.next()?.parse().ok()?),
            "--to-destination" => to = Some(options.next()?.parse().ok()?),
            "-s" | "-i" => {
                is_of_pods = true;
                options.next()?;
            }
            "!" => return None,
            _ => {}
        }
    }
    Some(ParsedRule {
        portal: Portal {
            address,
            protocol: protocol?,
            port: port?,
        },
        name: rule.comment()?.into_owned(),
        is_of_pods,
        to: to?,
    })
}

#[cfg(test)]
mod tests;
