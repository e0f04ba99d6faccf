use footprint::Leftovers;

use super::*;

fn portal(address: Option<&str>, port: u16) -> Portal {
    Portal {
        address: address.map(|ip| ip.parse().unwrap()),
        protocol: Protocol::Tcp,
        port,
    }
}

fn aim(via: Option<&str>, ports: [u16; 3]) -> RedirectTarget {
    let [outside, pods, node] = ports;
    RedirectTarget {
        name: "default/web:http".into(),
        via: via.map(|ip| ip.parse().unwrap()),
        outside,
        pods,
        node,
    }
}

/// Parses a table nat with these rules. Returns its redirects and the jumps to this mode's chains.
fn read(family: IpFamily, config: &Config, rules: &[String]) -> (RedirectState, BTreeSet<String>) {
    let mut saved = SaveReader::new(family, config);
    saved.line("*nat");
    for chain in CHAINS {
        saved.line(&format!(":{chain} - [0:0]"));
    }
    for rule in rules {
        saved.line(rule);
    }
    saved.line("COMMIT");
    saved.finish()
}

fn of_pods() -> Config {
    Config {
        detector: LocalDetector::SourceNet("10.244.1.0/24".parse().unwrap()),
        own_mark: Some(0x4000),
        ..Config::default()
    }
}

#[test]
fn redirect_rules_equal_the_rules_of_upstreams_userspace_mode() {
    let config = of_pods();
    let aim = aim(Some("192.0.2.1"), [40_001, 40_002, 40_002]);
    let rules = lines(
        IpFamily::V4,
        &portal(Some("10.96.0.1"), 80),
        &aim,
        &config.detector,
    );
    let matches = "-p tcp -m comment --comment \"default/web:http\" -m tcp --dport 80 -j DNAT";
    let wanted = [
        format!(
            "-A KUBE-PORTALS-CONTAINER -s 10.244.1.0/24 -d 10.96.0.1/32 {matches} --to-destination 192.0.2.1:40002"
        ),
        format!(
            "-A KUBE-PORTALS-CONTAINER -d 10.96.0.1/32 {matches} --to-destination 192.0.2.1:40001"
        ),
        format!("-A KUBE-PORTALS-HOST -d 10.96.0.1/32 {matches} --to-destination 127.0.0.1:40002"),
    ];
    assert_eq!(rules, wanted);
}

#[test]
fn written_redirects_parse_to_the_same_redirects() {
    let these = NodePortsAt::These(vec!["192.0.2.1".parse().unwrap()]);
    let places = [NodePortsAt::Everywhere, NodePortsAt::NotAtLocalhost, these];
    let config = of_pods();
    for node_ports in places {
        let base = Base {
            node_ports,
            own_mark: config.own_mark,
        };
        let redirects = [
            (
                portal(Some("10.96.0.1"), 80),
                aim(Some("192.0.2.1"), [40_001, 40_002, 40_003]),
            ),
            (
                portal(None, 30_080),
                aim(Some("192.0.2.1"), [40_001, 40_001, 40_001]),
            ),
            (
                portal(Some("10.96.0.2"), 80),
                aim(None, [40_004, 40_004, 40_004]),
            ),
        ];
        let mut rules = jumps(IpFamily::V4, &base);
        for (portal, aim) in &redirects {
            rules.extend(lines(IpFamily::V4, portal, aim, &config.detector));
        }
        let (held, jumps) = read(IpFamily::V4, &config, &rules);
        assert_eq!(held.base, Some(base));
        assert_eq!(held.redirects, redirects.into_iter().collect());
        let is_way = |line: &&String| !line.starts_with("-A KUBE-");
        assert_eq!(jumps, rules.iter().filter(is_way).cloned().collect());
    }
}

#[test]
fn any_unexpected_rule_or_order_rewrites_all_redirects() {
    let config = of_pods();
    let node_ports = NodePortsAt::Everywhere;
    let mut rules = jumps(
        IpFamily::V4,
        &Base {
            node_ports,
            own_mark: Some(0x4000),
        },
    );
    let aim = aim(Some("192.0.2.1"), [40_001, 40_002, 40_002]);
    let at = portal(Some("10.96.0.1"), 80);
    rules.extend(lines(IpFamily::V4, &at, &aim, &config.detector));
    let base_of = |rules: &[String]| read(IpFamily::V4, &config, rules).0.base;
    assert!(base_of(&rules).is_some());
    for gone in 0..4 {
        let mut rules = rules.clone();
        rules.remove(gone);
        assert_eq!(base_of(&rules), None, "a jump is missing");
    }
    let mut swapped = rules.clone();
    swapped.swap(4, 5);
    assert_eq!(base_of(&swapped), None, "pods would not be told apart");
    let mut twice = rules.clone();
    twice.push(rules[5].clone());
    assert_eq!(base_of(&twice), None);
    for other in [
        "-A KUBE-PORTALS-HOST -j RETURN",
        "-A KUBE-NODEPORT-HOST -p tcp",
    ] {
        let mut rules = rules.clone();
        rules.push(other.to_owned());
        assert_eq!(base_of(&rules), None, "{other}");
    }
}

#[test]
fn a_changed_redirect_writes_only_its_own_rules() {
    let config = of_pods();
    let at = portal(Some("fd00::1"), 80);
    let before = aim(Some("2001:db8::1"), [1, 1, 1]);
    let after = aim(Some("2001:db8::1"), [2, 2, 2]);
    let change = crate::plan::Change {
        portal: at,
        before: Some(before),
        after: Some(after),
        owner: None,
    };
    let plan = Redirects {
        detector: config.detector,
        changes: vec![change],
        ..Redirects::default()
    };
    let text = restore_text(|restore| write(IpFamily::V6, &plan, &BTreeSet::new(), restore));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 6, "{text}");
    assert!(lines[1].starts_with("-D KUBE-PORTALS-CONTAINER "), "{text}");
    assert!(
        lines[4].ends_with("-j DNAT --to-destination [::1]:2"),
        "{text}"
    );
}

#[test]
fn the_footprint_contains_each_chain_and_jump_that_the_mode_writes() {
    let these = NodePortsAt::These(vec!["192.0.2.1".parse().unwrap()]);
    for node_ports in [NodePortsAt::Everywhere, these] {
        let mut saved = "*nat\n".to_owned();
        saved.extend(CHAINS.map(|chain| format!(":{chain} - [0:0]\n")));
        let jumps = jumps(
            IpFamily::V4,
            &Base {
                node_ports,
                own_mark: Some(0x4000),
            },
        );
        saved.push_str(&jumps.join("\n"));
        let aim = aim(Some("192.0.2.1"), [40_001, 40_001, 40_001]);
        let at = portal(None, 30_080);
        saved.push('\n');
        saved.push_str(&lines(IpFamily::V4, &at, &aim, &LocalDetector::None).join("\n"));
        saved.push_str("\nCOMMIT\n*filter\n:KUBE-NODEPORT-NON-LOCAL - [0:0]\n-A INPUT -m comment --comment \"Ensure that non-local NodePort traffic can flow\" -j KUBE-NODEPORT-NON-LOCAL\nCOMMIT\n");
        let leftovers = Leftovers::find(Finder::all(&[&FOOTPRINT]), &saved);
        assert_eq!(leftovers.counts(), (5, 5), "{saved}");
        let beside = Finder::beside(&FOOTPRINT, &[&FOOTPRINT], ReferencedChain::Delete);
        assert!(Leftovers::find(beside, &saved).is_empty());
    }
}
