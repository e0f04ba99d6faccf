//! Tests of userspace mode on the strict fake kernel.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use engine::Lanes;
use fixtures::KINDS;
use futures::executor::block_on;
use proxy::{
    Event, IpFamily, LocalDetector, Mode as _, Model, NodeFacts, NodePortAddresses, Notice,
    Protocol, Report, Service,
};
use proxy_userspace::fake::FakeKernel;
use proxy_userspace::{
    Base, Config, Extent, NodePortsAt, Plan, Portal, Proxier, RedirectTarget, Scope, Sources,
};

const NODE: &str = "192.0.2.1";

/// A simulated node: a proxier, a model and a fake kernel.
struct World {
    kernel: FakeKernel,
    mode: Proxier<FakeKernel>,
    model: Model,
    now: Instant,
}

impl World {
    fn new() -> Self {
        Self::with(
            Config::default(),
            NodePortAddresses::All,
            FakeKernel::new(&[NODE, "127.0.0.1", "10.244.1.1"]),
        )
    }

    fn with(config: Config, node_ports: NodePortAddresses, kernel: FakeKernel) -> Self {
        let now = Instant::now();
        let lanes = Lanes::inline(|| kernel.clone());
        let mut node = NodeFacts::new(IpFamily::V4, "node1");
        node.node_port_addresses = node_ports;
        let mut model = Model::of_node("node1");
        fixtures::start_lists(&mut model, &KINDS);
        model.apply(fixtures::node(NODE.parse().unwrap()));
        Self {
            mode: Proxier::new(config, node, lanes, now),
            kernel,
            model,
            now,
        }
    }

    fn listed(mut self) -> Self {
        fixtures::complete_lists(&mut self.model, &KINDS, true);
        self
    }

    fn apply(&mut self, service: Service) {
        self.model.apply(Event::ServiceApplied(service));
    }

    fn delete(&mut self, name: &str) {
        self.model
            .apply(Event::ServiceDeleted(fixtures::name(name)));
    }

    /// Sets the endpoints of a Service. Endpoints whose address is even are on this node.
    fn endpoints(&mut self, service: &str, addresses: &[&str]) {
        let endpoint = |address: &&str| {
            let is_here = address.ends_with(['0', '2', '4', '6', '8']);
            let address: IpAddr = address.parse().unwrap();
            fixtures::endpoint(address, if is_here { "node1" } else { "node2" })
        };
        let both = [Protocol::Tcp, Protocol::Udp];
        let slice = fixtures::slice(service, service, &both, addresses.iter().map(endpoint));
        self.model.apply(Event::SliceApplied(slice));
    }

    fn settle(&mut self) -> Report {
        fixtures::settle(&mut self.mode, &self.model, self.now)
    }

    fn sync(&mut self) -> Report {
        let changes = self.model.take_changes();
        self.mode.update(&self.model, &changes, self.now);
        self.settle()
    }

    /// Returns the target to which rules redirect a portal, if any.
    fn aim(&self, address: Option<&str>, port: u16) -> Option<RedirectTarget> {
        let portal = portal(address, port);
        self.kernel.state().redirects.get(&portal).cloned()
    }

    /// Returns the kind and the endpoints of the listener at a port number.
    fn at(&self, port: u16) -> (Scope, Sources, Vec<String>) {
        let state = self.kernel.state();
        let open = state.open.iter();
        let mut found = open.filter(|(_, (number, _))| *number == port);
        let (listener, (_, serving)) = found.next().unwrap();
        let endpoints = serving.endpoints.iter().map(ToString::to_string);
        let kind = listener.kind;
        (kind.scope, kind.sources, endpoints.collect())
    }

    fn writes(&self) -> Vec<proxy_userspace::Redirects> {
        std::mem::take(&mut self.kernel.state().writes)
    }
}

/// Creates a node with nine Services, `web1` at 10.96.0.1 to `web9` at 10.96.0.9. The proxier has
/// not written yet.
fn of_nine_services() -> World {
    let mut world = World::new().listed();
    for number in 1..=9 {
        let name = format!("web{number}");
        world.apply(service(&name, &format!("10.96.0.{number}")));
    }
    world
}

fn portal(address: Option<&str>, port: u16) -> Portal {
    Portal {
        address: address.map(|ip| ip.parse().unwrap()),
        protocol: Protocol::Tcp,
        port,
    }
}

fn service(name: &str, address: &str) -> Service {
    Service {
        created: Some(1),
        ..fixtures::service(name, address.parse::<IpAddr>().unwrap())
    }
}

/// Returns a Service with a NodePort and a load-balancer address.
fn balanced(name: &str, address: &str) -> Service {
    let mut service = service(name, address);
    service.ports[0].node_port = Some(30_080);
    service.ingress_ips = vec!["203.0.113.1".parse().unwrap()];
    service.external_ips = vec!["198.51.100.1".parse().unwrap()];
    service
}

#[test]
fn a_listening_port_is_opened_before_its_redirect_is_written() {
    let mut world = World::new().listed();
    world.apply(service("web", "10.96.0.1"));
    world.endpoints("web", &["10.244.1.2", "10.244.2.3"]);
    let report = world.sync();
    assert_eq!(report.settled.len(), 1);
    let aim = world.aim(Some("10.96.0.1"), 80).unwrap();
    assert_eq!(
        aim,
        RedirectTarget {
            name: "default/web".into(),
            via: Some(NODE.parse().unwrap()),
            outside: 40_000,
            pods: 40_000,
            node: 40_000,
        }
    );
    let all = ["10.244.1.2:8080", "10.244.2.3:8080"].map(str::to_owned);
    assert_eq!(
        world.at(40_000),
        (Scope::Cluster, Sources::All, all.to_vec())
    );
    assert_eq!(world.writes().len(), 1, "chains and redirects in one");
    assert!(world.mode.standing().is_settled);
    assert_eq!(world.mode.standing().pending_since, None);
    assert_eq!(world.sync().written, 0);
    assert_eq!(world.mode.next_due(world.now), None, "idle is idle");
}

#[test]
fn a_change_of_endpoints_writes_no_rules() {
    let mut world = World::new().listed();
    world.apply(service("web", "10.96.0.1"));
    world.endpoints("web", &["10.244.1.2"]);
    world.sync();
    world.writes();
    world.endpoints("web", &["10.244.2.3"]);
    let report = world.sync();
    assert_eq!((report.written, report.settled.len()), (1, 1));
    assert_eq!(world.at(40_000).2, ["10.244.2.3:8080"]);
    assert!(world.writes().is_empty());
}

#[test]
fn a_listening_port_is_closed_after_its_redirect_is_removed() {
    let mut world = World::new().listed();
    world.apply(service("web", "10.96.0.1"));
    world.apply(service("other", "10.96.0.2"));
    world.sync();
    world.writes();
    world.delete("web");
    world.kernel.state().held = Some("somebody writes".to_owned());
    assert_eq!(world.sync().failures.len(), 1);
    assert_eq!(world.kernel.state().open.len(), 2, "rules lead to it");
    world.kernel.state().held = None;
    for _ in 0..3 {
        world.now += Duration::from_secs(1);
        world.settle();
    }
    assert_eq!(world.kernel.state().open.len(), 1);
    assert_eq!(world.aim(Some("10.96.0.1"), 80), None);
    let writes = world.writes();
    let last = writes.last().unwrap();
    assert_eq!((last.extent, last.changes.len()), (Extent::Changes, 1));
}

#[test]
fn no_redirect_is_removed_before_the_initial_lists_are_complete() {
    let mut world = World::new();
    world.apply(service("web", "10.96.0.1"));
    world.sync();
    world.delete("web");
    world.sync();
    assert!(world.aim(Some("10.96.0.1"), 80).is_some());
    assert_eq!(world.kernel.state().open.len(), 1);
    assert_eq!(world.mode.standing().pending_since, None, "it is not late");
    let mut world = world.listed();
    world.sync();
    assert!(world.kernel.state().open.is_empty());
    assert!(world.kernel.state().redirects.is_empty());
}

#[test]
fn every_address_of_a_service_leads_to_its_listening_port() {
    let mut world = World::new().listed();
    world.apply(balanced("web", "10.96.0.1"));
    world.endpoints("web", &["10.244.1.2", "10.244.2.3"]);
    world.sync();
    let of = |at: Option<&str>, port| world.aim(at, port).map(|aim| aim.outside);
    assert_eq!(of(Some("10.96.0.1"), 80), Some(40_000));
    assert_eq!(of(Some("203.0.113.1"), 80), Some(40_000));
    assert_eq!(of(Some("198.51.100.1"), 80), Some(40_000));
    assert_eq!(of(None, 30_080), Some(40_000));
    assert_eq!(world.kernel.state().open.len(), 1, "one way, one port");
}

#[test]
fn traffic_policies_and_source_ranges_have_separate_listening_ports() {
    let detector = LocalDetector::SourceNet("10.244.1.0/24".parse().unwrap());
    let config = Config {
        detector,
        ..Config::default()
    };
    let kernel = FakeKernel::new(&[NODE]);
    let mut world = World::with(config, NodePortAddresses::All, kernel).listed();
    world.apply(Service {
        external_local: true,
        source_ranges: vec!["192.0.2.0/24".parse().unwrap()],
        ..balanced("web", "10.96.0.1")
    });
    world.endpoints("web", &["10.244.1.2", "10.244.2.3"]);
    world.sync();
    let all = vec!["10.244.1.2:8080".to_owned(), "10.244.2.3:8080".to_owned()];
    let local = vec!["10.244.1.2:8080".to_owned()];
    let cluster = world.aim(Some("10.96.0.1"), 80).unwrap();
    let everybody = (Scope::Cluster, Sources::All, all.clone());
    assert_eq!(world.at(cluster.outside), everybody);
    // At the NodePort, clients on other hosts get only endpoints on this node. The node and its
    // pods get all endpoints.
    let node_port = world.aim(None, 30_080).unwrap();
    let outside = (Scope::Local, Sources::All, local.clone());
    assert_eq!(world.at(node_port.outside), outside);
    assert_eq!(world.at(node_port.pods), everybody);
    assert_eq!(world.at(node_port.node), everybody);
    let balancer = world.aim(Some("203.0.113.1"), 80).unwrap();
    let outside = (Scope::Local, Sources::Ranges, local);
    assert_eq!(world.at(balancer.outside), outside);
    assert_eq!(
        world.at(balancer.node),
        (Scope::Cluster, Sources::Ranges, all)
    );
    let state = world.kernel.state();
    let mut open = state.open.iter();
    let (_, (_, serving)) = open
        .find(|(listener, _)| listener.kind.sources == Sources::Ranges)
        .unwrap();
    let admits = |ip: &str| serving.admits(ip.parse().unwrap());
    assert!(admits("192.0.2.77") && !admits("198.51.100.7"));
    // The source ranges contain the node's address. So the port also admits the load balancer's
    // address, from which the node may send packets.
    assert!(admits("203.0.113.1"));
}

#[test]
fn node_ports_are_redirected_at_the_configured_addresses() {
    let within = NodePortAddresses::Within(vec!["192.0.2.0/24".parse().unwrap()]);
    let kernel = FakeKernel::new(&[NODE, "198.51.100.9"]);
    let mut world = World::with(Config::default(), within, kernel).listed();
    world.sync();
    let at = |world: &World| world.kernel.state().base.clone().unwrap().node_ports;
    let one: IpAddr = NODE.parse().unwrap();
    assert_eq!(at(&world), NodePortsAt::These(vec![one]));
    assert_eq!(world.mode.node_ports().unwrap().addresses, [one]);
    let other: IpAddr = "192.0.2.2".parse().unwrap();
    world.kernel.state().addresses.insert(other);
    world.mode.notice(&Notice::AddressAdded(other), world.now);
    world.now += Duration::from_millis(50);
    world.settle();
    assert_eq!(at(&world), NodePortsAt::These(vec![one, other]));
}

#[test]
fn a_changed_node_address_changes_the_target_of_redirects() {
    let mut world = World::new().listed();
    world.apply(service("web", "10.96.0.1"));
    world.sync();
    let other: IpAddr = "192.0.2.9".parse().unwrap();
    world.kernel.state().addresses = BTreeSet::from([other]);
    let gone = Notice::AddressRemoved(NODE.parse().unwrap());
    world.mode.notice(&gone, world.now);
    world.now += Duration::from_millis(50);
    world.settle();
    let aim = world.aim(Some("10.96.0.1"), 80).unwrap();
    assert_eq!(aim.via, Some(other));
}

#[test]
fn redirects_of_an_earlier_process_are_adopted() {
    let kernel = FakeKernel::new(&[NODE]);
    let before = RedirectTarget {
        name: "default/web".into(),
        via: Some(NODE.parse().unwrap()),
        outside: 40_000,
        pods: 40_000,
        node: 40_001,
    };
    {
        let mut state = kernel.state();
        let node_ports = NodePortsAt::Everywhere;
        state.base = Some(Base {
            node_ports,
            own_mark: None,
        });
        let redirects = [("10.96.0.1", 80), ("10.96.0.9", 80)];
        let redirects = redirects.map(|(at, port)| (portal(Some(at), port), before.clone()));
        state.redirects = redirects.into();
    }
    let mut world = World::with(Config::default(), NodePortAddresses::All, kernel).listed();
    world.apply(service("web", "10.96.0.1"));
    let report = world.sync();
    let aim = world.aim(Some("10.96.0.1"), 80).unwrap();
    assert_eq!(aim.outside, 40_002, "rules led to those two");
    assert_eq!(world.aim(Some("10.96.0.9"), 80), None, "nobody wants it");
    let writes = world.writes();
    assert_eq!((writes.len(), writes[0].extent), (1, Extent::Changes));
    assert!(report.drift.is_empty());
}

#[test]
fn drift_is_repaired_and_reported() {
    let mut world = World::new().listed();
    world.apply(service("web", "10.96.0.1"));
    world.apply(service("other", "10.96.0.2"));
    world.sync();
    world.writes();
    let at = portal(Some("10.96.0.1"), 80);
    world.kernel.state().redirects.remove(&at);
    world.mode.check(world.now);
    let report = world.settle();
    assert_eq!(report.repaired.len(), 1);
    let kinds: Vec<_> = report
        .drift
        .kinds()
        .map(|(kind, of)| (kind, of.count))
        .collect();
    assert_eq!(kinds, [("rule", 1)]);
    assert_eq!(world.writes()[0].changes.len(), 1);
    // Another program deletes all redirects.
    let mut state = world.kernel.state();
    state.base = None;
    state.redirects.clear();
    drop(state);
    world.mode.check(world.now);
    world.settle();
    assert!(world.kernel.state().base.is_some());
    assert_eq!(world.kernel.state().redirects.len(), 2);
    assert_eq!(world.writes()[0].extent, Extent::Whole);
}

#[test]
fn a_refused_redirect_does_not_block_a_complete_rewrite() {
    let mut world = of_nine_services();
    world.sync();
    world.apply(service("bad", "10.96.0.10"));
    let bad = portal(Some("10.96.0.10"), 80);
    let mut state = world.kernel.state();
    state.refused.insert(bad);
    // Another program adds a rule to the mode's chains. So the mode must write all redirects again.
    state.base = None;
    state.writes.clear();
    drop(state);
    world.mode.check(world.now);
    let report = world.sync();
    assert_eq!(report.failures.len(), 1);
    assert_eq!(world.kernel.state().redirects.len(), 9);
    let writes = world.writes();
    let whole = writes.iter().filter(|plan| plan.extent == Extent::Whole);
    for plan in whole {
        let before = plan.changes.iter().filter(|of| of.before.is_some());
        assert_eq!(before.count(), 9, "nothing is left out");
    }
}

#[test]
fn a_refused_redirect_does_not_affect_other_redirects() {
    let mut world = of_nine_services();
    let bad = portal(Some("10.96.0.5"), 80);
    world.kernel.state().refused.insert(bad);
    let report = world.sync();
    assert_eq!(report.settled.len(), 8);
    assert_eq!(report.failures.len(), 1);
    let told = report.failures[0].to_string();
    assert!(told.contains("default/web5"), "{told}");
    assert_eq!(world.kernel.state().redirects.len(), 8);
    assert_eq!(world.mode.standing().pending_since, None, "it is excused");
    world.kernel.state().refused.clear();
    world.now += Duration::from_secs(1);
    world.settle();
    assert_eq!(world.kernel.state().redirects.len(), 9);
}

#[test]
fn a_listening_port_that_cannot_be_opened_is_reported_and_retried() {
    let mut world = World::new().listed();
    world.apply(service("before", "10.96.0.9"));
    assert_eq!(world.sync().settled.len(), 1);
    world.kernel.state().exhausted = Some("too many open files".to_owned());
    world.apply(service("web", "10.96.0.1"));
    let report = world.sync();
    assert_eq!((report.settled.len(), report.failures.len()), (0, 1));
    let told = report.failures[0].to_string();
    assert!(
        told.contains("default/web") && told.contains("too many open files"),
        "{told}"
    );
    assert!(world.mode.standing().pending_since.is_some());
    // Services whose ports are open still serve, and changes to their endpoints still apply.
    world.endpoints("before", &["10.244.0.7"]);
    world.sync();
    assert_eq!(world.at(40_000).2, ["10.244.0.7:8080"]);
    assert!(world.aim(Some("10.96.0.9"), 80).is_some());
    assert!(world.aim(Some("10.96.0.1"), 80).is_none());
    world.kernel.state().exhausted = None;
    world.now = world.mode.next_due(world.now).unwrap();
    assert_eq!(world.settle().settled.len(), 1);
    assert!(world.aim(Some("10.96.0.1"), 80).is_some());
    assert_eq!(world.mode.standing().pending_since, None);
}

#[test]
fn an_address_whose_new_service_cannot_be_served_has_no_redirect() {
    let mut world = World::new().listed();
    world.apply(service("gone", "10.96.0.1"));
    world.apply(service("stays", "10.96.0.3"));
    world.endpoints("gone", &["10.244.1.2"]);
    world.sync();
    world.kernel.state().exhausted = Some("too many open files".to_owned());
    world.delete("gone");
    world.apply(service("heir", "10.96.0.1"));
    let mut other = service("stays", "10.96.0.4");
    other.external_ips = vec!["10.96.0.3".parse().unwrap()];
    world.apply(other);
    let report = world.sync();
    // Two attempts fail: the first attempt, and the attempt after the deleted Service's port
    // closed.
    assert_eq!(report.failures.len(), 2);
    assert!(report.failures.iter().all(|of| of.object.contains("heir")));
    assert_eq!(world.aim(Some("10.96.0.1"), 80), None);
    assert_eq!(world.kernel.state().open.len(), 1, "that of `gone` is free");
    let stays = world.aim(Some("10.96.0.3"), 80).unwrap();
    assert_eq!(&*stays.name, "default/stays");
    assert!(world.mode.standing().pending_since.is_some());
    world.kernel.state().exhausted = None;
    world.now = world.mode.next_due(world.now).unwrap();
    world.settle();
    let aim = world.aim(Some("10.96.0.1"), 80).unwrap();
    assert_eq!(&*aim.name, "default/heir");
    assert_eq!(world.mode.standing().pending_since, None);
}

#[test]
fn after_one_failed_port_no_further_port_of_its_protocol_is_opened() {
    let mut world = World::new().listed();
    world.kernel.state().exhausted = Some("address already in use".to_owned());
    for at in 1..=100 {
        world.apply(service(&format!("web-{at}"), &format!("10.96.0.{at}")));
    }
    let mut dns = service("dns", "10.96.1.1");
    dns.ports[0].protocol = Protocol::Udp;
    world.apply(dns);
    assert_eq!(world.sync().failures.len(), 101);
    assert_eq!(world.kernel.state().tries, 2, "one of each protocol");
    world.kernel.state().exhausted = None;
    world.now = world.mode.next_due(world.now).unwrap();
    assert_eq!(world.settle().settled.len(), 101);
}

#[test]
fn sctp_is_reported_as_not_supported_and_other_services_are_served() {
    let mut world = World::new().listed();
    let mut sctp = service("signal", "10.96.0.7");
    sctp.ports[0].protocol = Protocol::Sctp;
    world.apply(sctp);
    world.apply(service("web", "10.96.0.1"));
    let report = world.sync();
    assert_eq!((report.settled.len(), report.failures.len()), (1, 1));
    assert_eq!(world.mode.standing().pending_since, None);
    assert_eq!(world.kernel.state().redirects.len(), 1);
}

#[test]
fn the_older_of_two_services_owns_a_shared_address() {
    let mut world = World::new().listed();
    world.apply(Service {
        created: Some(2),
        ..service("younger", "10.96.0.1")
    });
    world.apply(service("older", "10.96.0.1"));
    let conflicts = world.sync().conflicts.unwrap();
    assert_eq!(conflicts[0].winner.to_string(), "default/older");
    let name = |world: &World| world.aim(Some("10.96.0.1"), 80).unwrap().name;
    assert_eq!(&*name(&world), "default/older");
    world.delete("older");
    world.sync();
    assert_eq!(&*name(&world), "default/younger");
}

#[test]
fn an_address_moves_to_another_service_when_that_service_serves() {
    let mut world = World::new().listed();
    world.apply(service("older", "10.96.0.1"));
    world.endpoints("older", &["10.244.1.2"]);
    let mut younger = service("younger", "10.96.0.2");
    younger.created = Some(2);
    younger.external_ips = vec!["10.96.0.1".parse().unwrap()];
    world.apply(younger);
    world.sync();
    let name = |world: &World| world.aim(Some("10.96.0.1"), 80).unwrap().name;
    assert_eq!(&*name(&world), "default/older");
    // Applies both changes in one update. The younger Service's port is open, but has no endpoints
    // until the mode has written them.
    world.delete("older");
    world.endpoints("younger", &["10.244.2.3"]);
    let changes = world.model.take_changes();
    world.mode.update(&world.model, &changes, world.now);
    world.mode.proceed(&world.model, world.now);
    assert_eq!(&*name(&world), "default/older");
    world.settle();
    let aim = world.aim(Some("10.96.0.1"), 80).unwrap();
    assert_eq!(&*aim.name, "default/younger");
    assert_eq!(world.at(aim.outside).2, ["10.244.2.3:8080"]);
    assert_eq!(world.kernel.state().open.len(), 1, "the older's is closed");
}

#[test]
fn an_address_has_endpoints_while_it_moves_to_another_service() {
    let mut world = World::new().listed();
    let shared: IpAddr = "198.51.100.1".parse().unwrap();
    let claiming = |mut service: Service| {
        service.external_ips = vec![shared];
        service
    };
    world.apply(claiming(service("former", "10.96.0.1")));
    world.endpoints("former", &["10.244.1.2"]);
    world.sync();
    // Applies all changes in one update, as if a workload moved to another Service.
    world.apply(service("former", "10.96.0.1"));
    world.endpoints("former", &[]);
    world.apply(claiming(service("next", "10.96.0.2")));
    world.endpoints("next", &["10.244.2.3"]);
    let changes = world.model.take_changes();
    world.mode.update(&world.model, &changes, world.now);
    loop {
        let aim = world.aim(Some("198.51.100.1"), 80).unwrap();
        let serving = world.at(aim.outside).2;
        assert!(!serving.is_empty(), "{} has no endpoint", aim.name);
        world.mode.proceed(&world.model, world.now);
        let aim = world.aim(Some("198.51.100.1"), 80).unwrap();
        let serving = world.at(aim.outside).2;
        assert!(!serving.is_empty(), "{} has no endpoint", aim.name);
        if world.mode.book(&world.model, world.now).is_none() {
            break;
        }
    }
    let aim = world.aim(Some("198.51.100.1"), 80).unwrap();
    assert_eq!(&*aim.name, "default/next");
    let former = world.aim(Some("10.96.0.1"), 80).unwrap();
    assert_eq!(world.at(former.outside).2, Vec::<String>::new());
    assert!(world.mode.standing().is_settled);
    assert_eq!(world.mode.next_due(world.now), None, "idle is idle");
}

#[test]
fn two_services_without_endpoints_can_swap_addresses() {
    let mut world = World::new().listed();
    let claiming = |mut service: Service, at: &str| {
        service.external_ips = vec![at.parse().unwrap()];
        service
    };
    let [one, other] = ["198.51.100.1", "198.51.100.2"];
    for (name, own, address) in [("a", "10.96.0.1", one), ("b", "10.96.0.2", other)] {
        world.apply(claiming(service(name, own), address));
        world.endpoints(name, &["10.244.1.2"]);
    }
    world.sync();
    for (name, own, address) in [("a", "10.96.0.1", other), ("b", "10.96.0.2", one)] {
        world.apply(claiming(service(name, own), address));
        world.endpoints(name, &[]);
    }
    world.sync();
    let name = |at: &str| world.aim(Some(at), 80).unwrap().name;
    assert_eq!([&*name(one), &*name(other)], ["default/b", "default/a"]);
    assert!(world.mode.standing().is_settled);
}

#[test]
fn a_restart_opens_the_ports_to_which_existing_redirects_lead() {
    let mut world = World::new().listed();
    for (name, at) in [("web", "10.96.0.1"), ("other", "10.96.0.2")] {
        world.apply(balanced(name, at));
        world.endpoints(name, &["10.244.1.2", "10.244.2.3"]);
    }
    world.sync();
    let before = world.kernel.state().redirects.clone();
    // Starts another process on the same kernel. This process has no open ports yet.
    let kernel = world.kernel;
    kernel.state().open.clear();
    kernel.state().next_port = 50_000;
    let mut world = World::with(Config::default(), NodePortAddresses::All, kernel).listed();
    world.writes();
    for (name, at) in [("web", "10.96.0.1"), ("other", "10.96.0.2")] {
        world.apply(balanced(name, at));
        world.endpoints(name, &["10.244.1.2", "10.244.2.3"]);
    }
    world.sync();
    assert_eq!(world.kernel.state().redirects, before);
    assert!(world.writes().is_empty(), "no rule changes");
}

/// Checks which Services get listening ports if there are too few ports: first the Services that an
/// earlier process served, then the oldest Services.
#[test]
fn the_oldest_services_keep_scarce_ports_after_a_restart() {
    let aged = |number: u16| Service {
        created: Some(i64::from(number)),
        ..service(&format!("web{number}"), &format!("10.96.0.{number}"))
    };
    let served = |world: &World| -> Vec<String> {
        let state = world.kernel.state();
        let names = state
            .open
            .keys()
            .map(|of| of.name.service.name().to_string());
        names.collect()
    };
    let mut world = World::new().listed();
    world.kernel.state().most = Some(2);
    for number in [3, 1, 2] {
        world.apply(aged(number));
    }
    let report = world.sync();
    assert_eq!(served(&world), ["web1", "web2"]);
    assert!(report.failures.iter().any(|of| of.object.contains("web3")));
    // Adds a younger Service while a port becomes free. The oldest waiting Service gets this port,
    // although its own retry is due later.
    world.delete("web1");
    world.apply(aged(4));
    for _ in 0..4 {
        world.sync();
        world.now += Duration::from_millis(1);
    }
    assert_eq!(served(&world), ["web2", "web3"]);
    // Adds an older Service. It takes no port from a Service that is already served.
    world.apply(aged(1));
    world.sync();
    assert_eq!(served(&world), ["web2", "web3"]);
    // Starts another process. It opens ports for the Services that the first process served.
    let kernel = world.kernel;
    kernel.state().open.clear();
    let mut world = World::with(Config::default(), NodePortAddresses::All, kernel).listed();
    for number in [4, 3, 2, 1] {
        world.apply(aged(number));
    }
    world.sync();
    assert_eq!(served(&world), ["web2", "web3"]);
}

#[test]
fn no_port_is_opened_while_the_redirects_cannot_be_read() {
    let kernel = FakeKernel::new(&[NODE]);
    kernel.state().unreadable = Some("busy".to_owned());
    let mut world = World::with(Config::default(), NodePortAddresses::All, kernel).listed();
    world.apply(service("web", "10.96.0.1"));
    assert_eq!(world.sync().unreadable.len(), 1);
    assert!(world.kernel.state().open.is_empty());
    world.kernel.state().unreadable = None;
    world.now = world.mode.next_due(world.now).unwrap();
    assert_eq!(world.settle().settled.len(), 1);
}

#[test]
fn redirects_keep_their_target_address_while_the_nodes_addresses_are_unknown() {
    let mut world = World::new().listed();
    world.apply(service("web", "10.96.0.1"));
    world.endpoints("web", &["10.244.1.2"]);
    world.sync();
    let before = world.aim(Some("10.96.0.1"), 80).unwrap().via;
    assert_eq!(before, Some(NODE.parse().unwrap()));

    // Starts another process, which cannot read the node's addresses at first.
    let kernel = world.kernel;
    kernel.state().open.clear();
    kernel.state().next_port = 50_000;
    kernel.state().hidden = Some("busy".to_owned());
    let mut world = World::with(Config::default(), NodePortAddresses::All, kernel).listed();
    world.apply(service("web", "10.96.0.1"));
    world.endpoints("web", &["10.244.1.2"]);
    world.sync();
    let aim = world.aim(Some("10.96.0.1"), 80).unwrap();
    assert_eq!((aim.via, aim.outside), (before, 40_000));

    // The addresses can be read again, and the node's address has changed.
    let mut state = world.kernel.state();
    state.hidden = None;
    state.addresses = ["192.0.2.7".parse().unwrap()].into();
    drop(state);
    world.now = world.mode.next_due(world.now).unwrap();
    world.settle();
    let aim = world.aim(Some("10.96.0.1"), 80).unwrap();
    assert_eq!(aim.via, Some("192.0.2.7".parse().unwrap()));
}

#[test]
fn a_preview_writes_nothing() {
    let mut world = World::new().listed();
    world.apply(balanced("web", "10.96.0.1"));
    block_on(world.mode.read(&world.model, world.now)).unwrap();
    let changes = world.model.take_changes();
    world.mode.update(&world.model, &changes, world.now);
    let kernel = world.kernel.clone();
    let plans = block_on(world.mode.preview(world.now, |_, _| {}));
    let lines: Vec<String> = plans.iter().flat_map(Plan::lines).collect();
    assert_eq!(lines.len(), 6, "{lines:?}");
    assert!(kernel.state().open.is_empty() && kernel.state().writes.is_empty());
}

#[test]
fn ten_thousand_redirects_need_one_write_and_a_new_redirect_needs_one_change() {
    let mut world = World::new().listed();
    for number in 0..10_000_u32 {
        let [_, _, high, low] = number.to_be_bytes();
        let name = format!("web{number}");
        world.apply(service(&name, &format!("10.97.{high}.{low}")));
    }
    world.sync();
    let writes = world.writes();
    assert_eq!((writes.len(), writes[0].changes.len()), (1, 10_000));
    world.apply(service("one", "10.96.0.1"));
    world.sync();
    let writes = world.writes();
    assert_eq!((writes.len(), writes[0].changes.len()), (1, 1));
}
