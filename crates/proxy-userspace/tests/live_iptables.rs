//! Tests of userspace mode with real packets on a real kernel. iptables rules redirect the packets.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

mod support;

use iptables::{Backend, Iptables};
use proxy::IpFamily;
use proxy_userspace::{UserspaceKernel, probe};
use relay::Relay;
use support::world::{
    endpoints_of_the_node_itself_are_reached, on_a_node, one_process_comes_after_another,
    packets_find_their_way, packets_find_their_way_over_ipv6, rules_that_detect_pods_read_back,
    very_many_are_served,
};

fn iptables() -> Iptables {
    let backend = match std::env::var("LAB_LANE").as_deref() {
        Ok("B") => Some(Backend::Nft),
        Ok("A") => Some(Backend::Legacy),
        _ => None,
    };
    Iptables::choose(backend).unwrap()
}

fn kernel(family: IpFamily, relay: Relay) -> UserspaceKernel {
    probe(&iptables(), family).unwrap();
    UserspaceKernel::with_iptables(family, iptables(), relay)
}

#[test]
#[ignore = "writes rules: run it as root, where iptables can do NAT"]
fn iptables_rules_redirect_packets_to_the_endpoints() {
    on_a_node(|| packets_find_their_way(kernel));
}

#[test]
#[ignore = "writes rules: run it as root, where iptables can do NAT"]
fn ip6tables_rules_redirect_packets_to_the_endpoints() {
    on_a_node(|| packets_find_their_way_over_ipv6(kernel));
}

#[test]
#[ignore = "writes rules: run it as root, where iptables can do NAT"]
fn iptables_rules_that_detect_pods_are_read_back_unchanged() {
    rules_that_detect_pods_read_back(kernel, "true");
}

#[test]
#[ignore = "writes rules: run it as root, where iptables can do NAT"]
fn a_new_process_adopts_the_existing_redirects() {
    on_a_node(|| {
        one_process_comes_after_another(kernel);
        let saved = iptables().save(IpFamily::V4).unwrap();
        let redirects = saved
            .lines()
            .filter(|line| line.contains("--to-destination"));
        // There are eight rules: one for each combination of protocol (two), destination (address
        // or NodePort) and origin (outside or this node).
        assert_eq!(redirects.count(), 8, "none twice");
    });
}

#[test]
#[ignore = "writes rules: run it as root, where iptables can do NAT"]
fn iptables_rules_redirect_packets_to_endpoints_on_the_node_itself() {
    on_a_node(|| endpoints_of_the_node_itself_are_reached(kernel));
}

#[test]
#[ignore = "writes rules: run it as root, where iptables can do NAT"]
fn thousands_of_services_are_served() {
    on_a_node(|| very_many_are_served(kernel, 3_000));
}
