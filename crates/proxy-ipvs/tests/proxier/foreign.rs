//! Tests of other programs' virtual servers at addresses and ports that Services want.

use std::time::Duration;

use proxy_ipvs::fake::FakeKernel;
use proxy_ipvs::{Config, Member, Properties, RealServer, Set, VirtualServer, VirtualServerKey};

use super::support::server;
use super::{IpFamily, PAIR, World, ip, service, slice};
use proxy::{Mode as _, Protocol, Service, Target};

const TAKEN: &str = "192.0.2.10:80";

/// Returns a virtual server with two destinations, as keepalived creates it.
fn of_keepalived() -> VirtualServer {
    let real = |at: &str| RealServer {
        target: Target {
            ip: ip(at),
            port: 80,
        },
        weight: 1,
        max_connections: 0,
        is_plain: true,
    };
    VirtualServer {
        properties: Properties {
            scheduler: "wrr".into(),
            flags: 0,
            timeout: 0,
        },
        destinations: [real("172.16.0.1"), real("172.16.0.2")].into(),
    }
}

fn kernel() -> FakeKernel {
    FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")])
}

fn put(kernel: &FakeKernel, at: &str) {
    let mut state = kernel.state();
    state.snapshot.servers.insert(server(at), of_keepalived());
}

fn external() -> Service {
    Service {
        external_ips: [ip("192.0.2.10")].into_iter().collect(),
        ..service("default/web", "10.96.0.10", 80)
    }
}

/// Starts a daemon with one Service on this fake kernel.
fn started(kernel: FakeKernel, of: Service) -> World {
    let mut world = World::with(Config::default(), kernel).listed();
    world.service(of);
    world.slice(slice("default/web", &PAIR));
    world
}

fn is_untouched(world: &World, at: &str) -> bool {
    let state = world.kernel.state();
    state.snapshot.servers.get(&server(at)) == Some(&of_keepalived())
}

/// Returns true if the kernel's entries show that a kube-proxy created the virtual server. A
/// kube-proxy would then adopt it at its start, and remove it in a cleanup.
fn is_said_ours(world: &World, at: &str) -> bool {
    world.kernel.state().snapshot.says_ours(&server(at))
}

#[test]
fn another_programs_virtual_server_stays_unchanged_and_is_reported() {
    let kernel = kernel();
    put(&kernel, TAKEN);
    let mut world = started(kernel, external());
    let synced = world.sync();
    assert!(is_untouched(&world, TAKEN));
    assert!(!is_said_ours(&world, TAKEN));
    assert_eq!(world.destinations("10.96.0.10:80").unwrap().len(), 2);
    assert_eq!(synced.foreign, ["192.0.2.10:80/TCP default/web"]);
    let failure = synced.failures.first().unwrap().to_string();
    for part in ["192.0.2.10:80/TCP", "default/web", "another program"] {
        assert!(failure.contains(part), "{failure}");
    }
    {
        let state = world.kernel.state();
        assert!(!state.snapshot.bound.contains(&ip("192.0.2.10")));
        assert!(state.snapshot.bound.contains(&ip("10.96.0.10")));
        let named = Member::AddressPort(ip("192.0.2.10"), Protocol::Tcp, 80);
        let mut sets = state.snapshot.sets.values();
        assert!(!sets.any(|members| members.contains(&named)));
    }
    // The other program's virtual server stays the same after checks, a restart, and the deletion
    // of the Service.
    world.wait(Duration::from_secs(30));
    world.check();
    assert!(world.sync().foreign.is_empty(), "told once");
    let mut world = world.restarted(Config::default()).listed();
    world.service(external());
    world.slice(slice("default/web", &PAIR));
    assert_eq!(world.sync().foreign.len(), 1);
    world.delete_service("default/web");
    assert_eq!(world.sync().pending, 0);
    assert!(is_untouched(&world, TAKEN));
    assert_eq!(world.kernel.state().snapshot.servers.len(), 1);
}

/// A node stays healthy if it lacks only virtual servers at other programs' addresses and ports. It
/// becomes unhealthy if the kernel refuses any other virtual server.
#[test]
fn virtual_servers_of_other_programs_do_not_make_the_node_unhealthy() {
    let only = "10.96.0.10:80";
    let kernel = kernel();
    put(&kernel, only);
    let mut world = started(kernel, service("default/web", "10.96.0.10", 80));
    let synced = world.sync();
    assert_eq!(synced.foreign, ["10.96.0.10:80/TCP default/web"]);
    assert!(is_untouched(&world, only));
    for later in [0, 60] {
        world.wait(Duration::from_secs(later));
        world.check();
        world.sync();
        let standing = world.proxier.standing();
        assert_eq!((standing.pending_since, standing.stuck_since), (None, None));
    }
    let refusal = "add virtual server 10.96.0.11:80/TCP".to_owned();
    let mut state = world.kernel.state();
    state.refusals.insert(refusal, "no".to_owned());
    drop(state);
    world.service(service("default/other", "10.96.0.11", 80));
    world.sync();
    assert!(world.proxier.standing().stuck_since.is_some());
    world.kernel.state().refusals.clear();
    world.wait(Duration::from_secs(30));
    world.sync();
    assert_eq!(world.proxier.standing().stuck_since, None);
}

/// If the kernel refuses its only destination, a virtual server rejects connections. The node stays
/// healthy anyway.
#[test]
fn refused_destinations_do_not_make_the_node_unhealthy() {
    let kernel = kernel();
    for pod in PAIR {
        let pod = pod.split('@').next().unwrap();
        let refusal = format!("add destination {pod}:8080 to 10.96.0.10:80/TCP");
        let mut state = kernel.state();
        state.refusals.insert(refusal, "no".to_owned());
    }
    let mut world = started(kernel, service("default/web", "10.96.0.10", 80));
    for later in [0, 60] {
        world.wait(Duration::from_secs(later));
        world.check();
        world.sync();
        assert_eq!(world.destinations("10.96.0.10:80"), Some(vec![]));
        let standing = world.proxier.standing();
        assert!(standing.failing > 0);
        assert_eq!((standing.pending_since, standing.stuck_since), (None, None));
    }
}

#[test]
fn a_service_is_served_after_another_program_removes_the_virtual_server() {
    let kernel = kernel();
    put(&kernel, TAKEN);
    let mut world = started(kernel, external());
    world.sync();
    world.kernel.state().snapshot.servers.remove(&server(TAKEN));
    world.wait(Duration::from_secs(30));
    world.sync();
    assert_eq!(world.destinations(TAKEN).unwrap().len(), 2);
    assert!(is_said_ours(&world, TAKEN));
    let state = world.kernel.state();
    assert!(state.snapshot.bound.contains(&ip("192.0.2.10")));
    let named = Member::AddressPort(ip("192.0.2.10"), Protocol::Tcp, 80);
    assert!(state.snapshot.sets[&Set::ExternalIp].contains(&named));
}

#[test]
fn a_virtual_server_that_another_program_creates_later_gets_no_destination() {
    let mut world = started(kernel(), service("default/web", "10.96.0.10", 80));
    world.sync();
    put(&world.kernel, TAKEN);
    world.service(external());
    let mut told = world.sync().foreign;
    world.wait(Duration::from_secs(5));
    told.extend(world.sync().foreign);
    assert!(is_untouched(&world, TAKEN));
    assert_eq!(told, ["192.0.2.10:80/TCP default/web"]);
    assert!(!is_said_ours(&world, TAKEN));
    world.delete_service("default/web");
    world.sync();
    assert!(is_untouched(&world, TAKEN));
}

#[test]
fn another_programs_virtual_server_at_another_port_is_not_adopted() {
    let other = "10.96.0.10:81";
    let kernel = kernel();
    put(&kernel, other);
    let mut world = started(kernel, service("default/web", "10.96.0.10", 80));
    world.sync();
    assert!(!is_said_ours(&world, other));
    world.wait(Duration::from_secs(30));
    world.check();
    world.sync();
    let mut world = world.restarted(Config::default()).listed();
    world.service(service("default/web", "10.96.0.10", 80));
    world.slice(slice("default/web", &PAIR));
    assert_eq!(world.sync().written, 0);
    assert!(is_untouched(&world, other));
    let state = world.kernel.state();
    assert!(state.snapshot.bound.contains(&ip("10.96.0.10")));
}

#[test]
fn a_node_port_that_another_program_uses_is_not_served() {
    let taken = "192.168.99.10:30080";
    let kernel = FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10"), ip("192.168.98.10")]);
    put(&kernel, taken);
    let mut of = service("default/web", "10.96.0.10", 80);
    for port in &mut of.ports {
        port.node_port = Some(30080);
    }
    let mut world = started(kernel, of);
    world.sync();
    assert!(is_untouched(&world, taken) && !is_said_ours(&world, taken));
    assert_eq!(world.destinations("192.168.98.10:30080"), None);
    world.kernel.state().snapshot.servers.remove(&server(taken));
    world.wait(Duration::from_secs(30));
    world.sync();
    for at in [taken, "192.168.98.10:30080"] {
        assert_eq!(world.destinations(at).unwrap().len(), 2, "{at}");
    }
}

#[test]
fn a_virtual_server_of_a_kube_proxy_is_recognized_by_its_endpoints() {
    let mut made = started(kernel(), external());
    made.sync();
    let there = made.kernel.state().snapshot.servers.clone();
    let kernel = kernel();
    kernel.state().snapshot.servers = there.clone();
    let mut world = started(kernel, external());
    assert!(world.sync().foreign.is_empty());
    assert_eq!(world.kernel.state().snapshot.servers, there);
    let touched = world.written().into_iter();
    let touched: Vec<_> = touched.filter(|op| op.contains("server")).collect();
    assert!(touched.is_empty(), "{touched:?}");
}

/// No set contains fwmark virtual servers, so only the ownership flag shows who created one.
#[test]
fn an_fwmark_virtual_server_without_the_ownership_flag_is_foreign() {
    let kernel = kernel();
    let of = |mark| VirtualServerKey::Mark {
        family: IpFamily::V4,
        mark,
    };
    let ours = || {
        let mut server = of_keepalived();
        server.properties.flags |= Properties::OWNED;
        server
    };
    let mut state = kernel.state();
    let servers = &mut state.snapshot.servers;
    servers.extend([(of(7), of_keepalived()), (of(8), ours())]);
    assert!(state.snapshot.says_ours(&of(8)) && !state.snapshot.says_ours(&of(7)));
    drop(state);
    let config = Config {
        glance_period: Some(Duration::from_secs(2)),
        ..Config::default()
    };
    let mut world = World::with(config.clone(), kernel).listed();
    world.service(service("default/web", "10.96.0.10", 80));
    world.slice(slice("default/web", &PAIR));
    assert!(world.sync().foreign.is_empty(), "no Service wants it");
    let marks = |world: &World| {
        let state = world.kernel.state();
        let all = state.snapshot.servers.iter();
        let marks = all.filter(|(key, _)| key.address().is_none());
        marks
            .map(|(key, server)| (*key, server.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(marks(&world), [(of(7), of_keepalived())]);
    // The periodic count includes the other program's fwmark virtual server, so none seems to be
    // missing.
    world.kernel.take_work();
    for _ in 0..5 {
        world.wait(Duration::from_secs(2));
        world.sync();
    }
    let (work, _) = world.kernel.take_work();
    assert_eq!((work.glances, work.dumps), (5, 0));
    // An fwmark virtual server with the ownership flag appears, and a drift check finds it.
    let mut state = world.kernel.state();
    state.snapshot.servers.insert(of(9), ours());
    drop(state);
    world.check();
    world.sync();
    let written = world.written();
    let last = written.last().map(String::as_str);
    assert_eq!(last, Some("remove virtual server FWM 9"), "{written:?}");
    let mut world = world.restarted(config).listed();
    world.service(service("default/web", "10.96.0.10", 80));
    world.slice(slice("default/web", &PAIR));
    assert_eq!(world.sync().written, 0);
    assert_eq!(marks(&world), [(of(7), of_keepalived())]);
}
