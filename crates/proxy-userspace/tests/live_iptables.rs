//! The mode on a real kernel, with real packets, redirected by iptables.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

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
fn packets_find_their_way_by_iptables() {
    on_a_node(|| packets_find_their_way(kernel));
}

#[test]
#[ignore = "writes rules: run it as root, where iptables can do NAT"]
fn packets_find_their_way_by_ip6tables() {
    on_a_node(|| packets_find_their_way_over_ipv6(kernel));
}

#[test]
#[ignore = "writes rules: run it as root, where iptables can do NAT"]
fn rules_that_tell_pods_apart_read_back() {
    rules_that_detect_pods_read_back(kernel, "true");
}

#[test]
#[ignore = "writes rules: run it as root, where iptables can do NAT"]
fn a_process_that_comes_after_another_takes_over() {
    on_a_node(|| {
        one_process_comes_after_another(kernel);
        let saved = iptables().save(IpFamily::V4).unwrap();
        let redirects = saved
            .lines()
            .filter(|line| line.contains("--to-destination"));
        // Eight rules: two protocols, an address and a NodePort, from outside and from the node.
        assert_eq!(redirects.count(), 8, "none twice");
    });
}

#[test]
#[ignore = "writes rules: run it as root, where iptables can do NAT"]
fn endpoints_of_the_node_itself_are_reached_by_iptables() {
    on_a_node(|| endpoints_of_the_node_itself_are_reached(kernel));
}

#[test]
#[ignore = "writes rules: run it as root, where iptables can do NAT"]
fn very_many_are_served_at_once() {
    on_a_node(|| very_many_are_served(kernel, 3_000));
}
