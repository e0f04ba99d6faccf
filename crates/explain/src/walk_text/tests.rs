use std::sync::Arc;

use packet_path::{Fate as Found, SourceNat};
use proxy::{NamespacedName, ServicePortName};
use view::{Address, Port, Service};

use super::*;
use crate::MODES;
use crate::journeys::{Hop, PacketOrigin, Routing, Sender};
use crate::objects::Objects;

/// A fake node whose pods have addresses in 10.244.1.0/24.
struct Node;

impl Routing for Node {
    fn hop(&self, to: std::net::IpAddr) -> Option<Hop> {
        Some(Hop {
            interface: "any".to_owned(),
            is_local: false,
            is_service: false,
            is_neighbour: to.to_string().starts_with("10.244.1."),
            is_inner: to.to_string().starts_with("10.244.1."),
        })
    }
}

impl EndpointReplies for Node {
    fn answers(&self, _: &packet_path::Walk) -> Vec<packet_path::Walk> {
        Vec::new()
    }

    fn listens(&self, at: SocketAddr, _: Protocol) -> Result<bool, String> {
        match at.port() {
            22 => Ok(true),
            23 => Err("no /proc".to_owned()),
            _ => Ok(false),
        }
    }
}

fn planned(way: PacketOrigin) -> TracedPacket<'static> {
    TracedPacket {
        sender: Sender {
            words: "somebody".to_owned(),
            who: "somebody".to_owned(),
            way,
            is_here: true,
            has_service_address: false,
            stranger: None,
        },
        to: "10.96.0.9:80".parse().unwrap(),
        protocol: Protocol::Tcp,
        of: None,
        named_by: &[],
        proxied_by: &[],
    }
}

fn packet(source: &str, to: &str) -> Packet {
    let at: SocketAddr = to.parse().unwrap();
    let mut packet = Packet::new(6, source.parse().unwrap(), "10.96.0.9".parse().unwrap(), 80);
    if at.ip() != packet.destination {
        packet.translate(Some(at.ip()), Some(at.port()));
    }
    packet
}

fn from_pod(source: &str) -> PacketOrigin {
    PacketOrigin::Comes("cbr0".to_owned(), source.parse().unwrap())
}

fn serving(endpoints: &[&str], sources: Option<&str>) -> RelayedPort {
    RelayedPort {
        name: ServicePortName {
            service: NamespacedName::new("default", "web"),
            port: "http".into(),
            protocol: Protocol::Tcp,
        },
        endpoints: endpoints.iter().map(|at| at.parse().unwrap()).collect(),
        sources: sources.map(|net| vec![net.parse().unwrap()]),
    }
}

fn followed(packet: &Packet, fate: Found) -> packet_path::Walk {
    packet_path::Walk {
        chance: 0.5,
        fate,
        presumed: fate,
        endpoint: Some(packet.to()),
        why: String::new(),
        source: match packet.source_nat {
            Some(SourceNat::Masquerade(address)) => Source::Masqueraded(address),
            _ if packet.source == packet.original.ip() => Source::ServiceAddress,
            _ => Source::Kept,
        },
        steps: vec![Arc::new(packet_path::Step::new(
            "nat KUBE-SEP-A",
            "",
            "sent on",
        ))],
        redirected_by: None,
        passed: 3,
        doubts: Vec::new(),
        packet: packet.clone(),
    }
}

fn walks(
    followed: &packet_path::Walk,
    planned: &TracedPacket<'_>,
    relayed: Option<&RelayedPort>,
) -> Vec<Walk> {
    let listening =
        |_: IpFamily, _: Protocol, port: u16| relayed.filter(|_| port == 40_000).cloned();
    let around = TextInputs {
        kernel: &Node,
        listening: &listening,
        modes: MODES,
        endpoints: &planned.endpoints(),
    };
    told(followed, planned, &around)
}

fn walk(packet: &Packet, fate: Found, way: PacketOrigin) -> Walk {
    walks(&followed(packet, fate), &planned(way), None).remove(0)
}

#[test]
fn a_forwarded_packet_counts_as_delivered() {
    let packet = packet("10.244.1.9", "10.244.2.7:8080");
    let walk = walk(&packet, Found::Delivered, from_pod("10.244.1.9"));
    assert_eq!(walk.fate, Fate::Delivered);
    assert_eq!(walk.endpoint.as_deref(), Some("10.244.2.7:8080"));
    assert_eq!(
        (&*walk.source, walk.seen_as.as_deref()),
        ("kept", Some("10.244.1.9"))
    );
    assert!((walk.chance.0 - 0.5).abs() < 1e-9);
    assert_eq!((walk.rules_passed, walk.unanswered), (3, None));
}

#[test]
fn the_source_address_that_the_endpoint_sees_is_reported() {
    let mut packet = packet("10.244.1.9", "10.244.2.7:8080");
    packet.translate_source(SourceNat::Masquerade(None));
    let seen = walk(&packet, Found::Delivered, from_pod("10.244.1.9"));
    assert_eq!(seen.source, "masqueraded, to an address of this node");
    packet.translate_source(SourceNat::Masquerade(Some("172.35.0.100".parse().unwrap())));
    let seen = walk(&packet, Found::Delivered, from_pod("10.244.1.9"));
    assert_eq!(seen.source, "masqueraded, to 172.35.0.100");
    assert_eq!(seen.seen_as.as_deref(), Some("172.35.0.100"));
}

#[test]
fn lost_replies_are_reported() {
    // The packet's source is the destination address itself. The endpoint 10.244.1.5 is on this
    // node, 10.244.2.5 on another node.
    let objects = |kind| Objects {
        services: vec![Service {
            ports: vec![Port {
                protocol: "TCP".to_owned(),
                addresses: vec![Address {
                    kind,
                    at: "10.96.0.9:80".to_owned(),
                    ..Address::default()
                }],
                ..Port::default()
            }],
            ..Service::default()
        }],
        ..Objects::default()
    };
    let made = |kind, endpoint: &str| {
        let objects = objects(kind);
        let planned = TracedPacket {
            of: objects.places().next(),
            ..planned(PacketOrigin::Made(None))
        };
        let packet = packet("10.96.0.9", endpoint);
        walks(&followed(&packet, Found::Delivered), &planned, None).remove(0)
    };
    let here = made(AddressKind::LoadBalancerIp, "10.244.1.5:80");
    assert_eq!(here.unanswered, None);
    assert!(
        here.source.starts_with("kept: 10.96.0.9"),
        "{}",
        here.source
    );
    let there = made(AddressKind::LoadBalancerIp, "10.244.2.5:80");
    assert!(there.unanswered.unwrap().contains("do not reach this node"));
    let node_port = made(AddressKind::NodePort, "10.244.2.5:80");
    assert_eq!((&*node_port.source, node_port.unanswered), ("kept", None));
    // Here, a pod sends the packet to itself.
    let mut itself = packet("10.244.1.5", "10.244.1.5:80");
    let lost = walk(&itself, Found::Delivered, from_pod("10.244.1.5"));
    assert!(lost.unanswered.unwrap().contains("answers itself"));
    itself.translate_source(SourceNat::Masquerade(None));
    let found = walk(&itself, Found::Delivered, from_pod("10.244.1.5"));
    assert_eq!(found.unanswered, None);
}

#[test]
fn a_packet_to_a_relay_port_continues_to_an_endpoint() {
    let packet = packet("10.244.1.9", "127.0.0.1:40000");
    let plan = planned(from_pod("10.244.1.9"));
    let portal = |packet: &Packet| packet_path::Walk {
        steps: vec![Arc::new(packet_path::Step::new(
            "nat KUBE-PORTALS-HOST",
            "",
            "sent on",
        ))],
        ..followed(packet, Found::Delivered)
    };
    let told = |relayed: &RelayedPort| walks(&portal(&packet), &plan, Some(relayed));
    let two = told(&serving(
        &["10.244.1.5:80", "10.244.2.5:80"],
        Some("10.244.0.0/16"),
    ));
    let ends: Vec<_> = two
        .iter()
        .map(|walk| (walk.fate, walk.endpoint.as_deref().unwrap()))
        .collect();
    assert_eq!(
        ends,
        [
            (Fate::Delivered, "10.244.1.5:80"),
            (Fate::Delivered, "10.244.2.5:80")
        ]
    );
    assert!((two[0].chance.0 - 0.25).abs() < 1e-9);
    assert!(two[0].source.starts_with("masqueraded"));
    for lost in [
        serving(&[], None),
        serving(&["10.244.1.5:80"], Some("192.0.2.0/24")),
    ] {
        let lost = told(&lost);
        assert_eq!((lost.len(), lost[0].fate), (1, Fate::Reset));
    }
    let datagram = TracedPacket {
        protocol: Protocol::Udp,
        ..plan.clone()
    };
    let lost = walks(&portal(&packet), &datagram, Some(&serving(&[], None)));
    assert_eq!(lost[0].fate, Fate::Dropped);
    // The daemon does not listen on this port number.
    let mut other = packet.clone();
    other.port = 40_001;
    let unknown = walks(&portal(&other), &plan, Some(&serving(&[], None)));
    assert_eq!(unknown[0].fate, Fate::Local);
}

#[test]
fn an_unsupported_rule_is_reported_once() {
    let mut riddle = followed(&packet("10.244.1.9", "10.244.2.7:8080"), Found::Unknown);
    riddle.why = "a riddle".to_owned();
    let walk = walks(&riddle, &planned(from_pod("10.244.1.9")), None).remove(0);
    assert_eq!(walk.fate, Fate::Unknown);
    assert_eq!(walk.steps.last().unwrap().says, "a riddle");
}

#[test]
fn a_packet_to_the_node_itself_needs_a_listening_process() {
    let local = |port: u16| {
        let at = SocketAddr::new("10.96.0.9".parse().unwrap(), port);
        let mut packet = Packet::new(6, "10.244.1.9".parse().unwrap(), at.ip(), at.port());
        packet.source_port = None;
        walk(&packet, Found::Local, from_pod("10.244.1.9"))
    };
    assert_eq!((local(22).fate, local(22).unsure), (Fate::Local, None));
    let nobody = local(80);
    assert_eq!((nobody.fate, nobody.endpoint), (Fate::Refused, None));
    assert_eq!(nobody.steps.last().unwrap().place, THIS_NODE);
    let unknown = local(23);
    assert_eq!(unknown.fate, Fate::Local);
    assert!(unknown.unsure.unwrap().contains("no /proc"));
}

#[test]
fn the_fate_of_a_reply_through_another_node_is_unknown() {
    let packet = packet("203.0.113.7", "10.244.2.7:8080");
    let followed = followed(&packet, Found::Delivered);
    let outside = TracedPacket {
        sender: Sender {
            is_here: false,
            has_service_address: false,
            stranger: None,
            ..planned(PacketOrigin::Made(None)).sender
        },
        ..planned(PacketOrigin::Comes("eth0".to_owned(), packet.source))
    };
    let outside = TracedPacket {
        sender: Sender {
            way: PacketOrigin::Comes("eth0".to_owned(), packet.source),
            ..outside.sender
        },
        ..outside
    };
    let walk = walks(&followed, &outside, None).remove(0);
    assert_eq!((walk.fate, walk.unanswered), (Fate::Delivered, None));
    assert!(walk.unsure.unwrap().contains("on another node"));
}

/// Checks that the route places an endpoint only if its EndpointSlice has no `nodeName`.
#[test]
fn the_route_places_an_endpoint_without_a_node_name() {
    for (at, node, is_local, is_sure) in [
        ("10.244.1.10:8080", None, false, true),
        ("10.244.2.10:8080", None, false, false),
        ("10.244.1.10:8080", Some("other"), false, false),
        ("10.244.2.10:8080", Some("own"), true, true),
    ] {
        let endpoint = view::Endpoint {
            at: at.to_owned(),
            node: node.map(str::to_owned),
            local: is_local,
            ..view::Endpoint::default()
        };
        let objects = Objects {
            services: vec![Service {
                ports: vec![Port {
                    protocol: "TCP".to_owned(),
                    addresses: vec![Address {
                        at: "10.96.0.9:80".to_owned(),
                        ..Address::default()
                    }],
                    endpoints: vec![endpoint],
                    ..Port::default()
                }],
                ..Service::default()
            }],
            ..Objects::default()
        };
        let packet = packet("203.0.113.7", at);
        let outside = planned(PacketOrigin::Comes("eth0".to_owned(), packet.source));
        let outside = TracedPacket {
            sender: Sender {
                is_here: false,
                ..outside.sender
            },
            of: objects.places().next(),
            ..outside
        };
        let walk = walks(&followed(&packet, Found::Delivered), &outside, None).remove(0);
        assert_eq!(walk.unsure.is_none(), is_sure, "{at} {node:?}");
    }
}
