//! The base of the layout `flat`: maps with the endpoints of all Services, and rules that choose an
//! endpoint.
//!
//! All base chains of this layout have type `nat`, even those whose rules reject or drop packets.
//! So only the first packet of a connection traverses them.

use nftables_netlink::{DataType, Set, SetKind, TypeOf};
use proxy::Protocol;

use super::{Base, BaseKey, LayoutInput, SERVICES};
use crate::choice::{Chooser, FEW, Map};
use crate::name::{CLUSTER_IPS, SERVICE_IPS};
use kube_rules::nft::{ADDRESS_AND_PORT, DESTINATION, Sense, address_type};

/// Protocols, in the order of their rules in the chain `services`.
const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

pub(super) fn add(base: &mut Base, wanted: LayoutInput<'_>) {
    for (map, name) in Map::all() {
        add_map(base, map, name);
    }
    let config = wanted.config;
    let masquerade = if config.masquerade_all {
        let to_cluster_ip = base.line().in_set(&[DESTINATION], Sense::Is, CLUSTER_IPS);
        let line = to_cluster_ip.set_mark(config.masquerade_mark);
        Some(line.comment("masquerade all clusterIP traffic"))
    } else {
        // Matches the source before the destination, so that packets from pods need no look-up in
        // the set of ClusterIPs.
        let outside = base.line().pod_traffic(Sense::IsNot, &config.detector);
        let comment = "masquerade clusterIP traffic from outside cluster";
        outside.map(|line| {
            let to_cluster_ip = line.in_set(&[DESTINATION], Sense::Is, CLUSTER_IPS);
            to_cluster_ip
                .set_mark(config.masquerade_mark)
                .comment(comment)
        })
    };
    let mut rules: Vec<_> = masquerade.into_iter().collect();
    rules.push(base.line().verdict_by(ADDRESS_AND_PORT, SERVICE_IPS).rule());
    // Adds one rule for each map of endpoints. A packet for which the map has no element continues
    // with the next rule.
    for protocol in PROTOCOLS {
        for count in 1..=FEW {
            rules.extend(choose(base, Chooser { protocol, count }));
        }
    }
    rules.push(base.by_node_port(wanted.node_ports));
    base.add_chain(SERVICES, rules);
    base.add_cluster_ips_check(wanted.unallocated);
    base.add_reject_chain("helper for @service-ips / @service-nodeports");
}

/// Adds the chain that chooses one of `chooser.count` endpoints.
pub(super) fn add_chooser(base: &mut Base, chooser: Chooser) {
    let rules = choose(base, chooser).into_iter().collect();
    let name = chooser.name().into();
    base.add_any_chain(BaseKey::Chooser(chooser), name, None, None, rules);
}

fn choose(base: &Base, chooser: Chooser) -> Option<nftables_netlink::Rule> {
    let line = base.line().protocol(chooser.protocol);
    let map = chooser.map().name()?;
    Some(line.translate_to_one_in(map, chooser.count).rule())
}

fn add_map(base: &mut Base, map: Map, name: &'static str) {
    let address = address_type(base.family);
    let at = [address, DataType::InetService];
    let comment = match map.count {
        0 => "endpoints of services with more than three".to_owned(),
        1 => "endpoints of services with one".to_owned(),
        count => format!("endpoints of services with {count}"),
    };
    let set = Set {
        type_of: Some(match map.protocol {
            Protocol::Tcp => TypeOf::Tcp,
            Protocol::Udp => TypeOf::Udp,
            Protocol::Sctp => TypeOf::Sctp,
        }),
        comment: Some(comment.into()),
        ..Set::new(
            name.into(),
            [DataType::Integer].into_iter().chain(at).collect(),
            SetKind::Map(at.to_vec()),
        )
    };
    base.sets.insert(name, set);
}
