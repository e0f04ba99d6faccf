use fixtures::name;
use proxy::{EndpointSlice, Event, Failure, Kind, Protocol, Service, ServiceType};

use tokio::runtime::Handle;

use super::*;
use crate::tests::options;
use crate::tests::scripted::{Script, Scripted};

/// Test fixture: an IP family with a scripted mode.
struct World {
    family: Family,
    script: Arc<Script>,
    model: Model,
    metrics: Metrics,
    health: Arc<Health>,
    now: Instant,
}

impl World {
    fn new() -> Self {
        let options = options(&["--ipvs-sync-period=10s"]);
        let health = Arc::new(Health::new(options.modes.shared.sync_period));
        let metrics = Metrics::new();
        let now = Instant::now();
        let (mode, script) = Scripted::mode(IpFamily::V4);
        let recorder = Recorder::off();
        let family = Family::new(
            mode,
            &options,
            &Answering {
                health: Arc::clone(&health),
                runtime: Handle::current(),
            },
            &metrics,
            &Counters::default(),
            &recorder,
            now,
        );
        Self {
            family: family.unwrap(),
            script,
            model: Model::new(),
            metrics,
            health,
            now,
        }
    }

    fn told(&mut self, events: impl IntoIterator<Item = Event>) {
        events.into_iter().for_each(|event| self.model.apply(event));
        self.family.add(self.model.take_changes(), Some(self.now));
    }

    /// Runs one turn of the daemon, `later` seconds after the previous turn.
    async fn turn(&mut self, later: u64) {
        self.now += Duration::from_secs(later);
        self.family.book(&self.model, self.now).await;
        self.family.take_in(&self.model, self.now);
        self.family.proceed(&self.model, self.now);
        self.family.conclude(self.now);
    }

    fn stands(&self, stuck_since: Option<Instant>, is_settled: bool) {
        self.script.state().standing = Standing {
            pending_since: stuck_since,
            stuck_since,
            is_settled,
            ..Standing::default()
        };
    }

    /// Returns the value of one metric sample, in thousandths.
    fn metric(&self, series: &str) -> u64 {
        let text = self.metrics.classic();
        let start = format!("{series} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        line.map_or(0, |value| {
            let value: f64 = value.parse().unwrap();
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "counts, and times of this century"
            )]
            let thousandths = (value * 1000.0).round() as u64;
            thousandths
        })
    }

    fn syncs(&self) -> u64 {
        self.metric("kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}") / 1000
    }

    fn measured(&self) -> u64 {
        self.metric("kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"}")
            / 1000
    }

    fn last_timestamp(&self) -> u64 {
        self.metric("kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}")
    }

    fn is_ready(&self) -> bool {
        self.health.progress()[&IpFamily::V4].updated.is_some()
    }
}

fn service(service: &str, health_check: Option<u16>) -> Event {
    Event::ServiceApplied(Service {
        kind: ServiceType::LoadBalancer,
        external_local: health_check.is_some(),
        health_check_node_port: health_check,
        ..fixtures::service(service, [10, 96, 0, 10])
    })
}

fn slice(of: &str, node: &str, triggered: bool) -> Event {
    let endpoints = [fixtures::endpoint([10, 244, 0, 1], node)];
    Event::SliceApplied(EndpointSlice {
        change_trigger: triggered.then(|| SystemTime::now() + Duration::from_millis(1)),
        ..fixtures::slice(of, of, &[Protocol::Tcp], endpoints)
    })
}

fn settled(services: &[&str]) -> Report {
    Report {
        written: 1,
        settled: services.iter().map(|service| name(service)).collect(),
        written_for: services.iter().map(|service| name(service)).collect(),
        ..Report::default()
    }
}

#[tokio::test]
async fn a_node_whose_writes_are_all_refused_is_neither_ready_nor_healthy() {
    let mut world = World::new();
    world.told([service("web", None)]);
    let start = Some(world.now);
    world.stands(start, false);
    world.turn(0).await;
    world.stands(start, true);
    world.script.finish(Report {
        failures: vec![Failure {
            object: "virtual server 10.96.0.10:80/TCP".to_owned(),
            owner: None,
            reason: "no such scheduler".to_owned(),
        }],
        ..Report::default()
    });
    world.turn(1).await;
    for (later, is_healthy) in [(1, true), (17, true), (1, false)] {
        world.turn(later).await;
        assert!(!world.is_ready());
        assert_eq!(world.health.is_healthy(world.now), is_healthy, "{later}");
    }
    assert_eq!(world.last_timestamp(), 0);
    assert_eq!(world.syncs(), 1, "it was tried");
    // Now the kernel accepts the change.
    world.stands(None, true);
    world.script.finish(settled(&["web"]));
    world.turn(1).await;
    assert!(world.is_ready() && world.health.is_healthy(world.now));
}

#[tokio::test]
async fn programming_latency_is_measured_when_the_service_is_written() {
    let mut world = World::new();
    world.told([
        service("web", None),
        slice("web", "node1", true),
        service("dns", None),
        slice("dns", "node1", true),
    ]);
    world.turn(0).await;
    assert_eq!(world.measured(), 0);
    world.script.finish(settled(&["dns"]));
    world.turn(0).await;
    assert_eq!(world.measured(), 1);
    // A second report about the same Service must not add a measurement.
    world.script.finish(settled(&["dns"]));
    world.turn(0).await;
    assert_eq!(world.measured(), 1);
    world.script.finish(settled(&["web"]));
    world.turn(0).await;
    assert_eq!(world.measured(), 2);
}

#[tokio::test]
async fn service_programming_is_measured_from_the_arrival_of_the_change() {
    let mut world = World::new();
    let series = "kubeproxy_service_programming_duration_seconds";
    let count = |world: &World| world.metric(&format!("{series}_count{{ip_family=\"IPv4\"}}"));
    world.told([service("web", None)]);
    world.turn(0).await;
    world.script.finish(settled(&["web"]));
    world.turn(1).await;
    assert_eq!(count(&world), 0, "it is the first sync's");
    world.told([service("dns", None), service("web", Some(1))]);
    world.turn(0).await;
    world.script.finish(settled(&["dns"]));
    world.turn(2).await;
    assert_eq!(count(&world), 1000);
    world.script.finish(settled(&["dns", "web"]));
    world.turn(1).await;
    assert_eq!(count(&world), 2000, "each once");
    let sum = world.metric(&format!("{series}_sum{{ip_family=\"IPv4\"}}"));
    assert_eq!(sum, 5000, "two seconds and three");
    // This Service needs no write in this IP family.
    world.told([service("dns", Some(2))]);
    world.turn(0).await;
    world.script.finish(Report {
        written_for: [].into(),
        ..settled(&["dns"])
    });
    world.turn(1).await;
    assert_eq!(count(&world), 2000, "nothing was to be written");
}

/// Checks that a change that needs no write completes immediately. Otherwise, the IP family would
/// seem to wait for this change forever.
#[tokio::test]
async fn a_change_that_needs_no_write_completes_immediately() {
    let mut world = World::new();
    world.told([service("web", None)]);
    world.stands(None, true);
    world.turn(0).await;
    let first = world.last_timestamp();
    assert!(first > 0, "all is in the kernel, without a write");
    tokio::time::sleep(Duration::from_millis(20)).await;
    world.turn(1).await;
    assert_eq!(world.last_timestamp(), first, "nothing was asked");
    world.told([service("web", Some(1))]);
    let since = Some(world.now);
    world.stands(since, false);
    world.turn(0).await;
    assert_eq!(world.last_timestamp(), first, "it is not in the kernel yet");
    world.stands(None, true);
    world.turn(0).await;
    assert!(world.last_timestamp() >= first + 20);
    assert_eq!(world.syncs(), 0, "that is no sync");
}

#[tokio::test]
async fn changes_not_yet_passed_to_the_mode_are_pending() {
    let mut world = World::new();
    world.turn(0).await;
    world.script.set_ready(false);
    world.told([service("web", None), service("dns", None)]);
    world.turn(3).await;
    let lag = "kubeproxy_lag_seconds{ip_family=\"IPv4\"}";
    let pending = "kubeproxy_pending_entries{ip_family=\"IPv4\"}";
    let told = world.family.told(&world.model, 0, world.now);
    let before = |at: Instant, seconds| at.checked_sub(Duration::from_secs(seconds)).unwrap();
    let heard = before(world.now, 3);
    assert_eq!(told.standing.pending, 2);
    assert_eq!(told.standing.pending_since, Some(heard));
    assert_eq!(world.metric(pending), 2000, "metrics say the same");
    // The daemon also has a change that no IP family has received yet. This change arrived even
    // earlier than the changes above.
    let earlier = before(heard, 1);
    world
        .family
        .note_late(Some((1, earlier)), &world.model, world.now);
    let told = world.family.told(&world.model, 0, world.now);
    assert_eq!(told.standing.pending, 3);
    assert_eq!(told.standing.pending_since, Some(earlier));
    world.family.note_late(None, &world.model, world.now);
    world.script.set_ready(true);
    world.turn(0).await;
    let told = world.family.told(&world.model, 0, world.now);
    assert_eq!(told.standing.pending, 0);
    assert_eq!(told.standing.pending_since, None);
    assert_eq!((world.metric(pending), world.metric(lag)), (0, 0));
}

#[tokio::test]
async fn removals_blocked_by_an_unreadable_object_count_as_late() {
    let mut world = World::new();
    let complete = |is_whole| {
        [Kind::Service, Kind::EndpointSlice].map(|kind| Event::ListComplete { kind, is_whole })
    };
    let pends = |world: &World, pending, failing| {
        let mut state = world.script.state();
        (state.standing.pending, state.standing.failing) = (pending, failing);
    };
    let since = |world: &mut World| {
        world.now += Duration::from_secs(1);
        world.family.note_late(None, &world.model, world.now);
        world
            .family
            .told(&world.model, 0, world.now)
            .standing
            .pending_since
    };
    world.told(complete(false));
    world.turn(0).await;
    assert_eq!(since(&mut world), None, "there is nothing to be removed");
    pends(&world, 1, 1);
    assert_eq!(since(&mut world), None, "it was tried");
    pends(&world, 2, 1);
    let began = since(&mut world);
    assert_eq!(began, Some(world.now));
    assert_eq!(since(&mut world), began);
    world.told(complete(true));
    assert_eq!(since(&mut world), None, "from now on the mode counts it");
}

#[tokio::test]
async fn a_health_check_port_opens_once_its_service_is_in_the_kernel() {
    let port = || {
        let any = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        any.local_addr().unwrap().port()
    };
    let (first, second) = (port(), port());
    let mut world = World::new();
    world.told([
        service("web", Some(first)),
        slice("web", "node1", false),
        service("dns", Some(second)),
        slice("dns", "node1", false),
    ]);
    world.turn(0).await;
    let is_open = |port| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    assert!(!is_open(first) && !is_open(second));
    world.script.finish(settled(&["dns"]));
    world.turn(0).await;
    assert!(!is_open(first) && is_open(second));
    world.script.finish(settled(&["web"]));
    world.turn(0).await;
    assert!(is_open(first) && is_open(second));
}

#[tokio::test]
async fn a_read_without_a_write_is_not_counted_as_a_sync() {
    let mut world = World::new();
    world.turn(0).await;
    assert_eq!(world.syncs(), 0, "nothing was done");
    let under_way = |world: &World, is_under_way: bool| world.stands(None, !is_under_way);
    // The mode only reads draining endpoints.
    under_way(&world, true);
    world.turn(1).await;
    world.script.finish(Report::default());
    under_way(&world, false);
    world.turn(1).await;
    assert_eq!(world.syncs(), 0);
    // The mode reads draining endpoints again, and then writes.
    under_way(&world, true);
    world.turn(1).await;
    world.script.finish(settled(&[]));
    under_way(&world, false);
    world.turn(2).await;
    assert_eq!(world.syncs(), 1);
    let sum = world.metric("kubeproxy_sync_proxy_rules_duration_seconds_sum{ip_family=\"IPv4\"}");
    assert_eq!(sum, 2000);
    // The mode makes its periodic check, which counts as a sync.
    let before = world.last_timestamp();
    assert!(before > 0);
    world.family.check(world.now);
    under_way(&world, true);
    world.turn(1).await;
    world.script.finish(Report::default());
    under_way(&world, false);
    world.turn(1).await;
    assert_eq!(world.syncs(), 2);
    assert!(world.last_timestamp() > before);
}

#[tokio::test]
async fn a_new_mode_replaces_the_old_mode_when_the_old_mode_is_idle() {
    let mut world = World::new();
    world.told([service("web", None)]);
    world.turn(0).await;
    world.script.state().is_idle = false;
    let (mode, script) = Scripted::mode(IpFamily::V4);
    world.family.renew(mode);
    world.told([service("dns", None)]);
    let proceeds = world.script.state().proceeds;
    world.script.finish(Report::default());
    world.turn(0).await;
    world.family.check(world.now);
    // Until the hand-over, the old mode receives and writes changes, but starts no drift check.
    assert_eq!((world.script.updates(), script.updates()), (2, 0));
    let state = |script: &Script| {
        let state = script.state();
        (state.proceeds, state.served_on, state.checks)
    };
    assert_eq!(state(&world.script), (proceeds, 1, 0));
    world.script.finish(Report::default());
    world.script.state().is_idle = true;
    world.turn(0).await;
    assert_eq!((world.script.updates(), script.updates()), (2, 1));
    // The new mode has not read the node's addresses yet. Until then, the family uses the addresses
    // that the old mode has read.
    assert!(world.family.mode.node_ports().is_none());
    assert!(world.family.node_ports.is_some());
    let told = script.last_update();
    assert_eq!(told.services, [name("web"), name("dns")].into());
    assert!(told.node);
    assert_eq!(script.state().proceeds, 1);
}

#[tokio::test]
async fn completed_writes_are_reported_despite_endless_changes() {
    let mut world = World::new();
    world.told([service("web", None)]);
    world.turn(0).await;
    // Some kernel work is always running, but only changes that arrived after the previous turn are
    // pending.
    for _ in 0..5 {
        let later = world.now;
        world.script.finish(Report {
            written: 1,
            ..Report::default()
        });
        world.script.state().standing = Standing {
            pending_since: Some(later + Duration::from_millis(1)),
            is_settled: false,
            ..Standing::default()
        };
        world.turn(12).await;
    }
    assert_eq!(world.syncs(), 2);
    let age = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    let age = age.as_millis() - u128::from(world.last_timestamp());
    assert!(age < 14_000, "{age} ms");
}

#[tokio::test]
async fn the_number_of_queued_trigger_times_is_limited() {
    let mut world = World::new();
    for family in [IpFamily::V4, IpFamily::V6] {
        let trigger = Trigger {
            service: name("web"),
            family,
            at: SystemTime::now(),
        };
        world.family.add(
            Changes {
                triggers: vec![trigger; TRIGGERS_MAX],
                ..Changes::default()
            },
            None,
        );
    }
    assert_eq!(world.family.changes.triggers.len(), TRIGGERS_MAX);
    assert!(
        world
            .family
            .changes
            .triggers
            .iter()
            .all(|trigger| trigger.family == IpFamily::V4)
    );
}

#[test]
fn the_number_of_remembered_change_times_is_limited() {
    let mut triggers = Triggers::default();
    let trigger = |number: usize| Trigger {
        service: name(&format!("s{}", number % 7)),
        family: IpFamily::V4,
        at: SystemTime::now(),
    };
    triggers.extend((0..TRIGGERS_MAX + 7).map(trigger));
    assert_eq!(triggers.count, TRIGGERS_MAX);
    let taken: usize = (0..7)
        .map(|number| triggers.take(&name(&format!("s{number}"))).len())
        .sum();
    assert_eq!((taken, triggers.count), (TRIGGERS_MAX, 0));
}
