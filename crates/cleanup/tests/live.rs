//! Tests the cleanup on the running kernel. The cleanup removes leftovers of upstream's kube-proxy
//! in each mode, and keeps entries of other programs. The tests compare the output of `ipvsadm`,
//! `ipset`, `iptables-save` and `ip`.
//!
//! `tests/dualstack/` and `tests/iptables-mode/` of the crate `proxy-ipvs` have dumps of the
//! kernel's state that upstream's kube-proxy 1.36.2 left.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

mod shell;

use cleanup::Cleanup;
use ipnet::IpNet;
use ipvs_netlink::{Flags, IpFamily, Ipvs, Service, ServiceKey};
use namespace::in_namespace;
use shell::{backend, feed_sh};

/// Removes the kernel entries of all modes, except virtual servers in `excluded`.
fn clean_up(excluded: &[IpNet]) -> Cleanup {
    let modes = &[
        &proxy_ipvs::FOOTPRINT,
        &proxy_iptables::FOOTPRINT,
        &footprint::NFTABLES,
    ];
    cleanup::clean_up(modes, excluded)
}

/// Runs a test on its own thread and in its own network namespace, which has entries of other
/// programs.
fn on_a_node(story: impl FnOnce() + Send) {
    in_namespace(|| {
        sh(
            "modprobe -q -a ipv6 ip_vs dummy || true; ip link set lo up; ip link add eth0 type veth peer name peer0
            ip addr add 192.168.99.10/24 dev eth0; ip -6 addr add fd00:99::10/64 dev eth0 nodad
            ip link set peer0 up; ip link set eth0 up
            ipvsadm -A -t 9.9.9.9:9 -s rr; ipvsadm -a -t 9.9.9.9:9 -r 10.0.0.1:9 -m
            ipvsadm -A -t 192.168.99.10:8080 -s rr; ipvsadm -A -f 7 -s rr
            ipset create OTHER hash:ip; ipset create KUBE-ROUTER hash:ip",
        );
        for tables in ["iptables", "ip6tables"] {
            feed(
                &format!("{tables}-$backend-restore --noflush"),
                "*nat\n:OTHER - [0:0]\n-A POSTROUTING -m comment --comment \"of others\" -j OTHER\n-A OTHER -j RETURN\nCOMMIT\n\
                 *filter\n:KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-FIREWALL\n-A INPUT -p tcp -m tcp --dport 7 -j DROP\nCOMMIT\n\
                 *mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n",
            );
        }
        story();
    });
}

fn sh(script: &str) -> String {
    feed_sh(script, "")
}

/// Runs a command with `input` on its standard input.
fn feed(command: &str, input: &str) {
    feed_sh(&format!("exec {command}"), input);
}

/// Creates the leftovers of a kube-proxy in IPVS mode.
fn leave_ipvs_mode() {
    let (created, added): (Vec<&str>, Vec<&str>) =
        include_str!("../../proxy-ipvs/tests/dualstack/ipset-save")
            .lines()
            .partition(|line| line.starts_with("create"));
    feed(
        "ipset restore",
        &([created, added].concat().join("\n") + "\n"),
    );
    feed(
        "iptables-$backend-restore --noflush",
        include_str!("../../proxy-ipvs/tests/dualstack/iptables-save"),
    );
    feed(
        "ip6tables-$backend-restore --noflush",
        include_str!("../../proxy-ipvs/tests/dualstack/ip6tables-save"),
    );
    feed(
        "ipvsadm -R",
        include_str!("../../proxy-ipvs/tests/dualstack/ipvsadm-save"),
    );
    sh("ip link add kube-ipvs0 type dummy");
    for address in include_str!("../../proxy-ipvs/tests/dualstack/kube-ipvs0-addresses").lines() {
        sh(&format!("ip addr add {address} dev kube-ipvs0 nodad"));
    }
}

/// Creates the leftovers of a kube-proxy in iptables mode. Omits the rule with an nfacct counter,
/// because the test machine has no tool that creates such a counter.
fn leave_iptables_mode() {
    for (command, saved) in [
        (
            "iptables",
            include_str!("../../proxy-ipvs/tests/iptables-mode/iptables-save"),
        ),
        (
            "ip6tables",
            include_str!("../../proxy-ipvs/tests/iptables-mode/ip6tables-save"),
        ),
    ] {
        // Skips the kubelet's chain `KUBE-FIREWALL`, which already exists.
        let lines = saved
            .lines()
            .filter(|line| !line.contains("nfacct") && !line.contains("KUBE-FIREWALL"));
        let text = lines.collect::<Vec<_>>().join("\n") + "\n";
        feed(&format!("{command}-$backend-restore --noflush"), &text);
    }
}

/// Returns the parts of the kernel's state that a cleanup may change: virtual servers, sets, links
/// with their addresses, and rules.
fn state() -> String {
    sh(
        "ipvsadm -Sn; ipset save | sort; ip -o addr show | grep -v fe80 | sed 's/ valid_lft.*//'; ip -o link show | cut -d: -f2
        for tables in iptables ip6tables; do $tables-$backend-save | grep -v '^#' | sed 's/ \\[.*//'; done",
    )
}

fn expect_all_gone(cleanup: &Cleanup) {
    assert!(
        cleanup.left.is_empty() && !cleanup.removed.is_empty(),
        "{cleanup:#?}"
    );
    let again = clean_up(&[]);
    assert!(
        again.removed.is_empty() && again.left.is_empty(),
        "{again:#?}"
    );
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn cleanup_removes_ipvs_mode_and_keeps_entries_of_other_programs() {
    on_a_node(|| {
        // A first cleanup makes the kernel load the iptables tables. From then on, every save
        // contains these tables.
        leave_ipvs_mode();
        clean_up(&[]);
        let before = state();
        assert!(
            before.contains("9.9.9.9")
                && before.contains("OTHER")
                && !before.contains("KUBE-SERVICES"),
            "{before}"
        );
        leave_ipvs_mode();
        let cleanup = clean_up(&[]);
        assert_eq!(state(), before);
        let backend = backend();
        let removed = [
            "IPv4: 5 virtual servers",
            "IPv6: 4 virtual servers",
            "link kube-ipvs0 with 7 service addresses",
            &format!("IPv4: 11 chains and 9 jumps of iptables ({backend})"),
            &format!("IPv6: 11 chains and 9 jumps of iptables ({backend})"),
            "IPv4: 17 ipsets",
            "IPv6: 17 ipsets",
        ];
        assert_eq!(cleanup.removed, removed);
        expect_all_gone(&cleanup);
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn service_addresses_bound_as_routes_are_removed() {
    on_a_node(|| {
        let routes = "ip route show table local proto 107; ip -6 route show table local proto 107";
        sh("ip link add kube-ipvs0 up type dummy
            ipvsadm -A -t 10.96.0.10:80 -s rr; ipvsadm -A -t [fd00::10]:80 -s rr
            ip route add local 10.96.0.10 dev kube-ipvs0 table local proto 107
            ip -6 route add local fd00::10 dev kube-ipvs0 table local proto 107");
        assert_eq!(sh(routes).lines().count(), 2);
        let removed = clean_up(&[]).removed;
        assert_eq!(
            removed,
            [
                "IPv4: 1 virtual server",
                "IPv6: 1 virtual server",
                "link kube-ipvs0 with 2 service addresses"
            ]
        );
        assert_eq!(sh(routes), "");
        sh("ip link add kube-ipvs0 up type veth peer name other
            ip route add local 10.96.0.10 dev kube-ipvs0 table local proto 107
            ip route add local 10.96.0.11 dev kube-ipvs0 table local");
        let cleanup = clean_up(&[]);
        assert_eq!(cleanup.removed, ["IPv4: 1 service address"]);
        let left = sh("ip route show table local dev kube-ipvs0");
        assert!(
            left.contains("10.96.0.11") && !left.contains("10.96.0.10"),
            "{left}"
        );
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn one_cleanup_removes_leftovers_of_two_modes() {
    on_a_node(|| {
        leave_iptables_mode();
        leave_ipvs_mode();
        clean_up(&[]);
        let before = state();
        leave_iptables_mode();
        let upstream = sh("iptables-$backend-save; ip6tables-$backend-save");
        assert!(upstream.matches(":KUBE-SEP-").count() > 3, "{upstream}");
        leave_ipvs_mode();
        // The virtual server for this firewall mark has our ownership flag, so the cleanup removes
        // it. The virtual server for mark 7 belongs to another program and has no such flag.
        let mark = ServiceKey::Fwmark {
            family: IpFamily::V4,
            mark: 9,
        };
        let mut noted = Service::new(mark, "rr".parse().unwrap());
        noted.flags = Flags::from_bits_retain(proxy_ipvs::Properties::OWNED);
        let mut ipvs = Ipvs::open().unwrap();
        let mut batch = netlink_batch::Batch::new();
        ipvs.family().new_service(&mut batch, &noted);
        ipvs.execute(&batch).unwrap();
        assert!(sh("ipvsadm -Sn").contains("-A -f 9 "));
        let cleanup = clean_up(&[]);
        assert_eq!(state(), before);
        expect_all_gone(&cleanup);
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn entries_used_by_rules_of_other_programs_are_reported_and_kept() {
    on_a_node(|| {
        leave_ipvs_mode();
        sh("iptables-$backend -t nat -A OTHER -j KUBE-MARK-MASQ
            iptables-$backend -A INPUT -m set --match-set KUBE-CLUSTER-IP dst -j ACCEPT");
        let cleanup = clean_up(&["203.0.113.0/24".parse().unwrap()]);
        assert!(
            matches!(&cleanup.left[..], [chain, set]
                if chain.contains("-A OTHER -j KUBE-MARK-MASQ") && set.contains("ipset KUBE-CLUSTER-IP")),
            "{cleanup:#?}"
        );
        let left = state();
        assert!(left.contains("203.0.113.10:80"), "excluded:\n{left}");
        assert_eq!(left.matches("KUBE-MARK-MASQ").count(), 2, "{left}");
        assert!(!left.contains("kube-ipvs0"), "{left}");

        sh(
            "iptables-$backend -t nat -F OTHER; iptables-$backend -D INPUT -m set --match-set KUBE-CLUSTER-IP dst -j ACCEPT",
        );
        let cleanup = clean_up(&[]);
        assert_eq!(
            cleanup.removed,
            [
                format!("IPv4: 1 chain and 0 jumps of iptables ({})", backend()),
                "IPv4: 1 ipset".to_owned()
            ]
        );
        expect_all_gone(&cleanup);
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn temporary_ipsets_of_a_crashed_process_are_removed() {
    on_a_node(|| {
        // Earlier versions of this program used the first name for both IP families.
        for family in ["inet", "inet6"] {
            sh(&format!(
                "ipset create KUBE-GROWING hash:ip,port family {family}
                ipset create KUBE-6-GROWING hash:ip,port family inet6"
            ));
            let cleanup = clean_up(&[]);
            assert_eq!(cleanup.removed, ["IPv4: 1 ipset", "IPv6: 1 ipset"]);
            assert_eq!(sh("ipset list -n | sort"), "KUBE-ROUTER\nOTHER\n");
        }
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn cleanup_keeps_a_kube_ipvs0_that_is_no_dummy_link_and_removes_its_service_addresses() {
    on_a_node(|| {
        sh("ip link add kube-ipvs0 type veth peer name other
            ip addr add 10.96.0.10/32 dev kube-ipvs0; ip addr add 10.1.0.1/24 dev kube-ipvs0
            ipset create KUBE-IPVS-IPS hash:ip; ipset add KUBE-IPVS-IPS 10.96.0.10");
        let cleanup = clean_up(&[]);
        assert!(
            matches!(&cleanup.left[..], [link] if link.contains("kube-ipvs0") && link.contains("veth")),
            "{cleanup:#?}"
        );
        let left = state();
        assert!(
            left.contains("10.1.0.1/24") && !left.contains("10.96.0.10"),
            "{left}"
        );
    });
}

#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn cleanup_removes_only_the_nftables_tables_of_kube_proxy() {
    on_a_node(|| {
        // Skips the nftables part if the kernel lacks nftables for the family `ip`.
        let has_nft = sh("nft add table ip kube-proxy 2>/dev/null && echo yes || true") == "yes\n";
        if has_nft {
            sh(
                "nft add table ip6 kube-proxy; nft add chain ip kube-proxy x; nft add table ip other; nft add table inet kube-proxy",
            );
        }
        let removed = clean_up(&[]).removed;
        let tables = removed
            .iter()
            .filter(|line| line.ends_with("the nftables mode's table kube-proxy"));
        assert_eq!(tables.count(), if has_nft { 2 } else { 0 }, "{removed:?}");
        if has_nft {
            let left = sh("nft list tables");
            assert!(
                left.contains("table ip other\n") && left.contains("table inet kube-proxy\n"),
                "{left}"
            );
            assert!(
                !left.contains("table ip kube-proxy") && !left.contains("ip6 kube-proxy"),
                "{left}"
            );
        }
    });
}

/// Checks that sets in an nftables table are evidence of virtual servers, as ipsets are.
#[test]
#[ignore = "needs a kernel with IPVS: run by make test in the lab"]
fn cleanup_removes_ipvs_mode_with_its_rules_and_sets_in_nftables() {
    on_a_node(|| {
        // Skips the test if the kernel lacks nftables for the family `ip`.
        if sh("nft add table ip kube-proxy-ipvs 2>/dev/null && echo yes || true") != "yes\n" {
            return;
        }
        sh(
            "nft add set ip kube-proxy-ipvs KUBE-CLUSTER-IP '{ type ipv4_addr . inet_proto . inet_service; }'
            nft add element ip kube-proxy-ipvs KUBE-CLUSTER-IP '{ 10.50.0.1 . tcp . 80 }'
            nft add set ip kube-proxy-ipvs KUBE-NODE-PORT-TCP '{ type inet_service; }'
            nft add element ip kube-proxy-ipvs KUBE-NODE-PORT-TCP '{ 30080 }'
            ipvsadm -A -t 10.50.0.1:80 -s rr; ipvsadm -A -t 10.50.0.2:80 -s rr
            ipvsadm -A -t 192.168.99.10:30080 -s rr",
        );
        let cleanup = clean_up(&[]);
        assert!(cleanup.left.is_empty(), "{cleanup:?}");
        assert_eq!(
            cleanup.removed,
            [
                "IPv4: 2 virtual servers",
                "IPv4: the ipvs mode's table kube-proxy-ipvs"
            ]
        );
        let left = sh("ipvsadm -Sn");
        assert!(
            !left.contains("10.50.0.1:80") && !left.contains(":30080"),
            "{left}"
        );
        assert!(
            left.contains("10.50.0.2:80") && left.contains("192.168.99.10:8080"),
            "{left}"
        );
    });
}
