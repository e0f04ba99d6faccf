//! Tests of `--ipvs-semantics=exact` with each variant of the shim: iptables rules with ipsets, or
//! an nftables table.

use std::collections::BTreeMap;
use std::sync::Arc;

use iptables::{Backend, Table};
use proxy_ipvs::{LeftoverPlace, MarkBits, Semantics, VirtualServerKey};

use super::exact::{exposed, marked, marks, synced};
use super::support::{HeldParts, Slow};
use super::*;

const SHIMS: [ShimStyle; 3] = [ShimStyle::Upstream, ShimStyle::Lean, ShimStyle::Nftables];

fn config(shim: ShimStyle) -> Config {
    Config {
        shim,
        semantics: Semantics::Exact(MarkBits::DEFAULT),
        ..Config::default()
    }
}

fn web(shim: ShimStyle) -> World {
    let kernel = FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")]);
    kernel.state().shim = shim;
    with_web(World::with(config(shim), kernel))
}

/// Adds the Services of [`web`] to a node, completes all lists of objects, and syncs.
fn with_web(mut world: World) -> World {
    world.service(exposed("default/web", 10, true));
    world.slice(slice("default/web", &PAIR));
    let mut world = world.listed();
    synced(&mut world);
    world
}

/// Returns the number of rules in table mangle.
fn early_rules(world: &World) -> usize {
    let state = world.kernel.state();
    let rules = state.snapshot.rules.as_ref().unwrap().rules();
    rules.filter(|(table, _)| *table == Table::Mangle).count()
}

#[test]
fn a_restart_with_the_same_shim_keeps_packet_marks_without_a_write() {
    for shim in SHIMS {
        let world = web(shim);
        assert_eq!(marks(&world), [marked(10, 1)]);
        let by_mark = VirtualServerKey::Mark {
            family: IpFamily::V4,
            mark: 1,
        };
        let counts = [by_mark, server("192.0.2.10:80")].map(|key| {
            let state = world.kernel.state();
            state.snapshot.servers[&key].destinations.len()
        });
        assert_eq!(counts, [1, 2]);
        world.work();
        let world = with_web(world.restarted(config(shim)));
        assert_eq!(world.work().1, Vec::new(), "{shim:?}");
    }
}

/// Returns a Service with source ranges, at the load-balancer address of Service 10 of [`exposed`].
fn closed(is_local: bool) -> Service {
    Service {
        ingress_ips: vec![ip("192.0.2.10")],
        source_ranges: vec!["198.51.100.0/24".parse().unwrap()],
        ..exposed("default/closed", 11, is_local)
    }
}

/// Returns true if the virtual server at the moving address has the endpoint of [`closed`].
fn serves_closed(kernel: &FakeKernel) -> bool {
    let state = kernel.state();
    let there = state.snapshot.servers.get(&server("192.0.2.10:80"));
    let real = there.and_then(|there| there.destination(target("10.244.1.9")));
    real.is_some_and(|real| real.weight > 0)
}

fn marks_of(kernel: &FakeKernel) -> Vec<Member> {
    let state = kernel.state();
    let of = state.snapshot.sets.get(&Set::LocalMark);
    of.into_iter().flatten().copied().collect()
}

fn a_while(world: &mut World<Slow>) {
    for _ in 0..50 {
        world.go_on();
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Starts a node on which `first` has the moving address, and whose worker threads the test can
/// hold.
fn on_threads(shim: ShimStyle, first: Service) -> (World<Slow>, HeldParts) {
    let kernel = FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")]);
    kernel.state().shim = shim;
    let held: HeldParts = Arc::default();
    let mut world = World::threaded(config(shim), kernel, &held);
    world.service(first);
    world.slice(slice("default/web", &PAIR));
    world.slice(slice("default/closed", &["10.244.1.9@node1"]));
    let mut world = world.listed();
    world.until("the first Service", |kernel| {
        kernel.state().snapshot.bound.contains(&ip("192.0.2.10"))
    });
    a_while(&mut world);
    (world, held)
}

/// Without the rules for its source ranges, excluded clients could connect to the new Service's
/// endpoint.
#[test]
fn an_address_that_moves_waits_for_the_rules_of_its_source_ranges() {
    let policies = [(false, false), (true, true), (false, true)];
    for (shim, (was_local, is_local)) in SHIMS
        .into_iter()
        .flat_map(|shim| policies.map(|policies| (shim, policies)))
    {
        let (mut world, held) = on_threads(shim, exposed("default/web", 10, was_local));
        held.lock().unwrap().insert(Part::Rules.name());
        world.service(service("default/web", "10.96.0.10", 80));
        world.service(closed(is_local));
        world.until("the new Service's cluster IP", |kernel| {
            let state = kernel.state();
            let there = state.snapshot.servers.get(&server("10.96.0.11:80"));
            there.is_some_and(|there| there.destinations.len() == 1)
        });
        a_while(&mut world);
        let (is_early, during) = (serves_closed(&world.kernel), marks_of(&world.kernel));
        held.lock().unwrap().clear();
        let case = format!("{shim:?} {was_local} {is_local}");
        assert!(!is_early, "{case}");
        let former = was_local.then(|| marked(10, 1));
        assert_eq!(during, Vec::from_iter(former), "{case}");
        world.until("the new Service's endpoint", serves_closed);
        world.until("the new mark", |kernel| {
            let marks = marks_of(kernel);
            marks.len() == usize::from(is_local) && former.is_none_or(|mark| !marks.contains(&mark))
        });
        let state = world.kernel.state();
        let member = Member::AddressPort(ip("192.0.2.10"), Protocol::Tcp, 80);
        assert!(state.snapshot.sets[&Set::LoadBalancerFirewall].contains(&member));
    }
}

/// The firewall is still in the kernel's rules, but a write that removes it has begun.
#[test]
fn an_address_that_moves_back_waits_although_its_rules_are_not_removed_yet() {
    for shim in SHIMS {
        let (mut world, held) = on_threads(shim, closed(false));
        held.lock().unwrap().insert(Part::Rules.name());
        world.service(service("default/closed", "10.96.0.11", 80));
        world.service(exposed("default/web", 10, false));
        a_while(&mut world);
        assert!(!serves_closed(&world.kernel));
        world.service(service("default/web", "10.96.0.10", 80));
        world.service(closed(false));
        a_while(&mut world);
        let is_early = serves_closed(&world.kernel);
        held.lock().unwrap().clear();
        assert!(!is_early, "{shim:?}");
        world.until("the first Service again", serves_closed);
    }
}

/// The fwmark virtual server stays, because a NodePort needs it.
#[test]
fn the_firewall_of_a_moved_address_stays_until_its_mark_is_removed() {
    for shim in SHIMS {
        let kernel = FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")]);
        kernel.state().shim = shim;
        let mut world = World::with(config(shim), kernel);
        let mut limited = closed(true);
        for port in &mut limited.ports {
            port.node_port = Some(30080);
        }
        world.service(limited.clone());
        world.service(service("default/web", "10.96.0.10", 80));
        world.slice(slice("default/web", &PAIR));
        world.slice(slice("default/closed", &["10.244.1.9@node1"]));
        let mut world = world.listed();
        synced(&mut world);
        world.work();
        limited.ingress_ips.clear();
        world.service(limited);
        world.service(exposed("default/web", 10, false));
        synced(&mut world);
        let written = world.written();
        let at = |text: &str| {
            let mut all = written.iter();
            let found =
                all.position(|op| op.starts_with("remove 192.0.2.10") && op.ends_with(text));
            found.unwrap_or_else(|| panic!("{shim:?}: {text}: {written:#?}"))
        };
        assert!(
            at("KUBE-LOCAL-MARK") < at("KUBE-LOAD-BALANCER-FW"),
            "{written:#?}"
        );
    }
}

#[test]
fn a_mark_that_another_program_wrote_is_replaced_by_the_services_mark() {
    for shim in SHIMS {
        let mut world = web(shim);
        {
            let mut state = world.kernel.state();
            let sets = &mut state.snapshot.sets;
            sets.insert(Set::LocalMark, [marked(10, 7), marked(99, 1)].into());
        }
        let now = world.now;
        world.proxier.check(now);
        synced(&mut world);
        assert_eq!(marks(&world), [marked(10, 1)], "{shim:?}");
    }
}

#[test]
fn rules_of_exact_semantics_exist_only_while_a_set_has_members() {
    for shim in [ShimStyle::Upstream, ShimStyle::Lean] {
        let mut world = web(shim);
        // One rule marks packets, another exempts the node's own packets.
        assert_eq!(early_rules(&world), 2);
        let order = world.written();
        let at = |begin: &str| order.iter().position(|op| op.starts_with(begin)).unwrap();
        let rules = order.iter().rposition(|op| op.starts_with("write "));
        assert!(
            at("add 192.0.2.10,tcp:80,0x1 to set") < rules.unwrap() || rules == Some(at("write "))
        );
        // Without an endpoint on this node, a third rule drops packets from clients outside the
        // cluster.
        world.slice(slice("default/web", &["10.244.2.5@node2"]));
        synced(&mut world);
        assert_eq!(early_rules(&world), 3);
        world.delete_service("default/web");
        synced(&mut world);
        assert_eq!((early_rules(&world), marks(&world)), (0, Vec::new()));
    }
}

/// Turns a node's present sets and rules into those of a former shim.
fn change_shim(world: &World, to: ShimStyle) {
    let mut state = world.kernel.state();
    state.shim = to;
    state.former = std::mem::take(&mut state.snapshot.sets);
    state.snapshot.set_sizes = BTreeMap::new();
    state.snapshot.rules = None;
    let places: &[_] = match to {
        ShimStyle::Nftables => &[LeftoverPlace::Other(Backend::Legacy), LeftoverPlace::Ipsets],
        ShimStyle::Upstream | ShimStyle::Lean => &[LeftoverPlace::OwnTable],
    };
    let places = places.iter().map(|place| (*place, Arc::default()));
    state.snapshot.leftovers = Some(places.collect());
}

/// The former shim's rules neither mark nor masquerade packets to a new Service.
#[test]
fn after_a_change_of_the_shim_new_addresses_wait_for_the_new_rules() {
    let world = web(ShimStyle::Upstream);
    change_shim(&world, ShimStyle::Nftables);
    world.work();
    let mut world = world.restarted(config(ShimStyle::Nftables));
    world.service(exposed("default/next", 11, false));
    world.slice(slice("default/next", &PAIR));
    let world = with_web(world);
    let order = world.written();
    let at = |begin: &str| {
        let found = order.iter().position(|op| op.starts_with(begin));
        found.unwrap_or_else(|| panic!("no `{begin}`: {order:#?}"))
    };
    let rules = at("write ");
    assert!(at("add 192.0.2.10,tcp:80,0x1 to set KUBE-LOCAL-MARK") < rules);
    assert!(at("add 192.0.2.11,tcp:80 to set KUBE-LOAD-BALANCER") < rules);
    assert!(rules < at("add virtual server 192.0.2.11:80/TCP"));
    assert!(rules < at("remove 0 chains"));
}

#[test]
fn a_change_of_the_shim_keeps_the_packet_marks() {
    for (from, to) in [
        (ShimStyle::Nftables, ShimStyle::Upstream),
        (ShimStyle::Lean, ShimStyle::Nftables),
    ] {
        let mut world = web(from);
        world.service(exposed("default/next", 11, true));
        synced(&mut world);
        world.delete_service("default/web");
        synced(&mut world);
        assert_eq!(marks(&world), [marked(11, 2)]);
        change_shim(&world, to);
        let mut world = world.restarted(config(to));
        world.service(exposed("default/next", 11, true));
        let mut world = world.listed();
        world.work();
        synced(&mut world);
        assert_eq!(marks(&world), [marked(11, 2)]);
        let order = world.written();
        let is_other = |op: &&String| op.contains("remove virtual server") || op.contains("0x1 ");
        assert_eq!(order.iter().find(is_other), None, "{order:#?}");
    }
}

#[test]
fn a_change_to_upstreams_semantics_removes_early_rules_and_marks() {
    for shim in [ShimStyle::Upstream, ShimStyle::Lean] {
        let world = web(shim);
        let upstream = Config {
            semantics: Semantics::Upstream,
            ..config(shim)
        };
        let world = with_web(world.restarted(upstream));
        assert_eq!((early_rules(&world), marks(&world)), (0, Vec::new()));
    }
}

/// After a change of `--ipvs-shim`, the former shim's rules mark packets from outside until they
/// are removed. Until then, the fwmark virtual server must accept new connections.
#[test]
fn rules_of_a_former_shim_are_removed_before_its_fwmark_virtual_servers_drain() {
    for (from, to, removal) in [
        (ShimStyle::Lean, ShimStyle::Nftables, "remove 0 chains"),
        (
            ShimStyle::Nftables,
            ShimStyle::Upstream,
            "remove this mode's own table",
        ),
    ] {
        let world = web(from);
        let by_mark = VirtualServerKey::Mark {
            family: IpFamily::V4,
            mark: 1,
        };
        change_shim(&world, to);
        let target = Target {
            ip: ip("10.244.1.5"),
            port: 8080,
        };
        let mut state = world.kernel.state();
        state.connections.insert((by_mark, target), 1);
        drop(state);
        world.work();
        let upstream = Config {
            semantics: Semantics::Upstream,
            ..config(to)
        };
        let world = with_web(world.restarted(upstream));
        let order = world.written();
        let at = |begin: &str| {
            let found = order.iter().position(|op| op.starts_with(begin));
            found.unwrap_or_else(|| panic!("no `{begin}`: {order:#?}"))
        };
        let lowered = at("set destination 10.244.2.5:8080 of 192.0.2.10:80/TCP to weight 0");
        let drained = at("set destination 10.244.1.5:8080 of FWM 1 to weight 0");
        let removed = at(removal);
        assert!(lowered < removed && removed < drained, "{order:#?}");
        let state = world.kernel.state();
        assert!(state.snapshot.servers.contains_key(&by_mark));
    }
}
