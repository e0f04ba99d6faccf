//! Tests of the proxier's writes on the strict fake kernel: their content, order and number.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

#[path = "proxier/chaos.rs"]
mod chaos;
#[path = "proxier/drains.rs"]
mod drains;
#[path = "proxier/drift.rs"]
mod drift;
#[path = "proxier/exact.rs"]
mod exact;
#[path = "proxier/exact_servers.rs"]
mod exact_servers;
#[path = "proxier/exact_shims.rs"]
mod exact_shims;
#[path = "proxier/foreign.rs"]
mod foreign;
#[path = "proxier/lanes.rs"]
mod lanes;
#[path = "proxier/largest.rs"]
mod largest;
#[path = "proxier/nftables.rs"]
mod nftables;
#[path = "proxier/options.rs"]
mod options;
#[path = "proxier/ranges.rs"]
mod ranges;
#[path = "proxier/slow_start.rs"]
mod slow_start;
mod support;
#[path = "proxier/takeover.rs"]
mod takeover;

use std::time::Duration;

use proxy::{
    Endpoint, Event, IpFamily, Kind, Mode as _, NodeFacts, Protocol, Service, ServicePort, Target,
};
use proxy_ipvs::fake::{FakeKernel, Work};
use proxy_ipvs::{
    Config, Member, Op, Part, Properties, RealServer, Rules, Set, ShimStyle, Snapshot,
    VirtualServer,
};
use support::{NODE, World, ip, name, server, service, slice, target};

const PAIR: [&str; 2] = ["10.244.1.5@node1", "10.244.2.5@node2"];

fn web() -> World {
    let mut world = World::new();
    world.service(service("default/web", "10.96.0.10", 80));
    world.slice(slice("default/web", &PAIR));
    let mut world = world.listed();
    assert_eq!(world.sync().pending, 0);
    world.work();
    world
}

#[test]
fn the_first_sync_writes_the_rules_before_the_addresses() {
    let mut world = World::new();
    world.service(service("default/web", "10.96.0.10", 80));
    world.slice(slice("default/web", &PAIR));
    let mut world = world.listed();
    let report = world.sync();
    assert_eq!((report.pending, report.failures.len()), (0, 0));
    let order: Vec<_> = world
        .written()
        .into_iter()
        .filter(|op| !op.starts_with("create set"))
        .collect();
    let rules = order[4].clone();
    assert!(
        rules.starts_with("write ") && rules.ends_with(" iptables rules"),
        "{rules}"
    );
    assert_eq!(
        order,
        [
            "add 10.244.1.5,tcp:8080,10.244.1.5 to set KUBE-LOOP-BACK",
            "add 10.96.0.10,tcp:80 to set KUBE-CLUSTER-IP",
            "add 10.96.0.10 to set KUBE-IPVS-IPS",
            "create link kube-ipvs0",
            &rules,
            "add virtual server 10.96.0.10:80/TCP",
            "add destination 10.244.1.5:8080 to 10.96.0.10:80/TCP",
            "add destination 10.244.2.5:8080 to 10.96.0.10:80/TCP",
            "bind 10.96.0.10 to kube-ipvs0",
        ]
    );
}

/// An external address moves to another Service in one update. Its virtual server stays: it gets
/// the new Service's endpoints before it loses the former Service's.
#[test]
fn an_address_that_moves_to_another_service_is_always_served() {
    let at = |name: &str, cluster_ip: &str| Service {
        external_ips: vec![ip("192.0.2.30")],
        ..service(name, cluster_ip, 80)
    };
    let mut world = World::new();
    world.service(at("default/one", "10.96.0.30"));
    world.slice(slice("default/one", &["10.244.1.5@node1"]));
    let mut world = world.listed();
    assert_eq!(world.sync().pending, 0);
    world.work();
    world.delete_service("default/one");
    world.service(at("default/other", "10.96.0.33"));
    world.slice(slice("default/other", &["10.244.2.5@node2"]));
    assert_eq!(world.sync().pending, 0);
    let written = world.written();
    let position = |wanted: &str| {
        let found = written.iter().position(|op| op == wanted);
        found.unwrap_or_else(|| panic!("{wanted}: {written:?}"))
    };
    let comes = position("add destination 10.244.2.5:8080 to 192.0.2.30:80/TCP");
    let goes = position("set destination 10.244.1.5:8080 of 192.0.2.30:80/TCP to weight 0");
    assert!(comes < goes, "{written:?}");
    for never in [
        "remove virtual server 192.0.2.30:80/TCP",
        "unbind 192.0.2.30 from kube-ipvs0",
        "remove 192.0.2.30,tcp:80 from set KUBE-EXTERNAL-IP",
    ] {
        assert!(!written.iter().any(|op| op == never), "{written:?}");
    }
}

#[test]
fn the_entries_of_a_deleted_service_are_removed_in_reverse_order() {
    let mut world = web();
    world.delete_service("default/web");
    assert_eq!(world.sync().pending, 0);
    let order = world.written();
    assert_eq!(
        order[..2],
        [
            "unbind 10.96.0.10 from kube-ipvs0".to_owned(),
            "remove virtual server 10.96.0.10:80/TCP".to_owned()
        ]
    );
    assert!(order[2..5].iter().all(|op| op.starts_with("remove ")));
    assert!(
        order[5].starts_with("write "),
        "rules of sets that fall empty go when these have"
    );
    assert_eq!(order.len(), 6, "{order:?}");
    let state = world.kernel.state();
    assert!(state.snapshot.servers.is_empty() && state.snapshot.bound.is_empty());
    assert!(
        state
            .snapshot
            .sets
            .values()
            .all(std::collections::BTreeSet::is_empty)
    );
    assert_eq!(state.snapshot.sets.len(), Set::COUNT);
}

#[test]
fn no_entry_is_removed_before_the_initial_lists_are_complete() {
    let foreign = web();
    let mut world = foreign.restarted(Config::default());
    world.service(service("default/other", "10.96.0.11", 80));
    world.sync();
    assert!(
        !world
            .written()
            .iter()
            .any(|op| op.starts_with("remove") || op.starts_with("unbind"))
    );
    assert!(world.destinations("10.96.0.10:80").is_some());
    let mut world = world.listed();
    world.sync();
    assert_eq!(world.destinations("10.96.0.10:80"), None);
}

#[test]
fn no_entry_is_removed_while_a_list_lacks_existing_objects() {
    let mut world = web().restarted(Config::default());
    world.service(service("default/web", "10.96.0.10", 80));
    world.slice(slice("default/web", &["10.244.1.5@node1"]));
    for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
        world.model.apply(Event::ListComplete {
            kind,
            is_whole: kind != Kind::EndpointSlice,
        });
    }
    world.sync();
    assert_eq!(
        world.destinations("10.96.0.10:80").unwrap(),
        ["10.244.1.5:8080=1", "10.244.2.5:8080=1"]
    );
    assert_eq!(world.written(), Vec::<String>::new());
    world.model.apply(Event::ListComplete {
        kind: Kind::EndpointSlice,
        is_whole: true,
    });
    world.check();
    world.sync();
    assert_eq!(
        world.destinations("10.96.0.10:80").unwrap(),
        ["10.244.1.5:8080=1"]
    );
}

#[test]
fn a_restart_on_a_programmed_kernel_writes_nothing() {
    let mut world = web().restarted(Config::default());
    world.service(service("default/web", "10.96.0.10", 80));
    world.slice(slice("default/web", &PAIR));
    let mut world = world.listed();
    world.sync();
    assert_eq!(
        world.work(),
        (
            Work {
                processes: 1,
                dumps: 1,
                address_reads: 1,
                ..Work::default()
            },
            Vec::new()
        )
    );
}

/// Changing an endpoint costs as much with 10,000 other Services as with none.
#[test]
fn the_cost_of_a_change_does_not_depend_on_the_number_of_services() {
    const NODE_ADDRESSES: [&str; 3] = ["192.168.99.10", "192.168.98.10", "192.168.97.10"];
    let kernel = FakeKernel::new(IpFamily::V4, &NODE_ADDRESSES.map(ip));
    let mut world = World::with(Config::default(), kernel);
    for number in 0..10_000u32 {
        let at = format!("default/s{number}");
        world.service(service(
            &at,
            &format!("10.{}.{}.1", 100 + number / 250, number % 250),
            80,
        ));
        world.slice(slice(&at, &["10.244.1.5@node2", "10.244.2.5@node2"]));
    }
    let mut world = world.listed();
    assert_eq!(world.sync().pending, 0);
    world.work();

    // A new endpoint on another node costs one message, for the virtual server.
    world.slice(slice(
        "default/s77",
        &["10.244.1.5@node2", "10.244.2.5@node2", "10.244.3.5@node2"],
    ));
    world.sync();
    let (work, ops) = world.work();
    assert_eq!(
        work,
        Work {
            messages: 1,
            ..Work::default()
        }
    );
    assert!(matches!(&ops[..], [Op::AddDestination(..)]));

    // The first endpoint on this node needs the rule that matches KUBE-LOOP-BACK as well. Later
    // endpoints need no new rule.
    let local = [
        "10.244.1.5@node2",
        "10.244.2.5@node2",
        "10.244.3.5@node2",
        "10.244.9.9@node1",
    ];
    world.slice(slice("default/s77", &local));
    world.sync();
    assert_eq!(
        world.work().0,
        Work {
            messages: 2,
            processes: 1,
            ..Work::default()
        }
    );

    // A second endpoint on this node costs two messages and no process: one for the loop-back
    // member, one for the virtual server.
    let more = [&local[..], &["10.244.9.10@node1"]].concat();
    world.slice(slice("default/s77", &more));
    world.sync();
    assert_eq!(
        world.work().0,
        Work {
            messages: 2,
            ..Work::default()
        }
    );

    // Replaces an endpoint without connections: the proxier adds the new destination, sets the old
    // one's weight to 0, and removes it.
    let replaced = [&local[1..], &["10.244.1.6@node2", "10.244.9.10@node1"]].concat();
    world.slice(slice("default/s77", &replaced));
    world.sync();
    let (work, ops) = world.work();
    assert_eq!((work.messages, work.processes, work.looks), (3, 0, 1));
    assert!(matches!(
        &ops[..],
        [
            Op::AddDestination(..),
            Op::SetDestination(..),
            Op::RemoveDestination(..)
        ]
    ));
    world.slice(slice("default/s77", &more));
    world.sync();
    world.work();

    // Removes an endpoint without connections: the proxier sets its weight to 0, and removes its
    // destination and its loop-back member.
    world.slice(slice("default/s77", &local));
    world.sync();
    assert_eq!(
        world.work().0,
        Work {
            messages: 3,
            looks: 1,
            ..Work::default()
        }
    );

    // A new Service costs messages for three set members, the virtual server, two destinations and
    // the address.
    world.service(service("default/new", "10.99.0.1", 80));
    world.slice(slice(
        "default/new",
        &["10.244.1.5@node2", "10.244.2.5@node2"],
    ));
    world.sync();
    assert_eq!(
        world.work().0,
        Work {
            messages: 6,
            ..Work::default()
        }
    );

    // A Service with a NodePort on a node with three addresses needs four virtual servers: at its
    // cluster IP, and at the NodePort of each address.
    let mut exposed = service("default/exposed", "10.99.0.2", 80);
    exposed.kind = proxy::ServiceType::NodePort;
    exposed.ports = exposed
        .ports
        .iter()
        .map(|port| ServicePort {
            node_port: Some(30080),
            ..port.clone()
        })
        .collect();
    world.service(exposed);
    world.slice(slice("default/exposed", &["10.244.1.5@node2"]));
    world.sync();
    world.work();
    world.slice(slice(
        "default/exposed",
        &["10.244.1.5@node2", "10.244.2.5@node2"],
    ));
    world.sync();
    let (work, ops) = world.work();
    assert_eq!(
        work,
        Work {
            messages: 1 + NODE_ADDRESSES.len(),
            ..Work::default()
        }
    );
    assert!(ops.iter().all(|op| matches!(op, Op::AddDestination(..))));

    // An event with an unchanged object causes no write.
    world.slice(slice(
        "default/new",
        &["10.244.1.5@node2", "10.244.2.5@node2"],
    ));
    world.sync();
    assert_eq!(world.work().0, Work::default());

    // A check without drift only reads. The proxier reads its rules once per sync period.
    world.check();
    world.sync();
    assert_eq!(
        world.work().0,
        Work {
            dumps: 1,
            address_reads: 1,
            ..Work::default()
        }
    );
    // The daemon may start a check slightly before the end of the sync period.
    world.wait(Duration::from_secs(29));
    world.check();
    world.sync();
    assert_eq!(
        world.work().0,
        Work {
            dumps: 1,
            address_reads: 1,
            processes: 1,
            ..Work::default()
        }
    );
}

#[test]
fn drift_is_repaired_with_no_more_writes_than_necessary() {
    let mut world = web();
    {
        let mut state = world.kernel.state();
        state.snapshot.servers.clear();
        state.snapshot.bound.clear();
        state
            .snapshot
            .sets
            .get_mut(&Set::ClusterIp)
            .unwrap()
            .clear();
        state.snapshot.rules = Some(Rules::default());
    }
    world.wait(Duration::from_secs(30));
    world.check();
    assert_eq!(world.sync().pending, 0);
    let (work, ops) = world.work();
    assert_eq!(ops.len(), 6, "{ops:?}");
    assert_eq!(work.processes, 2, "read back, then restored");
    assert_eq!(
        world.destinations("10.96.0.10:80").unwrap(),
        ["10.244.1.5:8080=1", "10.244.2.5:8080=1"]
    );
}

#[test]
fn entries_of_other_programs_stay_unchanged() {
    let kernel = FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")]);
    let properties = Properties {
        scheduler: "wrr".into(),
        flags: 0,
        timeout: 0,
    };
    let foreign = VirtualServer {
        properties,
        destinations: [].into(),
    };
    for at in ["9.9.9.9:9", "192.168.99.10:6443", "10.96.0.10:81"] {
        kernel
            .state()
            .snapshot
            .servers
            .insert(server(at), foreign.clone());
    }
    let mut world = World::with(Config::default(), kernel);
    world.service(service("default/web", "10.96.0.10", 80));
    let mut world = world.listed();
    world.sync();
    world.delete_service("default/web");
    world.sync();
    assert_eq!(
        world.servers(),
        [
            "9.9.9.9:9/TCP",
            "10.96.0.10:81/TCP",
            "192.168.99.10:6443/TCP"
        ]
    );
}

#[test]
fn leftover_virtual_servers_with_a_bound_address_or_set_member_are_adopted() {
    let kernel = FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")]);
    {
        let properties = Properties {
            scheduler: "rr".into(),
            flags: 0,
            timeout: 0,
        };
        let left = VirtualServer {
            properties,
            destinations: [RealServer::new(Target {
                ip: ip("10.244.9.9"),
                port: 80,
            })]
            .into(),
        };
        let mut state = kernel.state();
        for at in [
            "10.50.0.1:80",
            "10.51.0.1:80",
            "192.168.99.10:30080",
            "10.52.0.1:80",
        ] {
            state.snapshot.servers.insert(server(at), left.clone());
        }
        state.snapshot.has_link = true;
        state.snapshot.bound = [ip("10.50.0.1"), ip("10.52.0.1")].into();
        let member = Member::AddressPort(ip("10.51.0.1"), Protocol::Tcp, 80);
        state.snapshot.sets.insert(Set::ClusterIp, [member].into());
        state
            .snapshot
            .sets
            .insert(Set::NodePortTcp, [Member::Port(30080)].into());
        state
            .snapshot
            .set_sizes
            .extend([(Set::ClusterIp, 65_536), (Set::NodePortTcp, 65_536)]);
    }
    let config = Config {
        exclude_cidrs: vec!["10.52.0.0/16".parse().unwrap()],
        ..Config::default()
    };
    let mut world = World::with(config, kernel).listed();
    assert_eq!(world.sync().pending, 0);
    assert_eq!(
        world.servers(),
        ["10.52.0.1:80/TCP"],
        "excluded networks keep their virtual servers"
    );
    let state = world.kernel.state();
    assert!(state.snapshot.bound.is_empty());
    assert!(
        state
            .snapshot
            .sets
            .values()
            .all(std::collections::BTreeSet::is_empty)
    );
}

#[test]
fn node_ports_at_an_address_that_the_node_lost_during_downtime_are_removed() {
    let (here, moved) = (ip("192.168.99.10"), ip("192.168.99.11"));
    let mut world = World::with(
        Config::default(),
        FakeKernel::new(IpFamily::V4, &[here, moved]),
    );
    let (mut web, mut old) = (
        service("default/web", "10.96.0.10", 80),
        service("default/old", "10.96.0.11", 80),
    );
    web.ports[0].node_port = Some(30080);
    old.ports[0].node_port = Some(30081);
    world.service(web.clone());
    world.service(old);
    let mut world = world.listed();
    world.sync();
    {
        let snapshot = &mut world.kernel.state().snapshot;
        snapshot.interface_addresses.remove(&moved);
        // Another program has a virtual server at the same port of another address.
        let foreign = VirtualServer {
            properties: Properties {
                scheduler: "rr".into(),
                flags: 0,
                timeout: 0,
            },
            destinations: [].into(),
        };
        snapshot.servers.insert(server("192.0.2.7:30080"), foreign);
    }
    let mut world = world.restarted(Config::default());
    world.service(web);
    let mut world = world.listed();
    world.work();
    assert_eq!(world.sync().pending, 0);
    let mut removed: Vec<_> = world
        .written()
        .into_iter()
        .filter(|op| op.starts_with("remove virtual server"))
        .collect();
    removed.sort();
    assert_eq!(
        removed,
        [
            "remove virtual server 10.96.0.11:80/TCP",
            "remove virtual server 192.168.99.10:30081/TCP",
            "remove virtual server 192.168.99.11:30080/TCP",
            "remove virtual server 192.168.99.11:30081/TCP",
        ]
    );
    let left = &world.kernel.state().snapshot.servers;
    assert!(left.contains_key(&server("192.0.2.7:30080")));
}

#[test]
fn node_ports_without_the_ownership_flag_are_adopted_without_a_write() {
    let mut world = World::new();
    let mut web = service("default/web", "10.96.0.10", 80);
    web.ports[0].node_port = Some(30080);
    world.service(web.clone());
    let mut world = world.listed();
    world.sync();
    // Virtual servers without the ownership flag, as upstream creates them.
    for server in world.kernel.state().snapshot.servers.values_mut() {
        server.properties.flags &= !Properties::OWNED;
    }
    let mut world = world.restarted(Config::default());
    world.service(web);
    let mut world = world.listed();
    world.work();
    assert_eq!((world.sync().written, world.written().len()), (0, 0));
}

#[test]
fn a_virtual_server_that_the_kernel_does_not_remove_keeps_its_set_members() {
    let mut world = web();
    let refused = "remove virtual server 10.96.0.10:80/TCP".to_owned();
    world
        .kernel
        .state()
        .refusals
        .insert(refused.clone(), "busy".into());
    world.delete_service("default/web");
    let report = world.sync();
    assert_eq!(report.failures.len(), 1);
    let member = Member::AddressPort(ip("10.96.0.10"), Protocol::Tcp, 80);
    assert!(world.kernel.state().snapshot.sets[&Set::ClusterIp].contains(&member));
    world.kernel.state().refusals.clear();
    world.wait(Duration::from_secs(1));
    assert_eq!(world.sync().pending, 0);
    assert!(world.kernel.state().snapshot.sets[&Set::ClusterIp].is_empty());
}

/// A set member that must stay for its virtual server is not due. Otherwise, the daemon's loop
/// would never sleep.
#[test]
fn a_set_member_is_removed_only_after_its_virtual_server() {
    let mut world = web();
    for refused in [
        "remove virtual server 10.96.0.10:80/TCP",
        "remove 10.96.0.10,tcp:80 from set KUBE-CLUSTER-IP",
    ] {
        let refusal = (refused.to_owned(), "busy".to_owned());
        world.kernel.state().refusals.extend([refusal]);
    }
    world.delete_service("default/web");
    for _ in 0..4 {
        let synced = world.sync();
        assert_eq!((synced.pending, synced.failing), (2, 1), "{synced:?}");
        assert!(!world.proxier_due_within(Duration::from_millis(1)));
        world.wait(Duration::from_secs(1));
    }
    world.kernel.state().refusals.clear();
    world.wait(Duration::from_secs(30));
    assert_eq!(world.sync().pending, 0);
}

/// A drift check and a restart decide by the same evidence whether a virtual server is ours.
#[test]
fn a_check_adopts_virtual_servers_by_the_same_evidence_as_a_restart() {
    let mut world = web();
    let there = world.kernel.state().snapshot.servers[&server("10.96.0.10:80")].clone();
    let mut exposed = service("default/exposed", "10.96.0.11", 80);
    exposed.ports[0].node_port = Some(30080);
    world.service(exposed);
    world.sync();
    {
        let snapshot = &mut world.kernel.state().snapshot;
        let servers = &mut snapshot.servers;
        servers.insert(server("192.168.99.99:30080"), there.clone());
        servers.insert(server("10.96.0.10:81"), there.clone());
        servers.insert(server("10.96.0.12:80"), there);
        snapshot.bound.insert(ip("10.96.0.12"));
    }
    world.work();
    world.wait(Duration::from_mins(1));
    world.check();
    world.settle();
    // Only the virtual server at 10.96.0.12 is ours, because this address is bound to the link. Two
    // others stay:
    //
    // - 192.168.99.99:30080, because the node does not have this address
    // - 10.96.0.10:81, because the sets contain port 80 of this address, but not port 81
    let mut written = world.written();
    written.retain(|op| op.starts_with("remove virtual server"));
    assert_eq!(written, ["remove virtual server 10.96.0.12:80/TCP"]);
}

#[test]
fn one_refused_service_does_not_make_the_node_unhealthy() {
    let fails = |world: &mut World| {
        let synced = world.sync();
        (
            synced.pending > 0,
            synced.failing,
            synced.failed_restores,
            synced.stuck.is_some(),
        )
    };
    let refuse = |world: &World, refusal: &str| {
        let refusal = (refusal.to_owned(), "no".to_owned());
        world.kernel.state().refusals.extend([refusal]);
    };
    let mut world = web();
    refuse(&world, "add virtual server 10.96.0.66:80/TCP");
    world.service(service("default/bad", "10.96.0.66", 80));
    assert_eq!(
        fails(&mut world),
        (true, 1, 0, false),
        "it is wrong in itself"
    );
    // The same refusal makes the node unhealthy if the kernel itself has the problem.
    let mut world = web();
    refuse(&world, "add virtual server 10.96.0.66:80/TCP");
    world.kernel.state().is_kernel_ill = true;
    world.service(service("default/bad", "10.96.0.66", 80));
    assert_eq!(fails(&mut world), (true, 1, 0, true));

    let mut world = web();
    let installed = world.kernel.state().snapshot.rules.clone().unwrap();
    world.kernel.state().snapshot.rules = Some(Rules::default());
    refuse(&world, &format!("write {} iptables rules", installed.len()));
    world.wait(Duration::from_mins(1));
    world.check();
    assert_eq!(fails(&mut world), (true, 1, 1, true));
    // The proxier waits for its back-off before it retries the write, so the failure stays.
    assert_eq!(fails(&mut world), (true, 1, 0, true));
    world.kernel.state().refusals.clear();
    world.wait(Duration::from_secs(1));
    assert_eq!(fails(&mut world), (false, 0, 0, false));
}

#[test]
fn a_refused_removal_does_not_cause_another_write_of_the_rules() {
    for stays in [
        "remove virtual server 10.96.0.10:80/TCP",
        "remove 10.96.0.10,tcp:80 from set KUBE-CLUSTER-IP",
    ] {
        let mut world = web();
        let refuse = |text: &str| {
            let refusal = (text.to_owned(), "busy".to_owned());
            world.kernel.state().refusals.extend([refusal]);
        };
        refuse(stays);
        world.delete_service("default/web");
        world.sync();
        assert_eq!(world.work().0.processes, 1, "the rules go");
        world.sync();
        assert_eq!(world.work().0.processes, 0, "{stays}");
    }
}

/// Returns a Service with a load-balancer address that only these source ranges may use.
fn balanced(ranges: &[&str]) -> Service {
    let mut balanced = service("default/web", "10.96.0.10", 80);
    balanced.ingress_ips = vec![ip("192.0.2.1")];
    balanced.source_ranges = ranges.iter().map(|net| net.parse().unwrap()).collect();
    balanced
}

#[test]
fn the_configured_node_address_is_used_if_the_node_object_is_missing() {
    let mut world = World::new();
    let mut node = NodeFacts::new(IpFamily::V4, NODE);
    node.flag_ip = Some(ip("192.168.99.10"));
    world.restart_on(node);
    world.service(balanced(&["192.168.99.0/24"]));
    let mut world = world.listed();
    world.sync();
    let sources = &world.kernel.state().snapshot.sets[&Set::LoadBalancerSourceIp];
    assert_eq!(sources.len(), 1, "the node is within the source ranges");
}

/// Returns a node with `--ipvs-shim=lean`, whose rules match only sets with members.
fn lean() -> World {
    let config = Config {
        shim: ShimStyle::Lean,
        ..Config::default()
    };
    let kernel = FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")]);
    kernel.state().shim = ShimStyle::Lean;
    World::with(config, kernel)
}

/// Makes the fake kernel refuse every write of rules from now on.
fn refuse_rules(world: &World) {
    let all = (0..1_000).map(|count| (format!("write {count} iptables rules"), "no".to_owned()));
    world.kernel.state().refusals.extend(all);
}

#[test]
fn an_address_stays_in_its_old_set_until_rules_match_the_new_set() {
    let mut world = lean();
    let exposed = |is_local: bool| {
        let mut exposed = service("default/web", "10.96.0.10", 80);
        exposed.external_ips = vec![ip("198.51.100.7")];
        exposed.external_local = is_local;
        exposed
    };
    world.service(exposed(false));
    world.slice(slice("default/web", &PAIR));
    let mut world = world.listed();
    assert_eq!(world.sync().pending, 0);
    let member = Member::AddressPort(ip("198.51.100.7"), Protocol::Tcp, 80);
    let sets = |world: &World| {
        let held = &world.kernel.state().snapshot.sets;
        [Set::ExternalIp, Set::ExternalIpLocal].map(|set| held[&set].contains(&member))
    };
    assert_eq!(sets(&world), [true, false]);
    refuse_rules(&world);
    for (is_local, after) in [(true, [false, true]), (false, [true, false])] {
        world.service(exposed(is_local));
        world.sync();
        assert_eq!(sets(&world), [true, true], "no rule asks the other");
        world.kernel.state().refusals.clear();
        world.wait(Duration::from_secs(30));
        assert_eq!(world.sync().pending, 0);
        assert_eq!(sets(&world), after);
        refuse_rules(&world);
    }
    // The removal of a deleted Service's members does not wait for rules.
    world.service(exposed(true));
    world.sync();
    world.delete_service("default/web");
    world.sync();
    assert_eq!(sets(&world), [false, false]);
}

/// The kernel refuses the rules for a load balancer's first source ranges. The load balancer stays
/// closed to all clients, because a closed port is safer than an open port.
#[test]
fn a_load_balancer_stays_closed_while_the_kernel_refuses_its_rules() {
    let mut world = lean();
    world.service(balanced(&[]));
    world.slice(slice("default/web", &PAIR));
    let mut world = world.listed();
    assert_eq!(world.sync().pending, 0);
    refuse_rules(&world);
    let held = |world: &World, set: Set| world.kernel.state().snapshot.sets[&set].len();
    world.service(balanced(&["10.0.0.0/8", "192.168.0.0/16"]));
    world.sync();
    assert_eq!(held(&world, Set::LoadBalancerFirewall), 1);
    // Withdrawing a source range removes its set member, although the kernel refuses rules.
    world.service(balanced(&["192.168.0.0/16"]));
    world.sync();
    assert_eq!(held(&world, Set::LoadBalancerSourceCidr), 1);
    world.kernel.state().refusals.clear();
    world.wait(Duration::from_secs(30));
    assert_eq!(world.sync().pending, 0);
}

#[test]
fn a_recreated_node_object_without_addresses_keeps_the_known_node_address() {
    let node = |addresses: &[&str]| proxy::Node {
        name: "node1".into(),
        addresses: addresses.iter().map(|at| ip(at)).collect(),
        ..proxy::Node::default()
    };
    let mut world = World::new();
    world.node(node(&["192.168.99.10"]));
    world.service(balanced(&["192.168.99.0/24"]));
    let mut world = world.listed();
    world.sync();
    let admitted = |world: &World| {
        let sources = &world.kernel.state().snapshot.sets[&Set::LoadBalancerSourceIp];
        sources.len()
    };
    assert_eq!(admitted(&world), 1);
    world.node(node(&[]));
    world.sync();
    assert_eq!(admitted(&world), 1, "nobody said that it has gone");
    world.node(node(&["172.16.0.1"]));
    world.sync();
    assert_eq!(admitted(&world), 0, "it is another one");
}

#[test]
fn a_refused_entry_stays_pending_and_all_other_entries_are_written() {
    let mut world = World::new();
    world.service(service("default/bad", "10.96.0.66", 80));
    world.slice(slice("default/bad", &PAIR));
    world.service(service("default/web", "10.96.0.10", 80));
    world.slice(slice("default/web", &PAIR));
    let refused = "add virtual server 10.96.0.66:80/TCP".to_owned();
    world
        .kernel
        .state()
        .refusals
        .insert(refused, "not today".into());
    let mut world = world.listed();
    let report = world.sync();
    assert_eq!(
        report.failures.len(),
        1,
        "said once, not for each destination: {:?}",
        report.failures
    );
    assert_eq!(
        report.failures[0].to_string(),
        "add virtual server 10.96.0.66:80/TCP (of Service default/bad): not today"
    );
    assert_eq!(world.destinations("10.96.0.10:80").unwrap().len(), 2);
    assert!(world.proxier_due_within(Duration::from_secs(1)));
    world.kernel.state().refusals.clear();
    world.work();
    world.sync();
    assert_eq!(world.work().0.messages, 0, "not before its time");
    world.wait(Duration::from_secs(1));
    assert_eq!(world.sync().pending, 0);
    assert_eq!(world.destinations("10.96.0.66:80").unwrap().len(), 2);
}

#[test]
fn after_a_lost_reply_to_a_write_the_kernel_is_read_again() {
    let mut world = web();
    world.kernel.state().lose_acknowledgements = true;
    world.service(service("default/two", "10.96.0.11", 80));
    let report = world.sync();
    assert_eq!(report.pending, 0);
    let (work, _) = world.work();
    assert_eq!(work.dumps, 1, "dumped, compared, nothing written twice");
    assert!(world.destinations("10.96.0.11:80").is_some());
}

#[test]
fn a_kernel_that_cannot_be_read_causes_an_error_and_no_write() {
    let mut world = web();
    for &part in Part::ALL {
        let unreadable = (part.name(), "interrupted".to_owned());
        world.kernel.state().unreadable.extend([unreadable]);
    }
    world.wait(Duration::from_mins(1));
    world.check();
    let synced = world.sync();
    let mut told: Vec<_> = synced.unreadable.iter().map(|of| of.part).collect();
    told.sort_unstable();
    assert_eq!(
        told,
        [
            "the addresses of this node",
            "the rules beside IPVS",
            "the sets",
            "the virtual servers"
        ]
    );
    assert_eq!(world.written(), Vec::<String>::new());
    assert_eq!((synced.pending, synced.stuck), (0, None), "nothing is late");
}

#[test]
fn a_draining_endpoint_that_returns_keeps_its_connections() {
    let mut world = web();
    world.open("10.96.0.10:80", "10.244.2.5", 3);
    world.slice(slice("default/web", &PAIR[..1]));
    world.sync();
    assert_eq!(
        world.destinations("10.96.0.10:80").unwrap(),
        ["10.244.1.5:8080=1", "10.244.2.5:8080=0"]
    );
    let drains = world.proxier.drains(10);
    let [draining] = &*drains.first else {
        panic!("{drains:?}");
    };
    assert_eq!((drains.count, draining.target), (1, target("10.244.2.5")));
    assert_eq!(draining.at.to_string(), "10.96.0.10:80/TCP");
    let unnamed = world.proxier.drains(0);
    assert_eq!((unnamed.count, unnamed.first.len()), (1, 0));
    world.work();
    // The endpoint returns. Its destination gets its weight back, and is not deleted and added
    // again.
    world.slice(slice("default/web", &PAIR));
    world.sync();
    assert_eq!(world.proxier.drains(10).count, 0);
    assert_eq!(
        world.written(),
        ["set destination 10.244.2.5:8080 of 10.96.0.10:80/TCP to weight 1"]
    );
    // The endpoint disappears again. Its destination is deleted once its connections have ended.
    world.slice(slice("default/web", &PAIR[..1]));
    world.sync();
    world.kernel.state().connections.clear();
    world.wait(Duration::from_secs(10));
    world.sync();
    assert_eq!(
        world.destinations("10.96.0.10:80").unwrap(),
        ["10.244.1.5:8080=1"]
    );
    // The proxier has no timer any more.
    assert!(!world.proxier_due_within(Duration::from_hours(1)));
}

#[test]
fn drains_continue_after_a_restart() {
    let mut world = web();
    world.open("10.96.0.10:80", "10.244.2.5", 1);
    world.slice(slice("default/web", &PAIR[..1]));
    world.sync();
    let mut world = world.restarted(Config::default());
    world.service(service("default/web", "10.96.0.10", 80));
    world.slice(slice("default/web", &PAIR[..1]));
    let mut world = world.listed();
    world.work();
    world.sync();
    assert_eq!(world.work().0.messages, 0, "it has weight 0 already");
    world.kernel.state().connections.clear();
    world.wait(Duration::from_secs(10));
    world.sync();
    assert_eq!(
        world.destinations("10.96.0.10:80").unwrap(),
        ["10.244.1.5:8080=1"]
    );
}

/// Returns a node on which the endpoints 10.244.2.5 and 10.244.3.5 have connections that never end.
fn stubborn(timeout: Option<Duration>) -> World {
    let kernel = FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")]);
    for pod in ["10.244.2.5", "10.244.3.5"] {
        let at = (server("10.96.0.10:80"), target(pod));
        kernel.state().connections.insert(at, 1);
    }
    let config = Config {
        drain_timeout: timeout,
        ..Config::default()
    };
    let mut world = World::with(config, kernel);
    world.service(service("default/web", "10.96.0.10", 80));
    world.slice(slice(
        "default/web",
        &[PAIR[0], PAIR[1], "10.244.3.5@node2"],
    ));
    let mut world = world.listed();
    world.sync();
    world
}

#[test]
fn a_drain_ends_at_its_timeout() {
    let mut world = stubborn(Some(Duration::from_secs(20)));
    world.slice(slice("default/web", &[PAIR[0], "10.244.3.5@node2"]));
    world.sync();
    world.wait(Duration::from_secs(15));
    // Each endpoint has its own timeout, which a later removal of another endpoint does not extend.
    world.slice(slice("default/web", &PAIR[..1]));
    world.sync();
    assert_eq!(
        world.destinations("10.96.0.10:80").unwrap(),
        [
            "10.244.1.5:8080=1",
            "10.244.2.5:8080=0",
            "10.244.3.5:8080=0"
        ]
    );
    for _ in 0..5 {
        world.wait(Duration::from_secs(1));
        world.sync();
    }
    assert_eq!(
        world.destinations("10.96.0.10:80").unwrap(),
        ["10.244.1.5:8080=1", "10.244.3.5:8080=0"]
    );
    world.wait(Duration::from_secs(14));
    world.sync();
    assert!(
        world.proxier_due_within(Duration::from_secs(1)),
        "woken at the limit, not at the next look"
    );
    world.wait(Duration::from_secs(1));
    world.sync();
    assert_eq!(
        world.destinations("10.96.0.10:80").unwrap(),
        ["10.244.1.5:8080=1"]
    );
}

#[test]
fn an_endpoint_that_returned_gets_the_full_drain_timeout_again() {
    let mut world = stubborn(Some(Duration::from_secs(20)));
    for _ in 0..2 {
        world.slice(slice("default/web", &[PAIR[0], "10.244.3.5@node2"]));
        world.sync();
        world.wait(Duration::from_secs(15));
        world.sync();
        assert_eq!(world.destinations("10.96.0.10:80").unwrap().len(), 3);
        world.slice(slice(
            "default/web",
            &[PAIR[0], PAIR[1], "10.244.3.5@node2"],
        ));
        world.sync();
    }
}

#[test]
fn a_drain_without_a_timeout_has_no_limit() {
    let mut world = stubborn(None);
    world.slice(slice("default/web", &PAIR[..1]));
    world.sync();
    for _ in 0..30 {
        world.wait(Duration::from_hours(1));
        world.sync();
    }
    assert_eq!(world.destinations("10.96.0.10:80").unwrap().len(), 3);
}

#[test]
fn removed_udp_endpoints_do_not_drain() {
    let mut world = World::new();
    let mut dns = service("kube-system/kube-dns", "10.96.0.53", 53);
    dns.ports = [ServicePort {
        name: "".into(),
        protocol: Protocol::Udp,
        port: 53,
        node_port: None,
    }]
    .into_iter()
    .collect();
    world.service(dns);
    let mut endpoints = slice("kube-system/kube-dns", &PAIR);
    endpoints.ports[0].protocol = Protocol::Udp;
    world.slice(endpoints.clone());
    let mut world = world.listed();
    world.sync();
    world.work();
    endpoints.endpoints = endpoints
        .endpoints
        .iter()
        .take(1)
        .map(Endpoint::from)
        .collect();
    world.slice(endpoints);
    world.sync();
    assert_eq!(
        world.written(),
        ["remove destination 10.244.2.5:8080 from 10.96.0.53:53/UDP"]
    );
}

#[test]
fn the_older_of_two_services_keeps_a_shared_address() {
    let mut world = World::new();
    for (at, cluster_ip, created) in [
        ("default/old", "10.96.0.1", 100),
        ("default/a-new", "10.96.0.2", 200),
    ] {
        let mut claimant = service(at, cluster_ip, 80);
        claimant.external_ips = vec![ip("198.51.100.7")];
        claimant.created = Some(created);
        world.service(claimant);
    }
    world.slice(slice("default/old", &["10.244.1.1@node1"]));
    world.slice(slice("default/a-new", &["10.244.1.2@node1"]));
    let mut world = world.listed();
    world.sync();
    let [conflict] = &world.conflicts[..] else {
        panic!("{:?}", world.conflicts)
    };
    assert_eq!(
        (
            conflict.object.as_str(),
            conflict.winner.to_string().as_str(),
            conflict.loser.to_string().as_str()
        ),
        ("198.51.100.7:80/TCP", "default/old", "default/a-new")
    );
    assert_eq!(
        world.destinations("198.51.100.7:80").unwrap(),
        ["10.244.1.1:8080=1"]
    );
    world.delete_service("default/old");
    world.sync();
    assert!(world.conflicts.is_empty());
    assert_eq!(
        world.destinations("198.51.100.7:80").unwrap(),
        ["10.244.1.2:8080=1"]
    );
    assert!(
        world
            .kernel
            .state()
            .snapshot
            .bound
            .contains(&ip("198.51.100.7"))
    );
}

/// After any order of events, sets and rules contain only entries of the Service that owns the
/// address.
#[test]
fn only_the_owner_of_a_shared_address_defines_its_source_ranges() {
    let claimant = |at: &str, cluster_ip: &str, created| {
        let mut claimant = service(at, cluster_ip, 80);
        claimant.kind = proxy::ServiceType::LoadBalancer;
        claimant.ingress_ips = vec![ip("203.0.113.10")];
        claimant.created = Some(created);
        claimant
    };
    let open = claimant("default/open", "10.96.0.10", 1);
    let mut closed = claimant("default/closed", "10.96.0.11", 2);
    closed.source_ranges = vec!["198.51.100.0/24".parse().unwrap()];
    closed.external_local = true;
    let restricted = |world: &World| {
        let state = world.kernel.state();
        let members: usize = [
            Set::LoadBalancerFirewall,
            Set::LoadBalancerSourceCidr,
            Set::LoadBalancerLocal,
        ]
        .iter()
        .map(|set| state.snapshot.sets[set].len())
        .sum();
        let rules = state.snapshot.rules.as_ref().unwrap();
        let text = rules.restore_text(&Rules::default());
        (members, text.contains("203.0.113.10"))
    };
    for order in [[&open, &closed], [&closed, &open]] {
        let mut world = World::new().listed();
        for service in order {
            world.service(service.clone());
            world.sync();
        }
        assert_eq!(restricted(&world), (0, false));
        let cluster_ips = [ip("10.96.0.10"), ip("10.96.0.11")];
        for address in cluster_ips {
            let member = Member::AddressPort(address, Protocol::Tcp, 80);
            assert!(world.kernel.state().snapshot.sets[&Set::ClusterIp].contains(&member));
        }
        world.delete_service("default/open");
        assert_eq!(world.sync().pending, 0);
        assert_eq!(restricted(&world), (3, true), "it takes over");
        world.service(open.clone());
        assert_eq!(world.sync().pending, 0);
        assert_eq!(restricted(&world), (0, false), "it loses it again");
        world.delete_service("default/closed");
        assert_eq!(world.sync().pending, 0);
        assert_eq!(restricted(&world), (0, false));
    }
}

#[test]
fn a_new_node_address_serves_node_ports() {
    let mut world = World::new();
    let mut web = service("default/web", "10.96.0.10", 80);
    web.ports[0].node_port = Some(30080);
    world.service(web);
    world.slice(slice("default/web", &PAIR));
    let mut world = world.listed();
    world.sync();
    assert!(world.destinations("192.168.99.10:30080").is_some());
    world
        .kernel
        .state()
        .snapshot
        .interface_addresses
        .insert(ip("192.168.99.11"));
    world.check();
    world.sync();
    assert_eq!(world.destinations("192.168.99.11:30080").unwrap().len(), 2);
    world
        .kernel
        .state()
        .snapshot
        .interface_addresses
        .remove(&ip("192.168.99.10"));
    world.check();
    world.sync();
    assert_eq!(world.destinations("192.168.99.10:30080"), None);
}

#[test]
fn a_service_address_that_is_a_node_address_is_not_bound() {
    let mut world = World::new();
    let mut web = service("default/web", "10.96.0.10", 80);
    web.external_ips = vec![ip("192.168.99.10")];
    world.service(web);
    let mut world = world.listed();
    world.sync();
    assert!(world.destinations("192.168.99.10:80").is_some());
    assert_eq!(
        world.kernel.state().snapshot.bound,
        [ip("10.96.0.10")].into()
    );
}

#[test]
fn a_service_address_is_not_bound_while_another_interface_has_it() {
    let external = ip("192.168.99.20");
    let mut world = World::new();
    let mut web = service("default/web", "10.96.0.10", 80);
    web.external_ips = vec![external];
    world.service(web);
    world.service(service("default/other", "10.96.0.11", 80));
    let mut world = world.listed();
    world.sync();
    for is_carried in [true, false] {
        let carried = |world: &World| world.kernel.state().snapshot.bound.contains(&external);
        assert_eq!(carried(&world), is_carried);
        let mut state = world.kernel.state();
        let addresses = &mut state.snapshot.interface_addresses;
        if is_carried {
            addresses.insert(external);
        } else {
            addresses.remove(&external);
        }
        drop(state);
        world.check();
        world.sync();
        assert_eq!(carried(&world), !is_carried);
        assert!(world.destinations("192.168.99.20:80").is_some());
    }
}

#[test]
fn entries_of_the_api_server_are_written_first_and_those_of_dns_second() {
    let mut world = World::new();
    for (at, cluster_ip) in [
        ("default/a", "10.96.0.2"),
        ("kube-system/kube-dns", "10.96.0.53"),
        ("default/kubernetes", "10.96.0.99"),
    ] {
        world.service(service(at, cluster_ip, 80));
    }
    let mut world = world.listed();
    world.sync();
    let servers: Vec<_> = world
        .written()
        .into_iter()
        .filter(|op| op.starts_with("add virtual"))
        .collect();
    assert_eq!(
        servers,
        [
            "add virtual server 10.96.0.99:80/TCP",
            "add virtual server 10.96.0.53:80/TCP",
            "add virtual server 10.96.0.2:80/TCP",
        ]
    );
}

#[test]
fn many_writes_are_divided_into_several_ordered_plans() {
    let services = 900u32;
    let pods: Vec<String> = (0..100u32).map(|n| format!("10.244.1.{n}@node2")).collect();
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    let mut world = World::new();
    for number in 0..services {
        let at = format!("default/s{number}");
        let address = format!("10.96.{}.{}", number / 250, number % 250 + 1);
        world.service(service(&at, &address, 80));
        world.slice(slice(&at, &pods));
    }
    let mut world = world.listed();
    let report = world.sync();
    assert_eq!((report.pending, report.failures.len()), (0, 0));
    let (_, ops) = world.work();
    let binds = |op: &Op| matches!(op, Op::BindAddress(_));
    assert_eq!(ops.iter().filter(|op| binds(op)).count(), 900);
    let mut served = std::collections::HashSet::new();
    for op in &ops {
        match op {
            Op::AddServer(key, _) => drop(served.insert(key.address().unwrap().address)),
            Op::BindAddress(address) => assert!(served.contains(address), "{address}"),
            _ => {}
        }
    }
    let adds = |op: &&Op| matches!(op, Op::AddDestination(..));
    assert_eq!(ops.iter().filter(adds).count(), 90_000);

    // Each destination costs one message for its drain and one for its removal. One sync sends them
    // all.
    for number in 0..services {
        world.slice(slice(&format!("default/s{number}"), &pods[..50]));
    }
    assert_eq!(world.sync().pending, 0);
    assert_eq!(world.work().1.len(), 90_000);
    for number in 0..services {
        world.delete_service(&format!("default/s{number}"));
    }
    assert_eq!(world.sync().pending, 0);
    assert!(world.kernel.state().snapshot.servers.is_empty());
}

#[test]
fn a_set_grows_to_hold_all_members() {
    let mut world = World::new();
    for service_number in 0..2 {
        let at = format!("default/s{service_number}");
        world.service(service(&at, &format!("10.96.0.1{service_number}"), 80));
        let pods = (0..35_000).map(|pod| {
            let [_, _, high, low] = u32::to_be_bytes(pod);
            format!("10.{service_number}.{high}.{low}@node1")
        });
        let pods: Vec<String> = pods.collect();
        let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
        let mut waiting = slice(&at, &pods);
        let pods = waiting.endpoints.iter().map(|pod| Endpoint {
            ready: false,
            serving: false,
            ..pod.into()
        });
        waiting.endpoints = pods.collect();
        world.slice(waiting);
    }
    let mut world = world.listed();
    assert_eq!(world.sync().pending, 0);
    assert_eq!(
        world.kernel.state().snapshot.set_sizes[&Set::LoopBack],
        131_072
    );
    assert_eq!(
        world.kernel.state().snapshot.set_sizes[&Set::ClusterIp],
        65_536
    );
    assert!(world.model.view(&name("default/s1")).is_some());
}

#[test]
fn a_full_set_grows_if_additions_come_before_removals() {
    let mut world = World::new();
    for number in 1..=4 {
        let at = format!("default/s{number}");
        world.service(service(&at, &format!("10.96.1.{number}"), 80));
    }
    let mut world = world.listed();
    world.sync();
    let sizes = [(Set::ClusterIp, 4)];
    world.kernel.state().snapshot.set_sizes.extend(sizes);
    world.check();
    world.settle();
    world.work();
    world.delete_service("default/s4");
    world.service(service("default/s5", "10.96.1.5", 80));
    let report = world.sync();
    assert_eq!((report.pending, report.failures), (0, Vec::new()));
    let order = world.written();
    let position = |wanted: &str| order.iter().position(|op| op == wanted).unwrap();
    assert!(
        position("create set KUBE-CLUSTER-IP for 8 members")
            < position("add 10.96.1.5,tcp:80 to set KUBE-CLUSTER-IP")
    );
}

#[test]
fn a_set_that_is_too_small_grows_and_never_shrinks() {
    let mut world = web();
    world
        .kernel
        .state()
        .snapshot
        .set_sizes
        .insert(Set::ClusterIp, 2);
    world.check();
    world.sync();
    assert_eq!(
        world.written(),
        Vec::<String>::new(),
        "large enough for one"
    );
    for number in 1..=2 {
        let at = format!("default/more-{number}");
        world.service(service(&at, &format!("10.97.0.{number}"), 80));
    }
    assert_eq!(world.sync().pending, 0);
    assert_eq!(
        world.written()[0],
        "create set KUBE-CLUSTER-IP for 4 members"
    );
    for number in 1..=2 {
        world.delete_service(&format!("default/more-{number}"));
    }
    assert_eq!(world.sync().pending, 0);
    assert_eq!(world.kernel.state().snapshot.set_sizes[&Set::ClusterIp], 4);
}
