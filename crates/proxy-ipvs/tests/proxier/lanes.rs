//! Tests of a part of the kernel that hangs, is slow, or cannot be read: work that does not need
//! this part must not wait.

use std::sync::Arc;

use proxy::{Node, NodePortAddresses, Notice};
use proxy_ipvs::Kernel;
use proxy_ipvs::fake::FakeKernel;

use super::support::{HeldParts, READ, Slow, WRITTEN};
use super::*;

fn external(at: &str, cluster_ip: &str, address: &str) -> Service {
    let mut external = service(at, cluster_ip, 80);
    external.external_ips = vec![ip(address)];
    external
}

fn hold(held: &HeldParts, parts: &[Part]) {
    let mut held = held.lock().unwrap();
    *held = parts.iter().map(|part| part.name()).collect();
}

fn kernel() -> FakeKernel {
    FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")])
}

/// Returns a node that serves `default/web`, and whose worker threads the test can hold.
fn serving() -> (World<Slow>, HeldParts) {
    let held: HeldParts = Arc::default();
    let mut world = World::threaded(Config::default(), kernel(), &held);
    world.service(service("default/web", "10.96.0.10", 80));
    world.slice(slice("default/web", &PAIR));
    let mut world = world.listed();
    world.until("a first sync", |kernel| {
        let state = kernel.state();
        state.snapshot.bound.len() == 1 && !state.snapshot.rules.as_ref().unwrap().is_empty()
    });
    (world, held)
}

fn serves(at: &'static str, endpoints: usize) -> impl Fn(&FakeKernel) -> bool {
    move |kernel| {
        let state = kernel.state();
        let there = state.snapshot.servers.get(&server(at));
        there.is_some_and(|server| server.destinations.len() == endpoints)
    }
}

const SOON: Duration = Duration::from_millis(500);

#[test]
fn slow_rules_and_addresses_do_not_delay_endpoints() {
    let (mut world, held) = serving();
    hold(&held, &[Part::Rules, Part::Addresses]);
    // The first Service with an external address needs new rules.
    world.service(external("default/out", "10.96.0.11", "198.51.100.7"));
    world.slice(slice("default/out", &PAIR));
    world.until("the cluster's address", serves("10.96.0.11:80", 2));
    let endpoints = ["10.244.1.5@node1", "10.244.2.5@node2", "10.244.2.6@node2"];
    let mut longest = Duration::ZERO;
    for round in 0..20 {
        let count = 2 + round % 2;
        world.slice(slice("default/web", &endpoints[..count]));
        longest = longest.max(world.until("a change", serves("10.96.0.10:80", count)));
    }
    assert!(longest < SOON, "{longest:?}");
    // The virtual server waits for the rules. Without them, endpoints on other nodes would reply to
    // external clients directly.
    assert!(!serves("198.51.100.7:80", 2)(&world.kernel));
    hold(&held, &[]);
    world.until("what waits for rules", serves("198.51.100.7:80", 2));
    world.until("its addresses", |kernel| {
        kernel.state().snapshot.bound.len() == 3
    });
}

/// Removes the address of `default/web` from the link, as another program would, and replaces the
/// Service's endpoints.
fn lose_address_and_endpoint<K: Kernel>(world: &mut World<K>) {
    let address = ip("10.96.0.10");
    world.kernel.state().snapshot.bound.remove(&address);
    let gone = Notice::ServiceAddressRemoved(address);
    world.proxier.notice(&gone, world.now);
    world.slice(slice("default/web", &["10.244.1.6@node1"]));
}

fn is_bound(kernel: &FakeKernel) -> bool {
    let state = kernel.state();
    state.snapshot.bound.contains(&ip("10.96.0.10"))
}

#[test]
fn an_address_is_bound_only_after_the_weights_of_removed_endpoints_are_0() {
    let (mut world, held) = serving();
    held.lock().unwrap().insert(WRITTEN);
    lose_address_and_endpoint(&mut world);
    // The kernel has lowered the weights, but the daemon has no replies yet.
    world.until("the new endpoint", serves("10.96.0.10:80", 3));
    for _ in 0..50 {
        world.go_on();
        std::thread::sleep(Duration::from_millis(1));
    }
    let was_bound = is_bound(&world.kernel);
    // Releases the worker threads first, because a failed assertion would leave them waiting.
    hold(&held, &[]);
    assert!(!was_bound);
    world.until("the address", is_bound);
}

#[test]
fn an_address_does_not_wait_for_a_removal_that_the_kernel_refuses() {
    let mut world = web();
    let mut state = world.kernel.state();
    for pod in PAIR {
        let pod = pod.split('@').next().unwrap();
        let lowered = format!("set destination {pod}:8080 of 10.96.0.10:80/TCP to weight 0");
        let removed = format!("remove destination {pod}:8080 from 10.96.0.10:80/TCP");
        let all = [lowered, removed].map(|write| (write, "no".to_owned()));
        state.refusals.extend(all);
    }
    drop(state);
    lose_address_and_endpoint(&mut world);
    world.sync();
    assert!(is_bound(&world.kernel));
}

#[test]
fn the_first_virtual_server_waits_for_rules_for_a_limited_time() {
    let held: HeldParts = Arc::default();
    hold(&held, &[Part::Rules]);
    let mut world = World::threaded(Config::default(), kernel(), &held);
    world.service(external("default/web", "10.96.0.10", "198.51.100.7"));
    let mut world = world.listed();
    let took = world.until("the cluster's address", serves("10.96.0.10:80", 0));
    assert!(took < Duration::from_secs(2), "{took:?}");
    world.until("it is bound", |kernel| {
        kernel.state().snapshot.bound.len() == 1
    });
    assert!(!serves("198.51.100.7:80", 0)(&world.kernel));
    hold(&held, &[]);
    world.until("the other", serves("198.51.100.7:80", 0));
}

/// Without the rules for the Service's source ranges, any client could use its address.
#[test]
fn an_address_is_not_served_before_the_rules_for_its_source_ranges() {
    let mut world = web();
    let refusal = |world: &World| {
        let mut probe = world.kernel.state();
        probe.is_kernel_ill = true;
        let all = (0..99).map(|count| (format!("write {count} iptables rules"), "held".to_owned()));
        probe.refusals = all.collect();
    };
    refusal(&world);
    let mut closed = service("default/closed", "10.96.0.11", 80);
    closed.kind = proxy::ServiceType::LoadBalancer;
    closed.ingress_ips = vec![ip("203.0.113.10")];
    closed.source_ranges = vec!["198.51.100.0/24".parse().unwrap()];
    world.service(closed);
    world.slice(slice("default/closed", &PAIR));
    let synced = world.sync();
    assert!(world.destinations("10.96.0.11:80").is_some());
    assert_eq!(world.destinations("203.0.113.10:80"), None);
    assert!(
        synced.stuck.is_some() && synced.settled.is_empty(),
        "{synced:?}"
    );
    world.kernel.state().refusals.clear();
    world.wait(Duration::from_secs(1));
    let synced = world.settle();
    assert_eq!((synced.pending, synced.stuck), (0, None));
    assert_eq!(synced.settled, ["default/closed"]);
    assert!(world.destinations("203.0.113.10:80").is_some());
}

/// New rules must not drop packets to a Service that has no source ranges any more.
#[test]
fn rules_wait_until_the_set_members_of_former_source_ranges_are_removed() {
    let mut world = World::new();
    let mut other = service("default/other", "10.96.0.11", 80);
    other.ingress_ips = vec![ip("192.0.2.2")];
    other.source_ranges = vec!["10.0.0.0/8".parse().unwrap()];
    for service in [balanced(&["10.0.0.0/8"]), other.clone()] {
        world.service(service);
    }
    let mut world = world.listed();
    assert_eq!(world.sync().pending, 0);
    // Another program has removed all rules.
    world.kernel.state().snapshot.rules = Some(Rules::default());
    let held: HeldParts = Arc::default();
    let mut world = World::threaded(Config::default(), world.kernel, &held);
    hold_at(&held, &[WRITTEN]);
    for service in [balanced(&[]), other] {
        world.service(service);
    }
    let mut world = world.listed();
    let has_rules = |kernel: &FakeKernel| {
        let state = kernel.state();
        state
            .snapshot
            .rules
            .as_ref()
            .is_some_and(|rules| !rules.is_empty())
    };
    a_while(&mut world);
    let is_early = has_rules(&world.kernel);
    hold(&held, &[]);
    assert!(!is_early, "the removal is not confirmed");
    world.until("the rules", has_rules);
    let state = world.kernel.state();
    let obsolete = Member::AddressPort(ip("192.0.2.1"), Protocol::Tcp, 80);
    assert!(!state.snapshot.sets[&Set::LoadBalancerFirewall].contains(&obsolete));
}

#[test]
fn kernel_state_that_is_unreadable_at_the_start_blocks_only_dependent_entries() {
    for &part in Part::ALL {
        let left = web();
        {
            // Two virtual servers exist: of a Service that no longer exists, and of another
            // program.
            let mut state = left.kernel.state();
            let there = state.snapshot.servers[&server("10.96.0.10:80")].clone();
            let servers = &mut state.snapshot.servers;
            servers.insert(server("10.96.0.66:80"), there.clone());
            servers.insert(server("192.0.2.1:80"), there);
            let member = Member::AddressPort(ip("10.96.0.66"), Protocol::Tcp, 80);
            let set = state.snapshot.sets.get_mut(&Set::ClusterIp).unwrap();
            set.insert(member);
            let unreadable = (part.name(), "interrupted".to_owned());
            state.unreadable = [unreadable].into();
        }
        let mut world = left.restarted(Config::default());
        world.service(service("default/web", "10.96.0.10", 80));
        world.slice(slice("default/web", &["10.244.2.9@node2"]));
        world.service(service("default/new", "10.96.0.11", 80));
        world.slice(slice("default/new", &PAIR));
        let mut world = world.listed();
        world.work();
        let synced = world.sync();
        assert_eq!(synced.unreadable[0].part, part.name());
        // 500 ms is the longest time that new virtual servers wait for rules.
        world.wait(Duration::from_millis(500));
        assert!(world.settle().stuck.is_some(), "{part:?}");
        let written = world.written();
        let serves = world
            .destinations("10.96.0.11:80")
            .is_some_and(|of| of.len() == 2);
        assert_eq!(serves, part != Part::Servers, "{part:?}: {written:?}");
        let takes_away = |op: &String| op.starts_with("remove ") || op.starts_with("unbind ");
        let has_evidence = part == Part::Rules;
        assert_eq!(
            written.iter().any(takes_away),
            has_evidence,
            "{part:?}: {written:?}"
        );
        // One second later, the proxier reads this part of the kernel again without an event, and
        // the failure ends.
        world.kernel.state().unreadable.clear();
        world.wait(Duration::from_secs(1));
        let synced = world.settle();
        assert_eq!((synced.pending, synced.stuck), (0, None), "{part:?}");
        assert_eq!(
            world.servers(),
            ["10.96.0.10:80/TCP", "10.96.0.11:80/TCP", "192.0.2.1:80/TCP"],
            "{part:?}"
        );
        let state = world.kernel.state();
        assert_eq!(state.snapshot.bound.len(), 2);
        assert_eq!(state.snapshot.sets[&Set::ClusterIp].len(), 2);
    }
}

#[test]
fn a_part_of_the_kernel_that_becomes_unreadable_blocks_no_change() {
    for &part in Part::ALL {
        let mut world = web();
        let unreadable = (part.name(), "interrupted".to_owned());
        world.kernel.state().unreadable = [unreadable].into();
        for round in 1..=3_u8 {
            world.wait(Duration::from_secs(30));
            world.check();
            world.settle();
            let at = format!("default/new-{round}");
            world.service(external(
                &at,
                &format!("10.96.1.{round}"),
                &format!("198.51.100.{round}"),
            ));
            world.slice(slice(&at, &PAIR));
            let synced = world.sync();
            assert_eq!((synced.pending, synced.stuck), (0, None), "{part:?}");
            assert_eq!(synced.settled, [at]);
        }
    }
}

#[test]
fn the_api_server_and_dns_are_reachable_first() {
    let mut world = World::new();
    let pods: Vec<String> = (0..100).map(|n| format!("10.244.1.{n}@node2")).collect();
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    for number in 0..900_u32 {
        let at = format!("default/s{number}");
        let address = format!("10.97.{}.{}", number / 250, number % 250 + 1);
        world.service(service(&at, &address, 80));
        world.slice(slice(&at, &pods));
    }
    world.service(service("kube-system/kube-dns", "10.96.0.53", 53));
    world.service(service("default/kubernetes", "10.96.0.1", 443));
    let mut world = world.listed();
    world.sync();
    let (_, ops) = world.work();
    let position = |wanted: &Op| ops.iter().position(|op| op == wanted).unwrap();
    let adds = |op: &&Op| matches!(op, Op::AddDestination(..));
    for address in ["10.96.0.1", "10.96.0.53"] {
        let bound = position(&Op::BindAddress(ip(address)));
        let before = ops[..bound].iter().filter(adds).count();
        // With one processor, the kernel may get some destinations of other Services first.
        assert!(before <= 32_768 + 100, "{address} after {before}");
    }
    let binds = ops.iter().filter_map(|op| match op {
        Op::BindAddress(address) => Some(*address),
        _ => None,
    });
    let first: Vec<_> = binds.take(2).collect();
    assert_eq!(first, [ip("10.96.0.1"), ip("10.96.0.53")]);
}

/// Returns the number of writes before the first destination of the virtual server at this address.
fn before_destination_of(address: &str, ops: &[Op]) -> usize {
    let is_it = |op: &Op| matches!(op, Op::AddDestination(key, _) if key.address().unwrap().address == ip(address));
    ops.iter().position(is_it).unwrap()
}

#[test]
fn a_change_to_a_service_does_not_wait_for_a_very_large_other_service() {
    let mut world = World::new();
    // The address of this Service sorts after all addresses of the very large Service.
    world.service(service("default/web", "203.0.113.10", 80));
    world.slice(slice("default/web", &["10.244.9.1@node2"]));
    let mut large = service("tenant/large", "10.96.0.9", 80);
    large.external_ips = (1..=20).map(|n| ip(&format!("198.51.100.{n}"))).collect();
    world.service(large);
    world.slice(slice("tenant/large", &["10.244.8.1@node2"]));
    let mut world = world.listed();
    world.sync();
    world.work();

    let pods: Vec<String> = (0..300)
        .map(|n| format!("10.244.{}.{}@node2", 16 + n / 250, n % 250 + 1))
        .collect();
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    world.slice(slice("tenant/large", &pods));
    world.slice(slice("default/web", &["10.244.9.2@node2"]));
    world.sync();
    let (_, ops) = world.work();
    let before = before_destination_of("203.0.113.10", &ops);
    assert!(ops.len() > 6_000, "{}", ops.len());
    assert!(before < 3_000, "after {before} of {}", ops.len());
}

#[test]
fn a_change_does_not_wait_for_many_services_of_another_namespace() {
    let mut world = World::new();
    // The address of this Service sorts after all addresses of the other Services.
    world.service(service("default/web", "203.0.113.10", 80));
    world.slice(slice("default/web", &["10.244.9.1@node2"]));
    let mut world = world.listed();
    world.sync();
    world.work();

    let pods: Vec<String> = (0..40).map(|n| format!("10.244.8.{n}@node2")).collect();
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    for number in 0..200_u32 {
        let at = format!("tenant/s{number}");
        world.service(service(&at, &format!("10.97.0.{number}"), 80));
        world.slice(slice(&at, &pods));
    }
    world.slice(slice("default/web", &["10.244.9.2@node2"]));
    world.sync();
    let (_, ops) = world.work();
    let before = before_destination_of("203.0.113.10", &ops);
    assert!(ops.len() > 8_000, "{}", ops.len());
    assert!(before < 3_000, "after {before} of {}", ops.len());
}

// ---- a node whose addresses are not known yet ----

/// Returns a node with two addresses that serves a NodePort at both addresses.
fn exposed() -> World {
    let addresses = ["192.168.99.10", "192.168.99.11"].map(ip);
    let mut world = World::with(Config::default(), FakeKernel::new(IpFamily::V4, &addresses));
    node_port(&mut world);
    let mut world = world.listed();
    world.sync();
    world
}

fn node_port(world: &mut World) {
    let mut web = service("default/web", "10.96.0.10", 80);
    web.ports.first_mut().unwrap().node_port = Some(30080);
    world.service(web);
    world.slice(slice("default/web", &PAIR));
}

fn restarted_with(world: World, addresses: NodePortAddresses) -> World {
    let mut node = NodeFacts::new(IpFamily::V4, NODE);
    node.node_port_addresses = addresses;
    let mut world = world.restarted(Config::default());
    world.restart_on(node);
    node_port(&mut world);
    world.listed()
}

fn node_ports(world: &World) -> Vec<String> {
    let state = world.kernel.state();
    let of = |key: &&proxy_ipvs::VirtualServerKey| key.address().unwrap().port == 30080;
    let keys = state.snapshot.servers.keys().filter(of);
    keys.map(ToString::to_string).collect()
}

#[test]
fn node_ports_stay_unchanged_until_the_node_is_known() {
    let within = |net: &str| NodePortAddresses::Within(vec![net.parse().unwrap()]);
    let both = ["192.168.99.10:30080/TCP", "192.168.99.11:30080/TCP"];
    for (addresses, then) in [
        (NodePortAddresses::Primary, &both[..1]),
        (within("172.16.0.0/12"), &[]),
    ] {
        let mut world = restarted_with(exposed(), addresses);
        world.work();
        assert_eq!(world.sync().pending, 0);
        assert_eq!(world.written(), Vec::<String>::new());
        assert_eq!(node_ports(&world), both);
        // The virtual servers at both addresses still follow changes of the endpoints.
        world.slice(slice("default/web", &["10.244.2.9@node2"]));
        world.sync();
        let weights = world.destinations("192.168.99.11:30080").unwrap();
        assert_eq!(weights, ["10.244.2.9:8080=1"]);
        // Now the proxier learns the node's addresses.
        world.node(Node {
            name: NODE.into(),
            addresses: vec![ip("192.168.99.10")],
            zone: None,
            pod_cidrs: Vec::new(),
            is_leaving: false,
        });
        assert_eq!(world.sync().pending, 0);
        assert_eq!(node_ports(&world), then);
    }
}

/// Upstream does the same, because it reads all addresses of the node in each sync.
#[test]
fn service_addresses_within_nodeport_addresses_serve_node_ports() {
    let mut world = World::new();
    let mut node = NodeFacts::new(IpFamily::V4, NODE);
    let net = "10.96.0.0/16".parse().unwrap();
    node.node_port_addresses = NodePortAddresses::Within(vec![net]);
    world.restart_on(node);
    node_port(&mut world);
    let mut world = world.listed();
    world.sync();
    world.work();
    assert_eq!(node_ports(&world), ["10.96.0.10:30080/TCP"]);
    // Another Service, with an address in the NodePort network, is added and deleted.
    world.service(service("default/other", "10.96.0.20", 80));
    world.slice(slice("default/other", &PAIR));
    world.sync();
    world.work();
    assert_eq!(
        node_ports(&world),
        ["10.96.0.10:30080/TCP", "10.96.0.20:30080/TCP"]
    );
    let reads = world.kernel.state().work.address_reads;
    world.slice(slice("default/other", &["10.244.2.9@node2"]));
    world.sync();
    world.work();
    assert_eq!(
        world.kernel.state().work.address_reads,
        reads,
        "nothing was bound"
    );
    world.delete_service("default/other");
    world.sync();
    world.work();
    assert_eq!(node_ports(&world), ["10.96.0.10:30080/TCP"]);
}

// ---- events between a call to the kernel and its reply ----

/// Runs the daemon's loop long enough for a check or a repair to begin. Returns the reported drift
/// and the repaired Services.
fn a_while(world: &mut World<Slow>) -> Vec<String> {
    let mut told = Vec::new();
    for _ in 0..300 {
        let synced = world.go_on();
        let kinds = synced.drift.kinds();
        told.extend(kinds.map(|(kind, of)| format!("{kind}: {of:?}")));
        told.extend(synced.repaired);
        std::thread::sleep(Duration::from_millis(1));
    }
    told
}

fn hold_at(held: &HeldParts, what: &[&'static str]) {
    *held.lock().unwrap() = what.iter().copied().collect();
}

#[test]
fn node_ports_are_served_if_a_removed_node_address_returns_immediately() {
    let held: HeldParts = Arc::default();
    let mut world = World::threaded(Config::default(), kernel(), &held);
    let mut web = service("default/web", "10.96.0.10", 80);
    web.ports.first_mut().unwrap().node_port = Some(30080);
    world.service(web);
    let mut world = world.listed();
    world.until("a first sync", serves("192.168.99.10:30080", 0));
    a_while(&mut world);
    let address = ip("192.168.99.10");
    let carries = |world: &World<Slow>, is_there: bool| {
        let mut state = world.kernel.state();
        let others = &mut state.snapshot.interface_addresses;
        if is_there {
            others.insert(address);
        } else {
            others.remove(&address);
        }
    };
    hold_at(&held, &[READ]);
    carries(&world, false);
    world
        .proxier
        .notice(&Notice::AddressRemoved(address), world.now);
    a_while(&mut world);
    carries(&world, true);
    world
        .proxier
        .notice(&Notice::AddressAdded(address), world.now);
    hold_at(&held, &[]);
    a_while(&mut world);
    world.until("the NodePort", serves("192.168.99.10:30080", 0));
}

#[test]
fn a_service_address_removed_while_being_bound_is_bound_again() {
    let (mut world, held) = serving();
    hold_at(&held, &[WRITTEN]);
    world.service(service("default/other", "10.96.0.11", 80));
    let other = ip("10.96.0.11");
    let is_bound = |kernel: &FakeKernel| kernel.state().snapshot.bound.contains(&other);
    hold_at(&held, &[]);
    world.until("its virtual server", serves("10.96.0.11:80", 0));
    hold_at(&held, &[WRITTEN]);
    world.until("its address", is_bound);
    world.kernel.state().snapshot.bound.remove(&other);
    let gone = Notice::ServiceAddressRemoved(other);
    world.proxier.notice(&gone, world.now);
    a_while(&mut world);
    hold_at(&held, &[]);
    world.until("its address again", is_bound);
}

#[test]
fn a_postponed_count_of_virtual_servers_causes_no_wakeup() {
    let held: HeldParts = Arc::default();
    let config = Config {
        glance_period: Some(Duration::from_secs(2)),
        ..Config::default()
    };
    let mut world = World::threaded(config, kernel(), &held);
    world.service(service("default/web", "10.96.0.10", 80));
    let mut world = world.listed();
    world.until("a first sync", serves("10.96.0.10:80", 0));
    hold_at(&held, &[WRITTEN]);
    world.slice(slice("default/web", &PAIR));
    world.until("what is written, and held then", serves("10.96.0.10:80", 2));
    let later = world.now + Duration::from_secs(5);
    let due = world.proxier.next_due(later);
    hold_at(&held, &[]);
    assert!(due.is_none_or(|due| due > later), "{due:?}");
}

#[test]
fn writes_during_a_check_are_not_drift() {
    let (mut world, held) = serving();
    a_while(&mut world);
    hold_at(&held, &[WRITTEN]);
    world.service(service("default/other", "10.96.0.11", 80));
    world.slice(slice("default/other", &PAIR));
    a_while(&mut world);
    // The kernel has the entry, but the test holds back the outcome from the proxier.
    assert!(
        serves("10.96.0.11:80", 2)(&world.kernel) || {
            let state = world.kernel.state();
            state.snapshot.sets[&Set::ClusterIp].len() == 2
        }
    );
    world.proxier.check(world.now);
    let mut told = a_while(&mut world);
    hold_at(&held, &[]);
    told.extend(a_while(&mut world));
    assert_eq!(told, Vec::<String>::new());
    assert!(serves("10.96.0.11:80", 2)(&world.kernel));
}

/// The kernel dumps virtual servers by position. If one is removed during the dump, the kernel may
/// skip the next one.
#[test]
fn a_virtual_server_that_the_kernels_dump_skipped_is_not_created_again() {
    let mut world = web();
    world.service(service("default/other", "10.96.0.11", 80));
    world.sync();
    world.written();
    world.kernel.state().passed_over = Some(server("10.96.0.11:80"));
    world.proxier.check(world.now);
    let synced = world.settle();
    assert!(synced.drift.is_empty(), "{:?}", synced.drift);
    assert_eq!(world.written(), Vec::<String>::new());
}

/// The node gets an external address of the first Service. The proxier recompiles this Service
/// before it knows of the other Services' changes.
#[test]
fn a_released_address_moves_to_its_next_owner_without_removal() {
    const OF_THE_NODE: &str = "203.0.113.9";
    let claiming = |at: &str, cluster_ip: &str, addresses: &[&str], port: u16| {
        let mut service = service(at, cluster_ip, port);
        service.external_ips = addresses.iter().map(|address| ip(address)).collect();
        service
    };
    let (shared, other) = ("203.0.113.1", "203.0.113.2");
    let now = [OF_THE_NODE];
    for (one, two, [two_then, three_then]) in [
        // The first two Services release the shared address, which the third claims at another
        // port.
        (
            [OF_THE_NODE, shared],
            [shared].as_slice(),
            [[].as_slice(), &[shared]],
        ),
        // The second Service gets the shared address from the first, and the third gets the
        // second's own address.
        (
            [OF_THE_NODE, shared],
            &[shared, other],
            [&[shared], &[other]],
        ),
    ] {
        let mut world = web();
        world.service(claiming("default/one", "10.96.0.11", &one, 80));
        world.service(claiming("default/two", "10.96.0.12", two, 80));
        for at in ["default/one", "default/two", "default/three"] {
            world.slice(slice(at, &PAIR));
        }
        world.sync();
        world.work();
        world.service(claiming("default/one", "10.96.0.11", &now, 80));
        world.service(claiming("default/two", "10.96.0.12", two_then, 80));
        world.service(claiming("default/three", "10.96.0.13", three_then, 90));
        let address = ip(OF_THE_NODE);
        world
            .kernel
            .state()
            .snapshot
            .interface_addresses
            .insert(address);
        world
            .proxier
            .notice(&Notice::AddressAdded(address), world.now);
        world.settle();
        let written = world.written();
        for gone in [shared, other].map(|address| format!("unbind {address} from kube-ipvs0")) {
            assert!(!written.contains(&gone), "{written:#?}");
        }
        assert_eq!(world.sync().pending, 0);
        let taken = format!("{}:90", three_then[0]);
        assert!(world.destinations(&taken).is_some());
    }
}
