//! Tests of slow start: new endpoints of a serving Service begin with a small weight.

use proxy::ServiceOptions;
use proxy::options::{SCHEDULER, SLOW_START, WEIGHTS};

use super::*;

const AT: &str = "10.96.0.10:80";
/// Three endpoints: those of `PAIR`, and one that the tests add.
const THREE: [&str; 3] = [PAIR[0], PAIR[1], "10.244.3.5@node3"];
/// Duration of one step in a slow start of 90 s.
const STEP: Duration = Duration::from_secs(10);

fn annotated(annotations: &[(&str, &str)]) -> Service {
    Service {
        options: ServiceOptions::read(annotations.iter().copied()),
        ..service("default/web", "10.96.0.10", 80)
    }
}

fn slowly(scheduler: &str) -> Service {
    annotated(&[(SCHEDULER, scheduler), (SLOW_START, "90s")])
}

/// Starts a daemon on this fake kernel, with one Service and its endpoints.
fn on(kernel: FakeKernel, service: Service, endpoints: &[&str]) -> World {
    let mut world = World::with(Config::default(), kernel);
    world.service(service);
    world.slice(slice("default/web", endpoints));
    world.listed()
}

/// Starts a node with one Service with slow start, and the two endpoints of `PAIR`.
fn serving(scheduler: &str) -> World {
    let kernel = FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")]);
    kernel.state().schedulers.extend(["sed", "nq"]);
    let mut world = on(kernel, slowly(scheduler), &PAIR);
    assert_eq!(world.sync().pending, 0);
    // Syncs twice, because the proxier first asks the kernel for the scheduler.
    assert_eq!(world.sync().pending, 0);
    world.work();
    world
}

/// Adds a third endpoint to a serving Service, and waits until its weight has grown by `steps`
/// steps.
fn growing(steps: u32) -> World {
    let mut world = serving("wrr");
    world.slice(slice("default/web", &THREE));
    world.sync();
    for _ in 0..steps {
        world.wait(STEP);
        world.settle();
    }
    world.work();
    world
}

fn weights(world: &World) -> Vec<u16> {
    let state = world.kernel.state();
    let server = state.snapshot.servers.get(&server(AT)).unwrap();
    server.destinations.iter().map(|real| real.weight).collect()
}

fn set(pod: &str, weight: u16) -> String {
    format!("set destination {pod}:8080 of {AT}/TCP to weight {weight}")
}

#[test]
fn the_weight_of_a_new_endpoint_grows_by_one_write_per_step() {
    for scheduler in ["wrr", "wlc", "sed", "nq", "mh"] {
        let mut world = serving(scheduler);
        assert_eq!(weights(&world), [10, 10], "{scheduler}");
        world.slice(slice("default/web", &THREE));
        assert_eq!(world.sync().settled, ["default/web"]);
        let [added] = world.written().try_into().unwrap();
        assert!(
            added.starts_with("add destination 10.244.3.5:8080"),
            "{added}"
        );
        assert_eq!(weights(&world), [10, 10, 1], "{scheduler}");
        for weight in 2..=10 {
            world.wait(Duration::from_secs(9));
            world.settle();
            assert_eq!(world.written(), [""; 0], "not yet {weight}");
            world.wait(Duration::from_secs(1));
            let report = world.settle();
            assert_eq!((report.pending, report.settled.len()), (0, 0));
            assert_eq!(world.written(), [set("10.244.3.5", weight)]);
        }
        assert!(!world.proxier_due_within(Duration::from_hours(1)));
    }
}

#[test]
fn a_restart_continues_a_slow_start_from_the_kernels_weight() {
    for is_told_early in [false, true] {
        let world = growing(3);
        assert_eq!(weights(&world), [10, 10, 4]);
        let mut world = on(world.kernel, slowly("wrr"), &THREE);
        if is_told_early {
            // The proxier gets the objects before it reads the kernel.
            let changes = world.model.take_changes();
            world.proxier.update(&world.model, &changes, world.now);
        }
        world.sync();
        assert_eq!(world.written(), [""; 0]);
        for weight in 5..=10 {
            world.wait(STEP);
            world.settle();
            assert_eq!(world.written(), [set("10.244.3.5", weight)]);
        }
        assert!(!world.proxier_due_within(Duration::from_hours(1)));
    }
    // An endpoint that appeared while no daemon ran begins with the lowest weight.
    let mut world = on(serving("wrr").kernel, slowly("wrr"), &THREE);
    world.sync();
    assert_eq!(weights(&world), [10, 10, 1]);
}

#[test]
fn new_endpoints_get_full_weights_immediately_if_no_older_endpoint_serves() {
    // All endpoints of a Service that begins to serve are new, so they get their full weights
    // immediately.
    let mut world = serving("wrr");
    assert_eq!(weights(&world), [10, 10]);
    world.slice(slice("default/web", &[]));
    world.sync();
    world.slice(slice("default/web", &THREE[2..]));
    world.sync();
    assert_eq!(world.destinations(AT).unwrap(), ["10.244.3.5:8080=10"]);

    // Both old endpoints disappear while the third one's weight grows.
    let mut world = growing(4);
    world.slice(slice("default/web", &THREE[2..]));
    world.sync();
    assert_eq!(world.destinations(AT).unwrap(), ["10.244.3.5:8080=10"]);
    assert!(!world.proxier_due_within(Duration::from_hours(1)));
}

#[test]
fn a_change_to_the_slow_start_option_changes_weights_in_place_and_immediately() {
    let mut world = serving("wrr");
    let plain = [(SCHEDULER, "wrr"), (WEIGHTS, "local=4")];
    let slow = [plain[0], plain[1], (SLOW_START, "5m")];
    for (annotations, wanted) in [
        (&plain[..], [4, 1]),
        (&slow, [40, 10]),
        (&plain[..1], [1, 1]),
        // Scheduler `rr` ignores weights. An invalid annotation counts as absent.
        (&[(SLOW_START, "5m")], [1, 1]),
        (&[plain[0], (SLOW_START, "5s")], [1, 1]),
        (&slow, [40, 10]),
    ] {
        world.service(annotated(annotations));
        world.sync();
        assert_eq!(weights(&world), wanted);
        let written = world.written();
        assert!(written.iter().all(|op| !op.contains("add")), "{written:?}");
        assert!(!world.proxier_due_within(Duration::from_hours(1)));
    }
    // After a daemon without slow start, a restart changes the weights immediately.
    world.service(annotated(&plain));
    world.sync();
    let mut world = on(world.kernel, annotated(&slow), &PAIR);
    world.sync();
    assert_eq!(weights(&world), [40, 10]);
    // Without the option, a growing endpoint immediately gets its full weight.
    let mut world = growing(2);
    world.service(annotated(&plain));
    world.sync();
    assert_eq!(weights(&world), [4, 1, 1]);
    assert!(!world.proxier_due_within(Duration::from_hours(1)));
}

#[test]
fn a_returning_endpoint_keeps_its_connections_and_its_weight_grows_again() {
    let mut world = growing(9);
    assert_eq!(weights(&world), [10, 10, 10]);
    world.open(AT, "10.244.3.5", 1);
    world.slice(slice("default/web", &PAIR));
    world.sync();
    assert_eq!(weights(&world), [10, 10, 0]);
    world.written();
    world.slice(slice("default/web", &THREE));
    world.sync();
    assert_eq!(world.written(), [set("10.244.3.5", 1)]);
    world.wait(STEP);
    world.settle();
    assert_eq!(world.written(), [set("10.244.3.5", 2)]);
    // The endpoint disappears while its weight grows.
    world.slice(slice("default/web", &PAIR));
    world.sync();
    assert_eq!(world.written(), [set("10.244.3.5", 0)]);
    world.open(AT, "10.244.3.5", 0);
    world.wait(STEP);
    world.settle();
    assert_eq!(weights(&world), [10, 10]);
    assert!(!world.proxier_due_within(Duration::from_hours(1)));
}

#[test]
fn weights_that_another_program_changed_are_repaired_immediately() {
    let mut world = growing(2);
    let mut damaged = world.kernel.state();
    let at = damaged.snapshot.servers.get_mut(&server(AT)).unwrap();
    let there = at.destinations.iter();
    at.destinations = there.map(|real| real.with_weight(2)).collect();
    drop(damaged);
    world.wait(Duration::from_secs(5));
    world.check();
    world.settle();
    assert_eq!(weights(&world), [10, 10, 3]);
    world.wait(Duration::from_secs(85));
    world.settle();
    assert_eq!(weights(&world), [10, 10, 10]);
}

#[test]
fn many_slow_starts_share_one_timer() {
    const SERVICES: u8 = 20;
    let mut world = serving("wrr");
    let name = |number: u8| format!("default/web{number}");
    for number in 0..SERVICES {
        world.service(Service {
            options: slowly("wrr").options,
            ..service(&name(number), &format!("10.96.1.{number}"), 80)
        });
        world.slice(slice(&name(number), &PAIR));
    }
    world.sync();
    // Another Service gets an endpoint every 200 ms.
    for number in 0..SERVICES {
        world.slice(slice(&name(number), &THREE));
        world.sync();
        world.wait(Duration::from_millis(200));
    }
    world.work();
    let began = world.now;
    let (mut rounds, mut writes) = (0, 0);
    while let Some(due) = world.proxier.next_due(world.now) {
        world.now = due;
        world.settle();
        rounds += 1;
        writes += world.written().len();
    }
    assert_eq!(writes, usize::from(SERVICES) * 9);
    // All endpoints appear within 4 s, and rounds are one second apart. So each step takes at most
    // five rounds.
    assert!(rounds <= 9 * 5, "{rounds}");
    assert!(world.now - began < Duration::from_secs(95));
}
