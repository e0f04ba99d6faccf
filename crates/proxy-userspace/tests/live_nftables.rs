//! Tests of userspace mode with real packets on a real kernel. An nf_tables table redirects the
//! packets.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

mod support;

use std::sync::Arc;
use std::time::Instant;

use proxy::{IpFamily, Mode as _};
use proxy_userspace::{UserspaceKernel, probe_nftables};
use relay::Relay;
use support::world::{
    World, endpoints_of_the_node_itself_are_reached, on_a_node, one_process_comes_after_another,
    packets_find_their_way, packets_find_their_way_over_ipv6, rules_that_detect_pods_read_back, sh,
    very_many_are_served, who,
};

fn kernel(family: IpFamily, relay: Relay) -> UserspaceKernel {
    probe_nftables(family).unwrap();
    UserspaceKernel::with_nftables(family, relay, &Arc::default()).unwrap()
}

#[test]
#[ignore = "writes rules: run it as root, where the kernel has nf_tables"]
fn an_nftables_table_redirects_packets_to_the_endpoints() {
    on_a_node(|| packets_find_their_way(kernel));
}

#[test]
#[ignore = "writes rules: run it as root, where the kernel has nf_tables"]
fn an_nftables_table_redirects_ipv6_packets_to_the_endpoints() {
    on_a_node(|| packets_find_their_way_over_ipv6(kernel));
}

/// Checks that `nft` can load its own listing of this mode's rules, and that the loaded rules equal
/// the original rules byte for byte.
#[test]
#[ignore = "writes rules: run it as root, where the kernel has nf_tables"]
fn nftables_rules_that_detect_pods_are_read_back_unchanged() {
    let again = "nft list ruleset > /tmp/listed.$$; nft flush ruleset
                 nft -f /tmp/listed.$$; rm /tmp/listed.$$";
    rules_that_detect_pods_read_back(kernel, again);
}

#[test]
#[ignore = "writes rules: run it as root, where the kernel has nf_tables"]
fn a_new_process_adopts_the_existing_redirects() {
    on_a_node(|| one_process_comes_after_another(kernel));
}

#[test]
#[ignore = "writes rules: run it as root, where the kernel has nf_tables"]
fn nft_lists_the_table_and_drift_in_it_is_repaired() {
    on_a_node(|| {
        let mut world = World::new(IpFamily::V4, kernel);
        let endpoints = world.endpoints("192.0.2.2", &["a"]);
        world.serve("10.96.0.1", &endpoints);
        world.sync();
        let list = || sh("nft list table ip kube-proxy-userspace");
        let listed = list();
        for part in [
            "10.96.0.1 . tcp . 80 comment \"default/web:tcp\" : 192.0.2.1 . ",
            "10.96.0.1 . udp . 80 comment \"default/web:udp\" : 127.0.0.1 . ",
            "type nat hook prerouting priority dstnat - 10; policy accept;",
            "dnat to ip daddr . meta l4proto . th dport map @portals comment",
            "fib daddr type local dnat to meta l4proto . th dport map @nodeports-node comment",
        ] {
            let is_there = listed.contains(part);
            // Accepts the output of older versions of `nft`. They print a comment at the end of the
            // line, and `dnat ip to` instead of `dnat to`.
            let plain = part.split(" comment").next().unwrap();
            let other = plain.replace("dnat to", "dnat ip to");
            assert!(
                is_there || listed.contains(plain) || listed.contains(&other),
                "{part}: {listed}"
            );
        }
        for harm in [
            "delete table ip kube-proxy-userspace",
            "flush chain ip kube-proxy-userspace output",
            "flush map ip kube-proxy-userspace portals",
            "add rule ip kube-proxy-userspace prerouting accept",
            "add table ip kube-proxy-userspace { flags dormant; }",
            "flush chain ip kube-proxy-userspace output; delete chain ip kube-proxy-userspace output",
            "add table ip kube-proxy-userspace { flags dormant; }; delete table ip kube-proxy-userspace; \
             add table ip kube-proxy-userspace { flags dormant; }",
        ] {
            sh(&format!("nft '{harm}'"));
            world.mode.check(Instant::now());
            world.settle();
            assert_eq!(list(), listed, "{harm}");
            assert_eq!(who("10.96.0.1:80").unwrap(), "a", "{harm}");
        }
        assert_eq!(sh("nft list tables"), "table ip kube-proxy-userspace\n");
    });
}

#[test]
#[ignore = "writes rules: run it as root, where the kernel has nf_tables"]
fn an_nftables_table_redirects_packets_to_endpoints_on_the_node_itself() {
    on_a_node(|| endpoints_of_the_node_itself_are_reached(kernel));
}

#[test]
#[ignore = "writes rules: run it as root, where the kernel has nf_tables"]
fn thousands_of_services_are_served() {
    on_a_node(|| very_many_are_served(kernel, 3_000));
}
