//! Follows packets through the nf_tables rules of IPVS mode, without IPVS itself. On a real node,
//! the rules mark some packets, and IPVS handles marked and unmarked packets.

use packet_path::nft::Nft;
use packet_path::{End, Hook, Packet, Tracking};

use crate::node::{NODE, at, packet, with_rules};

const RULES: &str = include_str!("../../../proxy-ipvs/tests/nftables/ruleset");

fn new(protocol: u8, from: &str, to: &str) -> Packet {
    Packet {
        tracking: Tracking::New,
        ..packet(protocol, from, to)
    }
}

#[test]
#[ignore = "needs nf_tables, nft, and the right to make network namespaces"]
fn ipvs_mode_rules_mark_packets_to_services() {
    with_rules(RULES, |nftables| {
        for (from, to, mark) in [
            ("198.51.100.1", "10.96.0.10:80", 0x4000),
            ("10.244.1.5", "10.96.0.10:80", 0),
            ("fd00::1", "[fd00:96::a]:80", 0x4000),
            ("fd00:244:0:1::5", "[fd00:96::a]:80", 0),
        ] {
            let packet = new(6, from, to);
            let nft = Nft::read(&mut *nftables, packet.family()).unwrap();
            let branches = at(&nft, Hook::Prerouting, packet.clone());
            let [branch] = branches.as_slice() else {
                panic!("{branches:?}");
            };
            assert_eq!(branch.doubts, []);
            let after = &branch.packet;
            assert_eq!((after.mark, after.to()), (mark, packet.to()), "{from}");
            assert!(after.destination_settled && !after.destination_changed);
            let says = &branch.steps.last().unwrap().says;
            assert!(says.starts_with("keeps its destination"), "{says}");
        }
    });
}

#[test]
#[ignore = "needs nf_tables, nft, and the right to make network namespaces"]
fn ipvs_mode_rules_reject_unexposed_ports_and_excluded_sources() {
    with_rules(RULES, |nftables| {
        for (protocol, from, to, end) in [
            // The Service's source ranges contain half of all IPv4 addresses.
            (6, "100.0.0.1", "10.96.0.10:80", ""),
            (6, "200.0.0.1", "10.96.0.10:80", "Dropped"),
            (6, "192.0.2.1", "10.96.0.10:80", "Dropped"),
            (6, "192.0.2.130", "10.96.0.10:80", ""),
            (6, "10.1.2.3", "10.96.0.10:80", ""),
            (17, "10.1.2.3", "10.96.0.10:80", "Dropped"),
            (6, "10.1.2.3", "10.96.0.10:81", "Refused"),
            (6, "10.1.2.3", "10.96.0.10:30000", ""),
            (6, "10.1.2.3", "192.168.99.10:22", ""),
            (6, "fd00::1", "[fd00:96::a]:81", "Refused"),
            (6, "fd00::1", "[fd00:96::a]:80", ""),
        ] {
            let packet = new(protocol, from, to);
            let nft = Nft::read(&mut *nftables, packet.family()).unwrap();
            let branches = at(&nft, Hook::Input, packet);
            let [branch] = branches.as_slice() else {
                panic!("{branches:?}");
            };
            let found = branch.end.as_ref().map(|end| format!("{end:?}"));
            let found = found.unwrap_or_default();
            assert_eq!(found.is_empty(), end.is_empty(), "{from} {to}: {found}");
            assert!(found.starts_with(end), "{from} {to}: {found}");
        }
    });
}

#[test]
#[ignore = "needs nf_tables, nft, and the right to make network namespaces"]
fn ipvs_mode_rules_masquerade_marked_packets() {
    with_rules(RULES, |nftables| {
        let nft = Nft::read(nftables, inet::IpFamily::V4).unwrap();
        for (from, to, mark, is_masqueraded) in [
            ("198.51.100.1", "10.244.1.9:8080", 0x4000, true),
            ("198.51.100.1", "10.244.1.9:8080", 0, false),
            // This pod has connected to itself through a Service (hairpin).
            ("10.244.1.9", "10.244.1.9:8080", 0, true),
        ] {
            let packet = Packet {
                mark,
                ..new(6, from, to)
            };
            let branches = at(&nft, Hook::Postrouting, packet);
            assert_eq!(branches[0].packet.source_nat.is_some(), is_masqueraded);
            assert_eq!(branches[0].packet.mark, 0);
        }
        // The source ranges of this load balancer exclude the node, so its rules drop the node's
        // own packets.
        let own = new(6, "10.96.0.10", "10.96.0.10:80");
        let branches = at(&nft, Hook::Output, own);
        assert_eq!(branches[0].end, Some(End::Dropped));
        // These rules do not mark packets to NodePorts.
        let to_node = new(6, "198.51.100.1", &format!("{NODE}:30000"));
        let branches = at(&nft, Hook::Prerouting, to_node);
        assert_eq!(branches[0].packet.mark, 0);
    });
}
