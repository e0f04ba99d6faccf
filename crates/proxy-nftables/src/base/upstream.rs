//! The base of upstream's layout. It has maps of source ranges and of Services without endpoints,
//! and chains of type `filter` that look up packets in these maps.

use nftables_netlink::{ChainKind, Hook, Rule, SetKind};

use super::{
    Base, CLUSTER_IPS_CHECK, FIREWALL_CHECK, LayoutInput, NODE_PORTS_CHECK, SERVICES,
    SERVICES_CHECK,
};
use crate::name::{
    CLUSTER_IPS, FIREWALL_IPS, NO_ENDPOINT_NODE_PORTS, NO_ENDPOINT_SERVICES, SERVICE_IPS,
};
use kube_rules::nft::{ADDRESS_AND_PORT, DESTINATION, PORT, Sense};

pub(super) fn add(base: &mut Base, wanted: LayoutInput<'_>) {
    add_maps(base);
    add_filter_chains(base);
    let (config, node_ports) = (wanted.config, wanted.node_ports);

    let to_cluster_ip = base.line().in_set(&[DESTINATION], Sense::Is, CLUSTER_IPS);
    let masquerade = if config.masquerade_all {
        let line = to_cluster_ip.set_mark(config.masquerade_mark);
        Some(line.comment("masquerade all clusterIP traffic"))
    } else {
        let outside = to_cluster_ip.pod_traffic(Sense::IsNot, &config.detector);
        let comment = "masquerade clusterIP traffic from outside cluster";
        outside.map(|line| line.set_mark(config.masquerade_mark).comment(comment))
    };
    let by_address = base.line().verdict_by(ADDRESS_AND_PORT, SERVICE_IPS).rule();
    let by_port = base.by_node_port(node_ports);
    let services = masquerade.into_iter().chain([by_address, by_port]);
    base.add_chain(SERVICES, services.collect());

    let at_node = base.at_node(base.line(), node_ports);
    let unserved = at_node.verdict_by(PORT, NO_ENDPOINT_NODE_PORTS).rule();
    base.add_chain(NODE_PORTS_CHECK, vec![unserved]);
    let unserved = base
        .line()
        .verdict_by(ADDRESS_AND_PORT, NO_ENDPOINT_SERVICES)
        .rule();
    base.add_chain(SERVICES_CHECK, vec![unserved]);
    let walled = base
        .line()
        .verdict_by(ADDRESS_AND_PORT, FIREWALL_IPS)
        .rule();
    base.add_chain(FIREWALL_CHECK, vec![walled]);
    base.add_cluster_ips_check(wanted.unallocated);
    base.add_reject_chain("helper for @no-endpoint-services / @no-endpoint-nodeports");
}

fn add_maps(base: &mut Base) {
    let at = base.destination();
    let [_, by_port @ ..] = at;
    let map = || SetKind::Verdicts;
    let comment = "destinations that are subject to LoadBalancerSourceRanges";
    base.add_set(FIREWALL_IPS, &at, map(), comment);
    let comment = "vmap to drop or reject packets to services with no endpoints";
    base.add_set(NO_ENDPOINT_SERVICES, &at, map(), comment);
    let comment = "vmap to drop or reject packets to service nodeports with no endpoints";
    base.add_set(NO_ENDPOINT_NODE_PORTS, &by_port, map(), comment);
}

fn add_filter_chains(base: &mut Base) {
    // `EARLY` checks source ranges before DNAT. `ONWARD` checks for missing endpoints and unused
    // ports of ClusterIPs after DNAT.
    const EARLY: [&str; 1] = [FIREWALL_CHECK];
    const ONWARD: [&str; 2] = [SERVICES_CHECK, CLUSTER_IPS_CHECK];
    let chains: [(&'static str, Hook, i32, &[&'static str]); 5] = [
        ("filter-prerouting-pre-dnat", Hook::Prerouting, -110, &EARLY),
        ("filter-output-pre-dnat", Hook::Output, -110, &EARLY),
        (
            "filter-input",
            Hook::Input,
            0,
            &[NODE_PORTS_CHECK, SERVICES_CHECK],
        ),
        ("filter-forward", Hook::Forward, 0, &ONWARD),
        ("filter-output", Hook::Output, 0, &ONWARD),
    ];
    for (name, hook, priority, checks) in chains {
        let jumps = checks.iter();
        let jumps = jumps.map(|check| base.line().new_connection().jump(*check).rule());
        let to_localhost = (hook == Hook::Output && priority == 0)
            .then(|| base.to_localhost_check())
            .flatten();
        let jumps: Vec<Rule> = jumps.chain(to_localhost).collect();
        base.add_base_chain(name, (ChainKind::Filter, hook, priority), jumps);
    }
}
