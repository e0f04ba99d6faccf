//! Measures how much time each part of a mode's rules adds to the first packet of a flow. Covers
//! nftables mode and the three shims (rules beside IPVS) of IPVS mode: upstream's iptables rules,
//! the lean iptables rules, and nftables.
//!
//! ```text
//!  step 0: routed to the pod   1: + virtual servers   2: + their addresses   …   n: all rules
//!  in parallel: nodes that a daemon has programmed, in this mode and in the compared modes
//! ```
//!
//! - Each step has its own node, which has the rules of all steps up to its own.
//! - All nodes run on one kernel, so blocks of packets can alternate between steps. A rule costs
//!   far less than the difference between two VMs, or between two minutes.
//! - Steps add rules in the order in which a packet from a pod to a ClusterIP traverses them. With
//!   several Services, a step adds all rules of a hook at once.
//! - iptables rules come from the bare loader ([`crate::floor`]), nftables rules from a node that
//!   the daemon has programmed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::{Context as _, Result};
use lab::{Node, Place};
use nftables_netlink::Hook;
use proxy::IpFamily;
use proxy_ipvs::ShimStyle;

use super::packets::{ClientSocket, Sender};
use super::table::{self, Pieces};
use super::{CLIENT, POD, SERVERS, SERVICES, programmed, silent_host, write_servers};
use crate::kernel::{Kernel, SetsIn};
use crate::nft;
use crate::objects::{Objects, PORT};
use crate::schema::{
    Cell, CellFigures, Distribution, EXACT, FLAT, LEAN, Mode, NAT_ALONE, NATIVE, Outcome, Subject,
    SubjectKind, WHOLE,
};
use crate::stage::Stage;

/// Number of flows in a block of packets. The flows of all blocks ([`ROUNDS`] for each step) must
/// fit into the conntrack table.
const BLOCK: u16 = 48;
const ROUNDS: usize = 24;
/// Number of unmeasured packets before each block, which load the node's tables into the CPU's
/// caches.
const BEFORE: u16 = 6;
/// A chain to which no rule jumps. Its rules only make the kernel enable features that they need,
/// such as connection tracking.
const UNUSED: &str = "BENCH-UNUSED";

/// Rules by table and chain, each as a line `-A …` of `iptables-restore`.
type Chains = BTreeMap<(String, String), Vec<String>>;
/// An iptables rule: its table, and its line `-A …`.
type Rule = (String, String);

/// A step of the measurement. Its node has everything that the previous step's node has, and
/// additionally `add`.
#[derive(Debug)]
struct Step {
    title: String,
    add: Add,
}

#[derive(Debug)]
enum Add {
    Nothing,
    /// Virtual servers for all Services.
    Servers,
    /// Effects of these shell commands, which run on the node.
    Script(String),
    /// These iptables rules of IPVS mode, with the ipsets that they use.
    Rules(Vec<Rule>),
    /// Connection tracking, enabled by an nftables rule that needs it.
    Tracking,
    /// NAT, enabled by an nf_tables chain of type nat without rules.
    Translation,
    /// The first rules of an nf_tables table: this many, or all if `None`.
    Pieces(Option<usize>),
}

impl Step {
    fn new(title: impl Into<String>, add: Add) -> Self {
        Self {
            title: title.into(),
            add,
        }
    }
}

/// The nodes to measure, each with a client pod that sends its packets.
struct Track {
    server: Place,
    sender: Sender,
    lanes: Vec<(String, ClientSocket)>,
    nodes: u8,
}

impl Track {
    fn new(stage: &mut Stage) -> Result<Self> {
        let server = silent_host(&mut stage.world)?;
        Ok(Self {
            sender: Sender::new(&server)?,
            server,
            lanes: Vec::new(),
            // The stage already has node 1.
            nodes: 1,
        })
    }

    /// Adds a node to the lab. Returns the node, and the third octet of its pods' addresses.
    fn node(&mut self, stage: &mut Stage) -> Result<(Node, u8)> {
        self.nodes += 1;
        let third = self.nodes;
        let address = format!("172.35.0.{}/24", 100 + u32::from(third));
        let gateway = format!("10.200.{third}.1/24");
        let name = format!("node{third}");
        let node = stage
            .world
            .node(&name, address.as_str(), gateway.as_str())?;
        Ok((node, third))
    }

    /// Adds a client pod to a node, which must be completely configured, and sends warm-up packets.
    /// From now on the node is part of the measurement.
    fn enter(
        &mut self,
        stage: &mut Stage,
        (node, third): (&Node, u8),
        title: String,
        to: SocketAddrV4,
    ) -> Result<()> {
        let source = Ipv4Addr::new(10, 200, third, CLIENT.octets()[3]);
        let name = format!("client{third}");
        let client = stage.world.pod(node, &name, source.to_string().as_str())?;
        stage.world.route(node, SERVERS, &self.server)?;
        let back = format!("10.200.{third}.0/24");
        stage.world.route(&self.server, back.as_str(), node)?;
        let lane = ClientSocket::open(&client, source, to)?;
        self.sender.warm_up(&lane)?;
        self.lanes.push((title, lane));
        Ok(())
    }

    /// Measures all nodes in turn, block by block. Returns one series for each node.
    fn run(mut self) -> Result<CellFigures> {
        let mut values: Vec<Vec<f64>> = vec![Vec::new(); self.lanes.len()];
        for _ in 0..ROUNDS {
            for ((_, lane), values) in self.lanes.iter().zip(&mut values) {
                self.sender.new_flows(lane, BEFORE)?;
                values.push(self.sender.new_flows(lane, BLOCK)?);
            }
        }
        let mut measured = CellFigures::default();
        for ((number, (title, _)), values) in self.lanes.iter().enumerate().zip(values) {
            let distribution = Distribution::of("ns", values).context("nothing was measured")?;
            let name = format!("{number:02} {title}");
            measured.series.insert(name, distribution);
        }
        Ok(measured)
    }
}

/// Measures all steps of a mode, and for comparison complete modes on the same kernel.
pub(crate) fn measure(cell: &Cell) -> Result<Outcome> {
    let mut stage = Stage::new(cell)?;
    let mut track = Track::new(&mut stage)?;
    let last = stage.objects.services().saturating_sub(1);
    let service = SocketAddrV4::new(Objects::address(last), PORT);

    let own = (stage.node.clone(), 1);
    let mut whole = Vec::new();
    let steps = match (cell.subject.kind.has(NATIVE), stage.mode()) {
        (false, Mode::Ipvs) => rule_steps(&stage, &cell.subject.kind)?,
        (is_shim, _) => {
            if let Some(outcome) = program(&mut stage)? {
                return Ok(outcome);
            }
            whole.push((cell.subject.name.clone(), own));
            let pieces = if is_shim {
                Pieces::read(&stage.node, nft::SHIM, &THROUGH_IPVS)?
            } else {
                Pieces::read(&stage.node, nft::TABLE, &FORWARDED)?
            };
            piece_steps(pieces, is_shim)
        }
    };
    for number in 0..steps.all.len() {
        let (node, third) = track.node(&mut stage)?;
        let held = steps.all.get(..=number).unwrap_or_default();
        build(&stage, &node, held, &steps)
            .with_context(|| format!("cannot build step {number}"))?;
        let to = if steps.is_direct(number) {
            POD
        } else {
            service
        };
        let title = held.last().map_or("", |step| &step.title).to_owned();
        track.enter(&mut stage, (&node, third), title, to)?;
    }
    for subject in beside(&cell.subject) {
        let (node, third) = track.node(&mut stage)?;
        stage.go_on(node.clone(), subject.clone())?;
        if let Some(outcome) = program(&mut stage)? {
            return Ok(outcome);
        }
        whole.push((subject.name, (node, third)));
    }
    for (name, (node, third)) in whole {
        track.enter(
            &mut stage,
            (&node, third),
            format!("{WHOLE}{name}"),
            service,
        )?;
    }
    Ok(Outcome::Measured(Box::new(track.run()?)))
}

/// Runs the daemon until it has programmed the stage's node, and stops it. Returns the outcome if
/// the daemon fails.
fn program(stage: &mut Stage) -> Result<Option<Outcome>> {
    match programmed(stage, &mut CellFigures::default())? {
        Ok(subject) => {
            if let Some(subject) = subject {
                subject.stop()?;
            }
            Ok(None)
        }
        Err(outcome) => Ok(Some(outcome)),
    }
}

/// Returns the complete modes to measure on the same kernel, for comparison with `subject`.
fn beside(subject: &Subject) -> Vec<Subject> {
    let SubjectKind::KubeProxy { path, mode, .. } = &subject.kind else {
        return Vec::new();
    };
    let ours = |name: &str, mode, flags: &[&str]| Subject {
        name: name.to_owned(),
        kind: SubjectKind::KubeProxy {
            path: path.clone(),
            mode,
            flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            is_ours: true,
        },
    };
    let mut all = vec![ours("iptables", Mode::Iptables, &[])];
    if subject.name == "nftables" {
        all.push(ours("nftables-flat", Mode::Nftables, &[FLAT]));
    }
    if *mode == Mode::Ipvs && !subject.kind.has(NATIVE) {
        all.push(subject.clone());
    }
    if subject.kind.has(NATIVE) {
        all.push(ours("ipvs-lean", Mode::Ipvs, &[LEAN]));
    }
    if subject.kind.has(EXACT) {
        all.push(ours("ipvs", Mode::Ipvs, &[]));
        all.push(ours("ipvs-nftables", Mode::Ipvs, &[NATIVE]));
        all.push(ours("nftables-flat", Mode::Nftables, &[FLAT]));
    }
    all
}

/// Hooks that a packet to a virtual server of IPVS traverses, in order.
const THROUGH_IPVS: [Hook; 4] = [
    Hook::Prerouting,
    Hook::Input,
    Hook::Output,
    Hook::Postrouting,
];
/// Hooks that a forwarded packet traverses, in order.
const FORWARDED: [Hook; 3] = [Hook::Prerouting, Hook::Forward, Hook::Postrouting];

/// All steps for a subject, with the iptables chains or the nf_tables table from which they take
/// rules.
struct Steps {
    all: Vec<Step>,
    chains: Chains,
    pieces: Option<Pieces>,
    /// Index of the first step in which packets go to the Service. In earlier steps, they go
    /// directly to the pod.
    first: usize,
}

impl Steps {
    fn is_direct(&self, number: usize) -> bool {
        number < self.first
    }
}

/// Returns the steps for IPVS mode with iptables rules (upstream's or lean).
fn rule_steps(stage: &Stage, subject: &SubjectKind) -> Result<Steps> {
    let style = if subject.is_lean() {
        ShimStyle::Lean
    } else {
        ShimStyle::Upstream
    };
    let chains = parse(&crate::floor::shim(IpFamily::V4, style)?);
    fs::write(
        stage.folder().join("sets"),
        crate::tools::sets(&stage.objects),
    )?;
    Ok(Steps {
        all: steps(&stage.objects, &chains),
        chains,
        pieces: None,
        first: 1,
    })
}

/// Returns the steps for an nf_tables table: that of nftables mode, or (`is_shim`) that of IPVS
/// mode.
fn piece_steps(pieces: Pieces, is_shim: bool) -> Steps {
    let mut all = vec![Step::new("routed to the pod, no Service", Add::Nothing)];
    if is_shim {
        all.push(servers_step());
        all.push(addresses_step());
    }
    all.push(Step::new("connection tracking", Add::Tracking));
    if is_shim {
        all.push(conntrack_step());
    }
    all.push(Step::new(NAT_ALONE, Add::Translation));
    let before = all.len();
    for piece in 0..pieces.len() {
        all.push(Step::new(pieces.title(piece), Add::Pieces(Some(piece + 1))));
    }
    let first = if is_shim {
        1
    } else {
        (0..pieces.len())
            .find(|piece| pieces.translates(piece + 1))
            .map_or(all.len(), |piece| before + piece)
    };
    all.push(Step::new(
        format!(
            "the other {} rules, which it does not meet",
            pieces.others()
        ),
        Add::Pieces(None),
    ));
    Steps {
        all,
        chains: Chains::new(),
        pieces: Some(pieces),
        first,
    }
}

/// Configures a node so that it has everything that these steps add.
fn build(stage: &Stage, node: &Place, steps: &[Step], all: &Steps) -> Result<()> {
    let addresses = crate::tools::addresses(&stage.objects);
    fs::write(stage.folder().join("addresses"), addresses)?;
    let mut script = format!("cd '{}'\n", stage.folder().display());
    let mut rules: Vec<&Rule> = Vec::new();
    let mut pieces = None;
    let sets = match all.pieces {
        Some(_) => SetsIn::Nftables,
        None => SetsIn::Ipset,
    };
    for step in steps {
        match &step.add {
            Add::Nothing => {}
            Add::Servers => {
                let mut kernel = Kernel::open(node, Mode::Ipvs, sets)?;
                write_servers(&mut kernel, &stage.objects)?;
                _ = writeln!(script, "ip route add local {SERVICES} dev lo");
            }
            Add::Script(lines) => script.push_str(lines),
            Add::Rules(more) => rules.extend(more),
            Add::Tracking => table::track(node)?,
            Add::Translation => table::translate(node)?,
            Add::Pieces(number) => pieces = Some(*number),
        }
    }
    if !rules.is_empty() {
        let text = restore_text(&rules, &all.chains);
        fs::write(stage.folder().join("rules"), text)?;
        script.push_str("ipset restore < sets\niptables-restore --noflush < rules\n");
    }
    node.read(["sh", "-ec", &script]).map(drop)?;
    if let (Some(number), Some(table)) = (pieces, &all.pieces) {
        table.write(node, number)?;
    }
    Ok(())
}

fn servers_step() -> Step {
    Step::new("virtual servers, local by one route", Add::Servers)
}

fn addresses_step() -> Step {
    let lines = "ip -batch addresses\n".to_owned();
    Step::new("their addresses on kube-ipvs0", Add::Script(lines))
}

fn conntrack_step() -> Step {
    let lines = "sysctl -qw net.ipv4.vs.conntrack=1\n".to_owned();
    Step::new("sysctl net.ipv4.vs.conntrack=1", Add::Script(lines))
}

/// Returns the steps for IPVS mode with the iptables rules in `chains`.
fn steps(objects: &Objects, chains: &Chains) -> Vec<Step> {
    let script = |lines: &str| Add::Script(lines.replace("UNUSED", UNUSED));
    let mut steps = vec![
        Step::new("routed to the pod, no Service", Add::Nothing),
        servers_step(),
        addresses_step(),
        Step::new(
            "the filter table, empty",
            script("iptables -w -t filter -N UNUSED\n"),
        ),
        Step::new(
            "connection tracking",
            script("iptables -w -t filter -A UNUSED -m conntrack --ctstate NEW\n"),
        ),
        conntrack_step(),
        Step::new(NAT_ALONE, script("iptables -w -t nat -N UNUSED\n")),
    ];
    let mut met: Vec<Rule> = Vec::new();
    for (table, hook) in [
        ("nat", "PREROUTING"),
        ("filter", "INPUT"),
        ("filter", "OUTPUT"),
        ("nat", "POSTROUTING"),
    ] {
        let before = met.len();
        walk(chains, table, hook, &mut met);
        let new = met.get(before..).unwrap_or_default().to_vec();
        if objects.services() == 1 {
            steps.extend(
                new.into_iter()
                    .map(|rule| Step::new(short(&rule), Add::Rules(vec![rule]))),
            );
        } else {
            steps.push(Step::new(
                format!("{} rules of {table} {hook}", new.len()),
                Add::Rules(new),
            ));
        }
    }
    let all = chains
        .iter()
        .flat_map(|((table, _), rules)| rules.iter().map(|rule| (table.clone(), rule.clone())));
    let rest: Vec<Rule> = all.filter(|rule| !met.contains(rule)).collect();
    steps.push(Step::new(
        format!("the other {} rules, which it does not meet", rest.len()),
        Add::Rules(rest),
    ));
    steps
}

/// Adds those rules of a chain to `met` that a pod's packet traverses, with rules of a called chain
/// after the jump to it. Skips the rules of `KUBE-MARK-MASQ`, because the packet is not
/// masqueraded.
fn walk(chains: &Chains, table: &str, chain: &str, met: &mut Vec<Rule>) {
    let rules = chains.get(&(table.to_owned(), chain.to_owned()));
    for line in rules.into_iter().flatten() {
        let rule = (table.to_owned(), line.clone());
        if met.contains(&rule) {
            continue;
        }
        met.push(rule);
        if let Some((_, target)) = line.rsplit_once(" -j ")
            && target != "KUBE-MARK-MASQ"
        {
            walk(chains, table, target, met);
        }
    }
}

/// Parses input of `iptables-restore`. A rule inserted with `-I` comes before the chain's earlier
/// rules.
fn parse(text: &str) -> Chains {
    let mut chains = Chains::new();
    let mut table = "";
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if let Some(declared) = line.strip_prefix(':') {
            let chain = declared.split_whitespace().next().unwrap_or_default();
            chains
                .entry((table.to_owned(), chain.to_owned()))
                .or_default();
        } else if let Some((verb, rest)) = line.split_once(' ')
            && (verb == "-A" || verb == "-I")
        {
            let chain = rest.split_whitespace().next().unwrap_or_default();
            let rules = chains
                .entry((table.to_owned(), chain.to_owned()))
                .or_default();
            let place = if verb == "-I" { 0 } else { rules.len() };
            rules.insert(place, format!("-A {rest}"));
        }
    }
    chains
}

/// Returns input for `iptables-restore` that creates all chains, but contains only `rules`.
fn restore_text(rules: &[&Rule], chains: &Chains) -> String {
    let mut text = String::new();
    for table in ["nat", "filter"] {
        _ = writeln!(text, "*{table}");
        let names = chains.keys().filter(|(of, _)| of == table);
        for (_, chain) in names.filter(|(_, chain)| chain.starts_with("KUBE-")) {
            _ = writeln!(text, ":{chain} - [0:0]");
        }
        for (_, line) in rules.iter().filter(|(of, _)| of == table) {
            _ = writeln!(text, "{line}");
        }
        text.push_str("COMMIT\n");
    }
    text
}

/// Returns the text of a rule without its comment, such as
/// `nat KUBE-SERVICES -s 127.0.0.0/8 -j RETURN`.
fn short((table, line): &Rule) -> String {
    let line = line.strip_prefix("-A ").unwrap_or(line);
    let line = match line.split_once("-m comment --comment \"") {
        Some((before, after)) => {
            let after = after.split_once("\" ").map_or("", |(_, after)| after);
            format!("{before}{after}")
        }
        None => line.to_owned(),
    };
    format!("{table} {line}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIM: &str = "*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-MARK-MASQ - [0:0]
-I PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
-A KUBE-NODE-PORT -p tcp -j KUBE-MARK-MASQ
COMMIT
*filter
:KUBE-A - [0:0]
:KUBE-B - [0:0]
-I INPUT -j KUBE-A
-I INPUT -j KUBE-B
COMMIT
";

    #[test]
    fn measured_rules_are_added_in_the_order_of_a_packets_path() {
        let chains = parse(SHIM);
        let steps = steps(&Objects::new("1".parse().unwrap()), &chains);
        let titles: Vec<&str> = steps
            .iter()
            .skip(7)
            .map(|step| step.title.as_str())
            .collect();
        assert_eq!(
            titles,
            [
                "nat PREROUTING -j KUBE-SERVICES",
                "nat KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT",
                "nat KUBE-NODE-PORT -p tcp -j KUBE-MARK-MASQ",
                "nat KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT",
                "filter INPUT -j KUBE-B",
                "filter INPUT -j KUBE-A",
                "the other 1 rules, which it does not meet",
            ]
        );
    }

    #[test]
    fn the_last_anatomy_step_has_all_rules() {
        let chains = parse(SHIM);
        let steps = steps(&Objects::new("2".parse().unwrap()), &chains);
        let rules: Vec<&Rule> = steps
            .iter()
            .filter_map(|step| match &step.add {
                Add::Rules(rules) => Some(rules),
                _ => None,
            })
            .flatten()
            .collect();
        let again = parse(&restore_text(&rules, &chains));
        assert_eq!(again, chains);
    }
}
