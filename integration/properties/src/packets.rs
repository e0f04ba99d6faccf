//! Simulates packets to frontends on a snapshot of the node's rules.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use packet_path::{Interface, Question, Ruleset, Sender, Snapshot, walk};
use proxy::IpFamily;

use crate::cluster::{NODE_ADDRESS, POD_ADDRESS, at, net};
use crate::stepped_threads::{ClientLocation, Front};
use crate::verdict::{Verdict, Verdicts};

/// Returns a snapshot of the node for simulated packets, with the interface `eth0`, and with pods
/// behind `cni0`.
pub(crate) fn node(family: IpFamily, addresses: impl IntoIterator<Item = IpAddr>) -> Snapshot {
    let interface = |index, name: &str| Interface {
        index: Some(index),
        name: name.to_owned(),
    };
    let (eth0, cni0) = (interface(2, "eth0"), interface(3, "cni0"));
    let loopback = (Interface::loopback(), at(family, [127, 0, 0, 1]));
    let others = addresses.into_iter().map(|address| (eth0.clone(), address));
    let addresses = [loopback].into_iter().chain(others);
    let gateway = Some(at(family, [192, 168, 99, 1]));
    let routes = [
        (net(family, [10, 244, 1, 0], 24), cni0, None),
        (net(family, [192, 168, 99, 0], 24), eth0.clone(), None),
        (net(family, [0, 0, 0, 0], 0), eth0.clone(), gateway),
    ];
    let settings = ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"];
    Snapshot {
        addresses: addresses
            .map(|(at, address)| (at, IpNet::from(address)))
            .collect(),
        routes: routes
            .into_iter()
            .filter_map(|(net, by, gateway)| Some((net?, by, gateway)))
            .collect(),
        settings: settings
            .map(|name| (name.to_owned(), "1".to_owned()))
            .into(),
        ..Snapshot::default()
    }
}

/// Returns the verdicts of these rulesets on packets to each of these frontends.
pub(crate) fn verdicts(
    fronts: &BTreeSet<Front>,
    rulesets: &[&dyn Ruleset],
    node: &Snapshot,
) -> Verdicts {
    let of_front = |front: &Front| {
        let family = front.family();
        let from = match front.from {
            ClientLocation::Node if front.address.is_loopback() => {
                Sender::Node(Some(front.address))
            }
            ClientLocation::Node => Sender::Node(Some(at(family, NODE_ADDRESS))),
            ClientLocation::Pod => Sender::Other(at(family, POD_ADDRESS), None),
            ClientLocation::Outside => Sender::Other(at(family, [198, 51, 100, 99]), None),
        };
        let question = Question {
            protocol: front.protocol,
            from,
            to: SocketAddr::new(front.address, front.port),
            source_port: None,
        };
        let walks = walk(&question, rulesets, node);
        (*front, walks.iter().map(Verdict::of).collect())
    };
    fronts.iter().map(of_front).collect()
}
