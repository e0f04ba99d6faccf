//! Tests the engine with a minimal mode. This mode opens a socket for each cluster IP and port. It
//! reads only the node's addresses from the kernel, and writes no rules.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod mode;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use engine::{Engine, Lanes};
use fixtures::KINDS;
use futures::executor::block_on;
use proxy::{
    Event, IpFamily, Mode as _, Model, NamespacedName, NodeFacts, Notice, Report, Service,
};

use mode::{Kernel, NoFlags, Userspace};

/// The minimal mode on a fake kernel, with an object model.
struct World {
    kernel: Kernel,
    mode: Engine<Userspace, Kernel>,
    model: Model,
    now: Instant,
}

impl World {
    fn new() -> Self {
        let (kernel, now) = (Kernel::default(), Instant::now());
        let lanes = Lanes::inline(|| Arc::clone(&kernel));
        let node = NodeFacts::new(IpFamily::V4, "node1");
        let mut model = Model::new();
        fixtures::start_lists(&mut model, &KINDS);
        Self {
            mode: Engine::new(NoFlags, node, lanes, now),
            kernel,
            model,
            now,
        }
    }

    fn listed(mut self) -> Self {
        fixtures::complete_lists(&mut self.model, &KINDS, true);
        self
    }

    fn service(&mut self, name: &str, created: i64, address: &str) {
        self.model.apply(Event::ServiceApplied(Service {
            created: Some(created),
            ..fixtures::service(name, address.parse::<IpAddr>().unwrap())
        }));
    }

    /// Runs the mode until it has no more work. Returns one report with the content of all reports.
    fn settle(&mut self) -> Report {
        fixtures::settle(&mut self.mode, &self.model, self.now)
    }

    fn sync(&mut self) -> Report {
        let changes = self.model.take_changes();
        self.mode.update(&self.model, &changes, self.now);
        self.settle()
    }

    fn open(&self) -> Vec<String> {
        let node = self.kernel.lock().unwrap();
        node.open.iter().map(ToString::to_string).collect()
    }
}

#[test]
fn a_service_is_reported_after_its_entry_is_written() {
    let mut world = World::new().listed();
    world.service("web", 1, "10.96.0.1");
    let report = world.sync();
    assert_eq!((report.written, report.settled.len()), (1, 1));
    assert!(report.written_for.contains(&report.settled[0]));
    assert_eq!(world.open(), ["10.96.0.1:80"]);
    let standing = world.mode.standing();
    assert!(standing.is_settled && standing.pending_since.is_none());
    assert_eq!(world.sync().written, 0);
    assert_eq!(world.mode.next_due(world.now), None, "idle is idle");
}

#[test]
fn a_service_that_needs_no_write_is_reported_as_settled() {
    let mut world = World::new().listed();
    world.service("a", 1, "10.96.0.1");
    world.sync();
    let mut context = Context::from_waker(Waker::noop());
    assert!(world.mode.poll_finished(&mut context).is_pending());
    world.service("a", 2, "10.96.0.1");
    let changes = world.model.take_changes();
    world.mode.update(&world.model, &changes, world.now);
    world.mode.proceed(&world.model, world.now);
    assert!(world.mode.poll_finished(&mut context).is_ready());
    let told = world.mode.book(&world.model, world.now).unwrap();
    assert_eq!((told.written, told.settled.len()), (0, 1));
    assert!(told.written_for.is_empty(), "{told:?}");
    assert!(world.mode.poll_finished(&mut context).is_pending());
}

#[test]
fn no_entry_is_removed_before_the_initial_lists_are_complete() {
    let mut world = World::new();
    world.service("web", 1, "10.96.0.1");
    world.sync();
    let gone = NamespacedName::new("default", "web");
    world.model.apply(Event::ServiceDeleted(gone));
    world.sync();
    assert_eq!(world.open(), ["10.96.0.1:80"]);
    assert_eq!(world.mode.standing().pending_since, None, "it is not late");
    let mut world = world.listed();
    world.sync();
    assert_eq!(world.open(), [""; 0]);
}

#[test]
fn a_refused_entry_is_retried_and_its_service_stays_unsettled() {
    let mut world = World::new().listed();
    let at: SocketAddr = "10.96.0.1:80".parse().unwrap();
    world.kernel.lock().unwrap().refuses.insert(at);
    world.service("web", 1, "10.96.0.1");
    let report = world.sync();
    assert_eq!((report.failures.len(), report.settled.len()), (1, 0));
    let standing = world.mode.standing();
    assert_eq!(
        (standing.failing, standing.stuck_since),
        (1, Some(world.now))
    );
    world.kernel.lock().unwrap().refuses.clear();
    assert_eq!(world.settle().written, 0, "it is not due");
    world.now = world.mode.next_due(world.now).unwrap();
    assert_eq!(world.settle().settled.len(), 1);
    assert_eq!(world.mode.standing().stuck_since, None);
}

#[test]
fn an_unreadable_kernel_is_reported_and_read_again() {
    let mut world = World::new().listed();
    world.kernel.lock().unwrap().is_unreadable = true;
    world.service("web", 1, "10.96.0.1");
    let report = world.sync();
    assert_eq!((report.unreadable.len(), report.written), (1, 1));
    assert!(world.mode.node_ports().is_none() && world.mode.is_ready());
    world.kernel.lock().unwrap().is_unreadable = false;
    world.now = world.mode.next_due(world.now).unwrap();
    world.settle();
    assert!(world.mode.node_ports().is_some());
    // A notification about an unknown address makes the mode read all addresses soon. A
    // notification about a known address does not.
    let notice = |text: &str| Notice::AddressAdded(text.parse().unwrap());
    for (address, reads) in [("192.0.2.1", 2), ("192.0.2.2", 3), ("2001:db8::1", 3)] {
        world.mode.notice(&notice(address), world.now);
        world.settle();
        world.now += Duration::from_millis(50);
        world.settle();
        assert_eq!(world.kernel.lock().unwrap().reads, reads, "{address}");
    }
}

#[test]
fn node_ports_are_unknown_before_the_first_update() {
    let mut world = World::new().listed();
    world.settle();
    assert!(world.mode.node_addresses().is_some());
    assert!(world.mode.node_ports().is_none());
    world.sync();
    assert!(world.mode.node_ports().is_some());
}

#[test]
fn the_older_of_two_services_gets_the_entry_that_both_claim() {
    let mut world = World::new().listed();
    world.service("younger", 2, "10.96.0.1");
    world.service("older", 1, "10.96.0.1");
    let conflicts = world.sync().conflicts.unwrap();
    let told = conflicts
        .first()
        .map(|of| (of.winner.to_string(), of.loser.to_string()));
    assert_eq!(
        told,
        Some(("default/older".into(), "default/younger".into()))
    );
}

#[test]
fn conflicts_of_one_namespace_are_listed_up_to_a_limit_and_counted_beyond_it() {
    const MANY: i64 = 1_000;
    let mut world = World::new().listed();
    for created in 1..=MANY {
        world.service(&format!("large-{created:04}"), created, "10.96.0.1");
    }
    let told = world.sync();
    let conflicts = told.conflicts.unwrap();
    assert_eq!(conflicts.len(), engine::CONFLICTS_MAX);
    // The oldest Service owns the address, so every other Service has a conflict.
    assert_eq!(
        conflicts.len() + told.more_conflicts,
        usize::try_from(MANY).unwrap() - 1
    );
    let losers: Vec<String> = conflicts.iter().map(|of| of.loser.to_string()).collect();
    assert_eq!(losers.first().unwrap(), "default/large-0002");
    // The claim of this Service was known before, so its change causes no new conflict.
    world.service("large-0500", 500, "10.96.0.1");
    assert_eq!(world.sync().conflicts, None);
}

#[test]
fn a_preview_writes_nothing() {
    let mut world = World::new().listed();
    world.service("web", 1, "10.96.0.1");
    block_on(world.mode.read(&world.model, world.now)).unwrap();
    let changes = world.model.take_changes();
    world.mode.update(&world.model, &changes, world.now);
    let kernel = Arc::clone(&world.kernel);
    let plans = block_on(world.mode.preview(world.now, |_, _| {}));
    assert_eq!(plans.iter().map(BTreeMap::len).sum::<usize>(), 1);
    assert!(kernel.lock().unwrap().open.is_empty());
}
