//! Tests of `--ipvs-vip-mode=range`, in which one local route makes a whole network of service
//! addresses local.

use ipnet::IpNet;
use proxy::ServiceCidr;
use proxy_ipvs::{RangeSource, VipMode};

use super::*;

const NET: &str = "10.96.0.0/12";

fn config() -> Config {
    Config {
        vip_mode: VipMode::Range,
        ..Config::default()
    }
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// Gives the proxier these ServiceCIDRs, as a complete list.
fn list_cidrs(world: &mut World, nets: &[&str]) {
    let kind = Kind::ServiceCidr;
    world.model.apply(Event::ListStarted(kind));
    world.model.apply(Event::ServiceCidrApplied(ServiceCidr {
        name: "kubernetes".into(),
        nets: nets.iter().map(|text| net(text)).collect(),
    }));
    world.model.apply(Event::ListComplete {
        kind,
        is_whole: true,
    });
}

/// Creates a node with two Services whose cluster IPs are in the range. One of them has a
/// load-balancer address as well.
fn world_on(kernel: FakeKernel) -> World {
    with_services(World::with(config(), kernel))
}

fn with_services(mut world: World) -> World {
    let web = Service {
        kind: proxy::ServiceType::LoadBalancer,
        ingress_ips: vec![ip("192.0.2.20")],
        ..service("default/web", "10.96.0.10", 80)
    };
    world.service(web);
    world.slice(slice("default/web", &PAIR));
    world.service(service("default/next", "10.100.0.11", 80));
    world.slice(slice("default/next", &PAIR));
    world.listed()
}

fn empty() -> FakeKernel {
    FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")])
}

fn serving() -> World {
    let mut world = world_on(empty());
    list_cidrs(&mut world, &[NET]);
    assert_eq!(world.sync().pending, 0);
    world
}

fn ranges(world: &World) -> Vec<String> {
    let state = world.kernel.state();
    let nets = state.snapshot.ranges.keys();
    nets.map(ToString::to_string).collect()
}

fn bound(world: &World) -> Vec<String> {
    let state = world.kernel.state();
    let bound = state.snapshot.bound.iter();
    bound.map(ToString::to_string).collect()
}

fn position(written: &[String], op: &str) -> usize {
    let at = written.iter().position(|line| line.contains(op));
    at.unwrap_or_else(|| panic!("no {op}: {written:#?}"))
}

#[test]
fn the_route_of_a_service_range_is_written_after_virtual_servers_and_rules() {
    let mut world = serving();
    let written = world.written();
    let range = position(&written, "add local route to 10.96.0.0/12");
    assert!(position(&written, "rules") < range);
    for server in ["10.96.0.10:80", "10.100.0.11:80"] {
        assert!(position(&written, &format!("add virtual server {server}/TCP")) < range);
    }
    assert_eq!(bound(&world), ["192.0.2.20"], "outside of the range");
    // A new Service with an address in the range needs no address on the link.
    world.service(service("default/new", "10.97.0.1", 80));
    world.slice(slice("default/new", &PAIR));
    let report = world.sync();
    assert_eq!(report.settled, ["default/new"]);
    let written = world.written();
    assert!(
        !written.iter().any(|op| op.contains("kube-ipvs0")),
        "{written:#?}"
    );
}

#[test]
fn a_restart_before_the_service_cidrs_are_known_writes_nothing() {
    let world = serving();
    world.work();
    let mut world = with_services(world.restarted(config()));
    assert_eq!(world.sync().pending, 0);
    assert_eq!(world.written(), [""; 0]);
    // The ServiceCIDRs, once known, cause no write either.
    list_cidrs(&mut world, &[NET]);
    assert_eq!(world.sync().pending, 0);
    assert_eq!(world.written(), [""; 0]);
}

#[test]
fn the_route_of_an_unwanted_service_range_stays_until_its_addresses_are_bound() {
    let mut world = serving();
    world.work();
    list_cidrs(&mut world, &["10.112.0.0/16"]);
    assert_eq!(world.sync().pending, 0);
    let written = world.written();
    let removed = position(&written, "remove local route to 10.96.0.0/12");
    for address in ["10.96.0.10", "10.100.0.11"] {
        assert!(position(&written, &format!("bind {address}")) < removed);
    }
    // The opposite change is safe, too: the addresses stay until the range is local.
    list_cidrs(&mut world, &[NET]);
    assert_eq!(world.sync().pending, 0);
    let written = world.written();
    let added = position(&written, "add local route to 10.96.0.0/12");
    for address in ["10.96.0.10", "10.100.0.11"] {
        assert!(added < position(&written, &format!("unbind {address}")));
    }
    assert_eq!(ranges(&world), [NET]);
}

#[test]
fn the_route_of_a_removed_service_range_stays_while_the_kernel_refuses_an_address() {
    let mut world = serving();
    world.work();
    let refusal = "bind 10.96.0.10 to kube-ipvs0".to_owned();
    let mut state = world.kernel.state();
    state.refusals.insert(refusal, "no".to_owned());
    drop(state);
    list_cidrs(&mut world, &["10.112.0.0/16"]);
    let failing = world.sync().failing;
    assert_eq!((failing, bound(&world).len()), (1, 2));
    assert_eq!(ranges(&world), [NET, "10.112.0.0/16"]);
    world.kernel.state().refusals.clear();
    world.wait(Duration::from_mins(1));
    assert_eq!(world.sync().pending, 0);
    assert_eq!((ranges(&world).len(), bound(&world).len()), (1, 3));
}

#[test]
fn a_change_of_the_vip_mode_keeps_each_address_local() {
    let mut world = World::new();
    for number in [10, 11] {
        let at = format!("default/web{number}");
        world.service(service(&at, &format!("10.96.0.{number}"), 80));
        world.slice(slice(&at, &PAIR));
    }
    let mut world = world.listed();
    assert_eq!(world.sync().pending, 0);
    let services = |mut world: World| {
        for number in [10, 11] {
            let at = format!("default/web{number}");
            world.service(service(&at, &format!("10.96.0.{number}"), 80));
            world.slice(slice(&at, &PAIR));
        }
        list_cidrs(&mut world, &[NET]);
        let mut world = world.listed();
        assert_eq!(world.sync().pending, 0);
        world.written()
    };
    {
        // An earlier run with another `--ipvs-vip-mode` has bound addresses.
        let mut state = world.kernel.state();
        let there = &mut state.snapshot;
        std::mem::swap(&mut there.bound, &mut there.bound_otherwise);
    }
    world.work();
    let kernel = world.kernel.clone();
    let written = services(world.restarted(config()));
    let range = position(&written, "add local route to 10.96.0.0/12");
    assert!(range < position(&written, "unbind 10.96.0.10"));
    {
        let mut state = kernel.state();
        let there = &mut state.snapshot;
        std::mem::swap(&mut there.bound, &mut there.bound_otherwise);
    }
    let written = services(World::with(Config::default(), kernel));
    let range = position(&written, "remove local route to 10.96.0.0/12");
    assert!(position(&written, "bind 10.96.0.11") < range);
}

#[test]
fn a_refused_route_of_a_service_range_keeps_bound_addresses_and_other_services() {
    let mut world = serving();
    list_cidrs(&mut world, &["10.112.0.0/16"]);
    assert_eq!(world.sync().pending, 0);
    world.work();
    let refused = "add local route to 10.96.0.0/12 on kube-ipvs0".to_owned();
    world
        .kernel
        .state()
        .refusals
        .insert(refused, "ENOMEM".into());
    list_cidrs(&mut world, &[NET]);
    world.service(Service {
        external_ips: vec![ip("192.0.2.21")],
        ..service("default/outside", "10.200.0.1", 80)
    });
    world.slice(slice("default/outside", &PAIR));
    world.service(service("default/within", "10.96.0.12", 80));
    let report = world.sync();
    assert_eq!(report.failures.len(), 1, "{report:?}");
    assert!(
        report.settled.contains(&"default/outside".to_owned()),
        "{report:?}"
    );
    assert!(
        !report.settled.contains(&"default/within".to_owned()),
        "{report:?}"
    );
    assert_eq!(
        bound(&world).len(),
        5,
        "the addresses stay: {:?}",
        bound(&world)
    );
    world.kernel.state().refusals.clear();
    world.wait(Duration::from_mins(1));
    let report = world.settle();
    assert_eq!((report.pending, report.failures.len()), (0, 0));
    assert_eq!(ranges(&world), [NET]);
    assert_eq!(bound(&world), ["10.200.0.1", "192.0.2.20", "192.0.2.21"]);
}

#[test]
fn a_routed_network_inside_the_service_range_splits_the_range() {
    let kernel = empty();
    kernel.state().snapshot.networks.routed = [net("10.100.0.0/16"), net("10.0.0.0/8")].into();
    let mut world = world_on(kernel);
    list_cidrs(&mut world, &[NET]);
    assert_eq!(world.sync().pending, 0);
    let around = [
        "10.96.0.0/14",
        "10.101.0.0/16",
        "10.102.0.0/15",
        "10.104.0.0/13",
    ];
    assert_eq!(ranges(&world), around);
    assert_eq!(bound(&world), ["10.100.0.11", "192.0.2.20"]);
    // Both routes disappear from table `main`, which the next check detects.
    world.work();
    world.kernel.state().snapshot.networks.routed.clear();
    world.check();
    assert_eq!(world.settle().pending, 0);
    assert_eq!(
        (ranges(&world), bound(&world)),
        (vec![NET.to_owned()], vec!["192.0.2.20".to_owned()])
    );
}

#[test]
fn a_service_range_route_with_an_old_source_address_is_written_again() {
    let mut world = serving();
    world.work();
    let former = RangeSource::Former;
    world
        .kernel
        .state()
        .snapshot
        .ranges
        .insert(net(NET), former);
    world.check();
    assert_eq!(world.settle().pending, 0);
    assert_eq!(
        world.written(),
        ["add local route to 10.96.0.0/12 on kube-ipvs0"]
    );
}
