//! Tests at which external and load-balancer addresses a Service is served, in any order of events.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;
use proxy::{
    AddressField, AddressRules, Endpoint, EndpointPort, EndpointSlice, Event, FamilySet, IpFamily,
    Kind, Model, NamespacedName, Protocol, Refusal, Service, ServiceAddress, ServicePort,
};

fn name(text: &str) -> NamespacedName {
    let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
    NamespacedName::new(namespace, name)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn service(of: &str, cluster_ip: &str, port: u16, external: &[&str]) -> Service {
    let mut service = Service::at(name(of), [ip(cluster_ip)]);
    service.external_ips = external.iter().map(|text| ip(text)).collect();
    service.ports.push(ServicePort {
        name: "".into(),
        protocol: Protocol::Tcp,
        port,
        node_port: None,
    });
    service
}

fn api_servers(addresses: &[&str]) -> Event {
    Event::SliceApplied(EndpointSlice {
        name: name("kubernetes"),
        service: name("kubernetes"),
        family: IpFamily::V4,
        ports: [EndpointPort {
            name: "https".into(),
            protocol: Protocol::Tcp,
            port: 6443,
        }]
        .into_iter()
        .collect(),
        endpoints: addresses
            .iter()
            .map(|text| Endpoint {
                address: ip(text),
                ready: true,
                serving: true,
                terminating: false,
                placement: std::sync::Arc::default(),
            })
            .collect(),
        change_trigger: None,
    })
}

fn model(allowed: Option<&[&str]>, api_server: Option<&str>) -> Model {
    let nets = |nets: &[&str]| nets.iter().map(|net| net.parse().unwrap()).collect();
    let mut model = Model::new().with_address_rules(AddressRules {
        allowed: allowed.map(nets),
    });
    model.apply(reached_at(api_server.as_slice()));
    model
}

fn reached_at(addresses: &[&str]) -> Event {
    let all = addresses.iter().map(|at| at.parse::<SocketAddr>().unwrap());
    Event::ApiServerAt(all.collect())
}

/// Returns the served external IPs of a Service, and the reasons for its rejected addresses.
fn seen(model: &Model, of: &str) -> (Vec<String>, Vec<Refusal>) {
    let view = model.view(&name(of)).unwrap();
    let served = view.service.external_ips.iter();
    let refused = model.addresses_refused_to(&name(of)).iter();
    (
        served.map(ToString::to_string).collect(),
        refused.map(|one| one.why).collect(),
    )
}

fn add(model: &mut Model, service: &Service) {
    model.apply(Event::ServiceApplied(service.clone()));
}

#[test]
fn a_load_balancer_address_without_a_valid_source_range_is_refused() {
    let mut model = model(None, None);
    let mut closed = service("web", "10.96.0.10", 80, &["192.0.2.1"]);
    closed.ingress_ips = vec![ip("192.0.2.1"), ip("2001:db8::1")];
    closed.closed.extend([IpFamily::V4]);
    add(&mut model, &closed);
    let external = vec!["192.0.2.1".to_owned()];
    assert_eq!(
        seen(&model, "web"),
        (external.clone(), vec![Refusal::SourceRanges])
    );
    let ingress = |model: &Model| {
        model
            .view(&name("web"))
            .unwrap()
            .service
            .ingress_ips
            .clone()
    };
    assert_eq!(ingress(&model), [ip("2001:db8::1")]);
    closed.closed = FamilySet::default();
    add(&mut model, &closed);
    assert_eq!(seen(&model, "web"), (external, vec![]));
    assert_eq!(ingress(&model).len(), 2);
}

#[test]
fn a_cluster_ip_cannot_be_another_services_external_ip() {
    let victim = service("victim", "10.96.0.10", 80, &[]);
    let thief = service("thief", "10.96.0.66", 80, &["10.96.0.10", "192.0.2.1"]);
    for first_is_thief in [true, false] {
        for is_listed in [true, false] {
            let mut model = model(None, None);
            if is_listed {
                model.apply(Event::ListStarted(Kind::Service));
            }
            let (first, second) = if first_is_thief {
                (&thief, &victim)
            } else {
                (&victim, &thief)
            };
            add(&mut model, first);
            add(&mut model, second);
            if is_listed {
                model.apply(Event::ListComplete {
                    kind: Kind::Service,
                    is_whole: true,
                });
            }
            let refused = (vec!["192.0.2.1".to_owned()], vec![Refusal::ClusterIp]);
            assert_eq!(seen(&model, "thief"), refused);
            assert_eq!(model.service_at(ip("10.96.0.10")), Some(&name("victim")));
            // The model reports no change if an event repeats a Service with rejected addresses.
            model.take_changes();
            add(&mut model, &thief);
            assert!(!model.has_changes());

            // The deletion of the Service `victim` frees its address for the Service `thief`. When
            // `victim` returns, it gets its address back.
            model.apply(Event::ServiceDeleted(name("victim")));
            assert!(model.take_changes().services.contains(&name("thief")));
            assert_eq!(seen(&model, "thief").1, []);
            add(&mut model, &victim);
            assert!(model.take_changes().services.contains(&name("thief")));
            assert_eq!(seen(&model, "thief"), refused);
            // The model does not reject an address that no other Service has.
            add(
                &mut model,
                &service("thief", "10.96.0.66", 80, &["192.0.2.1"]),
            );
            assert_eq!(model.refused_addresses().count(), 0);
            let naming = |address| model.naming_externally(ip(address)).count();
            assert_eq!((naming("10.96.0.10"), naming("192.0.2.1")), (0, 1));
        }
    }
}

#[test]
fn a_service_may_list_its_cluster_ip_as_external_ip() {
    let mut model = model(None, None);
    add(
        &mut model,
        &service("web", "10.96.0.10", 80, &["10.96.0.10"]),
    );
    assert_eq!(seen(&model, "web"), (vec!["10.96.0.10".to_owned()], vec![]));
}

#[test]
fn external_ips_are_served_only_in_allowed_cidrs() {
    let asked = service(
        "web",
        "10.96.0.10",
        80,
        &["192.0.2.1", "198.51.100.1", "2001:db8::1"],
    );
    for (allowed, served) in [
        (None, 3),
        (Some(&[][..]), 0),
        (Some(&["192.0.2.0/24"][..]), 1),
        (Some(&["192.0.2.0/24", "2001:db8::/32"][..]), 2),
    ] {
        let mut model = model(allowed, None);
        add(&mut model, &asked);
        let (seen, refused) = seen(&model, "web");
        assert_eq!((seen.len(), refused.len()), (served, 3 - served));
        assert!(refused.iter().all(|why| *why == Refusal::NotAllowed));
    }
    // The allowed networks also restrict load-balancer addresses.
    let mut model = model(Some(&["192.0.2.0/24"]), None);
    let mut balanced = service("web", "10.96.0.10", 80, &[]);
    balanced.ingress_ips = vec![ip("192.0.2.1"), ip("198.51.100.1")];
    add(&mut model, &balanced);
    let view = model.view(&name("web")).unwrap();
    assert_eq!(view.service.ingress_ips, [ip("192.0.2.1")]);
    let refused = model.addresses_refused_to(&name("web"));
    assert_eq!(refused[0].field, AddressField::Ingress);
}

#[test]
fn no_service_gets_the_api_servers_address() {
    let thief = service("thief", "10.96.0.66", 6443, &["172.35.0.5", "172.35.0.6"]);
    let other_port = service("web", "10.96.0.10", 80, &["172.35.0.5"]);
    // The model learns the API server's addresses from two origins: the source, and the endpoints
    // of default/kubernetes.
    let mut model = model(None, Some("172.35.0.5:6443"));
    add(&mut model, &thief);
    add(&mut model, &other_port);
    let of_thief = |model: &Model| seen(model, "thief").0;
    assert_eq!(of_thief(&model), ["172.35.0.6"]);
    assert_eq!(seen(&model, "thief").1, [Refusal::ApiServer(6443)]);
    assert_eq!(seen(&model, "web").0, ["172.35.0.5"]);
    model.take_changes();
    model.apply(api_servers(&["172.35.0.6"]));
    assert!(model.take_changes().services.contains(&name("thief")));
    assert_eq!(of_thief(&model), [""; 0]);
    // The Service may have the API server's address at another port.
    let view = model.view(&name("web")).unwrap();
    assert!(view.is_api_server(ip("172.35.0.5")));
    assert!(!view.is_api_server(ip("172.35.0.7")));
    model.apply(api_servers(&["172.35.0.7"]));
    assert_eq!(of_thief(&model), ["172.35.0.6"]);
    model.apply(Event::SliceDeleted(name("kubernetes")));
    assert_eq!(of_thief(&model), ["172.35.0.6"]);
}

#[test]
fn a_new_api_server_address_is_taken_from_services_immediately() {
    let thief = service("thief", "10.96.0.66", 6443, &["172.35.0.8"]);
    let mut model = model(None, Some("172.35.0.5:6443"));
    add(&mut model, &thief);
    assert_eq!(seen(&model, "thief").0, ["172.35.0.8"]);
    model.take_changes();
    // The model protects a new API server address even before the running list is complete: the
    // list may never end while a Service captures the packets that the source sends to the address.
    model.apply(Event::ListStarted(Kind::Service));
    model.apply(reached_at(&["172.35.0.5:6443", "172.35.0.8:6443"]));
    assert!(model.take_changes().services.contains(&name("thief")));
    assert_eq!(seen(&model, "thief").1, [Refusal::ApiServer(6443)]);
    // An endpoint of default/kubernetes stays protected, even if the source no longer reports its
    // address.
    model.apply(api_servers(&["172.35.0.8"]));
    model.apply(reached_at(&[]));
    assert_eq!(seen(&model, "thief").1, [Refusal::ApiServer(6443)]);
    model.apply(api_servers(&["172.35.0.5"]));
    assert_eq!(seen(&model, "thief").0, ["172.35.0.8"]);
    // An IPv6 address of the API server is protected even if a controller assigned it to a load
    // balancer.
    let mut assigned = service("assigned", "fd96::66", 443, &[]);
    assigned.ingress_ips = vec![ip("fd35::5")];
    add(&mut model, &assigned);
    model.apply(reached_at(&["[fd35::5]:443"]));
    let refused = model.addresses_refused_to(&name("assigned"));
    assert_eq!(refused[0].field, AddressField::Ingress);
}

#[test]
fn the_api_servers_address_is_served_if_allowed_by_a_host_prefix() {
    let balanced = service("api", "10.96.0.66", 6443, &["172.35.0.5"]);
    for (allowed, is_served) in [
        (&["0.0.0.0/0"][..], false),
        (&["0.0.0.0/0", "172.35.0.5/32"], true),
        (&["172.35.0.4/32"], false),
    ] {
        let mut model = model(Some(allowed), Some("172.35.0.5:6443"));
        add(&mut model, &balanced);
        assert_eq!(seen(&model, "api").1.is_empty(), is_served, "{allowed:?}");
    }
    // The API server's own Service may contain the API server's address.
    let mut model = model(None, None);
    model.apply(api_servers(&["172.35.0.5"]));
    add(
        &mut model,
        &service("kubernetes", "10.96.0.1", 6443, &["172.35.0.5"]),
    );
    assert_eq!(seen(&model, "kubernetes").1, []);
}

/// Checks that the served addresses depend only on the latest state of the Services, not on the
/// sequence of events.
#[test]
fn the_order_of_events_does_not_change_the_served_addresses() {
    let addresses = ["10.96.0.1", "10.96.0.2", "10.96.0.3", "192.0.2.1"];
    let of = |number: usize, seed: usize| {
        let named = |bit: usize| (seed >> bit) & 1 == 1;
        let external: Vec<&str> = (0..4)
            .filter(|bit| named(*bit))
            .map(|at| addresses[at])
            .collect();
        let cluster_ip = addresses[(number + (seed >> 4)) % 3];
        service(["a", "b", "c"][number], cluster_ip, 80, &external)
    };
    let mut chance = 12345_usize;
    let mut next = || {
        chance = chance
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        chance >> 33
    };
    for _ in 0..300 {
        let mut lived = model(Some(&["10.0.0.0/8"]), None);
        let mut last: [Option<Service>; 3] = [None, None, None];
        for _ in 0..20 {
            let number = next() % 3;
            if next() % 4 == 0 {
                lived.apply(Event::ServiceDeleted(name(["a", "b", "c"][number])));
                last[number] = None;
            } else {
                let service = of(number, next());
                add(&mut lived, &service);
                last[number] = Some(service);
            }
        }
        let mut fresh = model(Some(&["10.0.0.0/8"]), None);
        for service in last.iter().flatten() {
            add(&mut fresh, service);
        }
        for service in last.iter().flatten() {
            let text = service.name.name();
            assert_eq!(seen(&lived, text), seen(&fresh, text));
        }
        let count = |model: &Model| model.refused_addresses().count();
        assert_eq!(count(&lived), count(&fresh));
    }
}

/// Returns a Service with a cluster IP, TCP ports, external IPs and load-balancer addresses.
fn claimant(of: &str, number: u8, ports: &[u16], external: &[&str], ingress: &[&str]) -> Service {
    let mut service = service(of, &format!("10.96.0.{number}"), 1, external);
    service.ingress_ips = ingress.iter().map(|text| ip(text)).collect();
    let port = |port: &u16| ServicePort {
        name: port.to_string().into(),
        protocol: Protocol::Tcp,
        port: *port,
        node_port: None,
    };
    service.ports = ports.iter().map(port).collect();
    service
}

/// Returns the external IPs and ports at which a Service is served.
fn external(model: &Model, of: &str) -> Vec<String> {
    let service = model.view(&name(of)).unwrap().service;
    let ports = service.ports.iter();
    let all = ports.flat_map(|port| {
        let ips = service.external_ips_of(port);
        ips.map(|ip| format!("{ip}:{}", port.port))
    });
    all.collect()
}

#[test]
fn a_load_balancer_address_wins_over_an_older_external_ip() {
    let mut thief = claimant("thief", 1, &[80, 443], &["192.0.2.1", "192.0.2.2"], &[]);
    thief.created = Some(1);
    let mut victim = claimant("victim", 2, &[80], &[], &["192.0.2.1"]);
    victim.created = Some(2);
    victim.source_ranges = vec!["198.51.100.0/24".parse().unwrap()];
    let all = [
        "192.0.2.1:80",
        "192.0.2.2:80",
        "192.0.2.1:443",
        "192.0.2.2:443",
    ];
    let left = ["192.0.2.2:80", "192.0.2.1:443", "192.0.2.2:443"];
    for first_is_thief in [true, false] {
        let mut model = model(None, None);
        if first_is_thief {
            add(&mut model, &thief);
            assert_eq!(external(&model, "thief"), all);
            model.take_changes();
            add(&mut model, &victim);
            // The victim takes an address from the thief, so both Services change.
            assert_eq!(model.take_changes().services.len(), 2);
        } else {
            add(&mut model, &victim);
            add(&mut model, &thief);
        }
        assert_eq!(external(&model, "thief"), left);
        let why = Refusal::LoadBalancer(80, Protocol::Tcp);
        assert_eq!(seen(&model, "thief").1, [why]);
        let at = ServiceAddress::new(ip("192.0.2.1"), 80, Protocol::Tcp);
        assert_eq!(model.load_balancer_at(at), Some(&name("victim")));
        model.take_changes();
        add(&mut model, &thief);
        assert!(!model.has_changes(), "nothing is new");

        // The victim's load balancer gets another address or port, or the victim is deleted.
        for gone in [
            Some(claimant("victim", 2, &[80], &[], &["192.0.2.9"])),
            Some(claimant("victim", 2, &[81], &[], &["192.0.2.1"])),
            None,
        ] {
            model.apply(match gone {
                Some(other) => Event::ServiceApplied(other),
                None => Event::ServiceDeleted(name("victim")),
            });
            assert!(model.take_changes().services.contains(&name("thief")));
            assert_eq!(external(&model, "thief"), all);
            add(&mut model, &victim);
            assert_eq!(external(&model, "thief"), left);
        }
        // If the victim's load balancer serves all ports of the thief, the thief loses the address.
        add(
            &mut model,
            &claimant("victim", 2, &[80, 443], &[], &["192.0.2.1"]),
        );
        assert_eq!(seen(&model, "thief").0, ["192.0.2.2"]);
        assert_eq!(seen(&model, "thief").1.len(), 2);
    }
}

#[test]
fn a_service_may_list_its_load_balancer_address_as_external_ip() {
    let mut model = model(None, None);
    add(
        &mut model,
        &claimant("web", 1, &[80], &["192.0.2.1"], &["192.0.2.1"]),
    );
    assert_eq!(external(&model, "web"), ["192.0.2.1:80"]);
    add(
        &mut model,
        &claimant("web", 1, &[80, 81], &["192.0.2.1"], &["192.0.2.1"]),
    );
    assert_eq!(external(&model, "web").len(), 2);
    assert_eq!(model.refused_addresses().count(), 0);
}

/// Checks that a node port wins over another Service's external IP, regardless of the Services'
/// ages and order. The API server has assigned the node port to one Service only.
#[test]
fn a_node_port_wins_over_an_external_ip_at_node_addresses() {
    let node = [ip("192.0.2.1"), ip("192.0.2.2")];
    let mut thief = claimant(
        "thief",
        1,
        &[80, 30080],
        &["192.0.2.1", "198.51.100.1"],
        &[],
    );
    thief.created = Some(1);
    let mut victim = claimant("victim", 2, &[8080], &[], &[]);
    victim.created = Some(2);
    victim.ports[0].node_port = Some(30080);
    let all = [
        "192.0.2.1:80",
        "198.51.100.1:80",
        "192.0.2.1:30080",
        "198.51.100.1:30080",
    ];
    let left = ["192.0.2.1:80", "198.51.100.1:80", "198.51.100.1:30080"];
    let steps: [&dyn Fn(&mut Model); 3] = [
        &|model| add(model, &thief),
        &|model| add(model, &victim),
        &|model| model.serve_node_ports_at(&node),
    ];
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let mut model = model(None, None);
        for step in order {
            model.take_changes();
            steps[step](&mut model);
        }
        assert!(model.take_changes().services.contains(&name("thief")));
        assert_eq!(external(&model, "thief"), left, "{order:?}");
        let why = Refusal::NodePort(30080, Protocol::Tcp);
        assert_eq!(seen(&model, "thief").1, [why]);
        let owner = model.node_port_of(30080, Protocol::Tcp);
        assert_eq!(owner, Some(&name("victim")));
        model.serve_node_ports_at(&node);
        assert!(!model.has_changes(), "nothing is new");

        // The node loses the address, or the address no longer serves NodePorts.
        model.serve_node_ports_at(&node[1..]);
        assert!(model.take_changes().services.contains(&name("thief")));
        assert_eq!(external(&model, "thief"), all);
        model.serve_node_ports_at(&node);
        assert_eq!(external(&model, "thief"), left);
        // The victim gets another node port, or is deleted.
        let mut other = victim.clone();
        other.ports[0].node_port = Some(30081);
        for event in [
            Event::ServiceApplied(other),
            Event::ServiceDeleted(name("victim")),
        ] {
            add(&mut model, &victim);
            assert_eq!(external(&model, "thief"), left);
            model.take_changes();
            model.apply(event);
            assert!(model.take_changes().services.contains(&name("thief")));
            assert_eq!(external(&model, "thief"), all);
        }
    }
}

#[test]
fn an_external_ip_may_use_its_own_services_node_port() {
    let mut model = model(None, None);
    model.serve_node_ports_at(&[ip("192.0.2.1")]);
    let mut web = claimant("web", 1, &[30080], &["192.0.2.1"], &[]);
    web.ports[0].node_port = Some(30080);
    add(&mut model, &web);
    let mut other = claimant("other", 2, &[8080], &[], &[]);
    other.ports[0].node_port = Some(30080);
    other.ports[0].protocol = Protocol::Udp;
    add(&mut model, &other);
    assert_eq!(external(&model, "web"), ["192.0.2.1:30080"]);
    assert_eq!(model.refused_addresses().count(), 0);
}

#[test]
fn a_rejected_load_balancer_address_displaces_no_external_ip() {
    let mut model = model(Some(&["192.0.2.0/24"]), None);
    add(
        &mut model,
        &claimant("user", 1, &[80], &["10.96.0.3", "192.0.2.1"], &[]),
    );
    add(
        &mut model,
        &claimant("balanced", 2, &[80], &[], &["10.96.0.3", "192.0.2.1"]),
    );
    assert_eq!(external(&model, "user"), [""; 0]);
    // Each of the two addresses becomes the cluster IP of another Service.
    add(&mut model, &claimant("owner", 3, &[80], &[], &[]));
    let mut other = service("owner-of-2-1", "192.0.2.1", 80, &[]);
    other.ports.clear();
    add(&mut model, &other);
    assert_eq!(seen(&model, "balanced").1.len(), 2);
    model.apply(Event::ServiceDeleted(name("owner-of-2-1")));
    assert_eq!(external(&model, "user"), [""; 0]);
    model.apply(Event::ServiceDeleted(name("balanced")));
    assert_eq!(external(&model, "user"), ["192.0.2.1:80"]);
}

proptest! {
    /// Checks external IPs after any sequence of changes: each port of an external IP is served for
    /// its Service, unless another Service's load balancer has this address and port.
    #[test]
    fn an_external_ip_port_is_served_unless_a_load_balancer_has_the_port(
        steps in proptest::collection::vec((0_u8..5, proptest::option::weighted(0.8, (0_u8..8, 0_u8..8, 1_u8..8))), 1..40)
    ) {
        let addresses = ["192.0.2.1", "192.0.2.2", "10.96.0.3"];
        let some = |bits: u8| -> Vec<&str> {
            (0..3).filter(|bit| bits >> bit & 1 == 1).map(|at| addresses[at]).collect()
        };
        let mut model = model(None, None);
        for (number, is) in steps {
            let of = format!("s{number}");
            match is {
                None => model.apply(Event::ServiceDeleted(name(&of))),
                Some((external, ingress, ports)) => {
                    let ports: Vec<u16> =
                        (0..3).filter(|bit| ports >> bit & 1 == 1).map(|at| 80 + at).collect();
                    let mut service =
                        claimant(&of, number, &ports, &some(external), &some(ingress));
                    service.created = Some(i64::from(number % 3));
                    model.apply(Event::ServiceApplied(service));
                }
            }
            let mut changed: Vec<String> = Vec::new();
            for service in model.services() {
                for port in &service.ports {
                    let of_other = |ip: &IpAddr| {
                        model.services().any(|other| {
                            other.name != service.name
                                && other.ingress_ips.contains(ip)
                                && other.ports.iter().any(|of| of.port == port.port)
                        })
                    };
                    for ip in service.external_ips_of(port) {
                        if of_other(&ip) {
                            changed.push(format!("{} is served at {ip}:{}", service.name, port.port));
                        }
                    }
                    for refused in model.addresses_refused_to(&service.name) {
                        if refused.why == Refusal::LoadBalancer(port.port, Protocol::Tcp)
                            && !of_other(&refused.address)
                        {
                            changed.push(format!("{} lacks {}", service.name, refused.address));
                        }
                    }
                }
            }
            prop_assert!(changed.is_empty(), "{:?}", changed);
        }
    }
}
