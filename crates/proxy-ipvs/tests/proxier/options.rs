//! Tests of the Service annotations for IPVS, such as a Service's own scheduler.

use proxy::options::{MAX_CONNECTIONS, SCHEDULER, SCHEDULER_FLAGS, WEIGHTS};
use proxy::{EndpointSlice, Node, ServiceOptions};

use super::*;

/// Returns `default/web` with this scheduler, or without a scheduler if the name is empty.
fn with(scheduler: &str) -> Service {
    Service {
        options: ServiceOptions::read([(SCHEDULER, scheduler)].into_iter()),
        ..service("default/web", "10.96.0.10", 80)
    }
}

fn named(scheduler: &str) -> World {
    on(
        FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")]),
        scheduler,
    )
}

fn on(kernel: FakeKernel, scheduler: &str) -> World {
    let mut world = World::with(Config::default(), kernel);
    world.service(with(scheduler));
    world.slice(slice("default/web", &PAIR));
    world.service(service("default/other", "10.96.0.11", 80));
    world.listed()
}

/// Returns scheduler and flags of the virtual servers of `default/web` and `default/other`, in this
/// order.
fn schedulers(world: &World) -> [(String, u32); 2] {
    let state = world.kernel.state();
    ["10.96.0.10:80", "10.96.0.11:80"].map(|at| {
        let of = &state.snapshot.servers.get(&server(at)).unwrap().properties;
        (of.scheduler.to_string(), of.flags)
    })
}

fn missing(world: &World) -> Vec<String> {
    let missing = world.proxier.unavailable_options().into_iter();
    missing
        .map(|one| format!("{} {}: {}", one.annotation, one.value, one.reason))
        .collect()
}

fn rr() -> (String, u32) {
    ("rr".to_owned(), 0)
}

#[test]
fn the_scheduler_annotation_affects_only_its_service() {
    let mut world = named("sh");
    let report = world.sync();
    assert_eq!((report.pending, report.failures.len()), (0, 0));
    assert_eq!(schedulers(&world), [("sh".to_owned(), 0), rr()]);
    assert_eq!(missing(&world), [""; 0]);
    assert_eq!(world.work().0.scheduler_questions, 1);
    // With scheduler `mh`, a Service gets the flags of a node whose scheduler is `mh`.
    world.service(with("mh"));
    world.sync();
    assert_eq!(
        schedulers(&world)[0],
        ("mh".to_owned(), Properties::HASH_PORT)
    );
}

#[test]
fn a_changed_scheduler_costs_one_write_of_the_virtual_server() {
    let mut world = named("sh");
    world.sync();
    world.service(with("lc"));
    world.sync();
    world.written();
    for (scheduler, wanted) in [("sh", "sh"), ("", "rr"), ("lc", "lc"), ("sh", "sh")] {
        world.service(with(scheduler));
        let report = world.sync();
        assert_eq!(report.settled, ["default/web"]);
        assert_eq!(world.written(), ["change virtual server 10.96.0.10:80/TCP"]);
        assert_eq!(schedulers(&world), [(wanted.to_owned(), 0), rr()]);
        let there = world.destinations("10.96.0.10:80").unwrap();
        assert_eq!(there, ["10.244.1.5:8080=1", "10.244.2.5:8080=1"]);
    }
    // The proxier does not ask the kernel again for a known scheduler.
    assert_eq!(world.work().0.scheduler_questions, 0);
}

#[test]
fn a_restart_adopts_the_scheduler_without_a_probe() {
    for is_told_early in [false, true] {
        let mut world = named("sh");
        world.sync();
        world.work();
        let mut world = on(world.kernel, "sh");
        if is_told_early {
            // The proxier gets the Service before it reads the kernel.
            let changes = world.model.take_changes();
            world.proxier.update(&world.model, &changes, world.now);
        }
        world.sync();
        let (work, ops) = world.work();
        assert_eq!((ops, work.scheduler_questions), (vec![], 0));
        assert_eq!(schedulers(&world), [("sh".to_owned(), 0), rr()]);
    }
}

#[test]
fn an_invalid_scheduler_falls_back_to_the_nodes_scheduler() {
    let mut world = named("best");
    let report = world.sync();
    assert_eq!((report.pending, report.failures.len()), (0, 0));
    assert_eq!(schedulers(&world), [rr(), rr()]);
    assert_eq!(world.work().0.scheduler_questions, 0);
}

/// Many Services cause one query for a missing scheduler. Further queries are rare, because
/// operators rarely install modules.
#[test]
fn a_missing_scheduler_costs_one_probe() {
    let mut world = named("lblc");
    for host in 20..80 {
        world.service(Service {
            options: with("lblc").options,
            ..service(
                &format!("default/web{host}"),
                &format!("10.96.0.{host}"),
                80,
            )
        });
    }
    let report = world.sync();
    assert_eq!((report.pending, report.failures.len()), (0, 0));
    assert_eq!(schedulers(&world), [rr(), rr()]);
    let lacks = "kube-proxy-ipvs/scheduler lblc: the kernel has no scheduler `lblc`";
    assert_eq!(missing(&world), [lacks]);
    assert_eq!(world.work().0.scheduler_questions, 1);

    for (minutes, questions) in [(1, 0), (3, 0), (2, 1), (4, 0)] {
        world.wait(Duration::from_mins(minutes));
        world.check();
        world.settle();
        let (work, ops) = world.work();
        assert_eq!((work.scheduler_questions, ops), (questions, vec![]));
    }
    // An operator installs the scheduler's module.
    world.kernel.state().schedulers.insert("lblc");
    world.wait(Duration::from_mins(2));
    world.check();
    let report = world.settle();
    assert_eq!((report.pending, missing(&world).len()), (0, 0));
    assert_eq!(schedulers(&world), [("lblc".to_owned(), 0), rr()]);
    assert_eq!(world.work().1.len(), 61, "each is changed in place");
}

/// The kernel refuses a scheduler whose probe succeeded. This happens if another program has a
/// virtual server at the probe's address: the probe then reports success without a test.
#[test]
fn a_scheduler_that_the_kernel_later_refuses_falls_back_to_the_nodes_scheduler() {
    let mut world = named("sh");
    world.sync();
    world.service(with(""));
    world.sync();
    world.kernel.state().schedulers.remove("sh");
    world.service(with("sh"));
    world.written();
    let report = world.sync();
    assert_eq!(report.failures.len(), 1, "{:?}", report.failures);
    assert_eq!(report.pending, 0);
    assert_eq!(schedulers(&world), [rr(), rr()]);
    assert_eq!(
        missing(&world),
        ["kube-proxy-ipvs/scheduler sh: no such scheduler"]
    );
    assert_eq!(world.written(), [""; 0], "it is as it was");

    // The proxier remembers that the kernel lacks this scheduler, and does not try it for the next
    // Service.
    world.delete_service("default/web");
    world.sync();
    world.service(with("sh"));
    let report = world.sync();
    assert_eq!((report.pending, report.failures.len()), (0, 0));
    assert_eq!(schedulers(&world), [rr(), rr()]);
    // No Service requests the scheduler any more, so the report no longer names it.
    world.service(with(""));
    world.sync();
    world.wait(Duration::from_mins(6));
    world.check();
    world.settle();
    world.check();
    world.settle();
    assert_eq!(missing(&world), [""; 0]);
}

#[test]
fn a_scheduler_whose_presence_is_known_at_the_start_is_not_probed() {
    let lacks = Err("there is no module ip_vs_lc".to_owned());
    let config = Config {
        foreseen_schedulers: vec![
            (proxy::Scheduler::ALL[4], Ok(())),
            (proxy::Scheduler::ALL[2], lacks),
        ],
        ..Config::default()
    };
    for (scheduler, served_by) in [("sh", "sh"), ("lc", "rr")] {
        let kernel = FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")]);
        let mut world = World::with(config.clone(), kernel);
        world.service(with(scheduler));
        world.service(service("default/other", "10.96.0.11", 80));
        let mut world = world.listed();
        world.sync();
        assert_eq!(schedulers(&world)[0].0, served_by);
        assert_eq!(world.work().0.scheduler_questions, 0);
        assert_eq!(
            missing(&world),
            ["kube-proxy-ipvs/scheduler lc: there is no module ip_vs_lc"]
        );
    }
}

/// Returns `default/web` with these annotations.
fn annotated(annotations: &[(&str, &str)]) -> Service {
    Service {
        options: ServiceOptions::read(annotations.iter().copied()),
        ..service("default/web", "10.96.0.10", 80)
    }
}

#[test]
fn changed_scheduler_flags_cost_one_write_and_affect_no_other_scheduler() {
    let mut world = named("mh");
    world.sync();
    world.written();
    let (port, fallback) = (Properties::HASH_PORT, Properties::FALLBACK);
    for (scheduler, flags, wanted) in [
        ("mh", "mh-fallback", fallback),
        ("mh", "none", 0),
        ("mh", "mh-port,mh-fallback", port | fallback),
        ("mh", "", port),
        // A scheduler ignores the flags of other schedulers.
        ("sh", "mh-port", 0),
        ("sh", "sh-port,sh-fallback", port | fallback),
        ("rr", "sh-port", 0),
    ] {
        world.service(annotated(&[
            (SCHEDULER, scheduler),
            (SCHEDULER_FLAGS, flags),
        ]));
        assert_eq!(world.sync().pending, 0);
        // Syncs twice, because the proxier first asks the kernel for an unknown scheduler.
        world.sync();
        assert_eq!(schedulers(&world)[0], (scheduler.to_owned(), wanted));
        let written = world.written();
        assert!(
            written
                .iter()
                .all(|op| op == "change virtual server 10.96.0.10:80/TCP"),
            "{written:?}"
        );
    }
}

#[test]
fn a_changed_connection_limit_changes_each_destination_in_place() {
    let mut world = named("rr");
    world.sync();
    world.written();
    let ceilings = |world: &World| -> Vec<u16> {
        let state = world.kernel.state();
        let server = state
            .snapshot
            .servers
            .get(&server("10.96.0.10:80"))
            .unwrap();
        server
            .destinations
            .iter()
            .map(|real| real.max_connections)
            .collect()
    };
    world.service(annotated(&[(MAX_CONNECTIONS, "100")]));
    world.sync();
    assert_eq!(ceilings(&world), [100, 100]);
    let set = |pod: &str, limit: &str| {
        format!("set destination {pod}:8080 of 10.96.0.10:80/TCP to weight 1{limit}")
    };
    let limit = ", at most 100 connections";
    assert_eq!(
        world.written(),
        [set("10.244.1.5", limit), set("10.244.2.5", limit)]
    );
    // An endpoint that drained and returns gets its connection limit again.
    world.open("10.96.0.10:80", "10.244.2.5", 1);
    world.slice(slice("default/web", &PAIR[..1]));
    world.sync();
    assert_eq!(
        world.destinations("10.96.0.10:80").unwrap(),
        ["10.244.1.5:8080=1", "10.244.2.5:8080=0"]
    );
    world.slice(slice("default/web", &PAIR));
    world.sync();
    assert_eq!(ceilings(&world), [100, 100]);
    assert_eq!(
        world.destinations("10.96.0.10:80").unwrap(),
        ["10.244.1.5:8080=1", "10.244.2.5:8080=1"]
    );
    world.written();
    world.service(annotated(&[]));
    world.sync();
    assert_eq!(
        world.written(),
        [set("10.244.1.5", ""), set("10.244.2.5", "")]
    );
}

/// Starts a node with this name on an empty kernel. Returns the node, and the endpoints of
/// `default/web` in the order in which their destinations were added.
fn added_on(node: &str, scheduler: &str, endpoints: u8) -> (World, Vec<String>) {
    let mut world = World::new();
    world.restart_on(NodeFacts::new(IpFamily::V4, node));
    world.service(with(scheduler));
    for part in 0..=endpoints / 100 {
        let hosts = (part * 100..endpoints).take(100);
        let hosts: Vec<String> = hosts.map(|host| format!("10.244.2.{host}@x")).collect();
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        world.slice(EndpointSlice {
            name: name(&format!("default/web-{part}")),
            ..slice("default/web", &hosts)
        });
    }
    let mut world = world.listed();
    assert_eq!(world.sync().pending, 0);
    let added = world.written().into_iter();
    let added = added.filter_map(|op| op.strip_prefix("add destination ").map(str::to_owned));
    (world, added.collect())
}

#[test]
fn each_node_adds_endpoints_in_its_own_order_unless_the_scheduler_hashes() {
    let (one, other) = (added_on("one", "rr", 20), added_on("other", "rr", 20));
    assert_ne!(one.1, other.1);
    assert_eq!(
        one.0.destinations("10.96.0.10:80"),
        other.0.destinations("10.96.0.10:80")
    );
    // Several plans add destinations in the same order as one plan.
    let (mut world, all) = added_on("one", "rr", 250);
    assert_eq!(all.len(), 250);
    let few: Vec<_> = all.into_iter().filter(|op| one.1.contains(op)).collect();
    assert_eq!(few, one.1);

    let (_, hashed) = added_on("one", "mh", 20);
    assert_eq!(hashed, added_on("other", "mh", 20).1);

    // A restarted daemon finds all destinations and writes none, even under another node name.
    let mut restarted = World::new();
    std::mem::swap(&mut restarted.model, &mut world.model);
    restarted.kernel = world.kernel.clone();
    restarted.now = world.now;
    restarted.restart_on(NodeFacts::new(IpFamily::V4, "renamed"));
    assert_eq!(restarted.sync().pending, 0);
    assert_eq!(world.written(), [""; 0]);
}

/// Returns an EndpointSlice with these endpoints, each written as `ADDRESS@NODE@ZONE`.
fn zoned(endpoints: &[&str]) -> EndpointSlice {
    let split = endpoints.iter().map(|text| text.rsplit_once('@').unwrap());
    let (placed, zones): (Vec<&str>, Vec<&str>) = split.unzip();
    let plain = slice("default/web", &placed);
    let all = plain.endpoints.iter().zip(zones).map(|(endpoint, zone)| {
        let mut endpoint = Endpoint::from(endpoint);
        let mut placement = proxy::Placement::clone(&endpoint.placement);
        placement.zone = Some(zone.into());
        endpoint.placement = std::sync::Arc::new(placement);
        endpoint
    });
    EndpointSlice {
        endpoints: all.collect(),
        ..plain
    }
}

#[test]
fn weights_depend_on_node_and_zone_and_change_destinations_in_place() {
    let mut world = named("wrr");
    world.slice(zoned(&[
        "10.244.1.5@node1@a",
        "10.244.2.5@node2@a",
        "10.244.3.5@node3@b",
    ]));
    let in_zone = |zone: &str| Node {
        name: "node1".into(),
        zone: Some(zone.into()),
        ..Node::default()
    };
    world.node(in_zone("a"));
    world.sync();
    world.written();
    let weights = |world: &mut World, scheduler: &str, value: &str| -> Vec<u16> {
        world.service(annotated(&[(SCHEDULER, scheduler), (WEIGHTS, value)]));
        world.sync();
        world.sync();
        let state = world.kernel.state();
        let server = state
            .snapshot
            .servers
            .get(&server("10.96.0.10:80"))
            .unwrap();
        server.destinations.iter().map(|real| real.weight).collect()
    };
    assert_eq!(weights(&mut world, "wrr", "local=4,zone=2"), [4, 2, 1]);
    let set = |pod: &str, weight: u16| {
        format!("set destination {pod}:8080 of 10.96.0.10:80/TCP to weight {weight}")
    };
    assert_eq!(
        world.written(),
        [set("10.244.1.5", 4), set("10.244.2.5", 2)]
    );
    assert_eq!(weights(&mut world, "wrr", "zone=2"), [2, 2, 1]);
    assert_eq!(weights(&mut world, "wlc", "local=4"), [4, 1, 1]);
    // Scheduler `rr` ignores weights. An invalid annotation counts as absent.
    assert_eq!(weights(&mut world, "rr", "local=4"), [1, 1, 1]);
    assert_eq!(weights(&mut world, "wrr", "local=101"), [1, 1, 1]);

    // The node moves to another zone. Then an endpoint drains at weight 0.
    assert_eq!(weights(&mut world, "wrr", "zone=3"), [3, 3, 1]);
    world.node(in_zone("b"));
    world.slice(zoned(&["10.244.1.5@node1@b", "10.244.3.5@node3@b"]));
    world.kernel.state().connections.insert(
        (
            server("10.96.0.10:80"),
            Target {
                ip: ip("10.244.2.5"),
                port: 8080,
            },
        ),
        1,
    );
    assert_eq!(weights(&mut world, "wrr", "zone=3"), [3, 0, 3]);

    // A restart writes nothing.
    world.written();
    world.restart_on(NodeFacts::new(IpFamily::V4, "node1"));
    assert_eq!(world.sync().pending, 0);
    assert_eq!(world.written(), [""; 0]);
}
