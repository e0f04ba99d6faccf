//! Who gets the packets of a front's clients, by the rules that the kernel holds.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use packet_path::{Fate, Interface, Question, Ruleset, Sender, Snapshot, walk};
use proxy::{IpFamily, Target};

use crate::cluster::{NODE_ADDRESS, at, net};
use crate::subject::Served;
use crate::turnstile::{From, Front};

/// The node that packets go through: `eth0`, and its pods behind `cni0`.
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

/// Who serves at these, by these rules.
pub(crate) fn served(fronts: &BTreeSet<Front>, rules: &dyn Ruleset, node: &Snapshot) -> Served {
    let mut served = BTreeMap::new();
    for front in fronts {
        let family = front.family();
        let from = match front.from {
            From::Node => Sender::Node(Some(at(family, NODE_ADDRESS))),
            From::Outside => Sender::Other(at(family, [198, 51, 100, 99]), None),
        };
        let to = SocketAddr::new(front.address, front.port);
        let question = Question {
            protocol: front.protocol,
            from,
            to,
            source_port: None,
        };
        let walks = walk(&question, &[rules], node);
        let delivered = walks.iter().filter(|walk| walk.presumed == Fate::Delivered);
        let targets = delivered.filter_map(|walk| {
            let endpoint = walk.endpoint?;
            let (ip, port) = (endpoint.ip(), endpoint.port());
            Some(Target { ip, port })
        });
        let targets: BTreeSet<Target> = targets.collect();
        if !targets.is_empty() {
            served.insert(*front, targets);
        }
    }
    served
}
