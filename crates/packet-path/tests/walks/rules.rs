//! Tests with rules of other programs, and with unsupported rules.

use crate::world::{World, interface, net, short};
use std::fmt::Write as _;

use inet::Protocol;
use packet_path::{Branch, Fate, Hook, Packet, Question, Ruleset, Sender, Xtables};
use proptest::prelude::*;

/// Builds a node with these rules in the table filter.
fn filter(rules: &str) -> World {
    World::bare(&format!(
        "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:X - \
         [0:0]\n{rules}COMMIT\n"
    ))
}

const POD: &str = "10.244.1.7";
const FAR: &str = "10.244.2.5:80";

#[test]
fn packets_for_other_hosts_need_ip_forwarding() {
    let mut world = filter("");
    assert_eq!(world.comes_to(POD, FAR), ["forwarded 10.244.2.5:80 kept"]);
    assert_eq!(
        world.comes_to(POD, "192.168.99.10:22"),
        ["local 192.168.99.10:22"]
    );
    assert_eq!(
        world.comes_to("node", "127.0.0.1:22"),
        ["local 127.0.0.1:22"]
    );
    world.sysctl("net/ipv4/ip_forward", "0");
    let dropped = world.ask(POD, FAR);
    assert_eq!(short(&dropped[0]), "dropped");
    assert!(
        dropped[0].steps[0].says.contains("ip_forward"),
        "{dropped:#?}"
    );
}

/// The kernel's source check (`fib_validate_source`) drops a packet from outside whose source is an
/// address of the node. A missing route has another outcome.
#[test]
fn packets_with_a_local_source_and_packets_without_a_route_are_distinguished() {
    let mut world = World::bare("");
    let own = interface(9, "kube-ipvs0");
    world
        .snapshot
        .addresses
        .push((own, net("198.51.100.134/32")));
    let question = |from: Sender, to: &str| Question {
        protocol: Protocol::Tcp,
        from,
        to: to.parse().unwrap(),
        source_port: None,
    };
    let by_eth0 = |from: &str| Sender::Other(from.parse().unwrap(), Some(interface(2, "eth0")));
    let walk = |world: &World, from: Sender, to: &str| {
        let question = question(from, to);
        let rulesets: [&dyn Ruleset; 1] = [&world.rules];
        packet_path::walk(&question, &rulesets, &world.snapshot).remove(0)
    };
    let martian = walk(&world, by_eth0("198.51.100.134"), "192.168.99.10:30160");
    let says = &martian.steps.last().unwrap().says;
    assert!(
        martian.fate == Fate::Dropped && says.contains("martian"),
        "{says}"
    );
    let other = walk(&world, by_eth0("198.51.100.135"), "192.168.99.10:30160");
    assert_eq!(short(&other), "local 192.168.99.10:30160");
    world
        .snapshot
        .routes
        .retain(|(net, ..)| net.prefix_len() > 0);
    for from in [Sender::Node(None), by_eth0("192.168.99.1")] {
        let lost = walk(&world, from, "203.0.113.5:80");
        assert_eq!(short(&lost), "unrouted: no route to there");
    }
}

#[test]
fn a_drop_by_policy_is_reported_with_counters() {
    let world = World::bare(
        "*filter\n:FORWARD DROP [7:420]\n:DOCKER-USER - [0:0]\n[3:4] -A FORWARD -j DOCKER-USER\n\
         [0:0] -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
         [9:9] -A DOCKER-USER -j RETURN\nCOMMIT\n",
    );
    let dropped = world.ask(POD, FAR);
    assert_eq!(short(&dropped[0]), "dropped");
    let last = dropped[0].steps.last().unwrap();
    assert_eq!(last.entry, "policy DROP of FORWARD");
    assert_eq!(last.counters.map(|counted| counted.packets), Some(7));
    let jump = dropped[0]
        .steps
        .iter()
        .find(|step| step.entry.contains("-j DOCKER-USER"));
    assert_eq!(jump.unwrap().counters.map(|counted| counted.bytes), Some(4));
}

#[test]
fn unsupported_rules_are_reported_only_if_they_affect_the_packet() {
    let logs = filter("-A FORWARD -m time --timestart 08:00 -j LOG\n");
    assert_eq!(logs.comes_to(POD, FAR), ["forwarded 10.244.2.5:80 kept"]);
    let same = filter("-A FORWARD -m time --timestart 08:00 -j ACCEPT\n");
    assert_eq!(same.comes_to(POD, FAR), ["forwarded 10.244.2.5:80 kept"]);
    let drops = filter("-A FORWARD -m time --timestart 08:00 -j DROP\n");
    let both = drops.ask(POD, FAR);
    assert_eq!(both.len(), 2);
    assert!(both.iter().all(|walk| walk.fate == Fate::Unknown));
    let mut presumed: Vec<Fate> = both.iter().map(|walk| walk.presumed).collect();
    presumed.sort_by_key(|fate| *fate as u8);
    assert_eq!(presumed, [Fate::Dropped, Fate::Forwarded]);
    assert!(
        both[0].why.contains("-m time --timestart 08:00"),
        "{}",
        both[0].why
    );
    // The rule is for UDP only, so its unsupported test does not matter to a TCP packet.
    let other = filter("-A FORWARD -p udp -m time --timestart 08:00 -j DROP\n");
    assert_eq!(other.comes_to(POD, FAR), ["forwarded 10.244.2.5:80 kept"]);
}

#[test]
fn the_mark_of_a_set_member_selects_the_virtual_server() {
    let mut world = World::bare(
        "*mangle\n:INPUT ACCEPT [0:0]\n\
         -A INPUT -m conntrack --ctstate NEW -j SET --map-set MARKS dst,dst --map-mark\nCOMMIT\n",
    );
    world.set("create MARKS hash:ip,port family inet hashsize 1024 maxelem 65536 skbinfo");
    let to = "192.168.99.10:80";
    let [by_address, by_mark] = ["10.244.1.5:8080", "10.244.2.5:8080"];
    for line in [
        "-A -t 192.168.99.10:80 -s rr".to_owned(),
        format!("-a -t {to} -r {by_address} -m -w 1"),
        "-A -f 77 -s rr".to_owned(),
        format!("-a -f 77 -r {by_mark} -m -w 1"),
    ] {
        world.server(&line);
    }
    let reached = |world: &World| world.comes_to(POD, to);
    assert_eq!(reached(&world), [format!("{by_address} kept")]);
    world.set("add MARKS 192.168.99.10,tcp:80 skbmark 0x4d");
    assert_eq!(reached(&world), [format!("{by_mark} kept")]);
    let step = world.ask(POD, to).remove(0).steps;
    let step = step.iter().find(|step| step.entry.contains("--map-mark"));
    let step = step.unwrap();
    assert_eq!(step.members, ["MARKS 192.168.99.10,tcp:80"]);
    assert_eq!(step.says, "its mark becomes 0x4d, that of the member");
}

/// iptables prints `[nft]` for an nft rule that it cannot express, so the rule's tests and target
/// are unknown.
#[test]
fn a_native_nft_rule_in_iptables_is_skipped_and_noted() {
    let world = filter("-A FORWARD [nft] -j [nft]\n-A FORWARD -j ACCEPT\n");
    let walks = world.ask(POD, FAR);
    assert_eq!(walks.len(), 1, "{walks:#?}");
    assert_eq!(short(&walks[0]), "forwarded 10.244.2.5:80 kept");
    let mut steps = walks[0].steps.iter();
    let told = "is unknown: `[nft]` is not understood; assumed not to match";
    assert!(steps.any(|step| step.says == told), "{walks:#?}");
}

#[test]
fn a_goto_does_not_return_to_the_calling_chain() {
    let world = filter("-A FORWARD -g X\n-A FORWARD -j DROP\n-A X -j MARK --set-xmark 0x1/0x1\n");
    assert_eq!(world.comes_to(POD, FAR), ["forwarded 10.244.2.5:80 kept"]);
    let world = filter("-A FORWARD -j X\n-A FORWARD -j DROP\n-A X -j MARK --set-xmark 0x1/0x1\n");
    assert_eq!(world.comes_to(POD, FAR), ["dropped"]);
}

#[test]
fn chain_loops_and_missing_chains_have_an_unknown_outcome() {
    for rules in ["-A FORWARD -j X\n-A X -j X\n", "-A FORWARD -j NOWHERE\n"] {
        let walks = filter(rules).ask(POD, FAR);
        assert_eq!(walks[0].fate, Fate::Unknown, "{rules}");
    }
}

#[test]
fn the_number_of_random_branches_is_limited() {
    let rule = "-A FORWARD -m statistic --mode random --probability 0.5 -j MARK --set-xmark 0x";
    let mut rules = String::new();
    for bit in 0..20 {
        writeln!(rules, "{rule}{:x}/0x0", 1 << bit).unwrap();
    }
    let walks = filter(&rules).ask(POD, FAR);
    let sum: f64 = walks.iter().map(|walk| walk.chance).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    assert!(walks.len() <= 64, "{}", walks.len());
    assert!(walks.iter().any(|walk| walk.fate == Fate::Unknown));
}

#[test]
fn each_of_a_thousand_endpoints_has_its_own_path() {
    let mut rules = "*nat\n:PREROUTING ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n".to_owned();
    for left in (1..=1000).rev() {
        let chance = 1.0 / f64::from(left);
        let (high, low) = (left / 250, left % 250);
        writeln!(
            rules,
            "-A PREROUTING -d 10.96.0.1/32 -m statistic --mode random --probability {chance:.11} \
             -j DNAT --to-destination 10.244.{high}.{low}:80"
        )
        .unwrap();
    }
    rules += "-A POSTROUTING -j MASQUERADE\nCOMMIT\n";
    let walks = World::bare(&rules).ask(POD, "10.96.0.1:80");
    assert_eq!(walks.len(), 1000);
    let sum: f64 = walks.iter().map(|walk| walk.chance).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    assert!(walks.iter().all(|walk| (walk.chance - 0.001).abs() < 1e-6));
}

/// Rules like those of flannel, Calico, the kubelet and Docker.
#[test]
fn rules_of_other_programs_are_supported() {
    let rules = "*raw\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n\
        -A PREROUTING -p udp -m multiport --dports 4789,8472 -j NOTRACK\n\
        -A OUTPUT -p udp -m udp --dport 4789 -j CT --notrack\nCOMMIT\n\
        *mangle\n:PREROUTING ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n\
        -A FORWARD -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu\n\
        -A PREROUTING -m connmark ! --mark 0x0/0xf00 -j CONNMARK --restore-mark --nfmask 0xf00 \
        --ctmask 0xf00\n\
        COMMIT\n\
        *nat\n:PREROUTING ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n:FLANNEL-POSTRTG - \
        [0:0]\n:DOCKER - [0:0]\n\
        -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\n\
        -A DOCKER -i docker0 -j RETURN\n\
        -A DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80\n\
        -A POSTROUTING -m comment --comment \"flanneld masq\" -j FLANNEL-POSTRTG\n\
        -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment \"flanneld masq\" -j \
        RETURN\n\
        -A FLANNEL-POSTRTG -s 10.244.1.0/24 -d 10.244.0.0/16 -j RETURN\n\
        -A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE --random-fully\nCOMMIT\n\
        *filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n:cali-FORWARD - [0:0]\n:KUBE-FIREWALL \
        - [0:0]\n\
        -A FORWARD -j cali-FORWARD\n\
        -A cali-FORWARD -j MARK --set-xmark 0x0/0xe0000\n\
        -A cali-FORWARD -i cali+ -m set ! --match-set cali40all dst -j DROP\n\
        -A cali-FORWARD -m comment --comment \"cali:policy\" -m mark --mark 0x0/0x10000 -j ACCEPT\n\
        -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate \
        RELATED,ESTABLISHED,DNAT -j DROP\n\
        -A INPUT -j KUBE-FIREWALL\nCOMMIT\n";
    let world = World::bare(rules);
    assert_eq!(world.comes_to(POD, FAR), ["forwarded 10.244.2.5:80 kept"]);
    assert_eq!(
        world.comes_to(POD, "8.8.8.8:53"),
        ["forwarded 8.8.8.8:53 masq 192.168.99.10"]
    );
    let published = world.comes_to("192.168.99.77", "192.168.99.10:8080");
    assert_eq!(published, ["172.17.0.2:80 kept"]);
}

#[test]
fn a_redirect_reaches_a_local_process() {
    let rules = "*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n\
        -A PREROUTING -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j REDIRECT --to-ports 4000\n\
        -A OUTPUT -d 10.96.0.1/32 -p tcp -m tcp --dport 80 -j REDIRECT --to-ports 4000\nCOMMIT\n";
    let world = World::bare(rules);
    assert_eq!(
        world.comes_to(POD, "10.96.0.1:80"),
        ["local 10.244.1.1:4000"]
    );
    assert_eq!(
        world.comes_to("node", "10.96.0.1:80"),
        ["local 127.0.0.1:4000"]
    );
}

#[test]
fn a_walk_names_the_rule_that_redirects_the_packet() {
    let rules = "*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:CNI-DN-a - [0:0]\n\
        -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-DN-a\n\
        -A CNI-DN-a -p tcp -m tcp --dport 443 -j ACCEPT\n\
        -A CNI-DN-a -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.244.1.10:8080\n\
        -A OUTPUT -d 10.96.0.1/32 -p tcp -j REDIRECT --to-ports 4000\nCOMMIT\n";
    let world = World::bare(rules);
    let ipvs = World::golden("ipvs", "clusterip-tcp", false);
    let iptables = World::golden("iptables", "clusterip-tcp", false);
    for (world, from, to, wanted) in [
        (&world, POD, "192.168.99.10:80", Some("nat CNI-DN-a")),
        (&world, POD, "192.168.99.10:443", None),
        (&world, "node", "10.96.0.1:80", Some("nat OUTPUT")),
        (&ipvs, POD, "10.96.10.10:80", None),
        (&iptables, POD, "10.96.10.10:80", Some("nat KUBE-SEP-")),
    ] {
        for walk in world.ask(from, to) {
            let place = walk.redirected_by.map(|step| step.place.clone());
            let is_right = match (&place, wanted) {
                (Some(place), Some(wanted)) => place.starts_with(wanted),
                (place, wanted) => place.is_none() && wanted.is_none(),
            };
            assert!(is_right, "{from} to {to}: {place:?}");
        }
    }
}

#[test]
fn a_missing_ipset_has_an_unknown_outcome() {
    let world = filter("-A FORWARD -m set --match-set NOWHERE dst -j DROP\n");
    let walks = world.ask(POD, FAR);
    assert!(walks.iter().all(|walk| walk.fate == Fate::Unknown));
    assert!(
        walks[0].why.contains("there is no ipset NOWHERE"),
        "{}",
        walks[0].why
    );
}

#[test]
fn rules_match_the_given_input_interface_of_a_packet() {
    let world = filter("-A FORWARD -i tun+ -j DROP\n");
    let question = Question {
        protocol: Protocol::Udp,
        from: Sender::Other([10, 9, 9, 9].into(), Some(interface(9, "tun0"))),
        to: FAR.parse().unwrap(),
        source_port: Some(53),
    };
    let rulesets: [&dyn Ruleset; 1] = [&world.rules];
    let walks = packet_path::walk(&question, &rulesets, &world.snapshot);
    assert_eq!(short(&walks[0]), "dropped");
}

proptest! {
    #[test]
    fn arbitrary_iptables_rules_never_panic_the_evaluation(
        lines in proptest::collection::vec(
            "(\\[[0-9]{0,3}:[0-9]{0,3}\\] )?-A (FORWARD|X)( \
             (!|-m|-j|-g|-s|-d|-p|--dport|--dports|--ctstate|--mark|\
             --match-set|--probability|--to-destination|--set-xmark|set|tcp|conntrack|ipvs|--vaddr|recent|\
             --rcheck|--name|X|DNAT|MARK|DROP|SNAT|10\\.0\\.0\\.0/8|[a-z0-9:/.,\"\\\\-]{0,9})){0,9}|.{0,40}",
            0..12,
        ),
    ) {
        let saved = lines.join("\n");
        let text = format!("*nat\n:PREROUTING ACCEPT [0:0]\n:X - [0:0]\n*filter\n:FORWARD DROP \
                            [1:\n:X - [0:0]\n{saved}\n");
        let rules = Xtables::of(&text);
        let world = World::bare("");
        let packet = Packet::new(6, [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 80);
        for hook in [Hook::Prerouting, Hook::Forward] {
            for base in rules.base_chains(hook) {
                let branch = Branch::new(packet.clone());
                prop_assert!(!rules.walk(&base, branch, &world.snapshot).is_empty());
            }
        }
    }
}
