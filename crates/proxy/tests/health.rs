//! Tests the number of local endpoints that a health-check node port reports.
//!
//! An endpoint is written `ADDRESS@NODE STATE`. The states are `ready`, `dying` (serving while
//! terminating) and `starting`.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::Arc;

use proxy::{
    Endpoint, EndpointPort, EndpointSlice, Event, HealthCheck, IpFamily, Model, NamespacedName,
    Placement, Protocol, Service, ServiceType,
};

fn endpoint(text: &str) -> Endpoint {
    let (place, state) = text.split_once(' ').unwrap();
    let (address, node) = place.split_once('@').unwrap();
    Endpoint {
        address: address.parse().unwrap(),
        ready: state == "ready",
        serving: state != "starting",
        terminating: state == "dying",
        placement: Arc::new(Placement {
            node: Some(node.into()),
            ..Placement::default()
        }),
    }
}

fn slice(name: &str, port: Option<u16>, endpoints: &[&str]) -> Event {
    let endpoints: Vec<_> = endpoints.iter().map(|text| endpoint(text)).collect();
    Event::SliceApplied(EndpointSlice {
        name: NamespacedName::new("default", name),
        service: NamespacedName::new("default", "web"),
        family: IpFamily::of(endpoints.first().unwrap().address),
        ports: port
            .map(|port| EndpointPort {
                name: "".into(),
                protocol: Protocol::Tcp,
                port,
            })
            .into_iter()
            .collect(),
        endpoints: endpoints.into(),
        change_trigger: None,
    })
}

fn service(cluster_ips: &[&str], port: Option<u16>) -> Event {
    Event::ServiceApplied(Service {
        kind: ServiceType::LoadBalancer,
        external_local: true,
        health_check_node_port: port,
        ..Service::at(
            NamespacedName::new("default", "web"),
            cluster_ips.iter().map(|ip| ip.parse().unwrap()),
        )
    })
}

/// Returns the number of endpoints that the health check of node `n1` counts, over IPv4 and over
/// IPv6.
fn told(events: impl IntoIterator<Item = Event>) -> [Option<usize>; 2] {
    let mut model = Model::new();
    for event in events {
        model.apply(event);
    }
    let view = model.view(&NamespacedName::new("default", "web")).unwrap();
    IpFamily::ALL.map(|family| {
        let check = HealthCheck::of(&view, family, "n1")?;
        assert_eq!(check.port, 31999);
        Some(check.local_endpoints)
    })
}

const DUAL: [&str; 2] = ["10.96.0.1", "fd00:96::1"];

#[test]
fn only_ready_endpoints_on_this_node_are_counted() {
    let endpoints = [
        "10.0.0.1@n1 ready",
        "10.0.0.2@n1 ready",
        "10.0.0.3@n1 dying",
        "10.0.0.4@n1 starting",
        "10.0.0.5@n2 ready",
    ];
    let events = [
        service(&DUAL[..1], Some(31999)),
        slice("a", Some(80), &endpoints),
    ];
    assert_eq!(told(events), [Some(2), None]);
}

#[test]
fn terminating_endpoints_are_not_counted() {
    let events = [
        service(&DUAL[..1], Some(31999)),
        slice("a", Some(80), &["10.0.0.1@n1 dying"]),
    ];
    assert_eq!(told(events), [Some(0), None]);
}

#[test]
fn an_endpoint_address_is_counted_once() {
    let events = [
        service(&DUAL[..1], Some(31999)),
        slice("a", Some(80), &["10.0.0.1@n1 ready", "10.0.0.2@n1 dying"]),
        // The second EndpointSlice repeats a pod at another port, and has a new pod with the
        // address of a terminating pod.
        slice("b", Some(81), &["10.0.0.1@n1 ready", "10.0.0.2@n1 ready"]),
    ];
    assert_eq!(told(events), [Some(2), None]);
}

#[test]
fn endpoints_are_counted_per_ip_family() {
    let events = [
        service(&DUAL, Some(31999)),
        slice("a", Some(80), &["10.0.0.1@n1 ready", "10.0.0.2@n1 ready"]),
        slice("b", Some(80), &["fd00::1@n1 ready"]),
    ];
    assert_eq!(told(events), [Some(2), Some(1)]);
}

#[test]
fn endpoints_of_an_endpoint_slice_without_ports_are_not_counted() {
    let events = [
        service(&DUAL[..1], Some(31999)),
        slice("a", None, &["10.0.0.1@n1 ready"]),
    ];
    assert_eq!(told(events), [Some(0), None]);
}

#[test]
fn a_service_without_health_check_node_port_has_no_health_check() {
    let events = [
        service(&DUAL, None),
        slice("a", Some(80), &["10.0.0.1@n1 ready"]),
    ];
    assert_eq!(told(events), [None, None]);
}
