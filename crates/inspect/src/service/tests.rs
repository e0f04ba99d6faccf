use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy::{
    Conflict, EndpointPort, EndpointSlice, Failure, NamespacedName, NodeFacts, NodePorts,
    Placement, Protocol, ServiceAddress,
};
use service_counters::{OfAddress, OfEndpoint};
use view::Drain;

use super::*;
use crate::question::GroundOfFamily;

fn name(port: &str) -> ServicePortName {
    ServicePortName {
        service: NamespacedName::new("default", "web"),
        port: port.into(),
        protocol: Protocol::Tcp,
    }
}

fn at(text: &str) -> At {
    let socket: SocketAddr = text.parse().unwrap();
    At {
        address: socket.ip(),
        port: socket.port(),
        protocol: Protocol::Tcp,
    }
}

fn web() -> ServiceCopy {
    let own = NamespacedName::new("default", "web");
    let endpoint = |last: u8, node: &str, ready| proxy::Endpoint {
        address: [10, 244, 1, last].into(),
        ready,
        serving: ready,
        terminating: false,
        placement: Arc::new(Placement {
            node: Some(node.into()),
            ..Placement::default()
        }),
    };
    let port = ServicePort {
        name: "http".into(),
        protocol: Protocol::Tcp,
        port: 80,
        node_port: Some(30_080),
    };
    ServiceCopy {
        service: Service {
            kind: ServiceType::NodePort,
            external_local: true,
            ports: [port].into_iter().collect(),
            external_ips: vec![
                "192.0.2.20".parse().unwrap(),
                "2001:db8::1".parse().unwrap(),
            ],
            ..Service::at(own.clone(), [[10, 96, 0, 1].into()])
        },
        slices: vec![EndpointSlice {
            name: own.clone(),
            service: own,
            family: IpFamily::V4,
            ports: [EndpointPort {
                name: "http".into(),
                protocol: Protocol::Tcp,
                port: 8080,
            }]
            .into_iter()
            .collect(),
            endpoints: vec![
                endpoint(1, "n1", true),
                endpoint(2, "n2", true),
                endpoint(3, "n2", false),
            ]
            .into(),
            change_trigger: None,
        }],
    }
}

fn ground() -> NodeContext {
    NodeContext {
        refused: Vec::new(),
        families: vec![GroundOfFamily {
            node: NodeFacts::new(IpFamily::V4, "n1"),
            node_ports: Some(NodePorts {
                addresses: vec![[172, 35, 0, 100].into()],
                on_localhost: true,
            }),
            failures: vec![Failure {
                object: "add virtual server 10.96.0.1:80/TCP".to_owned(),
                owner: Some(name("http")),
                reason: "no memory".to_owned(),
            }],
            conflicts: vec![Conflict {
                object: "192.0.2.20:80/TCP".to_owned(),
                winner: name("other"),
                loser: name("http"),
            }],
            held_by_others: HashSet::new(),
            drains: proxy::Drains::default(),
            now: Instant::now(),
        }],
    }
}

#[test]
fn a_service_object_has_addresses_reasons_errors_and_counters() {
    let count = |connections| Count {
        connections,
        ..Count::default()
    };
    let mut counted = CounterSamples::default();
    for (text, connections) in [
        ("10.96.0.1:80", 5),
        ("172.35.0.100:30080", 2),
        ("10.96.0.9:80", 99),
    ] {
        let of = OfAddress {
            scheduler: Some("rr".to_owned()),
            count: count(connections),
        };
        counted.addresses.insert(at(text), of);
        let of = OfEndpoint {
            weight: Some(1),
            count: count(connections),
        };
        let endpoint = "10.244.1.1:8080".parse().unwrap();
        counted.endpoints.insert((at(text), endpoint), of);
    }
    // Another pod has the same IP as web-0 (both are in the node's network), but a different port.
    let list = r#"{"items": [
        {"metadata": {"name": "web"}, "ports": [{"name": "http", "port": 8080}],
         "endpoints": [{"addresses": ["10.244.1.1"], "targetRef": {"name": "web-0"}}]},
        {"metadata": {"name": "web-z"}, "ports": [{"name": "http", "port": 8081}],
         "endpoints": [{"addresses": ["10.244.1.1"], "targetRef": {"name": "web-1"}, "nodeName": "n2"}]}]}"#;
    let places = EndpointPlaces::from_list(list).unwrap();
    let ground = ground();
    let seen = ServiceContext::new(&ground, &counted, &places);
    let told = seen.service(
        &web(),
        Detail {
            has_endpoints: true,
        },
    );
    let port = &told.ports[0];
    let addresses: Vec<_> = port
        .addresses
        .iter()
        .map(|one| (one.kind, &*one.at))
        .collect();
    assert_eq!(
        addresses,
        [
            (AddressKind::ClusterIp, "10.96.0.1:80"),
            // This node does not serve IPv6, so the external IPv6 address is not listed.
            (AddressKind::ExternalIp, "192.0.2.20:80"),
            (AddressKind::NodePort, "172.35.0.100:30080"),
            (AddressKind::NodePort, "127.0.0.1:30080"),
        ]
    );
    assert_eq!(
        port.addresses[1].lost_to.as_deref(),
        Some("default/web:other")
    );
    assert_eq!(port.addresses[0].counters.unwrap().connections, 5);
    assert_eq!(
        port.counters.unwrap().connections,
        7,
        "of its own addresses"
    );
    assert_eq!(told.errors.len(), 2, "{:?}", told.errors);
    assert!(told.errors[0].contains("no memory") && told.errors[1].contains("192.0.2.20:80/TCP"));
    let [one, two, three] = &*port.endpoints else {
        panic!("{:?}", port.endpoints);
    };
    assert_eq!(
        (one.pod.as_deref(), one.node.as_deref()),
        (Some("web-0"), Some("n1"))
    );
    assert_eq!((&*one.why, one.weight), ("ready", Some(1)));
    assert_eq!(one.counters.unwrap().connections, 7);
    assert_eq!((two.cluster, two.local_policy), (true, false));
    assert_eq!(
        two.why,
        "policy Cluster: ready; policy Local: on another node"
    );
    assert_eq!(three.condition, Condition::NotReady);
    assert_eq!(
        three.why,
        "policy Cluster: not ready; policy Local: on another node"
    );
    let counts = EndpointCounts {
        total: 3,
        ready: 2,
        local: 1,
        used: 2,
        draining: 0,
    };
    assert_eq!(port.endpoint_counts, counts);
    let short = seen.service(
        &web(),
        Detail {
            has_endpoints: false,
        },
    );
    assert!(short.ports[0].endpoints.is_empty());
    assert_eq!(short.ports[0].endpoint_counts, counts);
}

#[test]
fn endpoints_of_a_family_without_a_cluster_ip_are_not_used() {
    let mut of_v6 = web();
    of_v6.service.cluster_ips = [[0xfd00, 0x96, 0, 0, 0, 0, 0, 1].into()]
        .into_iter()
        .collect();
    let (ground, counted) = (ground(), CounterSamples::default());
    let nowhere = EndpointPlaces::default();
    let seen = ServiceContext::new(&ground, &counted, &nowhere);
    let detail = Detail {
        has_endpoints: true,
    };
    let told = seen.service(&of_v6, detail);
    let counts = told.ports[0].endpoint_counts;
    assert_eq!((counts.used, counts.total), (0, 3));
    for endpoint in &told.ports[0].endpoints {
        assert!(!endpoint.cluster && !endpoint.local_policy, "{endpoint:?}");
        assert_eq!(endpoint.why, "IPv4, and the Service has no IPv4 cluster IP");
    }
}

#[test]
fn an_endpoint_object_has_the_node_name_of_its_endpoint_slice() {
    let (ground, counted) = (ground(), CounterSamples::default());
    let nowhere = EndpointPlaces::default();
    let seen = ServiceContext::new(&ground, &counted, &nowhere);
    let mut unplaced = web();
    let endpoints = unplaced.slices[0].endpoints.iter();
    let mut given: Vec<proxy::Endpoint> = endpoints.map(Into::into).collect();
    given[1].placement = Arc::default();
    unplaced.slices[0].endpoints = given.into();
    let detail = Detail {
        has_endpoints: true,
    };
    let told = seen.service(&unplaced, detail);
    let [one, two, _] = &*told.ports[0].endpoints else {
        panic!("{:?}", told.ports[0].endpoints);
    };
    assert_eq!((one.node.as_deref(), one.local), (Some("n1"), true));
    assert_eq!((two.node.as_deref(), two.local), (None, false));
    assert_eq!(
        two.why,
        "policy Cluster: ready; policy Local: counts as on another node, because its \
         EndpointSlice has no nodeName for it"
    );
}

#[test]
fn counters_without_an_address_are_shown_at_the_service_port() {
    let count = Count {
        connections: 3,
        ..Count::default()
    };
    let mut counted = CounterSamples::default();
    counted.ports.insert(name("http"), count);
    let of = OfAddress {
        count,
        ..OfAddress::default()
    };
    counted.addresses.insert(at("0.0.0.0:30080"), of);
    let (ground, nowhere) = (ground(), EndpointPlaces::default());
    let seen = ServiceContext::new(&ground, &counted, &nowhere);
    let told = seen.service(
        &web(),
        Detail {
            has_endpoints: false,
        },
    );
    assert_eq!(told.ports[0].counters.unwrap().connections, 6);
    assert!(
        told.ports[0]
            .addresses
            .iter()
            .all(|one| one.counters.is_none())
    );
}

#[test]
fn draining_endpoints_that_are_in_no_endpoint_slice_are_listed() {
    let since = Instant::now();
    let now = since + Duration::from_secs(12);
    let target = |last: u8| proxy::Target {
        ip: [10, 244, 1, last].into(),
        port: 8080,
    };
    let drain = |last: u8| proxy::DrainingEndpoint {
        at: ServiceAddress::new([10, 96, 0, 1].into(), 80, Protocol::Tcp),
        target: target(last),
        since: Some(since),
    };
    let mut ground = ground();
    let family = &mut ground.families[0];
    family.now = now;
    family.drains = proxy::Drains {
        count: 2,
        first: vec![drain(3), drain(7)],
        limit: Some(Duration::from_mins(5)),
        ..proxy::Drains::default()
    };
    let mut counted = CounterSamples::default();
    for (last, weight, active, inactive) in [
        (1, 1, 5, 0),
        (3, 0, 1, 0),
        (7, 0, 2, 3),
        (8, 0, 0, 0),
        (9, 1, 0, 0),
    ] {
        let of = OfEndpoint {
            weight: Some(weight),
            count: Count {
                connections: 9,
                active: Some(active),
                inactive: Some(inactive),
                ..Count::default()
            },
        };
        let endpoint = SocketAddr::from(([10, 244, 1, last], 8080));
        counted.endpoints.insert((at("10.96.0.1:80"), endpoint), of);
    }
    let nowhere = EndpointPlaces::default();
    let seen = ServiceContext::new(&ground, &counted, &nowhere);
    let told = seen.service(
        &web(),
        Detail {
            has_endpoints: true,
        },
    );
    let port = &told.ports[0];
    assert_eq!(port.endpoint_counts.draining, 2);
    assert_eq!(port.endpoint_counts.total, 3, "of its slices");
    let told: Vec<_> = port
        .endpoints
        .iter()
        .map(|one| (&*one.at, one.condition, &*one.why))
        .collect();
    assert_eq!(
        told[2..],
        [
            (
                "10.244.1.3:8080",
                Condition::NotReady,
                "policy Cluster: not ready; policy Local: on another node; drains for 12 s: 1 \
                 connection open; it is removed when they have ended, or in 288 s (--ipvs-drain-timeout)"
            ),
            (
                "10.244.1.7:8080",
                Condition::Draining,
                "no EndpointSlice has it any more; drains for 12 s: 2 connections open, 3 closed \
                 and still remembered by the \
                 kernel; it is removed when they have ended, or in 288 s (--ipvs-drain-timeout)"
            ),
            (
                "10.244.1.8:8080",
                Condition::Draining,
                "no EndpointSlice has it any more; drains: no connection is left; it is removed \
                 at the next check"
            ),
            (
                "10.244.1.9:8080",
                Condition::Left,
                "no EndpointSlice has it, and the kernel still sends to it: it is about to go, or \
                 it stays until every \
                 object can be read (kube-proxy status)"
            ),
        ]
    );
    let drain = Drain {
        seconds: Some(12.0),
        open: Some(2),
        ended: Some(3),
        ends_within_seconds: Some(288.0),
    };
    assert_eq!(port.endpoints[3].draining, Some(drain));
    assert_eq!(port.endpoints[0].draining, None, "it serves");
}

/// Another program, such as keepalived, has a virtual server at an address of the Service.
#[test]
fn counters_of_a_foreign_virtual_server_do_not_count_for_a_service() {
    let mut counted = CounterSamples::default();
    let of = OfAddress {
        scheduler: Some("wrr".to_owned()),
        count: Count {
            connections: 7,
            ..Count::default()
        },
    };
    counted.addresses.insert(at("10.96.0.1:80"), of);
    let of = OfEndpoint {
        weight: Some(1),
        count: Count::default(),
    };
    let theirs = "172.16.0.1:80".parse().unwrap();
    counted.endpoints.insert((at("10.96.0.1:80"), theirs), of);
    let mut ground = ground();
    let taken = ServiceAddress::new([10, 96, 0, 1].into(), 80, Protocol::Tcp);
    ground.families[0].held_by_others.insert(taken);
    let told = ServiceContext::new(&ground, &counted, &EndpointPlaces::default()).service(
        &web(),
        Detail {
            has_endpoints: true,
        },
    );
    let port = &told.ports[0];
    let listed: Vec<_> = port.endpoints.iter().map(|one| &*one.at).collect();
    assert_eq!(listed.len(), 3, "{listed:?}");
    assert_eq!(port.counters, None);
    let address = &port.addresses[0];
    assert_eq!(address.at, "10.96.0.1:80");
    assert_eq!(address.lost_to.as_deref(), Some("another program"));
    assert_eq!((&address.scheduler, &address.counters), (&None, &None));
}

#[test]
fn endpoints_to_which_the_relay_has_connections_are_listed() {
    let mut counted = CounterSamples::default();
    for (last, active) in [(1, 4), (3, 1), (7, 2), (8, 0)] {
        let count = Count {
            connections: 9,
            active: Some(active),
            ..Count::default()
        };
        let endpoint = SocketAddr::from(([10, 244, 1, last], 8080));
        counted
            .port_endpoints
            .insert((name("http"), endpoint), count);
    }
    let (ground, nowhere) = (ground(), EndpointPlaces::default());
    let seen = ServiceContext::new(&ground, &counted, &nowhere);
    let told = seen.service(
        &web(),
        Detail {
            has_endpoints: true,
        },
    );
    let draining = told.ports[0].endpoints.iter();
    let draining = draining.filter_map(|one| Some((&*one.at, one.draining?.open?, &*one.why)));
    assert_eq!(
        draining.collect::<Vec<_>>(),
        [
            (
                "10.244.1.3:8080",
                1,
                "policy Cluster: not ready; policy Local: on another node; drains: 1 connection \
                 open; kube-proxy carries \
                 them until they end"
            ),
            (
                "10.244.1.7:8080",
                2,
                "no EndpointSlice has it any more; drains: 2 connections open; kube-proxy carries \
                 them until they end"
            ),
        ]
    );
}
