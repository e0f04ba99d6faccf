//! Measures the time that each part of a mode's rules adds to the first packet of a flow. Covers
//! nftables mode, and three kinds of helper rules of IPVS mode (the shim): upstream's iptables
//! rules, the lean iptables rules, and nftables rules.
//!
//! ```text
//!  step 0: routed to the pod   1: + virtual servers   2: + their addresses   …   n: all rules
//!  in parallel: nodes that a daemon has programmed, in this mode and in the compared modes
//! ```
//!
//! - Each step has its own node. This node has all rules up to the step.
//! - All nodes share one kernel, so blocks of packets can alternate between the steps. The cost of
//!   one rule is far below the difference between two VMs or two minutes.
//! - The steps add rules in the order in which a packet from a pod to a cluster IP traverses them.
//!   With several Services, one step adds all rules of a hook.
//! - The iptables rules come from the bare loader ([`crate::floor`]). The nftables rules come from
//!   a node that the daemon has programmed.

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

/// Number of flows in a block. Each step gets [`ROUNDS`] blocks. The flows of all steps must fit
/// into the connection table.
const BLOCK: u16 = 48;
const ROUNDS: usize = 24;
/// Number of packets before each block. They load the node's tables into the CPU caches again.
const BEFORE: u16 = 6;
/// A chain that no packet traverses. A rule in this chain makes the kernel enable the features that
/// the rule needs, such as connection tracking.
const UNUSED: &str = "BENCH-UNUSED";

/// Rules of each chain. The key is the table and the chain. A rule is the whole line (`-A …`).
type Chains = BTreeMap<(String, String), Vec<String>>;
/// A rule: its table and its line (`-A …`).
type Rule = (String, String);

/// One step of the measurement. The step's node has the state of the previous step's node, and in
/// addition `add`.
#[derive(Debug)]
struct Step {
    title: String,
    add: Add,
}

#[derive(Debug)]
enum Add {
    Nothing,
    /// Adds the virtual servers of all Services.
    Servers,
    /// Runs these shell commands on the node.
    Script(String),
    /// Adds iptables rules of IPVS mode, and the ipsets that they use.
    Rules(Vec<Rule>),
    /// Enables connection tracking, by a rule in nf_tables that needs it.
    Tracking,
    /// Enables address translation, by an empty nat chain in nf_tables.
    Translation,
    /// Adds the first rules of an nf_tables table, up to this number. `None` stands for all rules.
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

/// The measured nodes, with one client each. The benchmark sends packets from each client in turn.
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
            // Node 1 is the node of the stage.
            nodes: 1,
        })
    }

    /// Adds a node to the lab. Returns the node and the third octet of its pod addresses.
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

    /// Adds a client to a fully configured node, and sends warm-up packets. The client then takes
    /// part in the measurement.
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

    /// Sends blocks of packets through each node in turn.
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

/// Measures all steps of one mode. For comparison, also measures complete modes in the same kernel.
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

/// Runs the daemon until the stage's node is programmed, and then stops the daemon. Returns an
/// outcome if programming fails.
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

/// Returns the complete modes that the benchmark measures for comparison with `subject`, in the
/// same kernel.
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

/// Hooks that a packet to a virtual server traverses, in order.
const THROUGH_IPVS: [Hook; 4] = [
    Hook::Prerouting,
    Hook::Input,
    Hook::Output,
    Hook::Postrouting,
];
/// Hooks that a forwarded packet traverses, in order.
const FORWARDED: [Hook; 3] = [Hook::Prerouting, Hook::Forward, Hook::Postrouting];

/// Steps of a measured program, and the iptables chains or the nf_tables table from which the steps
/// take rules.
struct Steps {
    all: Vec<Step>,
    chains: Chains,
    pieces: Option<Pieces>,
    /// Index of the first step whose packets go to the Service. Packets of earlier steps go
    /// directly to the pod.
    first: usize,
}

impl Steps {
    fn is_direct(&self, number: usize) -> bool {
        number < self.first
    }
}

/// Returns the steps for IPVS mode with iptables rules.
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

/// Returns the steps for rules in an nf_tables table.
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

/// Configures a node with these steps.
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

/// Returns the steps for IPVS mode with these iptables chains.
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

/// Adds to `met` the rules of a chain that a pod's packet traverses. The rules of a called chain
/// follow the jump to this chain. Skips the rules of `KUBE-MARK-MASQ`, because the packet is not
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

/// Parses the input of `iptables-restore`. An inserted rule (`-I`) comes before the earlier rules
/// of its chain.
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

/// Returns an input of `iptables-restore` that creates all chains but adds only `rules`.
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

/// Returns a rule without its comment: `nat KUBE-SERVICES -s 127.0.0.0/8 -j RETURN`.
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
