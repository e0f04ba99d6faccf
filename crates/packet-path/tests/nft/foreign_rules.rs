//! Tests of other programs' nf_tables rules beside those of kube-proxy.

use packet_path::nft::{Nft, consistently};

use crate::node::{FAMILIES, NODE, packet, tcp, with_rules};

const POD: &str = "10.244.1.77";
const OUTSIDE: &str = "198.51.100.99";

const FIREWALL: &str = r#"
table inet firewall {
    set allowed { type inet_service; flags interval; elements = { 22, 8000-8100 } }
    set marks { type mark; flags interval; elements = { 0x10-0x20 } }
    chain raw {
        type filter hook prerouting priority raw;
        ip daddr 203.0.113.1 notrack
    }
    chain early {
        type filter hook prerouting priority mangle;
        ip protocol icmp accept
        udp dport 4789 meta mark set 0x15
        meta nfproto ipv4 fib saddr . iif oif missing drop
    }
    chain inbound {
        type filter hook input priority filter; policy drop;
        ct state vmap { established : accept, related : accept, invalid : drop }
        iifname "lo" accept
        limit rate over 5/second drop
        meta mark @marks accept
        tcp dport @allowed counter accept comment "what may come in"
        meta l4proto tcp ct original proto-dst 443 accept
        ip saddr { 192.0.2.0/24, 198.51.100.7 } log prefix "known " accept
        tcp sport 53 accept
        reject with icmpx admin-prohibited
    }
    chain through {
        type filter hook forward priority filter; policy accept;
        ct state untracked drop
        oifname vmap { "veth7" : jump to_pods, * : return }
    }
    chain to_pods {
        ip daddr . tcp dport { 10.244.1.0/24 . 8000-9000 } accept
        drop
    }
}
table ip filter {
    chain INPUT {
        type filter hook input priority filter; policy drop;
    }
}
table netdev early {
    chain cloud {
        type filter hook ingress device lo priority 0; policy accept;
    }
}
table ip off {
    flags dormant
    chain inbound {
        type filter hook input priority -10; policy drop;
    }
}
"#;

#[test]
#[ignore = "needs nf_tables, nft, and the right to make network namespaces"]
fn rules_of_another_programs_firewall_are_supported() {
    with_rules(FIREWALL, |nftables| {
        for (from, to, wanted) in [
            (OUTSIDE, "192.168.99.10:22", "192.168.99.10:22 kept"),
            (OUTSIDE, "192.168.99.10:8050", "192.168.99.10:8050 kept"),
            (OUTSIDE, "192.168.99.10:443", "192.168.99.10:443 kept"),
            ("192.0.2.1", "192.168.99.10:80", "192.168.99.10:80 kept"),
            (OUTSIDE, "10.244.1.5:8080", "10.244.1.5:8080 kept"),
            (OUTSIDE, "10.244.1.5:80", "dropped"),
            (POD, "8.8.8.8:53", "8.8.8.8:53 kept"),
            (POD, "203.0.113.1:53", "dropped"),
            (NODE, "203.0.113.1:53", "203.0.113.1:53 kept"),
        ] {
            assert_eq!(tcp(nftables, from, to), [wanted], "{from} to {to}");
        }
        let vxlan = packet(17, OUTSIDE, "192.168.99.10:4789");
        let told = crate::node::ask(nftables, &vxlan);
        assert_eq!(told, ["192.168.99.10:4789 kept"]);
        // The firewall accepts packets from port 53, and the client's port is unknown. So both
        // outcomes are followed, and each path names its assumption.
        let both = tcp(nftables, OUTSIDE, "192.168.99.10:80");
        assert_eq!(both.len(), 2, "{both:?}");
        assert!(
            both.iter().all(|of| of.contains("tcp sport 53 accept")),
            "{both:?}"
        );
        assert!(both.iter().any(|of| of.starts_with("refused")), "{both:?}");
    });
}

#[test]
#[ignore = "needs nf_tables, nft, and the right to make network namespaces"]
fn ignored_chains_are_reported() {
    with_rules(FIREWALL, |nftables| {
        for family in FAMILIES {
            let nft = Nft::read(&mut *nftables, family).unwrap();
            let left = nft.left_to_iptables();
            let names: Vec<_> = left.iter().map(|(_, name)| &**name).collect();
            let has_one = family == inet::IpFamily::V4;
            assert_eq!(names == ["filter"], has_one, "{names:?}");
            let [note] = nft.notes() else {
                panic!("{:?}", nft.notes());
            };
            assert!(
                note.starts_with("table netdev early, chain cloud"),
                "{note}"
            );
        }
    });
}

#[test]
#[ignore = "needs nf_tables, nft, and the right to make network namespaces"]
fn an_unknown_outcome_is_reported_as_unknown() {
    let rules = "
table ip t {
    chain pre {
        type nat hook prerouting priority dstnat;
        tcp dport 81 redirect to :8000-8010
        tcp dport 82 dnat to 10.0.0.1-10.0.0.9
        tcp dport 83 meta cpu 1 counter
        tcp dport 84 socket mark 5 drop
        tcp dport 85 ip dscp set cs1
        tcp dport 86 ip daddr set 10.0.0.1
    }
}";
    with_rules(rules, |nftables| {
        let told = |of: &mut nftables_netlink::Nftables, port: u16| {
            tcp(of, OUTSIDE, &format!("203.0.113.1:{port}"))
        };
        for port in [81, 82, 86] {
            let told = told(nftables, port);
            assert!(
                told[0].starts_with("unknown: table ip t, chain pre:"),
                "{told:?}"
            );
        }
        // These rules have unsupported expressions that cannot affect the packet's path.
        assert_eq!(told(nftables, 83), ["203.0.113.1:83 kept"]);
        assert_eq!(told(nftables, 85), ["203.0.113.1:85 kept"]);
        let told = told(nftables, 84);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(
            told.iter()
                .all(|of| of.contains("`socket` is not understood")),
            "{told:?}"
        );
    });
}

#[test]
#[ignore = "needs nf_tables, nft, and the right to make network namespaces"]
fn an_evaluation_uses_one_ruleset_generation() {
    with_rules(FIREWALL, |nftables| {
        let mut asked = 0;
        let answer = consistently(nftables, inet::IpFamily::V4, |_| {
            asked += 1;
            if asked < 3 {
                crate::node::nft(&["add", "table", "ip", &format!("t{asked}")], "");
            }
            asked
        });
        let answer = answer.unwrap();
        assert_eq!((answer.answer, answer.is_of_one_moment), (3, true));
        let answer = consistently(nftables, inet::IpFamily::V4, |_| {
            asked += 1;
            crate::node::nft(&["add", "table", "ip", &format!("t{asked}")], "");
            asked
        });
        let answer = answer.unwrap();
        assert_eq!((answer.answer, answer.is_of_one_moment), (8, false));
    });
}
