//! Tests that both layouts give every packet the same verdict. For the same Services, the tests
//! evaluate the rules of both layouts' tables, as the kernel would.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

mod run;

use std::net::IpAddr;
use std::time::Instant;

use fixtures::{ALL_KINDS, at, complete_lists, start_lists};
use ipnet::IpNet;
use proxy::{
    EndpointSlice, Event, IpFamily, LocalDetector, Mode as _, Model, NodeFacts, NodePortAddresses,
    Protocol, Service, ServiceCidr, ServicePort, ServiceType,
};
use proxy_nftables::fake::{Content, FakeKernel};
use proxy_nftables::{Config, Lanes, Layout, Proxier};

use run::{Direction, Outcome, Packet, TableModel, outcome, outcomes};

const NODE: [u8; 4] = [192, 168, 0, 10];
/// Number of values of `numgen` that the test tries for each packet. It is a multiple of each
/// Service's number of endpoints, so that the rules choose each endpoint equally often.
const TURNS: u32 = 12;

// ---- addresses ----

/// Returns an IPv4 network, or the corresponding IPv6 network.
fn net(family: IpFamily, octets: [u8; 4], len: u8) -> IpNet {
    fixtures::net(family, octets, len).unwrap()
}

// ---- Services ----

/// Endpoint numbers of the tested Services. Endpoints with even numbers are on this node.
const ENDPOINTS: [&[u8]; 6] = [&[], &[1], &[2], &[1, 2], &[1, 3, 5], &[1, 2, 3, 4]];
/// Number of optional features of a Service. Each bit of a Service's number turns one feature on:
/// session affinity, NodePort and external IP, load balancer, source ranges, external policy Local,
/// internal policy Local.
const BITS: u16 = 6;
const SERVICES: u16 = 6 << BITS;

struct Numbers {
    cluster: IpAddr,
    ingress: IpAddr,
    external: IpAddr,
    node_port: u16,
    protocol: Protocol,
}

fn numbers(family: IpFamily, service: u16) -> Numbers {
    let [high, low] = service.to_be_bytes();
    Numbers {
        cluster: at(family, [10, 96, high, low]),
        ingress: at(family, [203, 0, high, low]),
        external: at(family, [198, 51, high, low]),
        node_port: 30_000 + service,
        protocol: match service % 3 {
            0 => Protocol::Tcp,
            1 => Protocol::Udp,
            _ => Protocol::Sctp,
        },
    }
}

fn add_service(model: &mut Model, family: IpFamily, number: u16) {
    let is = |bit: u16| number & 1 << bit != 0;
    let own = numbers(family, number);
    let name = fixtures::name(&service_name(number));
    let mut service = Service::at(name, [own.cluster]);
    service.kind = ServiceType::LoadBalancer;
    service.affinity_seconds = is(0).then_some(300);
    if is(2) {
        service.ingress_ips = vec![own.ingress];
    }
    if is(3) {
        service.source_ranges = vec![net(family, [10, 1, 0, 0], 16)];
    }
    service.external_local = is(4);
    service.internal_local = is(5);
    if is(1) {
        service.external_ips = vec![own.external];
        if is(2) {
            // Uses the same address as external IP and as load-balancer IP, so that the source
            // ranges apply to both.
            service.external_ips.push(own.ingress);
        }
    }
    service.ports.push(ServicePort {
        name: "".into(),
        protocol: own.protocol,
        port: 80,
        node_port: is(1).then_some(own.node_port),
    });
    model.apply(Event::ServiceApplied(service));
    let hosts = ENDPOINTS[usize::from(number >> BITS)];
    let endpoints = hosts.iter().map(|host| {
        let node = if host.is_multiple_of(2) {
            "node1"
        } else {
            "node2"
        };
        fixtures::endpoint(at(family, [10, 244, 1, *host]), node)
    });
    let name = service_name(number);
    model.apply(Event::SliceApplied(EndpointSlice {
        family,
        ..fixtures::slice(&format!("{name}-a"), &name, &[own.protocol], endpoints)
    }));
}

fn service_name(number: u16) -> String {
    format!("web-{number}")
}

fn model(family: IpFamily) -> Model {
    let mut model = Model::new();
    start_lists(&mut model, &ALL_KINDS);
    model.apply(fixtures::node(at(family, NODE)));
    model.apply(Event::ServiceCidrApplied(ServiceCidr {
        name: "kubernetes".into(),
        nets: vec![net(family, [10, 96, 0, 0], 12)],
    }));
    for number in 0..SERVICES {
        add_service(&mut model, family, number);
    }
    complete_lists(&mut model, &ALL_KINDS, true);
    model
}

fn table(
    family: IpFamily,
    layout: Layout,
    node_ports: NodePortAddresses,
    masquerade_all: bool,
) -> Content {
    let mut model = model(family);
    let own = [[127, 0, 0, 1], NODE].map(|of| at(family, of).to_string());
    let kernel = FakeKernel::new(family, &own.each_ref().map(String::as_str));
    let mut node = NodeFacts::new(family, "node1");
    node.node_port_addresses = node_ports;
    let config = Config {
        layout,
        masquerade_all,
        detector: LocalDetector::SourceNet(net(family, [10, 244, 1, 0], 24)),
        ..Config::default()
    };
    let lanes = Lanes::inline(|| kernel.clone());
    let now = Instant::now();
    let mut proxier = Proxier::new(config, node, lanes, now);
    let changes = model.take_changes();
    proxier.update(&model, &changes, now);
    loop {
        proxier.proceed(&model, now);
        let mut has_booked = false;
        while let Some(report) = proxier.book(&model, now) {
            has_booked = true;
            assert_eq!(report.failures.len(), 0, "{:?}", report.failures);
        }
        if !has_booked {
            break;
        }
    }
    assert_eq!(proxier.standing().pending, 0);
    let content = kernel.state().table.clone();
    content.unwrap()
}

fn packets(family: IpFamily, service: u16) -> Vec<Packet> {
    let own = numbers(family, service);
    let unused = 81;
    let targets = [
        (own.cluster, 80),
        (own.cluster, unused),
        (own.ingress, 80),
        (own.ingress, unused),
        (own.external, 80),
        (at(family, NODE), own.node_port),
        (at(family, [127, 0, 0, 1]), own.node_port),
        (at(family, [192, 168, 0, 11]), own.node_port),
    ];
    let other = if own.protocol == Protocol::Tcp {
        Protocol::Udp
    } else {
        Protocol::Tcp
    };
    // Sources: a pod on this node, an endpoint on this node, a client inside the source ranges, and
    // a client outside of them.
    let outside = [
        [10, 244, 1, 77],
        [10, 244, 1, 2],
        [10, 1, 2, 3],
        [172, 16, 0, 1],
    ];
    let mut packets = Vec::new();
    for (to, port) in targets {
        for protocol in [own.protocol, other] {
            let packet = |way, source| Packet {
                way,
                protocol: protocol.number(),
                source,
                to,
                port,
            };
            let from_outside = outside
                .into_iter()
                .map(|from| packet(Direction::In, at(family, from)));
            packets.extend(from_outside.filter(|of| !of.to.is_loopback()));
            packets.push(packet(Direction::Out, at(family, NODE)));
        }
    }
    packets
}

/// Returns packets to addresses that belong to no Service.
fn other_packets(family: IpFamily) -> Vec<Packet> {
    let targets = [
        ([10, 111, 0, 1], 80),
        ([8, 8, 8, 8], 80),
        ([10, 244, 1, 2], 8080),
        ([192, 168, 0, 10], 22),
    ];
    let mut packets = Vec::new();
    for (to, port) in targets {
        for protocol in [1, 6, 17, 132] {
            for (way, source) in [
                (Direction::In, [10, 244, 1, 77]),
                (Direction::In, [172, 16, 0, 1]),
                (Direction::Out, NODE),
            ] {
                packets.push(Packet {
                    way,
                    protocol,
                    source: at(family, source),
                    to: at(family, to),
                    port,
                });
            }
        }
    }
    packets
}

/// Checks that both layouts give all packets the same verdicts, for each configuration in
/// `configs`: the NodePort addresses, and whether rules masquerade all traffic to ClusterIPs.
fn compare(family: IpFamily, configs: &[(NodePortAddresses, bool)]) {
    for (node_ports, masquerade_all) in configs {
        let [upstream, flat] = [Layout::Upstream, Layout::Flat]
            .map(|of| TableModel::new(table(family, of, node_ports.clone(), *masquerade_all)));
        let own = (0..SERVICES).flat_map(|service| packets(family, service));
        let (mut sent, mut dropped, mut rejected) = (0, 0, 0);
        for packet in own.chain(other_packets(family)) {
            let (_, has_choice) = outcome(&upstream, packet, 0);
            let turns = if has_choice { TURNS } else { 1 };
            let wanted = outcomes(&upstream, packet, turns);
            assert_eq!(outcomes(&flat, packet, turns), wanted, "{packet:?}");
            for outcome in wanted.into_keys() {
                match outcome {
                    Outcome::Sent { .. } => sent += 1,
                    Outcome::Dropped => dropped += 1,
                    Outcome::Rejected => rejected += 1,
                }
            }
        }
        // The test proves little unless each outcome occurs often.
        assert!(sent > 10_000 && dropped > 500 && rejected > 1_000);
        println!("{sent} sent, {dropped} dropped, {rejected} rejected");
    }
}

/// If the map lacks the element of an endpoint, the rules reject the packets for which they chose
/// this endpoint. These packets never reach the service address itself. The test covers the maps in
/// which rules of `services` and of chooser chains look up endpoints.
#[test]
fn packets_for_which_the_map_lacks_an_endpoint_are_rejected() {
    for family in IpFamily::ALL {
        let content = table(family, Layout::Flat, NodePortAddresses::All, false);
        let mut table = TableModel::new(content);
        let (mut rejected, mut of_many) = (0, 0);
        for at in table.endpoints() {
            let (map, element) = &at;
            let (_, rest) = element.key.split_at(4);
            let (address, port) = rest.split_at(rest.len() - 4);
            let to = match family {
                IpFamily::V4 => <[u8; 4]>::try_from(address).unwrap().into(),
                IpFamily::V6 => <[u8; 16]>::try_from(address).unwrap().into(),
            };
            let protocol = match map.split('-').nth(1).unwrap() {
                "tcp" => Protocol::Tcp,
                "udp" => Protocol::Udp,
                _ => Protocol::Sctp,
            };
            for (way, source) in [(Direction::In, [172, 16, 0, 1]), (Direction::Out, NODE)] {
                let packet = Packet {
                    way,
                    protocol: protocol.number(),
                    source: crate::at(family, source),
                    to,
                    port: u16::from_be_bytes([port[0], port[1]]),
                };
                let each = |table: &TableModel| -> Vec<Outcome> {
                    let turns = 0..TURNS;
                    turns.map(|turn| outcome(table, packet, turn).0).collect()
                };
                let whole = each(&table);
                table.take(&at);
                let without = each(&table);
                table.put(&at);
                assert_eq!(each(&table), whole);
                assert!(!whole.contains(&Outcome::Rejected));
                let differ = whole
                    .iter()
                    .zip(&without)
                    .filter(|(one, other)| one != other);
                let differ: Vec<_> = differ.collect();
                assert!(!differ.is_empty(), "{packet:?}");
                let is_rejected = |(_, after): &(_, &Outcome)| **after == Outcome::Rejected;
                assert!(differ.iter().all(is_rejected), "{packet:?}: {differ:?}");
                rejected += differ.len();
                of_many += usize::from(map.matches('-').count() == 1);
            }
        }
        assert!(rejected > 100 && of_many > 0);
    }
}

#[test]
fn the_upstream_and_the_flat_layout_give_packets_the_same_verdict() {
    let configs = [
        (NodePortAddresses::All, false),
        (NodePortAddresses::Primary, true),
    ];
    compare(IpFamily::V4, &configs);
}

#[test]
fn the_upstream_and_the_flat_layout_give_ipv6_packets_the_same_verdict() {
    compare(IpFamily::V6, &[(NodePortAddresses::Primary, false)]);
}
