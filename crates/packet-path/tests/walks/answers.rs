//! Tests that follow endpoints' replies through the rules of upstream and of other programs.

use packet_path::Xtables;

use crate::world::World;

const POD: &str = "10.244.1.7";
const HOST: &str = "192.168.99.77";
const IP: &str = "10.96.10.10:80";

/// Builds a node with the rules of a golden case, and one rule of another program before them in
/// `table`.
fn world(mode: &str, table: &str, rule: &str) -> World {
    let mut world = World::golden(mode, "clusterip-tcp", false);
    let file = format!(
        "{}/../../integration/golden/cases/{mode}/clusterip-tcp/iptables-save",
        env!("CARGO_MANIFEST_DIR")
    );
    let saved = std::fs::read_to_string(file).unwrap();
    let (mut text, mut is_in_table, mut is_in) = (String::new(), false, false);
    for line in saved.lines() {
        is_in_table = match line.strip_prefix('*') {
            Some(name) => name == table,
            None => is_in_table,
        };
        let is_first = line.starts_with("-A") || line == "COMMIT";
        if is_in_table && is_first && !is_in {
            is_in = true;
            text.push_str(rule);
            text.push('\n');
        }
        text.push_str(line);
        text.push('\n');
    }
    assert!(is_in || rule.is_empty(), "{mode} has no table {table}");
    world.rules = Xtables::of(&text);
    world
}

fn fates(world: &World, from: &str) -> Vec<String> {
    let answers = world.answers(from, IP);
    let words = answers.iter().map(|one| one.split_once(' ').unwrap().1);
    let mut words: Vec<String> = words.map(str::to_owned).collect();
    words.dedup();
    words
}

#[test]
fn replies_return_to_their_sender() {
    for mode in ["ipvs", "iptables"] {
        let world = world(mode, "filter", "");
        assert_eq!(fates(&world, POD), ["forwarded"], "{mode}");
        assert_eq!(fates(&world, "node"), ["local"], "{mode}");
        assert_eq!(fates(&world, HOST), ["forwarded"], "{mode}");
    }
}

#[test]
fn replies_to_ipvs_packets_need_ip_forwarding() {
    let mut world = world("ipvs", "filter", "");
    world.sysctl("net/ipv4/ip_forward", "0");
    assert_eq!(fates(&world, POD), ["dropped by routing"]);
    // A reply to the node itself is not forwarded.
    assert_eq!(fates(&world, "node"), ["local"]);
}

#[test]
fn replies_pass_rules_of_other_programs() {
    for mode in ["ipvs", "iptables"] {
        let drops = |rule: &str, from| fates(&world(mode, "filter", rule), from);
        let by_port = "-A FORWARD -p tcp -m tcp --sport 8080 -m conntrack --ctdir REPLY -j DROP";
        assert_eq!(drops(by_port, POD), ["dropped by filter FORWARD"], "{mode}");
        assert_eq!(drops(by_port, "node"), ["local"], "{mode}");
        // A reply goes to the client's port, which is ephemeral, so rules for these ports do not
        // match it.
        for port in ["22", "6443", "30000:32767"] {
            let by_client = format!(
                "-A FORWARD -p tcp -m tcp --dport {port} -m conntrack --ctdir REPLY -j DROP"
            );
            assert_eq!(drops(&by_client, POD), ["forwarded"], "{mode} {port}");
        }
        let by_all =
            "-A FORWARD -p tcp -m tcp --dport 1024:65535 -m conntrack --ctdir REPLY -j DROP";
        assert_eq!(drops(by_all, POD), ["dropped by filter FORWARD"], "{mode}");
        for state in [
            "-m conntrack --ctstate ESTABLISHED",
            "-m conntrack --ctdir REPLY",
            "-m conntrack --ctstatus SEEN_REPLY",
            "-p tcp -m tcp --tcp-flags SYN,ACK SYN,ACK",
        ] {
            let rule = format!("-A INPUT {state} -j DROP");
            assert_eq!(
                drops(&rule, "node"),
                ["dropped by filter INPUT"],
                "{mode} {state}"
            );
        }
    }
    let not = "-A FORWARD -m conntrack --ctstate NEW,RELATED,INVALID -j DROP";
    let found = fates(&world("ipvs", "filter", not), HOST);
    assert_eq!(found, ["forwarded"]);
}

#[test]
fn a_reply_rule_that_matches_the_clients_port_has_an_unknown_outcome() {
    let rule = "-A FORWARD -p tcp -m tcp --dport 40000 -j DROP";
    let fates = fates(&world("ipvs", "filter", rule), POD);
    assert!(
        fates.iter().all(|fate| fate.starts_with("Unknown")),
        "{fates:?}"
    );
}

#[test]
fn an_untracked_reply_is_not_translated() {
    let rule =
        "*raw\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -s 10.244.1.5/32 -j NOTRACK\nCOMMIT\n";
    let mut world = World::golden("iptables", "clusterip-tcp", false);
    let file = format!(
        "{}/../../integration/golden/cases/iptables/clusterip-tcp/iptables-save",
        env!("CARGO_MANIFEST_DIR")
    );
    let saved = std::fs::read_to_string(file).unwrap();
    world.rules = Xtables::of(&format!("{rule}{saved}"));
    let answers = world.ask(POD, IP);
    let rulesets: [&dyn packet_path::Ruleset; 1] = [&world.rules];
    let answer = packet_path::answer(&answers[0], &rulesets, &world.snapshot).remove(0);
    assert_eq!(answer.fate, packet_path::Fate::Dropped);
    assert!(
        answer.why.contains("who has asked 10.96.10.10:80"),
        "{}",
        answer.why
    );
}
