//! What each piece of the shim, upstream's or the lean one, adds to the first packet of a flow.
//!
//! ```text
//!  step 0: routed to the pod   1: + virtual servers   2: + their addresses   …   n: the whole shim
//! ```
//!
//! Each step has a node of its own that holds all up to this step, in one kernel, so that blocks of
//! packets can take turns between the steps many times: what a rule costs is far less than what two
//! guests, or two minutes, differ by. Rules come in the order in which a packet from a pod to a
//! cluster IP meets them; at more Services than one, where every step has its own copy of all,
//! those of a hook come together.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::{Context as _, Result};
use lab::Place;
use proxy::IpFamily;
use proxy_ipvs::ShimStyle;

use super::packets::{Lane, Sender};
use super::{POD, SERVERS, SERVICES, silent_host, write_servers};
use crate::kernel::Kernel;
use crate::objects::{Objects, PORT};
use crate::schema::{Cell, Distribution, Measured, Mode, Outcome};
use crate::stage::Stage;

/// Flows in a block, and blocks of each step. Together with all steps few enough for the table of
/// connections.
const BLOCK: u16 = 48;
const ROUNDS: usize = 24;
/// Packets before each block: the node's own tables come back into the caches.
const BEFORE: u16 = 6;
/// The chain that no packet meets: rules in it make the kernel do what they need.
const UNUSED: &str = "BENCH-UNUSED";

/// Chains of a table, each with its rules from `-A` on.
type Chains = BTreeMap<(String, String), Vec<String>>;
/// A rule with its table.
type Rule = (String, String);

/// What a node has more than the one before.
#[derive(Debug)]
struct Step {
    title: String,
    add: Add,
}

#[derive(Debug)]
enum Add {
    Nothing,
    /// All virtual servers.
    Servers,
    /// Commands.
    Script(String),
    /// Rules of the shim, with the sets that they ask.
    Rules(Vec<Rule>),
}

impl Step {
    fn new(title: impl Into<String>, add: Add) -> Self {
        Self {
            title: title.into(),
            add,
        }
    }
}

/// Measures all steps.
pub(crate) fn measure(cell: &Cell) -> Result<Outcome> {
    let mut stage = Stage::new(cell)?;
    let server = silent_host(&mut stage.world)?;
    let style = if cell.subject.kind.is_lean() {
        ShimStyle::Lean
    } else {
        ShimStyle::Upstream
    };
    let chains = parse(&crate::floor::shim(IpFamily::V4, style)?);
    let steps = steps(&stage.objects, &chains);
    fs::write(
        stage.folder().join("sets"),
        crate::tools::sets(&stage.objects),
    )?;
    fs::write(
        stage.folder().join("addresses"),
        crate::tools::addresses(&stage.objects),
    )?;
    let last = stage.objects.services().saturating_sub(1);
    let service = SocketAddrV4::new(Objects::address(last), PORT);

    let mut sender = Sender::new(&server)?;
    let mut lanes = Vec::new();
    for (number, third) in (0..steps.len()).zip(2_u8..) {
        let address = format!("172.35.0.{}/24", 100 + u32::from(third));
        let gateway = format!("10.200.{third}.1/24");
        let node =
            stage
                .world
                .node(&format!("step{number}"), address.as_str(), gateway.as_str())?;
        let source = Ipv4Addr::new(10, 200, third, 2);
        let client = stage.world.pod(
            &node,
            &format!("client{number}"),
            source.to_string().as_str(),
        )?;
        stage.world.route(&node, SERVERS, &server)?;
        stage
            .world
            .route(&server, format!("10.200.{third}.0/24").as_str(), &node)?;
        let held = steps.get(..=number).unwrap_or_default();
        build(&stage, &node, held, &chains)
            .with_context(|| format!("cannot build step {number}"))?;
        let to = if number == 0 { POD } else { service };
        let lane = Lane::open(&client, source, to)?;
        sender.warm_up(&lane)?;
        lanes.push(lane);
    }

    let mut values: Vec<Vec<f64>> = vec![Vec::new(); lanes.len()];
    for _ in 0..ROUNDS {
        for (lane, values) in lanes.iter().zip(&mut values) {
            sender.new_flows(lane, BEFORE)?;
            values.push(sender.new_flows(lane, BLOCK)?);
        }
    }
    let mut measured = Measured::default();
    for ((number, step), values) in steps.iter().enumerate().zip(values) {
        let distribution = Distribution::of("ns", values).context("nothing was measured")?;
        let name = format!("{number:02} {}", step.title);
        measured.series.insert(name, distribution);
    }
    Ok(Outcome::Measured(Box::new(measured)))
}

/// Writes the steps into a node.
fn build(stage: &Stage, node: &Place, steps: &[Step], chains: &Chains) -> Result<()> {
    let mut script = format!("cd '{}'\n", stage.folder().display());
    let mut rules: Vec<&Rule> = Vec::new();
    for step in steps {
        match &step.add {
            Add::Nothing => {}
            Add::Servers => {
                let mut kernel = Kernel::open(node, Mode::Ipvs)?;
                write_servers(&mut kernel, &stage.objects)?;
                _ = writeln!(script, "ip route add local {SERVICES} dev lo");
            }
            Add::Script(lines) => script.push_str(lines),
            Add::Rules(more) => rules.extend(more),
        }
    }
    if !rules.is_empty() {
        let text = restore_text(&rules, chains);
        fs::write(stage.folder().join("rules"), text)?;
        script.push_str("ipset restore < sets\niptables-restore --noflush < rules\n");
    }
    node.read(["sh", "-ec", &script]).map(drop)?;
    Ok(())
}

/// All steps.
fn steps(objects: &Objects, chains: &Chains) -> Vec<Step> {
    let script = |lines: &str| Add::Script(lines.replace("UNUSED", UNUSED));
    let mut steps = vec![
        Step::new("routed to the pod, no Service", Add::Nothing),
        Step::new("virtual servers, local by one route", Add::Servers),
        Step::new(
            "their addresses on kube-ipvs0",
            script("ip -batch addresses\n"),
        ),
        Step::new(
            "the filter table, empty",
            script("iptables -w -t filter -N UNUSED\n"),
        ),
        Step::new(
            "connection tracking",
            script("iptables -w -t filter -A UNUSED -m conntrack --ctstate NEW\n"),
        ),
        Step::new(
            "sysctl net.ipv4.vs.conntrack=1",
            script("sysctl -qw net.ipv4.vs.conntrack=1\n"),
        ),
        Step::new(
            "the nat table, empty",
            script("iptables -w -t nat -N UNUSED\n"),
        ),
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

/// Adds the rules of a chain, each followed by those of the chain that it jumps to: what a packet
/// of a pod meets. It is not masqueraded.
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

/// Reads the input of `iptables-restore`; what is inserted comes before what was there.
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

/// The input of `iptables-restore` for all chains and some rules.
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

/// A rule without its comment: `nat KUBE-SERVICES -s 127.0.0.0/8 -j RETURN`.
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
    fn rules_come_as_a_packet_meets_them() {
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
    fn every_rule_is_in_the_last_step() {
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
