//! Follows packets through upstream's rules, ipsets and virtual servers. The expected outcomes have
//! been observed with real packets (docs/packet-matrix.md).

use crate::world::{World, short};
use inet::Protocol;
use packet_path::Fate;

const POD: &str = "10.244.1.7";
const HOST: &str = "192.168.99.77";
const LOCAL: &str = "10.244.1.5:8080";
const REMOTE: [&str; 2] = ["10.244.2.5:8080", "10.244.3.5:8080"];

/// Returns the expected outcomes for all three endpoints. `local` is the source that the local
/// endpoint sees, `remote` the one that the remote endpoints see.
fn all(local: &str, remote: &str) -> Vec<String> {
    let [first, second] = REMOTE;
    vec![
        format!("{LOCAL} {local}"),
        format!("{first} {remote}"),
        format!("{second} {remote}"),
    ]
}

/// Returns the expected outcomes for all three endpoints if the node masquerades packets to the
/// address of the output interface.
fn all_masqueraded() -> Vec<String> {
    all("masq 10.244.1.1", "masq 192.168.99.10")
}

#[test]
fn the_path_to_a_cluster_ip_is_predicted_in_ipvs_mode() {
    let world = World::golden("ipvs", "clusterip-tcp", false);
    let ip = "10.96.10.10:80";
    assert_eq!(world.comes_to(POD, ip), all("kept", "kept"));
    assert_eq!(world.comes_to("node", ip), all_masqueraded());
    assert_eq!(world.comes_to(HOST, ip), all_masqueraded());
}

#[test]
fn paths_with_masquerade_all_are_predicted_in_ipvs_mode() {
    let world = World::golden("ipvs", "flag-masquerade-all", false);
    let ip = "10.96.10.10:80";
    assert_eq!(world.comes_to(POD, ip), all_masqueraded());
}

#[test]
fn the_path_to_a_node_port_is_predicted_in_ipvs_mode() {
    let world = World::golden("ipvs", "nodeport-tcp", false);
    let port = "192.168.99.10:30080";
    for from in [POD, "node", HOST] {
        assert_eq!(world.comes_to(from, port), all_masqueraded(), "{from}");
    }
}

#[test]
fn the_path_to_a_node_port_with_local_policy_is_predicted_in_ipvs_mode() {
    let world = World::golden("ipvs", "nodeport-etp-local", false);
    for from in [POD, HOST] {
        let found = world.comes_to(from, "192.168.99.10:30080");
        assert_eq!(found, [format!("{LOCAL} kept")], "{from}");
    }
    // `vip`: the endpoint sees the destination address as the source, because the node sends to its
    // own address. Here, this is the NodePort's address 192.168.99.10.
    let found = world.comes_to("node", "192.168.99.10:30080");
    assert_eq!(found, [format!("{LOCAL} vip")]);
}

#[test]
fn the_path_to_a_service_without_endpoints_is_predicted_in_ipvs_mode() {
    let world = World::golden("ipvs", "no-endpoints", false);
    for from in [POD, "node", HOST] {
        let found = world.ask(from, "10.96.10.10:80");
        assert_eq!(
            short(&found[0]),
            "refused by ICMP port unreachable, by IPVS"
        );
        assert!(
            found[0]
                .steps
                .last()
                .unwrap()
                .says
                .contains("no destination")
        );
    }
}

#[test]
fn the_path_to_an_unexposed_port_is_predicted_in_ipvs_mode() {
    let world = World::golden("ipvs", "clusterip-tcp", false);
    for from in [POD, "node", HOST] {
        let found = world.comes_to(from, "10.96.10.10:81");
        assert_eq!(found, ["refused by ICMP port unreachable"], "{from}");
    }
}

#[test]
fn the_effect_of_source_ranges_is_predicted_in_ipvs_mode() {
    let vip = "203.0.113.10:80";
    let with = World::golden("ipvs", "lb-sourceranges-with-node", false);
    assert_eq!(with.comes_to(HOST, vip), all_masqueraded());
    assert_eq!(with.comes_to("8.8.8.8", vip), ["dropped"]);
    assert_eq!(with.comes_to("node", vip), all_masqueraded());
    let without = World::golden("ipvs", "lb-sourceranges-without-node", false);
    assert_eq!(without.comes_to("node", vip), ["dropped"]);
    let dropped = without.ask("node", vip);
    let last = dropped[0].steps.last().unwrap();
    assert_eq!(last.place, "filter KUBE-IPVS-OUT-FILTER");
}

#[test]
fn paths_to_external_ips_are_predicted_in_ipvs_mode() {
    let world = World::golden("ipvs", "externalips-etp-local", false);
    let ip = "198.51.100.7:80";
    assert_eq!(world.comes_to(HOST, ip), [format!("{LOCAL} kept")]);
    assert_eq!(world.comes_to("node", ip), [format!("{LOCAL} vip")]);
}

#[test]
fn the_path_of_a_hairpin_connection_is_predicted_in_ipvs_mode() {
    let world = World::golden("ipvs", "nodeport-etp-local", false);
    let found = world.ask("10.244.1.5", "192.168.99.10:30080");
    assert_eq!(short(&found[0]), format!("{LOCAL} masq 10.244.1.1"));
    let steps = &found[0].steps;
    let hairpin = steps
        .iter()
        .find(|step| step.entry.contains("KUBE-LOOP-BACK"))
        .unwrap();
    assert_eq!(
        hairpin.members,
        ["KUBE-LOOP-BACK 10.244.1.5,tcp:8080,10.244.1.5"]
    );
}

#[test]
fn ipvs_without_conntrack_does_not_masquerade() {
    let mut world = World::golden("ipvs", "nodeport-tcp", false);
    world.sysctl("net/ipv4/vs/conntrack", "0");
    assert_eq!(
        world.comes_to(HOST, "192.168.99.10:30080"),
        all("kept", "kept")
    );
}

#[test]
fn paths_over_ipv6_and_udp_are_predicted_in_ipvs_mode() {
    let world = World::golden("ipvs", "dualstack", true);
    let ends = |source: [&str; 2]| {
        let [here, there] = source;
        [
            format!("[fd00:244:1::5]:8080 {here}"),
            format!("[fd00:244:2::5]:8080 {there}"),
        ]
    };
    // The cluster CIDR of this case, fd00:244::/56, includes the pod, but not the endpoints.
    let pod = "fd00:244::7";
    assert_eq!(
        world.comes_to(pod, "[fd00:96::10]:80"),
        ends(["kept", "kept"])
    );
    let masqueraded = ["masq fd00:244:1::1", "masq fd00:99::10"];
    assert_eq!(
        world.comes_to(pod, "[fd00:99::10]:30080"),
        ends(masqueraded)
    );
    let world = World::golden("ipvs", "clusterip-udp", false);
    let found = world.ask_by(Protocol::Udp, POD, "10.96.10.10:53");
    assert_eq!(found.len(), 3);
    assert!(
        found.iter().all(|walk| walk.fate == Fate::Delivered),
        "{found:#?}"
    );
}

#[test]
fn a_destination_of_weight_0_gets_no_new_connection() {
    let mut world = World::golden("ipvs", "clusterip-tcp", false);
    for server in world.snapshot.servers.values_mut() {
        for entry in &mut server.destinations {
            let is_remote = entry.destination.key.to_string() != LOCAL;
            entry.destination.weight = u32::from(!is_remote);
        }
    }
    assert_eq!(
        world.comes_to(POD, "10.96.10.10:80"),
        [format!("{LOCAL} kept")]
    );
}

/// A virtual server with an fwmark serves marked packets to any port. A destination without a port
/// gets them at the client's destination port, and with persistence, every destination does.
#[test]
fn marked_packets_reach_the_virtual_server_of_their_mark() {
    let mark =
        "-A PREROUTING -d 192.168.99.10/32 -p tcp -m tcp -j MARK --set-xmark 0x4d/0xffffffff";
    let rules = format!("*mangle\n:PREROUTING ACCEPT [0:0]\n{mark}\nCOMMIT\n");
    for (persistent, ports) in [("", [8080, 80]), (" -p 60", [80, 80])] {
        let mut world = World::bare(&rules);
        world.sysctl("net/ipv4/vs/conntrack", "1");
        for line in [
            &format!("-A -f 77 -s rr{persistent}"),
            "-a -f 77 -r 10.244.1.5:8080 -m -w 1",
            "-a -f 77 -r 10.244.2.5:0 -m -w 1",
        ] {
            world.server(line);
        }
        let walks = world.ask("172.16.0.9", "192.168.99.10:80");
        let endpoints = walks.iter().filter_map(|walk| walk.endpoint);
        let [one, other] = ports;
        let expected = [format!("10.244.1.5:{one}"), format!("10.244.2.5:{other}")];
        assert_eq!(
            endpoints.map(|at| at.to_string()).collect::<Vec<_>>(),
            expected
        );
        let says = walks[0]
            .steps
            .iter()
            .any(|step| step.entry.starts_with("-A -f 77 -s rr"));
        assert!(says, "{walks:#?}");
        // An unmarked packet is for this node itself.
        let own = world.ask("172.16.0.9", "10.244.1.1:80");
        assert_eq!(own[0].fate, Fate::Local);
    }
}

#[test]
fn the_path_to_a_cluster_ip_is_predicted_in_iptables_mode() {
    let world = World::golden("iptables", "clusterip-tcp", false);
    let ip = "10.96.10.10:80";
    assert_eq!(world.comes_to(POD, ip), all("kept", "kept"));
    assert_eq!(world.comes_to("node", ip), all_masqueraded());
    assert_eq!(world.comes_to(HOST, ip), all_masqueraded());
}

#[test]
fn the_path_to_a_node_port_is_predicted_in_iptables_mode() {
    let world = World::golden("iptables", "nodeport-tcp", false);
    for from in [POD, "node", HOST] {
        assert_eq!(
            world.comes_to(from, "192.168.99.10:30080"),
            all_masqueraded(),
            "{from}"
        );
    }
    let localhost = world.comes_to("node", "127.0.0.1:30080");
    assert_eq!(
        localhost,
        all_masqueraded(),
        "kube-proxy has set route_localnet"
    );
}

#[test]
fn the_path_to_a_node_port_with_local_policy_is_predicted_in_iptables_mode() {
    let world = World::golden("iptables", "nodeport-etp-local", false);
    let port = "192.168.99.10:30080";
    assert_eq!(world.comes_to(HOST, port), [format!("{LOCAL} kept")]);
    assert_eq!(world.comes_to(POD, port), all("kept", "kept"));
    assert_eq!(world.comes_to("node", port), all_masqueraded());
    let none = World::golden("iptables", "nodeport-etp-local-nolocal", false);
    assert_eq!(none.comes_to(HOST, port), ["dropped"]);
}

#[test]
fn the_effect_of_source_ranges_is_predicted_in_iptables_mode() {
    let vip = "203.0.113.10:80";
    let world = World::golden("iptables", "lb-sourceranges-with-node", false);
    assert_eq!(world.comes_to(HOST, vip), all_masqueraded());
    assert_eq!(world.comes_to("8.8.8.8", vip), ["dropped"]);
}

#[test]
fn the_path_to_a_service_without_endpoints_is_predicted_in_iptables_mode() {
    let world = World::golden("iptables", "no-endpoints", false);
    for from in [POD, "node", HOST] {
        let found = world.comes_to(from, "10.96.10.10:80");
        assert_eq!(found, ["refused by ICMP port unreachable"], "{from}");
    }
}

#[test]
fn session_affinity_in_iptables_mode_is_predicted_for_a_new_client() {
    let world = World::golden("iptables", "affinity-clientip", false);
    let walks = world.ask(POD, "10.96.10.10:80");
    assert_eq!(walks.len(), 3);
    let noted = |entry: &str| {
        walks[0]
            .steps
            .iter()
            .filter(|step| step.entry.contains(entry))
            .count()
    };
    assert_eq!(noted("--rcheck"), 1);
}

/// In every case and from every sender, upstream's rules are supported and the outcome is known.
#[test]
fn each_upstream_case_has_a_known_outcome() {
    let cases = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../integration/golden/cases"
    );
    let mut asked = 0;
    for mode in ["ipvs", "iptables"] {
        for case in std::fs::read_dir(format!("{cases}/{mode}")).unwrap() {
            let case = case.unwrap();
            if !case.path().join("iptables-save").exists() {
                continue;
            }
            let world = World::golden(mode, case.file_name().to_str().unwrap(), false);
            for to in [
                "10.96.10.10:80",
                "192.168.99.10:30080",
                "203.0.113.10:80",
                "10.96.0.1:443",
            ] {
                for from in [POD, "node", HOST, "10.244.1.5"] {
                    for walk in world.ask(from, to) {
                        assert_ne!(walk.fate, Fate::Unknown, "{case:?} {from} {to}: {walk:#?}");
                        assert!(walk.doubts.is_empty(), "{walk:#?}");
                        asked += 1;
                    }
                }
            }
        }
    }
    assert!(asked > 1000, "{asked}");
}
