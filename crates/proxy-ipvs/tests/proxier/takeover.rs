//! Tests of a node that another kube-proxy mode has programmed. The other mode's rules serve
//! packets until the proxier has written all its entries, and are then removed.

use std::sync::Arc;

use proxy_ipvs::fake::FakeKernel;
use proxy_ipvs::{Backend, Config, LeftoverPlace, Op, Rules, beside_the_shim};

use super::support::HeldParts;
use super::{IpFamily, Kind, PAIR, World, ip, service, slice};
use proxy::{Event, Mode as _, Notice};

const SAVED: &str = include_str!("../iptables-mode/iptables-save");
const BESIDE: LeftoverPlace = LeftoverPlace::Beside(Backend::Legacy);

/// Returns a node with the entries of upstream's iptables mode.
fn programmed() -> World {
    let kernel = FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")]);
    {
        let mut state = kernel.state();
        state.snapshot.rules = Some(Rules::parse(SAVED));
        let leftovers = Arc::new(beside_the_shim(&[&proxy_iptables::FOOTPRINT], SAVED));
        state.snapshot.leftovers = Some([(BESIDE, leftovers)].into());
    }
    let mut world = World::with(Config::default(), kernel);
    world.service(service("default/web", "10.96.0.10", 80));
    world.slice(slice("default/web", &PAIR));
    world
}

fn position(order: &[String], begin: &str) -> usize {
    let found = order.iter().position(|op| op.starts_with(begin));
    found.unwrap_or_else(|| panic!("no `{begin}`: {order:#?}"))
}

#[test]
fn the_iptables_modes_rules_are_removed_after_the_first_sync() {
    let mut world = programmed().listed();
    let report = world.sync();
    assert_eq!((report.pending, report.failures.len()), (0, 0));
    let order = world.written();
    let (bound, rules) = (position(&order, "bind "), position(&order, "write "));
    assert!(bound < rules, "{order:#?}");
    assert_eq!(
        order.last().unwrap(),
        "remove 13 chains and 8 jumps of the iptables mode from iptables (legacy)"
    );
    world.check();
    assert_eq!((world.sync().written, world.written().len()), (0, 0));
}

#[test]
fn the_iptables_modes_rules_stay_while_initial_lists_are_incomplete() {
    let mut world = programmed();
    for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
        let is_whole = kind != Kind::Service;
        world.model.apply(Event::ListComplete { kind, is_whole });
    }
    world.sync();
    let order = world.written();
    position(&order, "bind ");
    let touches = |op: &String| op.starts_with("write ") || op.contains("of the iptables mode");
    assert!(!order.iter().any(touches), "{order:#?}");
    // The proxier has not written its rules in time. The node stays healthy, because a restart
    // would not help.
    let standing = world.proxier.standing();
    assert!(standing.pending_since.is_some() && standing.stuck_since.is_none());
    let is_whole = true;
    let kind = Kind::Service;
    world.model.apply(Event::ListComplete { kind, is_whole });
    world.check();
    assert_eq!(world.sync().pending, 0);
    assert_eq!(world.written().len(), 2);
}

#[test]
fn the_iptables_modes_rules_stay_until_the_shim_is_written() {
    let mut world = programmed().listed();
    let rules = {
        let mut probe = programmed().listed();
        probe.sync();
        let order = probe.written();
        order[position(&order, "write ")].clone()
    };
    world.kernel.state().refusals.insert(rules, "busy".into());
    let report = world.sync();
    assert!(report.pending >= 2, "{report:?}");
    let order = world.written();
    assert!(
        !order.iter().any(|op| op.contains("iptables mode")),
        "{order:#?}"
    );
    world.kernel.state().refusals.clear();
    world.wait(std::time::Duration::from_mins(1));
    assert_eq!(world.sync().pending, 0);
    assert_eq!(world.written().len(), 2);
}

#[test]
fn a_refused_removal_of_leftovers_is_reported_and_retried() {
    let mut world = programmed().listed();
    let kernel = world.kernel.clone();
    let what = "remove 13 chains and 8 jumps of the iptables mode from iptables (legacy)";
    kernel.state().refusals.insert(what.into(), "busy".into());
    let report = world.sync();
    assert_eq!(
        (
            report.pending,
            report.failures.len(),
            report.failed_restores
        ),
        (1, 1, 1)
    );
    assert_eq!(report.failures[0].object, what);
    kernel.state().refusals.clear();
    world.wait(std::time::Duration::from_mins(1));
    assert_eq!(world.sync().pending, 0);
}

#[test]
fn leftovers_that_packets_cannot_reach_do_not_delay_the_rules() {
    let kernel = FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")]);
    let leftovers = Arc::new(beside_the_shim(&[&proxy_iptables::FOOTPRINT], SAVED));
    let places = [
        (BESIDE, Arc::clone(&leftovers)),
        (LeftoverPlace::Other(Backend::Nft), leftovers),
        (LeftoverPlace::Nftables, Arc::default()),
    ];
    kernel.state().snapshot.leftovers = Some(places.into());
    let mut world = World::with(Config::default(), kernel);
    world.service(service("default/web", "10.96.0.10", 80));
    world.slice(slice("default/web", &PAIR));
    let mut world = world.listed();
    assert_eq!(world.sync().pending, 0);
    let order = world.written();
    assert!(position(&order, "write ") < position(&order, "add virtual server"));
    let removals = order.iter().filter(|op| op.starts_with("remove "));
    assert_eq!(
        removals.collect::<Vec<_>>(),
        [
            "remove 13 chains and 8 jumps of the iptables mode from iptables (legacy)",
            "remove 13 chains and 8 jumps of a kube-proxy with this backend from iptables (nft)",
            "remove the nftables mode's table kube-proxy",
        ]
    );
}

/// Packets pass the table of nftables mode before IPVS. Until its removal, it serves Services that
/// IPVS does not serve yet.
#[test]
fn the_nftables_modes_table_is_removed_after_the_first_sync() {
    let addresses = proxy_ipvs::Part::Addresses.name();
    for (place, waits) in [
        (LeftoverPlace::Nftables, true),
        (LeftoverPlace::Ended, false),
    ] {
        let kernel = FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")]);
        kernel.state().snapshot.leftovers = Some([(place, Arc::default())].into());
        let held = HeldParts::default();
        let mut world = World::threaded(Config::default(), kernel, &held);
        while !world.proxier.is_ready() {
            world.go_on();
        }
        held.lock().unwrap().insert(addresses);
        world.service(service("default/web", "10.96.0.10", 80));
        world.slice(slice("default/web", &PAIR));
        let mut world = world.listed();
        world.until("the rules", |kernel| {
            let done = &kernel.state().done;
            done.iter().any(|op| matches!(op, Op::WriteRules { .. }))
        });
        let is_gone = |kernel: &FakeKernel| {
            let state = kernel.state();
            state.snapshot.leftovers.as_ref().unwrap().is_empty()
        };
        if waits {
            for _ in 0..200 {
                world.go_on();
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            let has_gone = is_gone(&world.kernel);
            // Releases the worker threads, which would otherwise wait forever.
            held.lock().unwrap().clear();
            assert!(!has_gone, "no address is bound");
        }
        world.until("what was left is gone", is_gone);
        held.lock().unwrap().clear();
    }
}

/// Returns a node with the entries of an earlier run with another `--ipvs-vip-mode`.
fn bound_otherwise() -> World {
    let kernel = FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")]);
    let mut world = World::with(Config::default(), kernel);
    for (at, address) in [("default/web", "10.96.0.10"), ("default/old", "10.96.0.11")] {
        world.service(service(at, address, 80));
        world.slice(slice(at, &PAIR));
    }
    let mut world = world.listed();
    world.sync();
    world.work();
    {
        let snapshot = &mut world.kernel.state().snapshot;
        snapshot.bound_otherwise = std::mem::take(&mut snapshot.bound);
    }
    let mut world = world.restarted(Config::default());
    world.service(service("default/web", "10.96.0.10", 80));
    world.slice(slice("default/web", &PAIR));
    world
}

#[test]
fn an_address_is_bound_before_its_binding_by_the_previous_vip_mode_is_removed() {
    let mut world = bound_otherwise().listed();
    let report = world.sync();
    assert_eq!((report.pending, report.failures.len()), (0, 0));
    let order = world.written();
    let otherwise =
        |ip: &str| format!("unbind {ip} from kube-ipvs0 as the other --ipvs-vip-mode has bound it");
    assert_eq!(
        order[..4],
        [
            "bind 10.96.0.10 to kube-ipvs0".to_owned(),
            otherwise("10.96.0.10"),
            otherwise("10.96.0.11"),
            // The virtual server is ours, because its address is on the link, as an address or as a
            // route.
            "remove virtual server 10.96.0.11:80/TCP".to_owned(),
        ]
    );
    world.check();
    assert_eq!((world.sync().written, world.written().len()), (0, 0));
}

/// The service address was a route before `--ipvs-vip-mode` changed, and is now an address on the
/// link. If another program removes it, the kernel sends a notification, and the proxier
/// immediately binds it again.
#[test]
fn an_address_that_is_lost_after_a_change_of_the_vip_mode_is_bound_again() {
    let mut world = bound_otherwise().listed();
    world.sync();
    world.work();
    let address = ip("10.96.0.10");
    world.kernel.state().snapshot.bound.remove(&address);
    let notice = Notice::ServiceAddressRemoved(address);
    world.proxier.notice(&notice, world.now);
    world.settle();
    assert_eq!(world.written(), ["bind 10.96.0.10 to kube-ipvs0"]);
}

#[test]
fn a_route_to_an_address_stays_while_the_kernel_refuses_to_bind_the_address() {
    let mut world = bound_otherwise().listed();
    let bind = "bind 10.96.0.10 to kube-ipvs0";
    let refusal = (bind.to_owned(), "no".to_owned());
    world.kernel.state().refusals.extend([refusal]);
    assert!(world.sync().pending > 0);
    let there = |world: &World| {
        let state = world.kernel.state();
        let (bound, otherwise) = (&state.snapshot.bound, &state.snapshot.bound_otherwise);
        (
            bound.len(),
            otherwise.contains(&ip("10.96.0.10")),
            otherwise.len(),
        )
    };
    assert_eq!(there(&world), (0, true, 1));
    world.kernel.state().refusals.clear();
    world.wait(std::time::Duration::from_mins(1));
    assert_eq!(world.sync().pending, 0);
    assert_eq!(there(&world), (1, false, 0));
}

#[test]
fn service_addresses_of_the_previous_vip_mode_stay_while_initial_lists_are_incomplete() {
    let mut world = bound_otherwise();
    world.sync();
    let order = world.written();
    position(&order, "bind 10.96.0.10 ");
    assert!(
        !order.iter().any(|op| op.starts_with("unbind ")),
        "{order:#?}"
    );
}

#[test]
fn the_first_sync_removes_extra_destinations_of_wanted_virtual_servers() {
    let mut made = World::new();
    made.service(service("default/web", "10.96.0.10", 80));
    made.slice(slice(
        "default/web",
        &["10.244.9.9@node2", "10.244.1.5@node1"],
    ));
    made.sync();
    let there = made.kernel.state().snapshot.servers.clone();
    let kernel = FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")]);
    kernel.state().snapshot.servers = there;
    let mut world = World::with(Config::default(), kernel).listed();
    world.service(service("default/web", "10.96.0.10", 80));
    world.slice(slice("default/web", &["10.244.1.5@node1"]));
    world.sync();
    let servers = world.kernel.state().snapshot.servers.clone();
    let real: Vec<_> = servers[&super::server("10.96.0.10:80")]
        .destinations
        .iter()
        .map(|real| real.target.ip)
        .collect();
    assert_eq!(real, [ip("10.244.1.5")]);
}
