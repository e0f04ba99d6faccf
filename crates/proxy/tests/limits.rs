//! Tests which part of a Service the model keeps if the Service exceeds the limits.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy::limits::{
    FEW_FRONTENDS, MAX_DESTINATIONS, MAX_DESTINATIONS_OF_FEW, MAX_ENDPOINTS, MAX_FRONTENDS,
};
use proxy::{
    AddressRules, Endpoint, EndpointPort, EndpointSlice, Endpoints, Event, Excess, IpFamily, Model,
    NamespacedName, NodeFacts, Protocol, Service, ServicePort,
};

fn name(text: &str) -> NamespacedName {
    NamespacedName::new("tenant", text)
}

fn numbered(net: u8, number: usize) -> IpAddr {
    let [.., high, low] = u32::try_from(number).unwrap().to_be_bytes();
    Ipv4Addr::new(198, net, high, low).into()
}

fn service(ports: usize, ingress: usize, external: usize) -> Service {
    let mut service = Service::at(name("big"), [[10, 96, 0, 66].into()]);
    service.ingress_ips = (0..ingress).map(|number| numbered(51, number)).collect();
    service.external_ips = (0..external).map(|number| numbered(18, number)).collect();
    service.ports = (0..ports)
        .map(|number| ServicePort {
            name: number.to_string().into(),
            protocol: Protocol::Tcp,
            port: u16::try_from(1000 + number).unwrap(),
            node_port: None,
        })
        .collect();
    service
}

/// Returns an EndpointSlice with the Service's first `ports` ports and this number of endpoints.
fn slice(slice: &str, ports: usize, endpoints: usize) -> EndpointSlice {
    EndpointSlice {
        name: name(slice),
        service: name("big"),
        family: IpFamily::V4,
        ports: (0..ports)
            .map(|number| EndpointPort {
                name: number.to_string().into(),
                protocol: Protocol::Tcp,
                port: 80,
            })
            .collect(),
        endpoints: (0..endpoints)
            .map(|number| Endpoint {
                address: numbered(19, number),
                ready: true,
                serving: true,
                terminating: false,
                placement: Arc::default(),
            })
            .collect(),
        change_trigger: None,
    }
}

fn model(service: &Service, slices: &[EndpointSlice]) -> Model {
    let mut model = Model::new().with_address_rules(AddressRules::default());
    model.apply(Event::ServiceApplied(service.clone()));
    for slice in slices {
        model.apply(Event::SliceApplied(slice.clone()));
    }
    model
}

/// Returns the numbers of served ports, load-balancer addresses, external IPs and EndpointSlices.
fn served(model: &Model) -> [usize; 4] {
    let view = model.view(&name("big")).unwrap();
    let of = view.service;
    let addresses = [of.ingress_ips.len(), of.external_ips.len()];
    [
        of.ports.len(),
        addresses[0],
        addresses[1],
        view.slices().count(),
    ]
}

const NONE: Excess = Excess {
    family: IpFamily::V4,
    ingress_ips: 0,
    external_ips: 0,
    ports: 0,
    endpoints: 0,
};

#[test]
fn a_service_with_500_000_frontends_keeps_its_first_addresses() {
    let given = service(100, 3, 5_000);
    let mut model = model(&given, &[]);
    // The limit allows 40 addresses: the cluster IP, the three load-balancer addresses, and the
    // first 36 external IPs.
    assert_eq!(served(&model), [100, 3, 36, 0]);
    const { assert!(100 * (1 + 3 + 36) <= MAX_FRONTENDS) };
    let view = model.view(&name("big")).unwrap();
    assert_eq!(view.service.external_ips, given.external_ips[..36]);
    let excess = Excess {
        external_ips: 4_964,
        ..NONE
    };
    assert_eq!(model.excess_of(&name("big")), [excess]);
    assert_eq!(excess.to_string(), "4964 of its external IPs");
    let version = model.external_addresses_version();

    // An event that repeats the Service changes nothing.
    model.take_changes();
    model.apply(Event::ServiceApplied(given));
    assert!(!model.has_changes());
    assert_eq!(model.external_addresses_version(), version);

    model.apply(Event::ServiceApplied(service(100, 3, 36)));
    assert_eq!(model.oversized().count(), 0);
    assert_eq!(served(&model), [100, 3, 36, 0]);
}

#[test]
fn the_destination_limit_multiplies_endpoints_by_ports_and_addresses() {
    let slices = ["a", "b", "c"].map(|of| slice(of, 2, 1_000));
    let given = service(2, 4, 20);
    let first_service = model(&given, &slices);
    let mut first_slices = Model::new();
    for slice in slices.iter().rev() {
        first_slices.apply(Event::SliceApplied(slice.clone()));
    }
    first_slices.apply(Event::ServiceApplied(given));
    // Each address has 6,000 destinations: two ports with 3,000 endpoints each. The limit allows 16
    // addresses. These addresses have 32 frontends, so the higher limit for few frontends does not
    // apply.
    for model in [&first_service, &first_slices] {
        assert_eq!(served(model), [2, 4, 11, 3]);
        let excess = Excess {
            external_ips: 9,
            ..NONE
        };
        assert_eq!(model.excess_of(&name("big")), [excess]);
    }
    // With fewer endpoints, the limit allows more addresses.
    let mut model = first_slices;
    model.apply(Event::SliceDeleted(name("b")));
    assert_eq!(served(&model), [2, 4, 20, 2]);
    assert_eq!(model.excess_of(&name("big")), []);
    model.apply(Event::SliceApplied(slice("b", 2, 1_000)));
    assert_eq!(served(&model), [2, 4, 11, 3]);
}

#[test]
fn a_service_whose_cluster_ip_alone_exceeds_a_limit_loses_ports_and_endpoint_slices() {
    let given = service(MAX_FRONTENDS + 10, 1, 0);
    let huge = model(&given, &[slice("a", 100, 10)]);
    assert_eq!(served(&huge), [MAX_FRONTENDS, 0, 0, 1]);
    let excess = Excess {
        ports: 10,
        ingress_ips: 1,
        ..NONE
    };
    assert_eq!(huge.excess_of(&name("big")), [excess]);

    let slices: Vec<_> = (100..250)
        .map(|number| slice(&format!("s{number}"), FEW_FRONTENDS + 1, 1_000 / 17))
        .collect();
    let many = model(&service(FEW_FRONTENDS + 1, 0, 0), &slices);
    assert_eq!(served(&many), [17, 0, 0, 101]);
    let excess = Excess {
        endpoints: 49 * 58,
        ..NONE
    };
    assert_eq!(many.excess_of(&name("big")), [excess]);
    let view = many.view(&name("big")).unwrap();
    assert!(view.slices().all(|slice| slice.name <= name("s200")));
    const { assert!(101 * 17 * 58 <= MAX_DESTINATIONS && MAX_DESTINATIONS < 102 * 17 * 58) };
}

#[test]
fn the_destination_limit_multiplies_source_ranges_by_ports_and_load_balancer_addresses() {
    let mut given = service(10, 5, 5);
    let nets = (0..4_000).map(|number| numbered(20, number).into());
    given.source_ranges = nets.collect();
    assert_eq!(served(&model(&given, &[])), [10, 2, 5, 0]);
    // Without load-balancer addresses, source ranges have no effect, so the model removes them.
    given.ingress_ips.clear();
    given.ports = service(100, 0, 0).ports;
    let model = model(&given, &[]);
    let view = model.view(&name("big")).unwrap();
    assert!(view.service.source_ranges.is_empty());
}

#[test]
fn a_service_of_usual_size_is_served_completely() {
    let slices: Vec<_> = (0..50)
        .map(|number| slice(&format!("s{number}"), 3, 100))
        .collect();
    // The first Service has 5,000 endpoints, the number up to which Kubernetes is tested. The
    // second Service has 1,000 ports, as a telephone exchange may have.
    for (given, slices) in [
        (service(3, 2, 3), &*slices),
        (service(1_000, 1, 2), &[slice("a", 100, 50)]),
    ] {
        let model = model(&given, slices);
        assert_eq!(model.oversized().count(), 0);
        assert_eq!(model.view(&name("big")).unwrap().service, &given);
    }
}

/// Checks that a Service with few addresses and ports may have many endpoints. A tenant must create
/// a pod for each endpoint, but can add ports and addresses at no cost.
#[test]
fn a_service_with_very_many_endpoints_is_served_completely() {
    let slices: Vec<_> = (0..170)
        .map(|number| slice(&format!("s{number:03}"), 3, 100))
        .collect();
    for (ingress, external) in [(0, 0), (1, 1)] {
        let mut given = service(3, ingress, external);
        for (number, port) in given.ports.iter_mut().enumerate() {
            port.node_port = u16::try_from(30_000 + number).ok();
        }
        let model = model(&given, &slices);
        assert_eq!(model.excess_of(&name("big")), []);
        assert_eq!(served(&model), [3, ingress, external, 170]);
    }
    // 51 EndpointSlices exceed the endpoint limit of a port by one EndpointSlice. The Service has a
    // cluster IP and a NodePort.
    let slices: Vec<_> = (0..51)
        .map(|number| slice(&format!("s{number:03}"), 3, 1_000))
        .collect();
    let mut given = service(3, 1, 0);
    given.ports[0].node_port = Some(30_000);
    let all = model(&given, &slices[..50]);
    assert_eq!(served(&all), [3, 0, 0, 50]);
    const { assert!(2 * 3 * 50 * 1_000 == MAX_DESTINATIONS_OF_FEW && 50 * 1_000 == MAX_ENDPOINTS) };
    let more = model(&given, &slices);
    assert_eq!(served(&more), [3, 0, 0, 50]);
    let one_port = model(&service(1, 0, 0), &slices);
    assert_eq!(served(&one_port), [1, 0, 0, 50]);
    let excess = Excess {
        endpoints: 1_000,
        ..NONE
    };
    assert_eq!(one_port.excess_of(&name("big")), [excess]);
    // Above [`FEW_FRONTENDS`] frontends, the ordinary limit applies.
    let many = model(&service(FEW_FRONTENDS + 1, 0, 0), &[]);
    assert_eq!(many.oversized().count(), 0);
    let slices: Vec<_> = (0..10)
        .map(|number| slice(&format!("s{number}"), FEW_FRONTENDS + 1, 1_000))
        .collect();
    let many = model(&service(FEW_FRONTENDS + 1, 0, 0), &slices);
    assert_eq!(served(&many), [FEW_FRONTENDS + 1, 0, 0, 5]);
}

#[test]
fn a_service_of_the_largest_size_is_resolved_in_linear_time() {
    let given = service(MAX_FRONTENDS, 0, 0);
    // Each EndpointSlice has a port of its own. The last 100 EndpointSlices have no endpoints.
    let slices: Vec<_> = (0..2_000)
        .map(|number| {
            let mut slice = slice(
                &format!("s{number:04}"),
                0,
                49 * usize::from(number < 1_900),
            );
            slice.ports.push(EndpointPort {
                name: number.to_string().into(),
                protocol: Protocol::Tcp,
                port: 80,
            });
            slice
        })
        .collect();
    let model = model(&given, &slices);
    assert_eq!(served(&model), [MAX_FRONTENDS, 0, 0, 2_000]);
    let node = NodeFacts::new(IpFamily::V4, "node1");
    let view = model.view(&name("big")).unwrap();
    let began = Instant::now();
    let endpoints = Endpoints::of(&view, &node);
    let ports = view.service.ports.iter();
    let count: usize = ports
        .map(|port| endpoints.serving(port).cluster.len())
        .sum();
    let took = began.elapsed();
    assert_eq!(count, 49 * 1_900);
    // A comparison of each port with each endpoint would take 380 million steps.
    assert!(took < Duration::from_secs(4), "{took:?}");
}
