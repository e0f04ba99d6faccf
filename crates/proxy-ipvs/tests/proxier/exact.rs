//! Tests of `--ipvs-semantics=exact`: rules mark packets from outside the cluster, and an fwmark
//! virtual server sends them only to endpoints on this node.

use proxy_ipvs::{MarkBits, Semantics, ShimStyle, VirtualServerKey};

use super::*;

fn config(bits: MarkBits) -> Config {
    Config {
        shim: ShimStyle::Nftables,
        semantics: Semantics::Exact(bits),
        ..Config::default()
    }
}

pub(super) fn world_of(bits: MarkBits) -> World {
    on_a_node(config(bits))
}

fn on_a_node(config: Config) -> World {
    let kernel = FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")]);
    kernel.state().shim = ShimStyle::Nftables;
    World::with(config, kernel)
}

/// Returns a Service with a load-balancer address, with `externalTrafficPolicy: Local` if
/// `is_local`.
pub(super) fn exposed(name: &str, number: u8, is_local: bool) -> Service {
    Service {
        kind: proxy::ServiceType::LoadBalancer,
        ingress_ips: vec![[192, 0, 2, number].into()],
        external_local: is_local,
        ..service(name, &format!("10.96.0.{number}"), 80)
    }
}

pub(super) fn synced(world: &mut World) {
    let report = world.sync();
    let state = (report.pending, report.failures.len());
    assert_eq!(state, (0, 0), "{report:?}");
}

fn web() -> World {
    web_of(config(MarkBits::DEFAULT))
}

fn web_of(config: Config) -> World {
    let mut world = on_a_node(config);
    world.service(exposed("default/web", 10, true));
    world.slice(slice("default/web", &PAIR));
    let mut world = world.listed();
    synced(&mut world);
    world
}

pub(super) fn marked(number: u8, mark: u32) -> Member {
    Member::AddressPortMark([192, 0, 2, number].into(), Protocol::Tcp, 80, mark)
}

pub(super) fn marks(world: &World) -> Vec<Member> {
    let state = world.kernel.state();
    let of = state.snapshot.sets.get(&Set::LocalMark);
    of.into_iter().flatten().copied().collect()
}

/// Returns the number of destinations of the virtual server at the load balancer's address, and of
/// the fwmark virtual server.
pub(super) fn destinations(world: &World) -> [Option<usize>; 2] {
    let family = IpFamily::V4;
    let state = world.kernel.state();
    let by_mark = VirtualServerKey::Mark { family, mark: 1 };
    [server("192.0.2.10:80"), by_mark].map(|key| {
        let server = state.snapshot.servers.get(&key)?;
        Some(server.destinations.len())
    })
}

fn drops(world: &World) -> usize {
    let state = world.kernel.state();
    let of = state.snapshot.sets.get(&Set::UnservedOutside);
    of.into_iter().flatten().count()
}

#[test]
fn clients_from_outside_get_a_virtual_server_with_only_local_endpoints() {
    let world = web();
    assert_eq!(marks(&world), [marked(10, 1)]);
    assert_eq!(destinations(&world), [Some(2), Some(1)]);
    assert_eq!(drops(&world), 0);
}

#[test]
fn a_restart_keeps_packet_marks_without_a_write() {
    let mut world = web();
    world.service(exposed("default/next", 11, true));
    synced(&mut world);
    world.delete_service("default/web");
    synced(&mut world);
    assert_eq!(marks(&world), [marked(11, 2)]);
    world.work();
    let mut world = world.restarted(config(MarkBits::DEFAULT));
    world.service(exposed("default/next", 11, true));
    let mut world = world.listed();
    synced(&mut world);
    assert_eq!(world.work().1, Vec::new());
    assert_eq!(marks(&world), [marked(11, 2)]);
}

#[test]
fn a_restart_keeps_packet_marks_of_services_that_claim_the_same_address() {
    let claiming = |name, number, created| Service {
        created: Some(created),
        external_ips: vec![[198, 51, 100, 7].into()],
        ..exposed(name, number, true)
    };
    // The younger Service is compiled first, and loses the external IP to the older.
    let services = [claiming("default/a", 10, 2), claiming("default/b", 11, 1)];
    let listed = |mut world: World| {
        for service in &services {
            let name = service.name.to_string();
            world.service(service.clone());
            world.slice(slice(&name, &PAIR));
        }
        let mut world = world.listed();
        synced(&mut world);
        world
    };
    let world = listed(on_a_node(config(MarkBits::DEFAULT)));
    let before = marks(&world);
    assert_eq!(before.len(), 3, "{before:?}");
    world.work();
    let world = listed(world.restarted(config(MarkBits::DEFAULT)));
    assert_eq!(world.work().1, Vec::new());
    assert_eq!(marks(&world), before);
}

#[test]
fn an_fwmark_virtual_server_that_the_first_dump_skipped_is_adopted() {
    let world = web();
    world.work();
    let by_mark = VirtualServerKey::Mark {
        family: IpFamily::V4,
        mark: 1,
    };
    {
        let mut state = world.kernel.state();
        state.passed_over = Some(by_mark);
        let server = state.snapshot.servers.get_mut(&by_mark).unwrap();
        server.properties.scheduler = "lc".into();
        server.destinations = [].into();
    }
    let mut world = world.restarted(config(MarkBits::DEFAULT));
    world.service(exposed("default/web", 10, true));
    world.slice(slice("default/web", &PAIR));
    let mut world = world.listed();
    let first = world.sync();
    world.wait(Duration::from_mins(1));
    let second = world.sync();
    assert_eq!((first.foreign, second.foreign), (vec![], vec![]));
    assert_eq!(second.pending, 0);
    assert_eq!(destinations(&world), [Some(2), Some(1)]);
}

#[test]
fn without_a_local_endpoint_packets_from_outside_are_dropped() {
    let mut world = web();
    world.slice(slice("default/web", &["10.244.2.5@node2"]));
    synced(&mut world);
    assert_eq!(drops(&world), 1);
    // Without any endpoint, no rule drops packets, because IPVS rejects them.
    world.slice(slice("default/web", &[]));
    synced(&mut world);
    assert_eq!(drops(&world), 0);
}

#[test]
fn a_policy_change_marks_packets_only_while_their_virtual_server_exists() {
    let mut world = world_of(MarkBits::DEFAULT);
    world.service(exposed("default/web", 10, false));
    world.slice(slice("default/web", &PAIR));
    let mut world = world.listed();
    synced(&mut world);
    world.written();
    world.service(exposed("default/web", 10, true));
    synced(&mut world);
    let order = world.written();
    let at = |begin: &str| {
        let found = order.iter().position(|op| op.starts_with(begin));
        found.unwrap_or_else(|| panic!("no `{begin}`: {order:#?}"))
    };
    let destination = at("add destination 10.244.1.5:80");
    for member in [
        "add 192.0.2.10,tcp:80 to set KUBE-LOAD-BALANCER-LOCAL",
        "add 192.0.2.10,tcp:80,0x1 to set KUBE-LOCAL-MARK",
    ] {
        assert!(destination < at(member), "{order:#?}");
    }
    world.service(exposed("default/web", 10, false));
    synced(&mut world);
    let order = world.written();
    let at = |begin: &str| order.iter().position(|op| op.starts_with(begin)).unwrap();
    let server = at("remove virtual server");
    assert!(at("remove 192.0.2.10,tcp:80 from set KUBE-LOAD-BALANCER-LOCAL") < server);
    assert!(at("remove 192.0.2.10,tcp:80,0x1 from set KUBE-LOCAL-MARK") < server);
    assert_eq!(destinations(&world), [Some(2), None]);
}

#[test]
fn without_a_free_packet_mark_all_clients_reach_only_local_endpoints() {
    let mut world = world_of(MarkBits(1));
    world.service(exposed("default/first", 11, true));
    world.slice(slice("default/first", &PAIR));
    let mut world = world.listed();
    synced(&mut world);
    world.service(exposed("default/web", 10, true));
    world.slice(slice("default/web", &PAIR));
    synced(&mut world);
    assert_eq!(marks(&world), [marked(11, 1)]);
    assert_eq!(destinations(&world)[0], Some(1));
}

#[test]
fn the_oldest_service_that_lacks_a_mark_gets_the_next_free_mark() {
    let mut world = world_of(MarkBits(1));
    for (number, name) in [
        (11, "default/first"),
        (10, "default/web"),
        (13, "default/young"),
    ] {
        world.service(Service {
            created: Some(i64::from(u8::abs_diff(number, 11))),
            ..exposed(name, number, true)
        });
        world.slice(slice(name, &PAIR));
    }
    let mut world = world.listed();
    let report = world.sync();
    assert_eq!(report.unmarked, ["default/web", "default/young"]);
    world.delete_service("default/first");
    let report = world.sync();
    assert_eq!((report.pending, report.unmarked.len()), (0, 0));
    assert_eq!(marks(&world), [marked(10, 1)]);
    assert_eq!(destinations(&world), [Some(2), Some(1)]);
    world.delete_service("default/young");
    world.delete_service("default/web");
    synced(&mut world);
    assert_eq!(marks(&world), []);
}

#[test]
fn switching_from_exact_to_upstream_semantics_removes_the_exact_sets() {
    let world = web();
    let before = world.kernel.state().snapshot.sets.len();
    let mut world = world.restarted(Config {
        semantics: Semantics::Upstream,
        ..config(MarkBits::DEFAULT)
    });
    world.service(exposed("default/web", 10, true));
    world.slice(slice("default/web", &PAIR));
    let mut world = world.listed();
    synced(&mut world);
    assert_eq!(destinations(&world), [Some(1), None]);
    let state = world.kernel.state();
    let mut sets = state.snapshot.sets.keys();
    assert!(sets.clone().count() + 3 == before && !sets.any(|set| set.is_of_exact()));
}

/// Sets the number of active connections through the fwmark virtual server to the local endpoint.
fn open_by_mark(world: &World, count: u32) {
    let family = IpFamily::V4;
    let by_mark = VirtualServerKey::Mark { family, mark: 1 };
    let target = Target {
        ip: ip("10.244.1.5"),
        port: 8080,
    };
    let mut state = world.kernel.state();
    state.connections.insert((by_mark, target), count);
}

/// Panics unless writes that begin with these texts occur in this order.
pub(super) fn assert_order(writes: &[String], wanted: &[&str]) {
    let at = |begin: &&str| {
        let found = writes.iter().position(|op| op.starts_with(*begin));
        found.unwrap_or_else(|| panic!("no `{begin}`: {writes:#?}"))
    };
    let places: Vec<usize> = wanted.iter().map(at).collect();
    assert!(places.is_sorted(), "{writes:#?}");
}

#[test]
fn a_change_to_upstreams_semantics_drains_fwmark_virtual_servers() {
    let world = web();
    open_by_mark(&world, 1);
    world.work();
    let mut world = world.restarted(Config {
        shim: ShimStyle::Nftables,
        ..Config::default()
    });
    world.service(exposed("default/web", 10, true));
    world.slice(slice("default/web", &PAIR));
    let mut world = world.listed();
    synced(&mut world);
    assert_order(
        &world.written(),
        &[
            "set destination 10.244.2.5:8080 of 192.0.2.10:80/TCP to weight 0",
            "remove 192.0.2.10,tcp:80,0x1 from set KUBE-LOCAL-MARK",
            "set destination 10.244.1.5:8080 of FWM 1 to weight 0",
        ],
    );
    assert_eq!(destinations(&world)[1], Some(1));
    open_by_mark(&world, 0);
    world.wait(Duration::from_mins(1));
    synced(&mut world);
    assert_eq!(destinations(&world)[1], None);
}

#[test]
fn a_changed_policy_keeps_connections_through_the_fwmark_virtual_server() {
    let mut world = web();
    open_by_mark(&world, 1);
    world.service(exposed("default/web", 10, false));
    synced(&mut world);
    assert_eq!(destinations(&world), [Some(2), Some(1)]);
    world.work();
    // The Service gets its mark again, and its connections stay open. The weight rises before
    // packets are marked, so clients from outside never find only endpoints with weight 0.
    world.service(exposed("default/web", 10, true));
    synced(&mut world);
    assert_order(
        &world.written(),
        &[
            "set destination 10.244.1.5:8080 of FWM 1 to weight 1",
            "add 192.0.2.10,tcp:80,0x1 to set KUBE-LOCAL-MARK",
        ],
    );
    assert_eq!(
        (marks(&world), destinations(&world)),
        (vec![marked(10, 1)], [Some(2), Some(1)])
    );
    world.service(exposed("default/web", 10, false));
    synced(&mut world);
    open_by_mark(&world, 0);
    world.wait(Duration::from_mins(1));
    synced(&mut world);
    assert_eq!(destinations(&world), [Some(2), None]);
}

#[test]
fn packets_to_a_new_address_are_marked_after_old_endpoints_have_weight_0() {
    let mut world = web();
    world.work();
    world.service(Service {
        ingress_ips: [10, 11].map(|number| [192, 0, 2, number].into()).into(),
        ..exposed("default/web", 10, true)
    });
    world.slice(slice("default/web", &["10.244.1.6@node1"]));
    synced(&mut world);
    assert_eq!(marks(&world), [marked(10, 1), marked(11, 1)]);
    assert_order(
        &world.written(),
        &[
            "add destination 10.244.1.6:8080 to FWM 1",
            "set destination 10.244.1.5:8080 of FWM 1 to weight 0",
            "add 192.0.2.11,tcp:80,0x1 to set KUBE-LOCAL-MARK",
        ],
    );
}

#[test]
fn packets_are_masqueraded_while_they_have_no_mark() {
    let mut world = web();
    let exposed = |is_local| Service {
        external_ips: vec![[192, 0, 2, 30].into()],
        ..exposed("default/web", 10, is_local)
    };
    world.service(exposed(true));
    synced(&mut world);
    world.work();
    world.service(exposed(false));
    synced(&mut world);
    assert_eq!(marks(&world), []);
    assert_order(
        &world.written(),
        &[
            "add 192.0.2.30,tcp:80 to set KUBE-EXTERNAL-IP",
            "remove 192.0.2.10,tcp:80 from set KUBE-LOAD-BALANCER-LOCAL",
            "remove 192.0.2.10,tcp:80,0x1 from set KUBE-LOCAL-MARK",
        ],
    );
    world.work();
    world.service(exposed(true));
    synced(&mut world);
    assert_order(
        &world.written(),
        &[
            "add 192.0.2.10,tcp:80,0x1 to set KUBE-LOCAL-MARK",
            "add 192.0.2.10,tcp:80 to set KUBE-LOAD-BALANCER-LOCAL",
            "remove 192.0.2.30,tcp:80 from set KUBE-EXTERNAL-IP",
        ],
    );
}

#[test]
fn a_mark_is_removed_after_urgent_services_and_set_members_are_written() {
    let mut world = web();
    world.work();
    world.service(service("kube-system/kube-dns", "10.96.0.53", 53));
    world.slice(slice("kube-system/kube-dns", &PAIR));
    world.service(Service {
        external_ips: vec![[192, 0, 2, 30].into()],
        ..exposed("default/web", 10, false)
    });
    synced(&mut world);
    assert_order(
        &world.written(),
        &[
            "add destination 10.244.1.5:8080 to 10.96.0.53:53",
            "add 192.0.2.30,tcp:80 to set KUBE-EXTERNAL-IP",
            "remove 192.0.2.10,tcp:80,0x1 from set KUBE-LOCAL-MARK",
        ],
    );
}

#[test]
fn one_write_replaces_the_mark_of_an_address_that_passes_to_another_service() {
    let mut world = web();
    world.work();
    world.delete_service("default/web");
    world.service(Service {
        ingress_ips: vec![[192, 0, 2, 10].into()],
        ..exposed("default/next", 11, true)
    });
    world.slice(slice("default/next", &["10.244.1.6@node1"]));
    synced(&mut world);
    assert_eq!(marks(&world), [marked(10, 2)]);
    assert_order(
        &world.written(),
        &[
            "add destination 10.244.1.6:8080 to FWM 2",
            "replace 192.0.2.10,tcp:80,0x1 by 192.0.2.10,tcp:80,0x2 in set KUBE-LOCAL-MARK",
        ],
    );
}

/// Packets to an address that another Service has won use the former Service's fwmark virtual
/// server until the address's mark is removed.
#[test]
fn a_former_service_keeps_its_last_endpoint_until_its_lost_address_has_no_mark() {
    let mut world = on_a_node(config(MarkBits::DEFAULT));
    let both = [[192, 0, 2, 10].into(), [192, 0, 2, 30].into()];
    world.service(Service {
        created: Some(2),
        ingress_ips: both.to_vec(),
        ..exposed("default/web", 10, true)
    });
    world.slice(slice("default/web", &PAIR));
    let mut world = world.listed();
    synced(&mut world);
    world.work();
    world.service(Service {
        created: Some(1),
        ingress_ips: vec![[192, 0, 2, 30].into()],
        ..exposed("default/older", 11, false)
    });
    world.slice(slice("default/older", &["10.244.2.6@node2"]));
    world.slice(slice("default/web", &["10.244.2.5@node2"]));
    synced(&mut world);
    assert_order(
        &world.written(),
        &[
            "add destination 10.244.2.6:8080 to 192.0.2.30:80",
            "remove 192.0.2.30,tcp:80,0x1 from set KUBE-LOCAL-MARK",
            "set destination 10.244.1.5:8080 of FWM 1 to weight 0",
        ],
    );
}

#[test]
fn an_fwmark_virtual_server_is_removed_with_its_deleted_service() {
    for was_former in [false, true] {
        let counted = proxy_ipvs::MarkAddresses::default();
        let config = Config {
            mark_addresses: counted.clone(),
            ..config(MarkBits::DEFAULT)
        };
        let mut world = web_of(config);
        assert!(counted.get(IpFamily::V4, 1).is_some());
        open_by_mark(&world, 1);
        if was_former {
            world.service(exposed("default/web", 10, false));
            synced(&mut world);
            assert_eq!(destinations(&world)[1], Some(1));
        }
        world.delete_service("default/web");
        synced(&mut world);
        assert_eq!((marks(&world), destinations(&world)), (vec![], [None; 2]));
        assert_eq!(counted.get(IpFamily::V4, 1), None);
    }
}

/// The proxier learns only from the kernel's refusal that another program has a virtual server for
/// the mark.
#[test]
fn a_service_gets_another_mark_if_another_programs_virtual_server_has_its_mark() {
    let mut world = on_a_node(config(MarkBits::DEFAULT)).listed();
    world.sync();
    let family = IpFamily::V4;
    let by_mark = |mark| VirtualServerKey::Mark { family, mark };
    let foreign = VirtualServer {
        properties: Properties {
            scheduler: "wrr".into(),
            flags: 0,
            timeout: 0,
        },
        destinations: [].into_iter().collect(),
    };
    let mut state = world.kernel.state();
    state.snapshot.servers.insert(by_mark(1), foreign.clone());
    drop(state);
    world.service(exposed("default/web", 10, true));
    world.slice(slice("default/web", &PAIR));
    world.sync();
    world.wait(Duration::from_mins(1));
    synced(&mut world);
    assert_eq!(marks(&world), [marked(10, 2)], "{:?}", world.written());
    let state = world.kernel.state();
    assert_eq!(state.snapshot.servers.get(&by_mark(1)), Some(&foreign));
    assert_eq!(state.snapshot.servers[&by_mark(2)].destinations.len(), 1);
}
