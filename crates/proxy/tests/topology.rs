//! Tests which endpoints get cluster traffic and local traffic, by tables of endpoints.
//!
//! An endpoint is written `NAME STATE @NODE [for:NODE,…] [zones:ZONE,…]`. The states are `ready`,
//! `dying` (serving while terminating), `dead` (terminating, not serving) and `starting` (neither).
//! This node is `n1`, in zone `z1`.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use proptest::prelude::*;
use proxy::{
    Backends, Endpoint, EndpointSlice, EndpointVerdict, Endpoints, Event, IpFamily, Model,
    NodeFacts, Placement, Protocol, Service, ServicePort, ServiceView, Target,
};

fn endpoint(text: &str) -> Endpoint {
    let mut words = text.split_whitespace();
    let number: u8 = words.next().unwrap().parse().unwrap();
    let (ready, serving, terminating) = match words.next().unwrap() {
        "ready" => (true, true, false),
        "dying" => (false, true, true),
        "dead" => (false, false, true),
        "starting" => (false, false, false),
        other => panic!("no state {other}"),
    };
    let mut placement = Placement::default();
    let names = |list: &str| list.split(',').map(Box::from).collect();
    for word in words {
        if let Some(node) = word.strip_prefix('@') {
            placement.node = Some(node.into());
        } else if let Some(nodes) = word.strip_prefix("for:") {
            placement.for_nodes = names(nodes);
        } else if let Some(zones) = word.strip_prefix("zones:") {
            placement.for_zones = names(zones);
        }
    }
    Endpoint {
        address: address(number),
        ready,
        serving,
        terminating,
        placement: Arc::new(placement),
    }
}

fn address(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, number))
}

fn slice(name: &str, port_name: &str, port: u16, endpoints: &[&str]) -> EndpointSlice {
    let endpoints = endpoints.iter().map(|text| endpoint(text));
    let mut slice = fixtures::slice(name, "web", &[Protocol::Tcp], endpoints);
    slice.ports[0].name = port_name.into();
    slice.ports[0].port = port;
    slice
}

fn web() -> Service {
    fixtures::service("web", [10, 96, 0, 1])
}

fn resolve(service: Service, slices: Vec<EndpointSlice>) -> Backends {
    let mut node = NodeFacts::new(IpFamily::V4, "n1");
    node.zone = Some("z1".into());
    let mut model = Model::new();
    let (name, port) = (service.name.clone(), service.ports[0].clone());
    model.apply(Event::ServiceApplied(service));
    for slice in slices {
        model.apply(Event::SliceApplied(slice));
    }
    Backends::resolve(&model.view(&name).unwrap(), &port, &node)
}

fn numbers(targets: &[Target]) -> Vec<u8> {
    targets
        .iter()
        .map(|target| (1..=9).find(|n| address(*n) == target.ip).unwrap())
        .collect()
}

fn cluster(endpoints: &[&str]) -> Vec<u8> {
    numbers(&resolve(web(), vec![slice("a", "", 8080, endpoints)]).cluster)
}

#[test]
fn the_last_nonterminating_duplicate_of_an_endpoint_is_used() {
    assert_eq!(cluster(&["1 ready @n1", "1 starting @n1"]), []);
    assert_eq!(cluster(&["1 starting @n1", "1 ready @n1"]), [1]);
    assert_eq!(cluster(&["1 ready @n1", "1 dead @n1"]), [1]);
    assert_eq!(cluster(&["1 dead @n1", "1 ready @n1"]), [1]);
}

#[test]
fn cluster_traffic_goes_to_ready_endpoints() {
    assert_eq!(
        cluster(&[
            "1 ready @n1",
            "2 ready @n2",
            "3 starting @n2",
            "4 dying @n2"
        ]),
        [1, 2]
    );
    assert_eq!(
        cluster(&["1 dying @n1", "2 dead @n2", "3 starting @n2"]),
        [1],
        "none is ready: those that still serve"
    );
    assert_eq!(cluster(&["1 dead @n1", "2 starting @n2"]), [0u8; 0]);
}

#[test]
fn zone_hints_apply_only_if_all_endpoints_have_them() {
    assert_eq!(cluster(&["1 ready zones:z1", "2 ready zones:z2"]), [1]);
    assert_eq!(
        cluster(&["1 ready zones:z1,z2", "2 ready zones:z2,z1"]),
        [1, 2]
    );
    assert_eq!(
        cluster(&["1 ready zones:z1", "2 ready"]),
        [1, 2],
        "one has none"
    );
    assert_eq!(
        cluster(&["1 ready zones:z3", "2 ready zones:z2"]),
        [1, 2],
        "none is for us"
    );
    assert_eq!(
        cluster(&["1 ready for:n1 zones:z2", "2 ready for:n2 zones:z1"]),
        [1],
        "nodes before zones"
    );
    assert_eq!(
        cluster(&["1 ready for:n2 zones:z2", "2 ready for:n2 zones:z1"]),
        [2],
        "else zones"
    );
    assert_eq!(
        cluster(&["1 ready zones:z1", "2 starting"]),
        [1],
        "only ready ones need hints"
    );
    assert_eq!(
        cluster(&["1 dying zones:z2", "2 dying zones:z1"]),
        [1, 2],
        "dying ones are not narrowed"
    );
}

#[test]
fn local_policy_traffic_stays_on_the_node() {
    let endpoints = ["1 ready @n1", "2 ready @n2", "3 dying @n1"];
    let local = |service: Service, endpoints: &[&str]| {
        resolve(service, vec![slice("a", "", 8080, endpoints)])
    };
    let internal = || Service {
        internal_local: true,
        ..web()
    };
    let found = local(internal(), &endpoints);
    assert_eq!(
        (numbers(&found.local), numbers(&found.cluster)),
        (vec![1], vec![]),
        "nobody asks for the others"
    );
    let found = local(internal(), &["2 ready @n2", "3 dying @n1", "4 dead @n1"]);
    assert_eq!(numbers(&found.local), [3]);
    let mut reachable = internal();
    reachable.ports[0].node_port = Some(30080);
    let found = local(reachable, &["2 ready @n2"]);
    assert_eq!(
        (numbers(&found.local), numbers(&found.cluster)),
        (vec![], vec![2])
    );
    let external = Service {
        external_local: true,
        external_ips: vec![address(99)],
        ..web()
    };
    let found = local(external, &endpoints);
    assert_eq!(
        (numbers(&found.local), numbers(&found.cluster)),
        (vec![1], vec![1, 2])
    );
    let unreachable = Service {
        external_local: true,
        ..web()
    };
    assert_eq!(
        numbers(&local(unreachable, &endpoints).local),
        [0u8; 0],
        "nothing comes from outside"
    );
    let found = local(web(), &endpoints);
    assert_eq!(
        (numbers(&found.local), numbers(&found.on_node)),
        (vec![], vec![1, 3]),
        "hairpin: whatever the state"
    );
}

#[test]
fn endpoint_slices_are_merged_by_address_and_port() {
    let found = resolve(
        web(),
        vec![
            slice("a", "", 8080, &["2 dying @n1", "1 ready @n1"]),
            slice("b", "", 8080, &["2 ready @n2"]),
            slice("c", "", 9090, &["1 ready @n1"]),
            slice("d", "other", 7070, &["5 ready @n1"]),
            EndpointSlice {
                family: IpFamily::V6,
                ..slice("e", "", 8080, &["6 ready @n1"])
            },
        ],
    );
    let text: Vec<_> = found
        .cluster
        .iter()
        .map(|t| format!("{}:{}", t.ip, t.port))
        .collect();
    assert_eq!(text, ["10.0.0.1:8080", "10.0.0.1:9090", "10.0.0.2:8080"]);
}

fn judged(service: &Service, slices: &[EndpointSlice]) -> Vec<String> {
    with_endpoints(service, slices, |endpoints, port| {
        let judged = endpoints.verdicts(port);
        let told = judged.iter().map(|one| {
            let port = one.port.map_or_else(String::new, |port| format!(":{port}"));
            let (cluster, local) = (one.cluster, one.local);
            format!("{}{port} x{}: {cluster} | {local}", one.ip, one.listed)
        });
        told.collect()
    })
}

fn with_endpoints<R>(
    service: &Service,
    slices: &[EndpointSlice],
    work: impl FnOnce(&Endpoints<'_>, &ServicePort) -> R,
) -> R {
    let mut node = NodeFacts::new(IpFamily::V4, "n1");
    node.zone = Some("z1".into());
    let port = service.ports[0].clone();
    let view = ServiceView::new(service, slices);
    work(&Endpoints::of(&view, &node), &port)
}

#[test]
fn each_verdict_states_why_an_endpoint_gets_traffic_or_not() {
    let unasked = "the Service has no traffic of this policy";
    let reachable = || Service {
        external_local: true,
        external_ips: vec![address(99)],
        ..web()
    };
    let endpoints = [
        "1 ready @n1",
        "2 ready @n2",
        "3 starting @n2",
        "4 dying @n2",
        "5 dead @n2",
    ];
    assert_eq!(
        judged(&reachable(), &[slice("a", "", 80, &endpoints)]),
        [
            "10.0.0.1:80 x1: ready | ready",
            "10.0.0.2:80 x1: ready | on another node",
            "10.0.0.3:80 x1: not ready | on another node",
            "10.0.0.4:80 x1: terminating, and others are ready | on another node",
            "10.0.0.5:80 x1: terminating, and not serving any more | on another node",
        ]
    );
    let last = "terminating, but still serving, and none is ready";
    assert_eq!(
        judged(
            &reachable(),
            &[slice("a", "", 80, &["1 dying @n1", "2 dying @n2"])]
        ),
        [
            format!("10.0.0.1:80 x1: {last} | {last}"),
            format!("10.0.0.2:80 x1: {last} | on another node"),
        ]
    );
    let hinted = ["1 ready zones:z1", "2 ready zones:z2"];
    assert_eq!(
        judged(&web(), &[slice("a", "", 80, &hinted)])[1],
        format!("10.0.0.2:80 x1: ready, but hinted for another zone | {unasked}")
    );
    let hinted = ["1 ready for:n1", "2 ready for:n2"];
    assert_eq!(
        judged(&web(), &[slice("a", "", 80, &hinted)])[1],
        format!("10.0.0.2:80 x1: ready, but hinted for another node | {unasked}")
    );
    let slices = vec![
        slice("a", "", 80, &["1 dying"]),
        slice("b", "", 80, &["1 ready"]),
        slice("c", "other", 90, &["1 ready", "7 ready"]),
        slice("d", "more", 91, &["7 ready"]),
    ];
    let other = "its EndpointSlice has no port of this name and protocol";
    assert_eq!(
        judged(&web(), &slices),
        [
            format!("10.0.0.1:80 x2: ready | {unasked}"),
            format!("10.0.0.7 x2: {other} | {other}"),
        ]
    );
}

#[test]
fn an_endpoint_without_a_node_name_counts_as_on_another_node() {
    let service = Service {
        internal_local: true,
        ..web()
    };
    let slices = [slice("a", "", 80, &["1 ready", "2 ready @n2"])];
    let unasked = "the Service has no traffic of this policy";
    assert_eq!(
        judged(&service, &slices),
        [
            format!(
                "10.0.0.1:80 x1: {unasked} | counts as on another node, because its EndpointSlice has no \
                 nodeName for it"
            ),
            format!("10.0.0.2:80 x1: {unasked} | on another node"),
        ]
    );
}

#[test]
fn a_service_uses_no_endpoint_of_a_family_without_a_cluster_ip() {
    let service = Service {
        cluster_ips: ["fd00:96::1".parse().unwrap()].into_iter().collect(),
        external_local: true,
        ..web()
    };
    let slices = [
        slice("a", "", 80, &["1 ready @n1"]),
        slice("b", "other", 80, &["2 ready @n1"]),
    ];
    let why = "IPv4, and the Service has no IPv4 cluster IP";
    assert_eq!(
        judged(&service, &slices),
        [
            format!("10.0.0.1:80 x1: {why} | {why}"),
            format!("10.0.0.2 x1: {why} | {why}"),
        ]
    );
}

fn any_endpoint() -> impl Strategy<Value = String> {
    let state = prop::sample::select(vec!["ready", "dying", "dead", "starting"]);
    let hints = prop::sample::select(vec![
        "",
        "zones:z1",
        "zones:z2",
        "for:n1",
        "for:n2 zones:z1",
    ]);
    (1..6_u8, state, 1..3_u8, hints)
        .prop_map(|(number, state, node, hints)| format!("{number} {state} @n{node} {hints}"))
}

fn any_slice() -> impl Strategy<Value = (bool, u16, Vec<String>)> {
    let endpoints = prop::collection::vec(any_endpoint(), 0..5);
    (prop::bool::weighted(0.8), 80..82_u16, endpoints)
}

proptest! {
    /// Checks that `verdicts` and the choice of endpoints agree about each endpoint.
    #[test]
    fn the_verdicts_agree_with_the_chosen_endpoints(
        given in prop::collection::vec(any_slice(), 0..4),
        internal_local: bool,
        external_local: bool,
        is_reachable: bool,
    ) {
        let slices = given.iter().enumerate().map(|(number, (is_named, port, endpoints))| {
            let endpoints: Vec<_> = endpoints.iter().map(String::as_str).collect();
            let name = if *is_named { "" } else { "other" };
            slice(&format!("s{number}"), name, *port, &endpoints)
        });
        let service = Service {
            internal_local,
            external_local,
            external_ips: if is_reachable { vec![address(99)] } else { Vec::new() },
            ..web()
        };
        with_endpoints(&service, &slices.collect::<Vec<_>>(), |endpoints, port| {
            let (judged, serving) = (endpoints.verdicts(port), endpoints.serving(port));
            let of = |is_in: fn(&EndpointVerdict<'_>) -> bool| -> Vec<Target> {
                let judged = judged.iter().filter(|one| is_in(one));
                judged.filter_map(|one| Some(Target { ip: one.ip, port: one.port? })).collect()
            };
            prop_assert_eq!(of(|one| one.cluster.is_in()), serving.cluster);
            prop_assert_eq!(of(|one| one.local.is_in()), serving.local);
            prop_assert_eq!(of(|one| one.is_local), serving.on_node);
            prop_assert_eq!(of(|_| true).len(), serving.total);
            Ok(())
        })?;
    }
}
