//! Follows packets through tables that kube-proxy 1.36.2 of upstream has written, and through
//! tables of this project (the layout `flat` and userspace mode).

use std::fs;
use std::path::PathBuf;

use packet_path::nft::Nft;
use packet_path::{Hook, Packet};

use crate::node::{NODE, ask, at, journey, outcomes, packet, tcp, with_rules};

const CASES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../integration/golden/cases/nftables"
);
const POD: &str = "10.244.1.77";
const OUTSIDE: &str = "198.51.100.99";
const CLUSTER_IP: &str = "10.96.10.10:80";
const ALL: [&str; 3] = [
    "10.244.1.5:8080 kept 33%",
    "10.244.2.5:8080 kept 33%",
    "10.244.3.5:8080 kept 33%",
];
const ALL_MASQUERADED: [&str; 3] = [
    "10.244.1.5:8080 masq 33%",
    "10.244.2.5:8080 masq 33%",
    "10.244.3.5:8080 masq 33%",
];

/// Returns the table dumps of all golden cases, each with the names of its case and file.
pub(crate) fn files() -> Vec<(String, PathBuf)> {
    let mut files = Vec::new();
    for folder in fs::read_dir(CASES).unwrap() {
        let folder = folder.unwrap();
        for file in fs::read_dir(folder.path()).unwrap() {
            let file = file.unwrap();
            let name = file.file_name().into_string().unwrap();
            if name.starts_with("nft-ip") {
                let case = folder.file_name().into_string().unwrap();
                files.push((format!("{case} {name}"), file.path()));
            }
        }
    }
    files.sort();
    files
}

fn case(name: &str) -> String {
    fs::read_to_string(format!("{CASES}/{name}/nft-ip")).unwrap()
}

/// Checks the outcomes of packets in a ruleset. Each packet has a sender, a destination and the
/// expected outcomes.
fn check(rules: &str, packets: &[(&str, &str, &[&str])]) {
    with_rules(rules, |nftables| {
        for (from, to, wanted) in packets {
            let found = tcp(nftables, from, to);
            assert_eq!(found, *wanted, "{from} to {to}");
        }
    });
}

#[test]
#[ignore = "needs nf_tables, nft, and the right to make network namespaces"]
fn each_rule_in_upstreams_tables_is_supported() {
    let files = files();
    assert!(files.len() > 80, "{}", files.len());
    for (name, file) in files {
        with_rules(&fs::read_to_string(file).unwrap(), |nftables| {
            let is_v6 = name.contains("nft-ip6");
            let (froms, tos): ([&str; 3], [&str; 6]) = if is_v6 {
                (
                    ["fd00:244:1::77", "fd00:99::10", "2001:db8:2::1"],
                    [
                        "[fd00:96::10]:80",
                        "[fd00:96::10]:81",
                        "[2001:db8::10]:80",
                        "[2001:db8:1::7]:80",
                        "[fd00:99::10]:30080",
                        "[fd00:96::ffff]:80",
                    ],
                )
            } else {
                (
                    [POD, NODE, OUTSIDE],
                    [
                        CLUSTER_IP,
                        "10.96.10.10:81",
                        "203.0.113.10:80",
                        "198.51.100.7:80",
                        "192.168.99.10:30080",
                        "10.96.200.200:80",
                    ],
                )
            };
            for from in froms {
                for to in tos {
                    for protocol in [6, 17, 132] {
                        let packet = packet(protocol, from, to);
                        let nft = Nft::read(&mut *nftables, packet.family()).unwrap();
                        let branches = journey(&nft, &packet);
                        let chance: f64 = branches.iter().map(|of| of.chance).sum();
                        assert!((chance - 1.0).abs() < 1e-6, "{name}: {chance}");
                        let is_sure = branches.iter().all(|of| of.doubts.is_empty());
                        let told = outcomes(&branches);
                        let is_known = !told.iter().any(|of| of.contains("unknown"));
                        assert!(is_sure && is_known, "{name}: {from} to {to}: {told:?}");
                    }
                }
            }
        });
    }
}

#[test]
#[ignore = "needs nf_tables, nft, and the right to make network namespaces"]
fn a_cluster_ip_leads_to_each_endpoint() {
    check(
        &case("clusterip-tcp"),
        &[
            (POD, CLUSTER_IP, &ALL),
            (NODE, CLUSTER_IP, &ALL_MASQUERADED),
            (OUTSIDE, CLUSTER_IP, &ALL_MASQUERADED),
            // Only the endpoint's packets to itself (hairpin) are masqueraded.
            (
                "10.244.1.5",
                CLUSTER_IP,
                &[
                    "10.244.1.5:8080 masq 33%",
                    "10.244.2.5:8080 kept 33%",
                    "10.244.3.5:8080 kept 33%",
                ],
            ),
            (POD, "10.96.10.10:81", &["refused"]),
            (NODE, "10.96.10.10:81", &["refused"]),
            (POD, "10.96.200.200:80", &["dropped"]),
            (POD, "8.8.8.8:53", &["8.8.8.8:53 kept"]),
            (OUTSIDE, "192.168.99.10:22", &["192.168.99.10:22 kept"]),
        ],
    );
    check(
        &case("flag-masquerade-all"),
        &[(POD, CLUSTER_IP, &ALL_MASQUERADED)],
    );
    check(
        &case("no-endpoints"),
        &[
            (POD, CLUSTER_IP, &["refused"]),
            (OUTSIDE, "192.168.99.10:30080", &["refused"]),
            (OUTSIDE, "203.0.113.10:80", &["refused"]),
            (OUTSIDE, "198.51.100.7:80", &["refused"]),
        ],
    );
}

#[test]
#[ignore = "needs nf_tables, nft, and the right to make network namespaces"]
fn traffic_policies_are_evaluated() {
    let local: &[&str] = &["10.244.1.5:8080 kept"];
    check(
        &case("nodeport-etp-local"),
        &[
            (OUTSIDE, "192.168.99.10:30080", local),
            (POD, "192.168.99.10:30080", &ALL),
            (NODE, "192.168.99.10:30080", &ALL_MASQUERADED),
        ],
    );
    let elsewhere: &[&str] = &["10.244.2.5:8080 kept 50%", "10.244.3.5:8080 kept 50%"];
    let masqueraded: &[&str] = &["10.244.2.5:8080 masq 50%", "10.244.3.5:8080 masq 50%"];
    check(
        &case("nodeport-etp-local-nolocal"),
        &[
            (OUTSIDE, "192.168.99.10:30080", &["dropped"]),
            (POD, "192.168.99.10:30080", elsewhere),
            (NODE, "192.168.99.10:30080", masqueraded),
        ],
    );
    check(
        &case("itp-local"),
        &[
            (POD, CLUSTER_IP, local),
            (OUTSIDE, CLUSTER_IP, &["10.244.1.5:8080 masq"]),
        ],
    );
    check(
        &case("itp-local-nolocal"),
        &[(POD, CLUSTER_IP, &["dropped"])],
    );
}

#[test]
#[ignore = "needs nf_tables, nft, and the right to make network namespaces"]
fn source_ranges_are_evaluated() {
    let to = "203.0.113.10:80";
    check(
        &case("lb-sourceranges-with-node"),
        &[
            (OUTSIDE, to, &ALL_MASQUERADED),
            ("192.0.2.1", to, &["dropped"]),
            (POD, to, &["dropped"]),
            (NODE, to, &ALL_MASQUERADED),
            (POD, CLUSTER_IP, &ALL),
        ],
    );
}

#[test]
#[ignore = "needs nf_tables, nft, and the right to make network namespaces"]
fn session_affinity_selects_the_clients_previous_endpoint() {
    with_rules(&case("affinity-clientip"), |nftables| {
        assert_eq!(tcp(nftables, POD, CLUSTER_IP), ALL);
        let set = "affinity-W2BRTWSS-default/web/tcp/__10.244.2.5/8080";
        let element = format!("add element ip kube-proxy {set} {{ {POD} }}");
        crate::node::nft(&["-f", "-"], &element);
        assert_eq!(tcp(nftables, POD, CLUSTER_IP), ["10.244.2.5:8080 kept"]);
        assert_eq!(tcp(nftables, "10.244.1.78", CLUSTER_IP), ALL);
    });
}

#[test]
#[ignore = "needs nf_tables, nft, and the right to make network namespaces"]
fn a_packet_path_lists_each_step() {
    with_rules(&case("nodeport-tcp"), |nftables| {
        let packet = packet(6, OUTSIDE, "192.168.99.10:30080");
        let nft = Nft::read(nftables, packet.family()).unwrap();
        let branches = journey(&nft, &packet);
        let of_rules = branches[1].steps.iter().filter(|of| of.place != "routing");
        let steps = of_rules.map(|step| {
            let mut told = format!("{} | {} | {}", step.place, step.entry, step.says);
            for member in &step.members {
                told = [told, member.clone()].join(" | ");
            }
            told
        });
        let steps: Vec<String> = steps.collect();
        let wanted = [
            "table ip kube-proxy, chain nat-prerouting | jump services | goes on in chain services",
            "table ip kube-proxy, chain services | ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports | goes on in chain external-PFISGYVC-default/web/tcp/ | nodeport-ips 192.168.99.10 | service-nodeports tcp . 30080 : goto external-PFISGYVC-default/web/tcp/",
            "table ip kube-proxy, chain external-PFISGYVC-default/web/tcp/ | meta mark set meta mark | 0x00004000 comment \"masquerade\" | sets its mark 0x4000",
            "table ip kube-proxy, chain external-PFISGYVC-default/web/tcp/ | goto service-PFISGYVC-default/web/tcp/ | goes on in chain service-PFISGYVC-default/web/tcp/",
            "table ip kube-proxy, chain service-PFISGYVC-default/web/tcp/ | meta l4proto tcp dnat ip to numgen random mod 3 map { 0 : 10.244.1.5 . 8080, 1 : 10.244.2.5 . 8080, 2 : 10.244.3.5 . 8080 } | its destination becomes 10.244.2.5:8080, one of 3 by chance",
            "table ip kube-proxy, chain nat-postrouting | jump masquerading | goes on in chain masquerading",
            "table ip kube-proxy, chain masquerading | meta mark & 0x00004000 != 0x00000000 meta mark set meta mark ^ 0x00004000 masquerade fully-random | clears its mark 0x4000, masquerades it: its source becomes 192.168.99.10, an address of this node",
        ];
        assert_eq!(steps, wanted);
        let redirected_by = branches[1].redirected_by.as_ref().unwrap();
        assert!(wanted[4].contains(&redirected_by.entry));
    });
}

#[test]
#[ignore = "needs nf_tables, nft, and the right to make network namespaces"]
fn rules_of_the_flat_layout_are_supported() {
    let both: &[&str] = &["10.244.1.5:8080 kept 50%", "10.244.2.5:8080 kept 50%"];
    let both_masqueraded: &[&str] = &["10.244.1.5:8080 masq 50%", "10.244.2.5:8080 masq 50%"];
    let fifths: &[&str] = &[
        "10.244.1.5:8080 kept 20%",
        "10.244.2.5:8080 kept 20%",
        "10.244.3.5:8080 kept 20%",
        "10.244.4.5:8080 kept 20%",
        "10.244.5.5:8080 kept 20%",
    ];
    let rules = include_str!("flat.nft");
    check(
        rules,
        &[
            (POD, "10.96.0.11:80", &["10.244.1.5:8080 kept"]),
            (POD, "10.96.0.12:80", both),
            (OUTSIDE, "10.96.0.12:80", both_masqueraded),
            (POD, "10.96.0.13:80", &ALL),
            (POD, "10.96.0.15:80", fifths),
            (POD, "10.96.0.20:80", &["refused"]),
            (POD, "10.96.0.12:81", &["refused"]),
            (POD, "10.96.0.30:80", both),
            (OUTSIDE, "192.168.99.10:30030", both_masqueraded),
            (OUTSIDE, "192.168.99.10:30040", &["10.244.1.5:8080 kept"]),
            (POD, "192.168.99.10:30040", both),
            (NODE, "192.168.99.10:30040", both_masqueraded),
            (OUTSIDE, "203.0.113.50:80", both_masqueraded),
            ("192.0.2.99", "203.0.113.50:80", &["dropped"]),
            (POD, "8.8.8.8:53", &["8.8.8.8:53 kept"]),
        ],
    );
    with_rules(rules, |nftables| {
        let dns = packet(17, POD, "10.96.0.53:53");
        assert_eq!(ask(nftables, &dns), both);
        // Another program deletes one of the map's two elements, so one of the two random numbers
        // has no endpoint.
        let element = "delete element ip kube-proxy endpoints-udp-2 { 1 . 10.96.0.53 . 53 }";
        crate::node::nft(&["-f", "-"], element);
        let half = ["10.244.1.5:8080 kept 50%", "refused 50%"];
        assert_eq!(ask(nftables, &dns), half);
    });
}

#[test]
#[ignore = "needs nf_tables, nft, and the right to make network namespaces"]
fn redirects_of_the_userspace_mode_are_supported() {
    check(
        include_str!("userspace.nft"),
        &[
            (POD, "10.96.0.11:80", &["192.168.99.10:55721 kept"]),
            (NODE, "10.96.0.11:80", &["127.0.0.1:55721 kept"]),
            (
                OUTSIDE,
                "192.168.99.10:30040",
                &["192.168.99.10:43143 kept"],
            ),
            (POD, "192.168.99.10:30040", &["192.168.99.10:41669 kept"]),
            // `vip`: the source is the destination address, because the node sends to its own
            // address.
            (NODE, "192.168.99.10:30040", &["127.0.0.1:41669 vip"]),
            (POD, "10.96.0.99:80", &["10.96.0.99:80 kept"]),
        ],
    );
    with_rules(include_str!("userspace.nft"), |nftables| {
        // The relay marks its own packets with 0x4000, and the rules do not redirect marked
        // packets.
        let own = Packet {
            mark: 0x4000,
            ..packet(6, NODE, "10.96.0.11:80")
        };
        let nft = Nft::read(nftables, own.family()).unwrap();
        let branches = at(&nft, Hook::Output, own.clone());
        assert_eq!(branches[0].packet, own);
        assert_eq!(branches[0].steps.len(), 1);
    });
}
