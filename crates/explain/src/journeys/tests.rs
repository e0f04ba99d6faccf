use ipnet::IpNet;
use proxy::{IpFamily, LocalDetector};
use view::{Address, Endpoint, Port, Service, ServiceName};

use super::senders::{from_end, neighbour_of};
use super::*;
use crate::objects::OwnNode;

/// A fake node with 172.35.0.100/24 on eth0, a default route through 172.35.0.9, and pods in
/// 10.244.1.0/24 on cbr0.
struct Node;

impl Routing for Node {
    fn hop(&self, to: IpAddr) -> Option<Hop> {
        let IpAddr::V4(to) = to else { return None };
        let (interface, is_local, is_neighbour) = match to.octets() {
            [172, 35, 0, 100] | [10, 244, 1, 1] | [10, 96, ..] | [192, 0, 2, 20] => {
                ("lo", true, true)
            }
            [172, 35, 0, _] => ("eth0", false, true),
            [10, 244, 1, _] => ("cbr0", false, true),
            _ => ("eth0", false, false),
        };
        Some(Hop {
            interface: interface.to_owned(),
            is_local,
            is_service: to.octets() == [192, 0, 2, 20],
            is_neighbour,
            is_inner: is_neighbour && interface == "cbr0",
        })
    }
}

fn address(kind: AddressKind, at: &str) -> Address {
    Address {
        kind,
        at: at.to_owned(),
        ..Address::default()
    }
}

fn endpoint(at: &str, local: bool) -> Endpoint {
    Endpoint {
        at: at.to_owned(),
        local,
        ready: true,
        cluster: true,
        ..Endpoint::default()
    }
}

/// Returns the Service default/web, which has an address of every kind.
fn objects(source_ranges: &[&str], endpoints: Vec<Endpoint>) -> Objects {
    let service = Service {
        name: ServiceName {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
        },
        source_ranges: source_ranges.iter().map(ToString::to_string).collect(),
        ports: vec![Port {
            name: "http".to_owned(),
            protocol: "TCP".to_owned(),
            port: 80,
            node_port: Some(30_080),
            addresses: vec![
                address(AddressKind::ClusterIp, "10.96.0.10:80"),
                address(AddressKind::NodePort, "10.244.1.1:30080"),
                address(AddressKind::NodePort, "172.35.0.100:30080"),
                address(AddressKind::LoadBalancerIp, "192.0.2.10:80"),
            ],
            endpoints,
            ..Port::default()
        }],
        ..Service::default()
    };
    Objects {
        mode: Some("ipvs".to_owned()),
        services: vec![service],
        node: OwnNode {
            addresses: vec!["172.35.0.100".parse().unwrap()],
            pod_networks: vec!["10.244.1.0/24".parse().unwrap()],
            pods: Vec::new(),
            ..OwnNode::default()
        },
    }
}

/// Returns the traced packets and the notes as texts, such as `pod 10.244.1.253 on this node to
/// 10.96.0.10:80 (cbr0 10.244.1.253)`.
fn told(to: &str, from: &str, objects: &Objects) -> Vec<String> {
    let asked = TraceRequest::parse(to, from, "default").unwrap();
    let journeys = plan(&asked, objects, &Node);
    let planned = journeys.planned.iter().map(|one| {
        let way = match &one.sender.way {
            PacketOrigin::Made(None) => "made".to_owned(),
            PacketOrigin::Made(Some(address)) => format!("made {address}"),
            PacketOrigin::Comes(interface, address) => format!("{interface} {address}"),
        };
        format!("{} to {} ({way})", one.sender.words, one.to)
    });
    let notes = journeys.notes.iter().map(|note| format!("note: {note}"));
    planned.chain(notes).collect()
}

#[test]
fn explain_traces_each_sender_to_each_address_of_a_service() {
    let objects = objects(&[], vec![endpoint("10.244.2.5:8080", false)]);
    assert_eq!(
        told("web", "", &objects),
        [
            "pod 10.244.1.253 on this node to 10.96.0.10:80 (cbr0 10.244.1.253)",
            "this node to 10.96.0.10:80 (made)",
            "pod 10.244.1.253 on this node to 172.35.0.100:30080 (cbr0 10.244.1.253)",
            "this node to 172.35.0.100:30080 (made)",
            "outside 203.0.113.7 to 172.35.0.100:30080 (eth0 203.0.113.7)",
            "pod 10.244.1.253 on this node to 192.0.2.10:80 (cbr0 10.244.1.253)",
            "this node to 192.0.2.10:80 (made)",
            "outside 203.0.113.7 to 192.0.2.10:80 (eth0 203.0.113.7)",
            "note: the node port is served at 10.244.1.1:30080 as well",
        ]
    );
    assert!(told("web:https", "", &objects).is_empty());
    assert_eq!(told("web:http", "node", &objects).len(), 4);
    assert_eq!(told("web:30080", "node", &objects).len(), 4);
}

#[test]
fn a_local_endpoint_is_also_traced_as_its_own_client() {
    let endpoints = vec![
        endpoint("10.244.2.5:8080", false),
        endpoint("10.244.1.253:8080", true),
    ];
    let objects = objects(&[], endpoints);
    assert_eq!(
        told("10.96.0.10:80", "pod", &objects),
        [
            // The first sender must not be an endpoint of the Service, so its address differs from
            // the endpoint's.
            "pod 10.244.1.252 on this node to 10.96.0.10:80 (cbr0 10.244.1.252)",
            "pod 10.244.1.253 on this node, itself an endpoint to 10.96.0.10:80 (cbr0 10.244.1.253)",
        ]
    );
}

#[test]
fn clients_inside_and_outside_the_source_ranges_are_traced() {
    let without = "outside 203.0.113.7, in none of loadBalancerSourceRanges";
    let within = |address: &str| format!("outside {address}, within loadBalancerSourceRanges");
    for (ranges, wanted) in [
        (
            &["198.18.0.0/15"][..],
            vec![within("198.19.255.253"), without.to_owned()],
        ),
        (
            &["198.18.0.1/32"],
            vec![within("198.18.0.1"), without.to_owned()],
        ),
        (&["0.0.0.0/0"], vec![within("203.0.113.7")]),
        // A host outside the cluster cannot have an address in the pod network, or this node's
        // address.
        (
            &["10.244.1.0/24", "172.35.0.100/32"],
            vec![without.to_owned()],
        ),
        (&["fd00::/8"], vec!["outside 203.0.113.7".to_owned()]),
    ] {
        let objects = objects(ranges, Vec::new());
        let told = told("192.0.2.10:80", "external", &objects);
        let told: Vec<&str> = told
            .iter()
            .map(|one| one.split_once(" to ").unwrap().0)
            .collect();
        assert_eq!(told, wanted, "{ranges:?}");
    }
    // Source ranges apply only to load-balancer addresses, so a NodePort has only one external
    // sender.
    let objects = objects(&["198.18.0.0/15"], Vec::new());
    assert_eq!(told("172.35.0.100:30080", "external", &objects).len(), 1);
}

#[test]
fn a_given_sender_is_classified_by_its_address() {
    let objects = objects(&[], vec![endpoint("10.244.1.5:8080", true)]);
    let asked = told(
        "10.96.0.10:80",
        "10.244.1.9,10.244.1.5,172.35.0.100,198.51.100.1",
        &objects,
    );
    assert_eq!(
        asked,
        [
            "pod 10.244.1.9 on this node to 10.96.0.10:80 (cbr0 10.244.1.9)",
            "pod 10.244.1.5 on this node, itself an endpoint to 10.96.0.10:80 (cbr0 10.244.1.5)",
            "this node, from 172.35.0.100 to 10.96.0.10:80 (made 172.35.0.100)",
            "198.51.100.1, by eth0 to 10.96.0.10:80 (eth0 198.51.100.1)",
        ]
    );
}

/// A load balancer may send probes from its Service's address, which in IPVS mode the node has as
/// well.
#[test]
fn a_sender_with_a_service_address_is_a_host_outside_the_cluster() {
    let objects = objects(&[], vec![endpoint("10.244.1.5:8080", true)]);
    let asked = TraceRequest::parse("172.35.0.100:30080", "192.0.2.20", "default").unwrap();
    let journeys = plan(&asked, &objects, &Node);
    let [planned] = &*journeys.planned else {
        panic!("{journeys:?}");
    };
    let way = PacketOrigin::Comes("eth0".to_owned(), "192.0.2.20".parse().unwrap());
    assert_eq!(planned.sender.way, way);
    assert!(planned.sender.has_service_address && !planned.sender.is_here);
}

/// The sender is a pod that the rules do not recognise. The Service has `externalTrafficPolicy:
/// Local`.
#[test]
fn an_unrecognised_pod_is_reported_with_the_flag_to_set() {
    let stranger = |mode: &str, detector: LocalDetector| {
        let mut objects = objects(&[], Vec::new());
        objects.mode = Some(mode.to_owned());
        objects.node.detectors = vec![(IpFamily::V4, detector)];
        let asked = TraceRequest::parse("192.0.2.10:80", "10.244.1.99", "default").unwrap();
        let mut planned = plan(&asked, &objects, &Node).planned;
        planned.remove(0).sender.stranger
    };
    let prefix = |text: &str| LocalDetector::InterfacePrefix(text.to_owned());
    let net = |text: &str| LocalDetector::SourceNet(text.parse().unwrap());
    for (detector, flag) in [
        (prefix("cali"), "--pod-interface-name-prefix"),
        (
            LocalDetector::Bridge("cni0".to_owned()),
            "--pod-bridge-interface",
        ),
        (net("10.9.0.0/16"), "--cluster-cidr"),
        (LocalDetector::None, "--detect-local-mode"),
    ] {
        let told = stranger("nftables", detector.clone()).unwrap();
        assert!(told.contains(flag), "{told}");
        assert_eq!(stranger("ipvs", detector), None, "rules do not ask");
    }
    for detector in [prefix("cbr"), net("10.244.0.0/16")] {
        assert_eq!(stranger("nftables", detector), None);
    }
}

#[test]
fn without_a_daemon_only_the_given_address_is_traced() {
    let nothing = Objects::default();
    assert_eq!(
        told("10.96.0.10:80", "", &nothing),
        [
            "this node to 10.96.0.10:80 (made)",
            "outside 203.0.113.7 to 10.96.0.10:80 (eth0 203.0.113.7)",
            "note: no IPv4 address of a pod of this node is known, by spec.podCIDRs of its Node or by an EndpointSlice: \
             give --from POD-IP (kubectl get pods -A -o wide)",
        ]
    );
    let notes = told("[fd00::1]:80", "external,fd01::1", &nothing);
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].contains("give --from CLIENT-IP"), "{notes:?}");
    assert!(notes[1].contains("no route to fd01::1"), "{notes:?}");
}

#[test]
fn each_protocol_of_a_service_address_is_traced() {
    let mut objects = objects(&[], Vec::new());
    let mut udp = objects.services[0].ports[0].clone();
    udp.protocol = "UDP".to_owned();
    objects.services[0].ports.push(udp);
    assert_eq!(told("10.96.0.10:80", "node", &objects).len(), 2);
    assert_eq!(told("10.96.0.10:80/UDP", "node", &objects).len(), 1);
    // No Service has port 81, so only TCP is traced.
    assert_eq!(told("10.96.0.10:81", "node", &objects).len(), 1);
}

#[test]
fn an_address_counted_from_the_end_of_a_subnet_is_within_the_subnet() {
    let net = |text: &str| text.parse::<IpNet>().unwrap();
    assert_eq!(
        from_end(&net("10.0.0.4/30"), 2),
        Some("10.0.0.5".parse().unwrap())
    );
    assert_eq!(from_end(&net("10.0.0.4/30"), 3), None);
    assert_eq!(from_end(&net("10.0.0.4/32"), 2), None);
    assert_eq!(from_end(&net("0.0.0.0/32"), 2), None);
    assert_eq!(from_end(&net("fd00::/127"), 2), None);
}

/// A fake node with 172.35.0.100/24 on eth0. Its only other route leads to the pod 10.9.9.9.
struct Alone;

impl Routing for Alone {
    fn hop(&self, to: IpAddr) -> Option<Hop> {
        let is_pod = to.to_string() == "10.9.9.9";
        let is_here = to.to_string().starts_with("172.35.0.") || is_pod;
        is_here.then(|| Node.hop(to))?.map(|hop| Hop {
            interface: if is_pod {
                "cali1".to_owned()
            } else {
                hop.interface
            },
            is_neighbour: true,
            ..hop
        })
    }
}

#[test]
fn without_a_default_route_the_outside_sender_is_in_the_nodes_subnet() {
    let mut objects = objects(&[], Vec::new());
    objects.node = OwnNode {
        addresses: vec!["172.35.0.100".parse().unwrap()],
        pod_networks: Vec::new(),
        // The first pod is in the host network, so it has the node's own address.
        pods: ["172.35.0.100", "10.9.9.9"]
            .map(|ip| ip.parse().unwrap())
            .to_vec(),
        ..OwnNode::default()
    };
    let asked = TraceRequest::parse("192.0.2.10:80", "", "default").unwrap();
    let journeys = plan(&asked, &objects, &Alone);
    let words = journeys.planned.iter();
    let words: Vec<&str> = words.map(|planned| &*planned.sender.words).collect();
    assert_eq!(
        words,
        [
            "pod 10.9.9.9 on this node",
            "this node",
            "outside 172.35.0.101, beside this node, which has no default route",
        ]
    );
    assert_eq!(journeys.notes, Vec::<String>::new());
}

#[test]
fn the_neighbour_of_an_address_is_a_valid_host() {
    for (own, beside) in [
        ("172.35.0.100", "172.35.0.101"),
        ("172.35.0.1", "172.35.0.3"),
        ("172.35.0.254", "172.35.0.252"),
        ("fd35::1", "fd35::"),
    ] {
        assert_eq!(neighbour_of(own.parse().unwrap()).to_string(), beside);
    }
}

#[test]
fn a_note_explains_why_a_sender_reaches_no_address_of_a_service() {
    let mut objects = objects(&[], Vec::new());
    assert_eq!(
        told("web", "2001:db8::1", &objects),
        [
            "note: the node port is served at 10.244.1.1:30080 as well",
            "note: 2001:db8::1 cannot send to default/web, which has no IPv6 address"
        ]
    );
    let both = told("web:http", "10.244.1.5,2001:db8::1", &objects);
    assert!(
        both.len() > 1 && both.concat().contains("no IPv6 address"),
        "{both:?}"
    );
    objects.services[0].ports.clear();
    assert_eq!(
        told("web", "", &objects),
        ["note: default/web has no address and port on this node"]
    );
}
