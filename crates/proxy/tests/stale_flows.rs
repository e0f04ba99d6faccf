//! Tests which UDP flows are stale, by tables of flows.
//!
//! A flow is written `DESTINATION ENDPOINT`: the client's original destination, and the endpoint
//! that replies.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy::{
    Endpoint, EndpointPort, EndpointSlice, Event, Frontend, IpFamily, Model, NamespacedName,
    NodePorts, Placement, Protocol, Service, ServicePort, ServiceType, ServiceView, UdpService,
    UdpServices,
};

const V4: IpFamily = IpFamily::V4;
const V6: IpFamily = IpFamily::V6;

fn name(name: &str) -> NamespacedName {
    NamespacedName::new("default", name)
}

fn ips<T: FromIterator<IpAddr>>(text: &str) -> T {
    text.split_whitespace()
        .map(|ip| ip.parse().unwrap())
        .collect()
}

/// Returns a Service with a port `dns` (53) over TCP and over UDP.
fn service(service: &str, cluster_ips: &str, external_ips: &str) -> Service {
    let port = |protocol, node_port| ServicePort {
        name: "dns".into(),
        protocol,
        port: 53,
        node_port,
    };
    Service {
        kind: ServiceType::LoadBalancer,
        external_ips: ips(external_ips),
        ports: [port(Protocol::Tcp, None), port(Protocol::Udp, None)]
            .into_iter()
            .collect(),
        ..Service::at(name(service), ips::<Vec<_>>(cluster_ips))
    }
}

/// Returns an EndpointSlice whose endpoints serve DNS over UDP on port `number` and over TCP on
/// port 8053. The prefix `~` of an address means serving while terminating, and `-` means not
/// serving.
fn slice(slice: &str, service: &str, number: u16, endpoints: &str) -> EndpointSlice {
    let port = |protocol, port| EndpointPort {
        name: "dns".into(),
        protocol,
        port,
    };
    let endpoint = |text: &str| Endpoint {
        address: text.trim_start_matches(['~', '-']).parse().unwrap(),
        ready: !text.starts_with(['~', '-']),
        serving: !text.starts_with('-'),
        terminating: text.starts_with('~'),
        placement: Arc::new(Placement::default()),
    };
    let endpoints: Vec<_> = endpoints.split_whitespace().map(endpoint).collect();
    EndpointSlice {
        name: name(slice),
        service: name(service),
        family: endpoints
            .first()
            .map_or(V4, |one| IpFamily::of(one.address)),
        ports: [port(Protocol::Tcp, 8053), port(Protocol::Udp, number)]
            .into_iter()
            .collect(),
        endpoints: endpoints.into(),
        change_trigger: None,
    }
}

/// The daemon's UDP Services and node addresses of one IP family.
struct World {
    family: IpFamily,
    model: Model,
    services: UdpServices,
}

impl World {
    fn new(family: IpFamily) -> Self {
        Self {
            family,
            model: Model::new(),
            services: UdpServices::default(),
        }
    }

    /// Applies events. Returns true if a flow may have become stale.
    fn tell(&mut self, events: impl IntoIterator<Item = Event>) -> bool {
        events.into_iter().for_each(|event| self.model.apply(event));
        let mut has_changed = false;
        for name in self.model.take_changes().services {
            let view = self.model.view(&name);
            let service = view.map(|view| UdpService::of(&view, self.family));
            has_changed |= self.services.set(&name, service.unwrap_or_default());
        }
        has_changed
    }

    /// Reports whether a flow is stale on a node with the addresses 172.35.0.100 and fd35::100.
    fn is_stale(&self, flow: &str) -> bool {
        self.is_stale_where(flow, false)
    }

    fn is_stale_where(&self, flow: &str, on_localhost: bool) -> bool {
        let (destination, answerer) = flow.split_once(' ').unwrap();
        let node_ports = NodePorts {
            addresses: ips("172.35.0.100 fd35::100"),
            on_localhost,
        };
        let stale = self.services.find_stale(
            destination.parse().unwrap(),
            answerer.trim().parse().unwrap(),
            &node_ports,
        );
        stale.is_some()
    }

    /// Records that the mode has removed its rules for these frontends: `ADDRESS:PORT`, or `PORT`
    /// for a node port.
    fn withdraw(&mut self, frontends: &str) {
        let frontend = |text: &str| match text.parse() {
            Ok(at) => Frontend::Address(at),
            Err(_) => Frontend::NodePort(text.parse().unwrap()),
        };
        self.services
            .withdraw(frontends.split_whitespace().map(frontend));
    }
}

/// Returns events that add the Service `dns`, with a cluster IP, load-balancer IP, external IP and
/// node port, and its EndpointSlices, in both families.
fn dns() -> Vec<Event> {
    let mut dns = service("dns", "10.96.0.10 fd96::10", "192.0.2.20 2001:db8::20");
    dns.ingress_ips = ips("192.0.2.10 2001:db8::10");
    dns.ports.get_mut(1).unwrap().node_port = Some(30053);
    vec![
        Event::ServiceApplied(dns),
        Event::SliceApplied(slice(
            "dns-1",
            "dns",
            5353,
            "10.244.1.10 ~10.244.1.11 -10.244.1.12",
        )),
        Event::SliceApplied(slice("dns-2", "dns", 5354, "10.244.2.10")),
        Event::SliceApplied(slice("dns-6", "dns", 5353, "fd44:1::10")),
    ]
}

#[test]
fn a_flow_to_a_removed_endpoint_is_stale() {
    let table = [
        ("10.96.0.10:53 10.244.1.10:5353", false, "a ready endpoint"),
        (
            "10.96.0.10:53 10.244.1.11:5353",
            false,
            "serves while terminating",
        ),
        (
            "10.96.0.10:53 10.244.2.10:5354",
            false,
            "another slice, another port",
        ),
        ("10.96.0.10:53 10.244.1.12:5353", true, "does not serve"),
        ("10.96.0.10:53 10.244.9.99:5353", true, "is no endpoint"),
        ("10.96.0.10:53 10.244.1.10:5354", true, "not its port"),
        ("10.96.0.10:53 10.244.1.10:8053", true, "its port for TCP"),
        (
            "10.96.0.10:53 10.96.0.10:53",
            true,
            "opened before there was the Service",
        ),
        (
            "10.96.0.10:54 10.96.0.10:54",
            false,
            "no port of the Service",
        ),
        ("192.0.2.10:53 10.244.1.10:5353", false, "load-balancer IP"),
        ("192.0.2.10:53 10.244.9.99:5353", true, "load-balancer IP"),
        ("192.0.2.20:53 10.244.1.10:5353", false, "external IP"),
        ("192.0.2.20:53 10.244.9.99:5353", true, "external IP"),
        ("172.35.0.100:30053 10.244.1.10:5353", false, "node port"),
        ("172.35.0.100:30053 10.244.9.99:5353", true, "node port"),
        (
            "172.35.0.100:53 172.35.0.100:53",
            false,
            "the node's own port",
        ),
        (
            "172.35.0.101:30053 172.35.0.101:30053",
            false,
            "another node's node port",
        ),
        (
            "10.96.0.10:30053 10.96.0.10:30053",
            false,
            "node ports are at nodes",
        ),
        ("198.51.100.1:53 198.51.100.1:53", false, "passes through"),
        (
            "10.244.1.10:5353 10.244.1.10:5353",
            false,
            "straight to a pod",
        ),
        ("[fd96::10]:53 [fd44:9::99]:5353", false, "the other family"),
    ];
    let mut world = World::new(V4);
    world.tell(dns());
    for (flow, is_stale, why) in table {
        assert_eq!(world.is_stale(flow), is_stale, "{flow}: {why}");
    }
}

#[test]
fn a_flow_to_localhost_is_stale_only_if_localhost_is_served() {
    let mut world = World::new(V4);
    world.tell(dns());
    for at in ["127.0.0.1:30053", "127.1.2.3:30053"] {
        let (right, wrong) = (
            format!("{at} 10.244.1.10:5353"),
            format!("{at} 10.244.9.99:5353"),
        );
        assert!(world.is_stale_where(&wrong, true), "{at}");
        assert!(!world.is_stale_where(&wrong, false), "{at}");
        assert!(!world.is_stale_where(&right, true), "{at}");
    }
    assert!(!world.is_stale_where("127.0.0.1:53 127.0.0.1:53", true));
}

#[test]
fn ipv6_flows_become_stale_like_ipv4_flows() {
    let mut world = World::new(V6);
    world.tell(dns());
    for at in [
        "[fd96::10]:53",
        "[2001:db8::10]:53",
        "[2001:db8::20]:53",
        "[fd35::100]:30053",
    ] {
        assert!(!world.is_stale(&format!("{at} [fd44:1::10]:5353")), "{at}");
        assert!(world.is_stale(&format!("{at} [fd44:9::99]:5353")), "{at}");
    }
    assert!(!world.is_stale("10.96.0.10:53 10.244.9.99:5353"));
}

#[test]
fn all_flows_of_a_service_without_endpoints_are_stale() {
    let mut world = World::new(V4);
    let (gone, back) = (
        "10.96.0.10:53 10.244.1.10:5353",
        "10.96.0.10:53 10.244.1.11:5353",
    );
    let endpoints = |list| Event::SliceApplied(slice("dns-1", "dns", 5353, list));
    world.tell([
        Event::ServiceApplied(service("dns", "10.96.0.10", "")),
        endpoints("-10.244.1.10"),
    ]);
    assert!(world.is_stale(gone), "its endpoint serves no more");
    world.tell([endpoints("10.244.1.11")]);
    assert!(world.is_stale(gone) && !world.is_stale(back));
    assert!(world.tell([Event::SliceDeleted(name("dns-1"))]));
    assert!(world.is_stale(back), "the Service has no slice");
    assert!(!world.is_stale("10.96.0.11:53 10.244.1.11:5353"), "foreign");
}

#[test]
fn translated_flows_to_a_withdrawn_unclaimed_address_are_stale() {
    let mut world = World::new(V4);
    world.tell(dns());
    let all = ["10.96.0.10:53", "192.0.2.10:53", "172.35.0.100:30053"];
    let is_stale = |world: &World, answerer: &str| {
        all.map(|at| {
            let answerer = if answerer.is_empty() { at } else { answerer };
            world.is_stale(&format!("{at} {answerer}"))
        })
    };
    let (pod, untranslated) = ("10.244.1.10:5353", "");
    let has_changed = world.tell([Event::ServiceDeleted(name("dns"))]);
    assert!(!has_changed, "rules still lead to its endpoints");
    assert_eq!(is_stale(&world, pod), [false; 3]);
    world.withdraw("10.96.0.10:53 192.0.2.10:53 30053");
    assert_eq!(is_stale(&world, pod), [true; 3]);
    assert_eq!(is_stale(&world, untranslated), [false; 3]);
    for foreign in [
        "172.35.0.101:30053 10.244.1.10:5353",
        "192.0.2.10:54 10.244.1.10:5353",
        "10.244.1.10:5353 10.244.1.10:5353",
    ] {
        assert!(!world.is_stale(foreign), "{foreign}");
    }
    assert!(world.tell(dns()), "it is back");
    assert_eq!(is_stale(&world, pod), [false; 3]);
    assert!(world.services.forget_withdrawn(true));
    let has_changed = world.tell([Event::ServiceDeleted(name("dns"))]);
    assert!(has_changed, "it was withdrawn while it was claimed");
    assert_eq!(is_stale(&world, pod), [true; 3]);
    assert!(!world.services.forget_withdrawn(false));
    assert_eq!(is_stale(&world, pod), [false, false, true]);
    assert!(world.services.forget_withdrawn(true));
    assert_eq!(is_stale(&world, pod), [false; 3], "their flows are deleted");
}

#[test]
fn only_flows_to_addresses_that_a_service_lost_are_stale() {
    let mut world = World::new(V4);
    world.tell(dns());
    let mut less = service("dns", "10.96.0.10", "");
    less.ingress_ips = ips("192.0.2.10");
    world.tell([Event::ServiceApplied(less)]);
    world.withdraw("192.0.2.20:53 30053");
    for (at, is_stale) in [
        ("10.96.0.10:53", false),
        ("192.0.2.10:53", false),
        ("192.0.2.20:53", true),
        ("172.35.0.100:30053", true),
    ] {
        let flow = format!("{at} 10.244.1.10:5353");
        assert_eq!(world.is_stale(&flow), is_stale, "{flow}");
    }
}

/// Measures the time for three Services that claim the same 100,000 frontends (1,000 addresses ×
/// 100 ports). The model allows far fewer frontends per Service. Two properties keep the time
/// short:
///
/// * The look-up of a frontend does not scan a list. With a scan, one Service would take minutes.
/// * A change to endpoints looks up no frontends.
#[test]
fn the_cost_of_stale_flows_is_linear_in_the_frontends() {
    let address = |at: u16| {
        let [high, low] = at.to_be_bytes();
        IpAddr::from([192, 0, high, low])
    };
    let large = |number: u8| {
        let mut large = service(&format!("large-{number}"), &format!("10.96.0.{number}"), "");
        large.external_ips = (0..1000).map(address).collect();
        large.ports = (1..=100)
            .map(|port| ServicePort {
                name: port.to_string().into(),
                protocol: Protocol::Udp,
                port,
                node_port: None,
            })
            .collect();
        large
    };
    let served = |service: &Service, endpoint: &str| {
        let mut slice = slice("slice", service.name.name(), 5353, endpoint);
        let ports = (1..=100).map(|port: u16| EndpointPort {
            name: port.to_string().into(),
            protocol: Protocol::Udp,
            port: 8000 + port,
        });
        slice.ports = ports.collect();
        UdpService::of(&ServiceView::new(service, &[slice]), V4)
    };
    let began = Instant::now();
    let all = [1, 2, 3].map(large);
    let mut world = World::new(V4);
    for (service, endpoint) in all.iter().zip(["10.244.1.1", "10.244.1.2", "10.244.1.3"]) {
        let set = served(service, endpoint);
        assert!(world.services.set(&service.name, set));
    }
    assert!(!world.is_stale("192.0.3.231:100 10.244.1.1:8100"));
    let owner = &all[0];
    for _ in 0..200 {
        for endpoint in ["10.244.1.9", "10.244.1.1"] {
            let set = served(owner, endpoint);
            assert!(world.services.set(&owner.name, set));
        }
    }
    assert!(world.is_stale("192.0.3.231:100 10.244.1.9:8100"));
    for (service, is_shared) in all.iter().zip([true, true, false]) {
        let concerns_flows = world.services.set(&service.name, UdpService::default());
        assert_eq!(concerns_flows, is_shared, "others claim the same");
    }
    assert!(!world.is_stale("192.0.3.231:100 10.244.1.1:8100"));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn at_a_contested_address_only_flows_to_the_owners_endpoints_are_not_stale() {
    let mut world = World::new(V4);
    let claiming = |name: &str, cluster_ip, created| Service {
        created: Some(created),
        ..service(name, cluster_ip, "192.0.2.1")
    };
    // The younger Service lists the owner's endpoint, and keeps listing it after its end.
    world.tell([
        Event::ServiceApplied(claiming("owner", "10.96.0.1", 1)),
        Event::SliceApplied(slice("owner-1", "owner", 5353, "10.244.1.1")),
        Event::ServiceApplied(claiming("a-younger", "10.96.0.2", 2)),
        Event::SliceApplied(slice(
            "a-younger-1",
            "a-younger",
            5353,
            "10.244.1.1 10.244.1.2",
        )),
    ]);
    let flows = [
        "192.0.2.1:53 10.244.1.1:5353",
        "192.0.2.1:53 10.244.1.2:5353",
        "192.0.2.1:53 10.244.1.3:5353",
        "192.0.2.1:53 10.244.1.4:5353",
    ];
    let stale = |world: &World| flows.map(|flow| world.is_stale(flow));
    assert_eq!(stale(&world), [false, true, true, true]);
    assert!(world.tell([Event::SliceApplied(slice(
        "owner-1",
        "owner",
        5353,
        "10.244.1.3"
    ))]));
    assert_eq!(stale(&world), [true, true, false, true]);
    // An older Service claims the address.
    assert!(world.tell([
        Event::ServiceApplied(claiming("oldest", "10.96.0.4", 0)),
        Event::SliceApplied(slice("oldest-1", "oldest", 5353, "10.244.1.4")),
    ]));
    assert_eq!(stale(&world), [true, true, true, false]);
    assert!(world.tell([Event::ServiceApplied(service("oldest", "10.96.0.4", ""))]));
    assert_eq!(stale(&world), [true, true, false, true]);
    assert!(world.tell([Event::ServiceDeleted(name("owner"))]));
    assert_eq!(stale(&world), [false, false, true, true]);
    assert!(world.is_stale("10.96.0.2:53 10.244.1.4:5353"));
}

#[test]
fn a_node_port_that_is_also_an_external_ip_port_accepts_endpoints_of_both_services() {
    let mut world = World::new(V4);
    let mut other = service("other", "10.96.0.2", "172.35.0.100");
    other.ports.iter_mut().for_each(|port| port.port = 30053);
    world.tell(dns());
    world.tell([
        Event::ServiceApplied(other),
        Event::SliceApplied(slice("other-1", "other", 5353, "10.244.1.2")),
    ]);
    for (answerer, is_stale) in [
        ("10.244.1.2", false),
        ("10.244.1.10", false),
        ("10.244.1.3", true),
    ] {
        let flow = format!("172.35.0.100:30053 {answerer}:5353");
        assert_eq!(world.is_stale(&flow), is_stale, "{flow}");
    }
}

#[test]
fn flows_are_compared_only_after_a_change_of_udp_endpoints() {
    let mut world = World::new(V4);
    assert!(world.tell(dns()));
    let endpoints = |list| [Event::SliceApplied(slice("dns-1", "dns", 5353, list))];
    let has_changed = world.tell(endpoints("10.244.1.10 ~10.244.1.11"));
    assert!(!has_changed, "the one that is gone did not serve");
    assert!(
        !world.tell(endpoints("10.244.1.10 10.244.1.11")),
        "both serve, as before"
    );
    assert!(
        !world.tell(endpoints("10.244.1.11 10.244.1.10")),
        "in another order"
    );
    assert!(world.tell(endpoints("10.244.1.10")));
    let six = [Event::SliceApplied(slice(
        "dns-6",
        "dns",
        5353,
        "fd44:1::11",
    ))];
    assert!(!world.tell(six), "the other family's");

    let mut web = service("web", "10.96.0.3", "");
    web.ports.truncate(1);
    let each_service_address_works_over_tcp = [
        Event::ServiceApplied(web),
        Event::SliceApplied(slice("web-1", "web", 5353, "10.244.1.20")),
    ];
    assert!(!world.tell(each_service_address_works_over_tcp), "no UDP");
}
