//! Tests of draining on the strict fake kernel: which destinations drain, when the proxier queries
//! their connections, and the effect of events during a drain.
#![allow(
    clippy::indexing_slicing,
    reason = "a step names a Service, a virtual server or a pod by its number"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use proxy::{Event, IpFamily, Kind, Mode as _, Protocol, ServiceAddress, Target};
use proxy_ipvs::fake::FakeKernel;
use proxy_ipvs::{Config, Op, RealServer, VirtualServerKey};

use super::support::{World, ip, server, service, slice, target};

const WEB: &str = "10.96.0.10:80";
/// External address and port that two Services claim.
const SHARED: &str = "198.51.100.7:80";

/// Replaces a Service's endpoints, all of which are on another node.
fn endpoints(world: &mut World, of: &str, pods: &[&str]) {
    let pods: Vec<String> = pods.iter().map(|pod| format!("{pod}@node2")).collect();
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    world.slice(slice(of, &pods));
}

/// Changes the destinations of a virtual server as another program would.
fn edit(world: &World, of: &str, change: impl FnOnce(&mut Vec<RealServer>)) {
    let mut state = world.kernel.state();
    if let Some(server) = state.snapshot.servers.get_mut(&server(of)) {
        let mut destinations = server.destinations.to_vec();
        change(&mut destinations);
        server.destinations = destinations.into();
    }
}

fn refuse(world: &World, op: &str) {
    let mut state = world.kernel.state();
    state.refusals.insert(op.to_owned(), "not today".to_owned());
}

fn tell_slices(world: &mut World, is_whole: bool) {
    world.model.apply(Event::ListComplete {
        kind: Kind::EndpointSlice,
        is_whole,
    });
}

/// Returns a node that serves `default/web` with these endpoints.
fn web(pods: &[&str]) -> World {
    let mut world = World::new();
    world.service(service("default/web", "10.96.0.10", 80));
    endpoints(&mut world, "default/web", pods);
    let mut world = world.listed();
    assert_eq!(world.sync().pending, 0);
    world.work();
    world
}

/// Creates a Service with this cluster IP, which claims the external address `SHARED`.
fn claimant(world: &mut World, at: &str, cluster_ip: &str) {
    let mut claimant = service(at, cluster_ip, 80);
    claimant.external_ips = vec![ip("198.51.100.7")];
    claimant.created = Some(if at == "default/old" { 100 } else { 200 });
    world.service(claimant);
}

fn conflict() -> World {
    let mut world = World::new();
    claimant(&mut world, "default/old", "10.96.0.1");
    claimant(&mut world, "default/new", "10.96.0.2");
    endpoints(&mut world, "default/old", &["10.244.2.1"]);
    endpoints(&mut world, "default/new", &["10.244.2.2"]);
    let mut world = world.listed();
    world.sync();
    world
}

/// Advances the clock to each time at which the proxier is due, as the daemon does. Calls `each`
/// after each step, with the elapsed time and the number of failed writes.
fn pass(world: &mut World, lasting: Duration, mut each: impl FnMut(&World, Duration, usize)) {
    let started = world.now;
    loop {
        let failed = world.sync().failures.len();
        each(world, world.now - started, failed);
        let due = world.proxier.next_due(world.now);
        let Some(due) = due.filter(|due| *due <= started + lasting) else {
            world.now = started + lasting;
            return;
        };
        assert!(due > world.now, "the timer goes off without end");
        world.now = due;
    }
}

/// Advances the clock. Returns the times, in ms, at which the proxier queried connections, each
/// with the number of queried virtual servers.
fn looks(world: &mut World, lasting: Duration) -> Vec<(u128, usize)> {
    let mut looks = Vec::new();
    pass(world, lasting, |world, since, _| {
        let count = world.work().0.looks;
        if count > 0 {
            looks.push((since.as_millis(), count));
        }
    });
    looks
}

#[test]
fn a_draining_destination_is_queried_soon_and_then_less_often() {
    let mut world = web(&["10.244.2.1", "10.244.2.2", "10.244.2.3", "10.244.2.4"]);
    for other in 0..100 {
        let at = format!("default/other-{other}");
        world.service(service(&at, &format!("10.97.0.{other}"), 80));
        endpoints(&mut world, &at, &["10.244.2.9"]);
    }
    world.sync();
    world.work();
    for pod in ["10.244.2.2", "10.244.2.3", "10.244.2.4"] {
        world.open(WEB, pod, 5);
    }
    endpoints(&mut world, "default/web", &["10.244.2.1"]);
    let times = looks(&mut world, Duration::from_mins(10));
    assert!(
        times.iter().all(|(_, servers)| *servers == 1),
        "three drain at one virtual server, and a hundred do not: {times:?}"
    );
    let millis: Vec<u128> = times.iter().map(|(millis, _)| *millis).collect();
    assert_eq!(
        millis[..8],
        [0, 250, 750, 1750, 3750, 7750, 15_750, 23_750],
        "right after the weight was written, and then with back-off"
    );
    assert_eq!(times.len(), 80, "once in eight seconds in the end");

    // The last connection ends. The proxier queries once more, and then has no timer any more.
    world.kernel.state().connections.clear();
    assert_eq!(looks(&mut world, Duration::from_mins(10)).len(), 1);
    assert_eq!(world.destinations(WEB).unwrap(), ["10.244.2.1:8080=1"]);
    assert_eq!(world.proxier.next_due(world.now), None);
}

#[test]
fn a_later_drain_of_the_same_service_is_also_queried_soon() {
    let mut world = web(&["10.244.2.1", "10.244.2.2", "10.244.2.3"]);
    world.open(WEB, "10.244.2.2", 1);
    world.open(WEB, "10.244.2.3", 1);
    endpoints(&mut world, "default/web", &["10.244.2.1", "10.244.2.3"]);
    looks(&mut world, Duration::from_mins(1));
    endpoints(&mut world, "default/web", &["10.244.2.1"]);
    let times = looks(&mut world, Duration::from_secs(1));
    assert_eq!(times, [(0, 1), (250, 1), (750, 1)]);
    // If one of two draining endpoints returns, the proxier does not query the other endpoint
    // earlier.
    endpoints(&mut world, "default/web", &["10.244.2.1", "10.244.2.3"]);
    assert_eq!(looks(&mut world, Duration::from_millis(700)), []);
}

#[test]
fn new_endpoints_cause_no_query_of_connections() {
    let mut world = web(&["10.244.2.1"]);
    endpoints(&mut world, "default/web", &["10.244.2.1", "10.244.2.2"]);
    assert_eq!(looks(&mut world, Duration::from_hours(1)), []);
    world.check();
    assert_eq!(looks(&mut world, Duration::from_hours(1)), []);
}

#[test]
fn a_service_that_lost_an_address_conflict_drains_no_endpoint() {
    let mut world = conflict();
    // Changes to the losing Service's endpoints leave the shared address alone.
    for pods in [
        &["10.244.2.2"][..],
        &["10.244.2.2", "10.244.2.3"],
        &["10.244.2.3"],
    ] {
        endpoints(&mut world, "default/new", pods);
        looks(&mut world, Duration::from_mins(1));
        world.check();
        looks(&mut world, Duration::from_mins(1));
        assert_eq!(world.destinations(SHARED).unwrap(), ["10.244.2.1:8080=1"]);
    }
}

#[test]
fn the_next_owner_of_an_address_drains_the_old_destinations() {
    let mut world = conflict();
    world.open(SHARED, "10.244.2.1", 1);
    world.delete_service("default/old");
    world.sync();
    assert_eq!(
        world.destinations(SHARED).unwrap(),
        ["10.244.2.1:8080=0", "10.244.2.2:8080=1"]
    );
    // The older Service returns and owns the address again. The newer Service's endpoint drains,
    // and the older Service's gets its weight back.
    world.open(SHARED, "10.244.2.2", 1);
    claimant(&mut world, "default/old", "10.96.0.1");
    world.sync();
    assert_eq!(
        world.destinations(SHARED).unwrap(),
        ["10.244.2.1:8080=1", "10.244.2.2:8080=0"]
    );
    world.kernel.state().connections.clear();
    looks(&mut world, Duration::from_secs(10));
    assert_eq!(world.destinations(SHARED).unwrap(), ["10.244.2.1:8080=1"]);
}

#[test]
fn a_draining_endpoint_of_the_next_owner_of_an_address_serves_again() {
    let mut world = conflict();
    endpoints(&mut world, "default/new", &["10.244.2.1", "10.244.2.2"]);
    endpoints(&mut world, "default/old", &["10.244.2.3"]);
    world.open(SHARED, "10.244.2.1", 1);
    world.sync();
    assert_eq!(
        world.destinations(SHARED).unwrap(),
        ["10.244.2.1:8080=0", "10.244.2.3:8080=1"]
    );
    world.delete_service("default/old");
    looks(&mut world, Duration::from_mins(1));
    assert_eq!(
        world.destinations(SHARED).unwrap(),
        ["10.244.2.1:8080=1", "10.244.2.2:8080=1"]
    );
}

#[test]
fn the_endpoints_of_a_deleted_service_do_not_drain() {
    let mut world = web(&["10.244.2.1", "10.244.2.2"]);
    world.open(WEB, "10.244.2.2", 1);
    endpoints(&mut world, "default/web", &["10.244.2.1"]);
    world.sync();
    world.work();
    world.delete_service("default/web");
    world.wait(Duration::from_mins(1));
    assert_eq!(looks(&mut world, Duration::from_hours(1)), []);
    assert_eq!(world.destinations(WEB), None);
    // A new virtual server at this address and port does not get the deleted one's draining
    // destinations.
    world.service(service("default/web", "10.96.0.10", 80));
    assert_eq!(looks(&mut world, Duration::from_hours(1)), []);
    assert_eq!(world.destinations(WEB).unwrap(), ["10.244.2.1:8080=1"]);
}

#[test]
fn drains_continue_after_a_change_of_the_service() {
    let mut world = web(&["10.244.2.1", "10.244.2.2"]);
    world.open(WEB, "10.244.2.2", 1);
    endpoints(&mut world, "default/web", &["10.244.2.1"]);
    world.sync();
    world.work();
    let mut sticky = service("default/web", "10.96.0.10", 80);
    sticky.affinity_seconds = Some(10_800);
    world.service(sticky.clone());
    world.sync();
    assert_eq!(world.written(), ["change virtual server 10.96.0.10:80/TCP"]);
    // A new name of the port gives the entries another owner.
    sticky.ports[0].name = "http".into();
    let mut named = slice("default/web", &["10.244.2.1@node2"]);
    named.ports[0].name = "http".into();
    world.service(sticky);
    world.slice(named);
    world.sync();
    assert_eq!(world.written(), Vec::<String>::new());
    world.kernel.state().connections.clear();
    looks(&mut world, Duration::from_secs(10));
    assert_eq!(world.destinations(WEB).unwrap(), ["10.244.2.1:8080=1"]);
}

#[test]
fn another_programs_changes_of_draining_destinations_are_repaired() {
    let mut world = web(&["10.244.2.1", "10.244.2.2", "10.244.2.3"]);
    world.open(WEB, "10.244.2.2", 1);
    world.open(WEB, "10.244.2.3", 1);
    endpoints(&mut world, "default/web", &["10.244.2.1"]);
    world.sync();
    world.work();
    world.check();
    world.sync();
    assert_eq!(world.written(), Vec::<String>::new(), "nothing has changed");

    // Another program changes a weight, removes a destination and adds an unwanted destination.
    edit(&world, WEB, |destinations| {
        let real = |pod, weight| RealServer::new(target(pod)).with_weight(weight);
        *destinations = vec![
            real("10.244.2.1", 1),
            real("10.244.2.2", 7),
            real("10.244.2.9", 1),
        ];
    });
    world.open(WEB, "10.244.2.9", 1);
    world.check();
    world.sync();
    assert_eq!(
        world.written(),
        [
            "set destination 10.244.2.2:8080 of 10.96.0.10:80/TCP to weight 0",
            "set destination 10.244.2.9:8080 of 10.96.0.10:80/TCP to weight 0",
        ]
    );
    world.kernel.state().connections.clear();
    looks(&mut world, Duration::from_secs(10));
    assert_eq!(world.destinations(WEB).unwrap(), ["10.244.2.1:8080=1"]);
}

#[test]
fn a_draining_destination_that_another_program_removed_is_not_created_again() {
    let mut world = web(&["10.244.2.1", "10.244.2.2"]);
    refuse(
        &world,
        "add destination 10.244.2.66:8080 to 10.96.0.10:80/TCP",
    );
    world.open(WEB, "10.244.2.2", 1);
    endpoints(&mut world, "default/web", &["10.244.2.1", "10.244.2.66"]);
    // While a failed write of the virtual server waits for its retry, another program removes the
    // draining destination.
    world.sync();
    edit(&world, WEB, |destinations| {
        destinations.retain(|real| real.target != target("10.244.2.2"));
    });
    world.check();
    world.settle();
    world.kernel.state().refusals.clear();
    world.work();
    world.wait(Duration::from_secs(1));
    world.sync();
    assert_eq!(
        world.written(),
        ["add destination 10.244.2.66:8080 to 10.96.0.10:80/TCP"]
    );
}

#[test]
fn a_refused_destination_does_not_stop_drains_of_the_same_virtual_server() {
    let mut world = web(&["10.244.2.1", "10.244.2.2"]);
    let refused = "add destination 10.244.2.66:8080 to 10.96.0.10:80/TCP";
    refuse(&world, refused);
    endpoints(&mut world, "default/web", &["10.244.2.1", "10.244.2.66"]);
    let synced = world.sync();
    assert_eq!((synced.pending, synced.failing), (1, 1));
    looks(&mut world, Duration::from_mins(2));
    assert_eq!(world.destinations(WEB).unwrap(), ["10.244.2.1:8080=1"]);
    world.work();
    // The intervals between retries of the refused destination grow, even while other destinations
    // change.
    endpoints(
        &mut world,
        "default/web",
        &["10.244.2.3", "10.244.2.4", "10.244.2.66"],
    );
    let (mut written, mut tries) = (Vec::new(), 0);
    pass(&mut world, Duration::from_mins(2), |world, _, failed| {
        written.extend(world.written());
        tries += failed;
    });
    assert_eq!(
        world.destinations(WEB).unwrap(),
        ["10.244.2.3:8080=1", "10.244.2.4:8080=1"]
    );
    assert!((6..=12).contains(&tries), "{tries}");
    assert_eq!(written.len(), 4, "{written:#?}");
    // The kernel refuses the only wanted destination. The old destinations stay until the kernel
    // accepts it.
    endpoints(&mut world, "default/web", &["10.244.2.66"]);
    looks(&mut world, Duration::from_mins(2));
    assert_eq!(
        world.destinations(WEB).unwrap(),
        ["10.244.2.3:8080=0", "10.244.2.4:8080=0"]
    );
    world.kernel.state().refusals.clear();
    looks(&mut world, Duration::from_mins(2));
    assert_eq!(world.destinations(WEB).unwrap(), ["10.244.2.66:8080=1"]);
}

#[test]
fn a_refused_destination_does_not_stop_removals_of_udp_destinations() {
    let mut world = World::new();
    let mut dns = service("default/web", "10.96.0.10", 80);
    dns.ports[0].protocol = Protocol::Udp;
    world.service(dns);
    let slice_of = |pods: &[&str]| {
        let pods: Vec<String> = pods.iter().map(|pod| format!("{pod}@node2")).collect();
        let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
        let mut slice = slice("default/web", &pods);
        slice.ports[0].protocol = Protocol::Udp;
        slice
    };
    world.slice(slice_of(&["10.244.2.1", "10.244.2.2"]));
    let mut world = world.listed();
    assert_eq!(world.sync().pending, 0);
    refuse(
        &world,
        "add destination 10.244.2.66:8080 to 10.96.0.10:80/UDP",
    );
    world.slice(slice_of(&["10.244.2.1", "10.244.2.66"]));
    looks(&mut world, Duration::from_secs(5));
    let web = server(WEB).address().unwrap();
    let key = ServiceAddress::new(web.address, web.port, Protocol::Udp).into();
    let there = world.kernel.state().snapshot.servers[&key].clone();
    let there: Vec<Target> = there.destinations.iter().map(|real| real.target).collect();
    assert_eq!(there, [target("10.244.2.1")]);
}

#[test]
fn a_destination_stays_if_the_kernel_refuses_its_weight_0() {
    let mut world = web(&["10.244.2.1", "10.244.2.2"]);
    refuse(
        &world,
        "set destination 10.244.2.2:8080 of 10.96.0.10:80/TCP to weight 0",
    );
    endpoints(&mut world, "default/web", &["10.244.2.1"]);
    looks(&mut world, Duration::from_mins(1));
    assert_eq!(
        world.destinations(WEB).unwrap(),
        ["10.244.2.1:8080=1", "10.244.2.2:8080=1"],
        "it may get a connection at any moment"
    );
    world.kernel.state().refusals.clear();
    looks(&mut world, Duration::from_mins(1));
    assert_eq!(world.destinations(WEB).unwrap(), ["10.244.2.1:8080=1"]);
}

#[test]
fn a_refused_removal_of_a_drained_destination_is_retried_after_pauses() {
    let mut world = web(&["10.244.2.1", "10.244.2.2"]);
    refuse(
        &world,
        "remove destination 10.244.2.2:8080 from 10.96.0.10:80/TCP",
    );
    endpoints(&mut world, "default/web", &["10.244.2.1"]);
    let mut tries = 0;
    pass(&mut world, Duration::from_mins(2), |_, _, failed| {
        tries += failed;
    });
    assert!((5..=20).contains(&tries), "{tries}");
    world.kernel.state().refusals.clear();
    looks(&mut world, Duration::from_mins(1));
    assert_eq!(world.destinations(WEB).unwrap(), ["10.244.2.1:8080=1"]);
}

#[test]
fn after_a_restart_no_drain_ends_before_the_initial_lists_are_complete() {
    let mut world = web(&["10.244.2.1", "10.244.2.2", "10.244.2.3"]);
    world.open(WEB, "10.244.2.2", 1);
    endpoints(&mut world, "default/web", &["10.244.2.1", "10.244.2.3"]);
    world.sync();
    let mut world = world.restarted(Config::default());
    world.service(service("default/web", "10.96.0.10", 80));
    endpoints(&mut world, "default/web", &["10.244.2.1"]);
    for kind in [Kind::Service, Kind::Node] {
        let is_whole = true;
        world.model.apply(Event::ListComplete { kind, is_whole });
    }
    tell_slices(&mut world, false);
    // The connections have ended, and a second endpoint has disappeared. Both destinations continue
    // to drain, because a list of objects is incomplete.
    world.kernel.state().connections.clear();
    world.work();
    assert_eq!(looks(&mut world, Duration::from_hours(1)), []);
    assert_eq!(
        world.destinations(WEB).unwrap(),
        [
            "10.244.2.1:8080=1",
            "10.244.2.2:8080=0",
            "10.244.2.3:8080=1"
        ]
    );
    tell_slices(&mut world, true);
    world.check();
    assert_eq!(looks(&mut world, Duration::from_hours(1)), [(0, 1)]);
    assert_eq!(world.destinations(WEB).unwrap(), ["10.244.2.1:8080=1"]);
}

// ---- event sequences ----

const PODS: [&str; 4] = ["10.244.2.1", "10.244.2.2", "10.244.2.3", "10.244.2.4"];
/// Names and cluster IPs of two Services, the older first. Both claim the external address
/// `SHARED`.
const SERVICES: [(&str, &str); 2] = [("default/old", "10.96.0.1"), ("default/new", "10.96.0.2")];
const SERVERS: [&str; 3] = ["10.96.0.1:80", "10.96.0.2:80", SHARED];

#[derive(Debug, Clone)]
enum Step {
    /// A Service gets new endpoints: number of the Service, and bit mask of pods.
    Endpoints(usize, u8),
    Create(usize),
    Delete(usize),
    /// A pod gets connections: number of the virtual server, number of the pod, and number of
    /// connections.
    Connections(usize, usize, u32),
    /// Time passes, in ms.
    Wait(u64),
    Resync,
    /// Another program changes a destination, and a check finds this: number of the virtual server,
    /// number of the pod, and new weight.
    Weigh(usize, usize, u16),
    /// Another program removes a destination, and a check finds this: number of the virtual server,
    /// and number of the pod.
    Remove(usize, usize),
    /// The daemon restarts. The value is true if its lists of objects are complete afterwards.
    Restart(bool),
    /// All lists of objects become complete.
    Whole,
    LoseAcknowledgements,
}

fn step() -> impl Strategy<Value = Step> {
    let (of, at, pod) = (0..2usize, 0..3usize, 0..4usize);
    prop_oneof![
        4 => (of.clone(), 0..16u8).prop_map(|(of, bits)| Step::Endpoints(of, bits)),
        2 => of.clone().prop_map(Step::Create),
        1 => of.prop_map(Step::Delete),
        4 => (at.clone(), pod.clone(), 0..2u32).prop_map(|(at, pod, n)| Step::Connections(at, pod, n)),
        4 => (0..20_000u64).prop_map(Step::Wait),
        1 => Just(Step::Resync),
        1 => (at.clone(), pod.clone(), 0..3u16).prop_map(|(at, pod, n)| Step::Weigh(at, pod, n)),
        1 => (at, pod).prop_map(|(at, pod)| Step::Remove(at, pod)),
        1 => any::<bool>().prop_map(Step::Restart),
        1 => Just(Step::Whole),
        1 => Just(Step::LoseAcknowledgements),
    ]
}

/// State of a random sequence of steps: the API objects, and a simulated node that follows them.
struct Story {
    world: World,
    exists: [bool; 2],
    endpoints: [u8; 2],
    is_whole: bool,
}

impl Story {
    fn new() -> Self {
        let kernel = FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")]);
        Self {
            world: World::with(Config::default(), kernel).listed(),
            exists: [true; 2],
            endpoints: [0; 2],
            is_whole: true,
        }
    }

    fn pods(&self, of: usize) -> Vec<&'static str> {
        let is_endpoint = |bit: &usize| self.endpoints[of] & (1 << bit) != 0;
        (0..PODS.len())
            .filter(is_endpoint)
            .map(|bit| PODS[bit])
            .collect()
    }

    fn tell(&mut self, of: usize) {
        let (name, cluster_ip) = SERVICES[of];
        if self.exists[of] {
            claimant(&mut self.world, name, cluster_ip);
        } else {
            self.world.delete_service(name);
        }
        let pods = self.pods(of);
        endpoints(&mut self.world, name, &pods);
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Endpoints(of, bits) => {
                self.endpoints[of] = bits;
                self.tell(of);
            }
            Step::Create(of) | Step::Delete(of) => {
                self.exists[of] = matches!(step, Step::Create(_));
                self.tell(of);
            }
            Step::Connections(of, pod, count) => self.world.open(SERVERS[of], PODS[pod], count),
            Step::Wait(millis) => self.world.wait(Duration::from_millis(millis)),
            Step::Resync => self.world.check(),
            Step::Weigh(of, pod, weight) => {
                edit(&self.world, SERVERS[of], |destinations| {
                    for real in destinations {
                        if real.target == target(PODS[pod]) {
                            *real = real.with_weight(weight);
                        }
                    }
                });
                self.world.check();
            }
            Step::Remove(of, pod) => {
                edit(&self.world, SERVERS[of], |destinations| {
                    destinations.retain(|real| real.target != target(PODS[pod]));
                });
                self.world.check();
            }
            Step::Restart(is_whole) => {
                let now = self.world.now;
                let kernel = self.world.kernel.clone();
                self.world = World::with(Config::default(), kernel);
                self.world.now = now;
                self.is_whole = is_whole;
                self.tell(0);
                self.tell(1);
                for kind in [Kind::Service, Kind::Node] {
                    let is_whole = true;
                    self.world
                        .model
                        .apply(Event::ListComplete { kind, is_whole });
                }
                tell_slices(&mut self.world, is_whole);
            }
            Step::Whole => {
                self.is_whole = true;
                tell_slices(&mut self.world, true);
                // A check, as the daemon starts one when its lists become complete.
                self.world.check();
            }
            Step::LoseAcknowledgements => self.world.kernel.state().lose_acknowledgements = true,
        }
    }

    /// Returns the endpoints that each virtual server should have.
    fn wanted(&self) -> BTreeMap<VirtualServerKey, BTreeSet<Target>> {
        let mut wanted = BTreeMap::new();
        // The older Service comes last, because it wins the shared address.
        for of in [1, 0].into_iter().filter(|of| self.exists[*of]) {
            let endpoints: BTreeSet<Target> = self.pods(of).into_iter().map(target).collect();
            wanted.insert(server(SERVERS[of]), endpoints.clone());
            wanted.insert(server(SHARED), endpoints);
        }
        wanted
    }

    /// Syncs, and checks the writes and the kernel's entries afterwards.
    fn sync(&mut self) -> Result<(), TestCaseError> {
        let connections = self.world.kernel.state().connections.clone();
        self.world.work();
        self.world.sync();
        let (_, done) = self.world.work();
        for op in &done {
            match op {
                Op::RemoveDestination(key, target) => {
                    let open = connections.get(&(*key, *target)).copied();
                    prop_assert_eq!(open.unwrap_or(0), 0, "connections are cut: {}", op);
                }
                Op::AddDestination(_, real) => prop_assert_ne!(real.weight, 0, "{}", op),
                _ => {}
            }
        }
        let wanted = self.wanted();
        let servers = self.world.kernel.state().snapshot.servers.clone();
        for (key, endpoints) in &wanted {
            let Some(server) = servers.get(key) else {
                return Err(TestCaseError::fail(format!("{key} is missing")));
            };
            for endpoint in endpoints {
                let weight = server.destination(*endpoint).map(|real| real.weight);
                prop_assert_eq!(weight, Some(1), "{} at {}", endpoint.ip, key);
            }
            let mut left = server
                .destinations
                .iter()
                .filter(|real| !endpoints.contains(&real.target));
            prop_assert!(
                !self.is_whole || left.all(|real| real.weight == 0),
                "{} has {:?}",
                key,
                server.destinations
            );
        }
        prop_assert!(!self.is_whole || servers.len() == wanted.len());
        let due = self.world.proxier.next_due(self.world.now);
        prop_assert!(
            due.is_none_or(|due| due > self.world.now),
            "the timer goes off without end"
        );
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks three properties under random events:
    ///
    /// - Endpoints get their weight immediately.
    /// - Destinations without an endpoint get no new connection, and lose no open connection.
    /// - In the end, no leftover destination and no timer remains.
    #[test]
    fn after_any_changes_endpoints_serve_and_removed_destinations_drain(steps in proptest::collection::vec(step(), 1..40)) {
        let mut story = Story::new();
        story.tell(0);
        story.tell(1);
        story.sync()?;
        for step in &steps {
            story.take(step);
            story.sync()?;
        }
        story.take(&Step::Whole);
        story.world.kernel.state().connections.clear();
        story.sync()?;
        while let Some(due) = story.world.proxier.next_due(story.world.now) {
            story.world.now = due;
            story.sync()?;
        }
        let left: BTreeMap<_, BTreeSet<_>> = story.world.kernel.state().snapshot.servers.iter()
            .map(|(key, server)| (*key, server.destinations.iter().map(|real| real.target).collect()))
            .collect();
        prop_assert_eq!(left, story.wanted());
    }
}
