//! Tests iptables mode on the strict fake kernel.
#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fixtures::{
    KINDS, SyncOutcome, complete_lists, name, numbered as service, settle_until_due, slice_of,
    start_lists,
};
use iptables::Input;
use netlink_batch::Worker;
use proptest::prelude::*;
use proxy::{
    Conflict, EndpointPort, EndpointSlice, Event, IpFamily, Kind, LocalDetector, Mode as _, Model,
    NamespacedName, Node, NodeFacts, NodePortAddresses, Notice, Protocol, Service, ServicePort,
    Unreadable,
};
use proxy_iptables::fake::{FakeKernel, FakeState};
use proxy_iptables::{Config, Kernel, Lanes, Proxier, Refusal, Table};

/// A test node: a proxier of iptables mode, a model, and a fake kernel.
struct World<K: Kernel = FakeKernel> {
    kernel: FakeKernel,
    proxier: Proxier<K>,
    model: Model,
    now: Instant,
    conflicts: Vec<Conflict>,
}

fn config() -> Config {
    Config {
        detector: LocalDetector::SourceNet("10.244.0.0/16".parse().unwrap()),
        localhost_node_ports: true,
        modes: &[&proxy_ipvs::FOOTPRINT],
        ..Config::default()
    }
}

fn proxier(kernel: &FakeKernel) -> Proxier<FakeKernel> {
    proxier_with(kernel, config())
}

fn proxier_with(kernel: &FakeKernel, config: Config) -> Proxier<FakeKernel> {
    on_lanes(Lanes::inline(|| kernel.clone()), config)
}

fn on_lanes<K: Kernel>(lanes: Lanes<K>, config: Config) -> Proxier<K> {
    let node = NodeFacts::new(IpFamily::V4, "node1");
    Proxier::new(config, node, lanes, Instant::now())
}

/// A fake kernel that hangs in each read of a single table, while the flag is set and for at most
/// 30 s.
struct Slow(FakeKernel, Arc<AtomicBool>);

impl Kernel for Slow {
    fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, Unreadable> {
        self.0.addresses()
    }

    fn save(
        &mut self,
        table: Option<Table>,
        line: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), Unreadable> {
        let saved = self.0.save(table, line);
        let limit = Instant::now() + Duration::from_secs(30);
        let hangs = || self.1.load(Ordering::Relaxed) && Instant::now() < limit;
        while table.is_some() && hangs() {
            thread::sleep(Duration::from_millis(1));
        }
        saved
    }

    fn restore(&mut self, text: Input<'_>) -> Result<(), Refusal> {
        self.0.restore(text)
    }
}

impl World {
    fn new() -> Self {
        Self::on(FakeKernel::new(&["127.0.0.1", "192.168.0.10"]), true)
    }

    fn on(kernel: FakeKernel, is_whole: bool) -> Self {
        let proxier = proxier(&kernel);
        Self::with(proxier, kernel, is_whole)
    }
}

impl World<Slow> {
    /// Creates a test node whose proxier accesses the kernel on worker threads.
    fn threaded(hangs: &Arc<AtomicBool>) -> Self {
        let kernel = FakeKernel::new(&["127.0.0.1", "192.168.0.10"]);
        let lane = || {
            let slow = Slow(kernel.clone(), hangs.clone());
            Worker::spawn("fake", move || Ok::<_, io::Error>(slow)).unwrap()
        };
        let proxier = on_lanes(Lanes::new([lane(), lane()]), config());
        Self::with(proxier, kernel, true)
    }

    /// Runs the daemon's loop in real time until the condition holds. Returns the elapsed time.
    fn until(&mut self, what: &str, is_so: impl Fn(&FakeState) -> bool) -> Duration {
        let began = Instant::now();
        while !is_so(&self.kernel.state()) {
            assert!(began.elapsed() < Duration::from_secs(20), "{what}");
            self.now = Instant::now();
            while self.proxier.book(&self.model, self.now).is_some() {}
            if self.proxier.is_ready() && self.model.has_changes() {
                let changes = self.model.take_changes();
                self.proxier.update(&self.model, &changes, self.now);
            }
            self.proxier.proceed(&self.model, self.now);
            thread::sleep(Duration::from_millis(1));
        }
        began.elapsed()
    }
}

impl<K: Kernel> World<K> {
    fn with(proxier: Proxier<K>, kernel: FakeKernel, is_whole: bool) -> Self {
        let mut model = Model::new();
        start_lists(&mut model, &KINDS);
        complete_lists(&mut model, &KINDS, is_whole);
        Self {
            proxier,
            kernel,
            model,
            now: Instant::now(),
            conflicts: Vec::new(),
        }
    }

    fn apply(&mut self, event: Event) {
        self.model.apply(event);
    }

    /// Runs the daemon's loop with the model's new changes until no work is left.
    fn sync(&mut self) -> SyncOutcome {
        let changes = self.model.take_changes();
        self.proxier.update(&self.model, &changes, self.now);
        self.settle()
    }

    /// Runs the daemon's loop without new changes, until no work is left.
    fn settle(&mut self) -> SyncOutcome {
        let (model, now) = (&self.model, &mut self.now);
        settle_until_due(&mut self.proxier, model, now, &mut self.conflicts)
    }

    /// Lets time pass, and runs the periodic check of the kernel.
    fn tick(&mut self, later: Duration) -> SyncOutcome {
        self.now += later;
        self.proxier.check(self.now);
        self.settle()
    }

    /// Returns the inputs of `iptables-restore` since the last call.
    fn restores(&self) -> Vec<String> {
        std::mem::take(&mut self.kernel.state().restores)
    }

    /// Changes the rules of a chain as another program would.
    fn damage(&self, table: Table, name: &str, change: impl FnOnce(&mut Vec<String>)) {
        let mut state = self.kernel.state();
        let chains = state.tables.get_mut(&table).unwrap();
        change(chains.get_mut(name).unwrap());
    }

    /// Runs the daemon's loop for this time, and advances the clock from each due time to the next
    /// due time. Returns the number of restores.
    fn restores_within(&mut self, time: Duration) -> usize {
        self.restores();
        let end = self.now + time;
        while let Some(due) = self.proxier.next_due(self.now).filter(|due| *due <= end) {
            self.now = due;
            self.settle();
        }
        self.now = end;
        self.restores().len()
    }

    fn chain(&self, table: Table, name: &str) -> Vec<String> {
        self.kernel.state().tables[&table][name].clone()
    }

    /// Returns the kernel's chains with their rules. Sorts the rules of shared chains.
    fn holds(&self) -> BTreeMap<(Table, String), Vec<String>> {
        let state = self.kernel.state();
        let mut all = BTreeMap::new();
        for (table, chains) in &state.tables {
            for (name, rules) in chains {
                let mut rules = rules.clone();
                if ["SERVICES", "NODEPORTS", "FIREWALL"]
                    .iter()
                    .any(|end| name.ends_with(end))
                {
                    rules.sort();
                }
                all.insert((*table, name.clone()), rules);
            }
        }
        all
    }
}

/// Returns a test node that serves `services` Services with two endpoints each.
fn serving(services: u16) -> World {
    let mut world = World::new();
    for number in 1..=services {
        world.apply(Event::ServiceApplied(service(number)));
        world.apply(slice_of(number, [1, 2]));
    }
    assert_eq!(world.sync().pending, 0);
    world.restores();
    world.kernel.state().saves.clear();
    world
}

fn lines_with(text: &str, part: &str) -> usize {
    text.lines().filter(|line| line.contains(part)).count()
}

#[test]
fn a_restart_reads_once_and_writes_nothing() {
    let mut world = World::new();
    world.apply(Event::ServiceApplied(service(1)));
    world.apply(slice_of(1, [1, 2]));
    let report = world.sync();
    assert_eq!((report.written, report.pending), (1, 0));
    assert_eq!(world.kernel.state().saves, [None]);
    assert_eq!(world.chain(Table::Nat, "KUBE-SERVICES").len(), 2);
    let (mut next, held) = (World::on(world.kernel.clone(), true), world.kernel.saved());
    next.apply(Event::ServiceApplied(service(1)));
    next.apply(slice_of(1, [1, 2]));
    world.restores();
    let report = next.sync();
    assert_eq!((report.written, report.pending), (0, 0));
    assert_eq!((next.kernel.saved(), next.restores().len()), (held, 0));
}

#[test]
fn the_cost_of_a_change_does_not_grow_with_the_number_of_services() {
    let cost = |services| {
        let mut world = serving(services);
        world.apply(slice_of(1, [1, 2, 3]));
        world.sync();
        world.apply(Event::ServiceApplied(service(250)));
        world.apply(slice_of(250, [1]));
        world.sync();
        world.apply(Event::ServiceDeleted(name("web-250")));
        world.sync();
        let restores = world.restores();
        assert_eq!(restores.len(), 3);
        restores
            .iter()
            .map(|text| text.lines().count())
            .collect::<Vec<_>>()
    };
    assert_eq!(cost(2), cost(200));
    let mut world = serving(3);
    world.apply(slice_of(1, [1, 2, 3]));
    world.sync();
    let text = world.restores().concat();
    // The restore writes only two chains: the chain of the new endpoint, and the chain that chooses
    // an endpoint.
    assert_eq!(lines_with(&text, " - [0:0]"), 2, "{text}");
    assert!(
        !text.contains("*filter") && !text.contains("KUBE-SERVICES"),
        "{text}"
    );
}

#[test]
fn large_services_of_one_namespace_are_written_last_in_several_restores() {
    let tenant = |number: u8| {
        let port = |port: u16| (Arc::<str>::from(format!("p{port}")), port);
        let ports: Vec<(Arc<str>, u16)> = (1..=50).map(port).collect();
        let mut large = service(number.into());
        large.name = NamespacedName::new("tenant", large.name.name());
        large.cluster_ips = [[10, 96, 2, number].into()].into_iter().collect();
        large.external_ips = (1..=20).map(|ip| [203, 0, number, ip].into()).collect();
        let of_service = ports.iter().map(|(name, port)| ServicePort {
            name: name.as_ref().into(),
            protocol: Protocol::Tcp,
            port: *port,
            node_port: None,
        });
        large.ports = of_service.collect();
        let Event::SliceApplied(mut slice) = slice_of(number.into(), 1..=20) else {
            unreachable!("it is a slice");
        };
        slice.name = NamespacedName::new("tenant", slice.name.name());
        slice.service = large.name.clone();
        let of_slice = ports.iter().map(|(name, _)| EndpointPort {
            name: name.as_ref().into(),
            protocol: Protocol::Tcp,
            port: 8080,
        });
        slice.ports = of_slice.collect();
        [Event::ServiceApplied(large), Event::SliceApplied(slice)]
    };
    let mut world = serving(3);
    let changes = || (101..=104).flat_map(tenant).chain([slice_of(1, [1, 3])]);
    for event in changes() {
        world.apply(event);
    }
    assert_eq!(world.sync().pending, 0);
    let restores = world.restores();
    assert!(restores[0].contains("10.244.0.3"), "{}", restores[0]);
    let longest = restores.iter().map(|text| text.lines().count()).max();
    assert!(longest.unwrap() < 4_000, "{longest:?} lines");

    // If another proxier writes all Services with one restore, the rules are the same.
    let mut other = World::new();
    for number in 1..=3 {
        other.apply(Event::ServiceApplied(service(number)));
        other.apply(slice_of(number, [1, 2]));
    }
    for event in changes() {
        other.apply(event);
    }
    assert_eq!(other.sync().pending, 0);
    assert_eq!(other.restores().len(), 1);
    assert_eq!(world.holds(), other.holds());

    // The removal of these Services leaves the rules of the other Services unchanged.
    for number in 101..=104 {
        let large = NamespacedName::new("tenant", &format!("web-{number}"));
        world.apply(Event::ServiceDeleted(large));
    }
    world.apply(slice_of(1, [1, 2]));
    assert_eq!(world.sync().pending, 0);
    assert_eq!(world.holds(), serving(3).holds());
}

#[test]
fn the_rules_of_a_removed_service_are_removed() {
    let mut world = World::new();
    world.sync();
    let before = world.holds();
    let mut with_all = service(1);
    with_all.ports[0].node_port = Some(30080);
    with_all.external_ips = vec!["198.51.100.7".parse().unwrap()];
    with_all.ingress_ips = vec!["203.0.113.10".parse().unwrap()];
    with_all.source_ranges = vec!["198.51.100.0/24".parse().unwrap()];
    with_all.external_local = true;
    with_all.health_check_node_port = Some(31999);
    with_all.affinity_seconds = Some(10);
    world.apply(Event::ServiceApplied(with_all));
    world.apply(slice_of(1, [1, 2]));
    world.sync();
    assert!(world.holds().len() > before.len() + 5);
    world.apply(Event::ServiceDeleted(name("web-1")));
    assert_eq!(world.sync().pending, 0);
    assert_eq!(world.holds(), before);
}

#[test]
fn a_missing_canary_chain_reveals_flushed_tables() {
    let mut world = serving(2);
    let held = world.kernel.saved();
    world.tick(Duration::from_secs(5));
    assert_eq!(world.kernel.state().saves, [Some(Table::Mangle)]);
    world.kernel.flush();
    world.kernel.state().saves.clear();
    world.tick(Duration::from_secs(5));
    assert_eq!(world.kernel.state().saves, [Some(Table::Mangle), None]);
    assert_eq!(world.kernel.saved(), held);
}

#[test]
fn a_slow_canary_check_delays_no_change() {
    let hangs = Arc::new(AtomicBool::new(true));
    let mut world = World::threaded(&hangs);
    world.apply(Event::ServiceApplied(service(1)));
    world.apply(slice_of(1, [1]));
    world.until("a first sync", |state| !state.restores.is_empty());
    world.proxier.check(world.now);
    world.until("a look", |state| state.saves.contains(&Some(Table::Mangle)));
    let mut longest = Duration::ZERO;
    for endpoint in 2..12 {
        world.apply(slice_of(1, [endpoint]));
        let chosen = format!("to-destination 10.244.0.{endpoint}:8080");
        let is_chosen = |state: &FakeState| {
            let last = state.restores.last();
            last.is_some_and(|text| text.contains(&chosen))
        };
        longest = longest.max(world.until("a change", is_chosen));
    }
    assert!(longest < Duration::from_millis(100), "{longest:?}");
    // The canary chain existed until this flush. The next check finds that the chain is missing.
    world.kernel.flush();
    hangs.store(false, Ordering::Relaxed);
    world.proxier.check(world.now);
    world.until("what was flushed", |state| {
        state.tables[&Table::Nat].contains_key("KUBE-SERVICES")
    });
}

#[test]
fn rules_that_another_program_changed_are_repaired_each_sync_period() {
    let mut world = serving(2);
    let held = world.holds();
    let foreign = "-A KUBE-SERVICES -s 9.9.9.9/32 -j ACCEPT".to_owned();
    {
        let mut state = world.kernel.state();
        let nat = state.tables.get_mut(&Table::Nat).unwrap();
        nat.get_mut("KUBE-SERVICES").unwrap().push(foreign);
        nat.get_mut("KUBE-MARK-MASQ").unwrap().clear();
        let endpoint = nat
            .keys()
            .find(|name| name.starts_with("KUBE-SEP-"))
            .cloned();
        nat.get_mut(&endpoint.unwrap()).unwrap().pop();
    }
    world.tick(Duration::from_mins(1));
    assert_eq!(world.holds(), held);
}

#[test]
fn a_refused_base_chain_repair_is_not_recorded_as_written() {
    let mut world = serving(2);
    let held = world.holds();
    world.kernel.state().refused = vec!["-j MASQUERADE".to_owned()];
    world.damage(Table::Nat, "KUBE-POSTROUTING", Vec::clear);
    world.tick(Duration::from_mins(1));
    for _ in 0..8 {
        world.now = world.proxier.next_due(world.now).unwrap();
        world.settle();
    }
    world.damage(Table::Filter, "KUBE-SERVICES", |rules| {
        rules.push("-A KUBE-SERVICES -s 9.9.9.9/32 -j DROP".to_owned());
    });
    world.restores();
    assert_eq!(world.tick(Duration::from_secs(28)).pending, 1);
    assert_eq!(world.restores().len(), 1);
    assert!(world.chain(Table::Filter, "KUBE-SERVICES").is_empty());
    world.kernel.state().refused.clear();
    world.now = world.proxier.next_due(world.now).unwrap();
    assert_eq!((world.settle().pending, world.holds()), (0, held));
}

#[test]
fn rules_without_nfacct_differ_only_in_counting() {
    let held = |has_counters| {
        let mut world = World::new();
        let config = Config {
            has_counters,
            ..config()
        };
        world.proxier = proxier_with(&world.kernel, config);
        let mut exposed = service(1);
        exposed.ports[0].node_port = Some(30080);
        world.apply(Event::ServiceApplied(exposed));
        world.apply(slice_of(1, [1, 2]));
        assert_eq!(world.sync().pending, 0);
        let with = |chain: &str| -> Vec<String> {
            let state = world.kernel.state();
            let rules = state.tables.values().filter_map(|chains| chains.get(chain));
            rules.flatten().cloned().collect()
        };
        (
            with("KUBE-FORWARD"),
            with("KUBE-NODEPORTS"),
            world.kernel.saved(),
        )
    };
    let (forward, node_ports, saved) = held(true);
    let (bare_forward, bare_node_ports, bare) = held(false);
    assert_eq!(
        forward[0],
        "-A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name  ct_state_invalid_dropped_pkts -j DROP"
    );
    assert_eq!(
        bare_forward[0],
        "-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP"
    );
    // The first rule exists only with nfacct. All other rules are the same without nfacct.
    assert_eq!(node_ports[1..], bare_node_ports);
    assert!(
        node_ports[0].contains("-d 127.0.0.0/8 ")
            && node_ports[0].contains("-m nfacct --nfacct-name  localhost_nps_accepted_pkts"),
        "{node_ports:?}"
    );
    let uncounted = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.contains("localhost_nps"));
        lines
            .map(|line| {
                line.replace(
                    " -m nfacct --nfacct-name  ct_state_invalid_dropped_pkts",
                    "",
                )
            })
            .collect()
    };
    assert_eq!(uncounted(&saved), uncounted(&bare));
    assert!(!bare.contains("nfacct"));
}

#[test]
fn rules_of_other_programs_are_kept() {
    let kernel = FakeKernel::new(&[]);
    let foreign = "*nat\n:CNI-X - [0:0]\n-A POSTROUTING -j CNI-X\n-A CNI-X -s 10.0.0.1/32 -j RETURN\nCOMMIT\n\
                   *filter\n-A INPUT -j ACCEPT\nCOMMIT\n";
    kernel.load(foreign);
    let mut world = World::on(kernel, true);
    world.apply(Event::ServiceApplied(service(1)));
    world.sync();
    for line in foreign.lines().filter(|line| line.starts_with("-A")) {
        assert!(world.kernel.saved().contains(line), "{line}");
    }
}

#[test]
fn a_stale_chain_that_another_program_uses_leaves_the_node_healthy() {
    let kernel = FakeKernel::new(&[]);
    let stale = "KUBE-SVC-AAAAAAAAAAAAAAAA";
    let foreign = format!("*nat\n:{stale} - [0:0]\n:MINE - [0:0]\n-A MINE -j {stale}\nCOMMIT\n");
    kernel.load(&foreign);
    let mut world = World::on(kernel, true);
    world.apply(Event::ServiceApplied(service(1)));
    world.apply(slice_of(1, [1, 2]));
    let report = world.sync();
    let failure = report.failures.first().unwrap();
    assert!(failure.object.contains(stale), "{}", failure.object);
    let standing = world.proxier.standing();
    assert_eq!(standing.pending_since, None);
    assert_eq!(standing.stuck_since, None);
    world.damage(Table::Nat, "MINE", Vec::clear);
    for _ in 0..8 {
        world.now += Duration::from_secs(30);
        world.settle();
    }
    assert!(!world.kernel.saved().contains(stale));
    assert_eq!(world.proxier.standing().pending, 0);
}

#[test]
fn every_rule_is_written_after_a_temporary_refusal() {
    let mut world = World::new();
    world.kernel.state().refused = vec!["-j MASQUERADE".to_owned()];
    for number in 1..=3 {
        world.apply(Event::ServiceApplied(service(number)));
        world.apply(slice_of(number, [1, 2]));
    }
    world.sync();
    world.kernel.state().refused.clear();
    world.now = world.proxier.next_due(world.now).unwrap();
    assert_eq!(world.settle().pending, 0);
    let at_a_start = || {
        let mut world = World::new();
        for number in 1..=3 {
            world.apply(Event::ServiceApplied(service(number)));
            world.apply(slice_of(number, [1, 2]));
        }
        world.sync();
        world.holds()
    };
    assert_eq!(world.holds(), at_a_start());
    // Another program removes the rules. The proxier notices this because iptables refuses the next
    // change.
    world.damage(Table::Nat, "KUBE-SERVICES", Vec::clear);
    world.apply(Event::ServiceDeleted(service(3).name));
    world.sync();
    for _ in 0..3 {
        if let Some(due) = world.proxier.next_due(world.now) {
            world.now = due.min(world.now + Duration::from_secs(2));
        }
        if world.settle().pending == 0 {
            break;
        }
    }
    assert_eq!(world.chain(Table::Nat, "KUBE-SERVICES").len(), 2 + 1);
}

#[test]
fn a_refused_service_does_not_affect_other_services() {
    let mut world = World::new();
    world.kernel.state().refused = vec!["-m recent".to_owned()];
    for number in 1..=20 {
        let affinity_seconds = (number == 7 || number == 8).then_some(10);
        world.apply(Event::ServiceApplied(Service {
            affinity_seconds,
            ..service(number)
        }));
        world.apply(slice_of(number, [1, 2]));
    }
    let report = world.sync();
    let named: BTreeSet<String> = report
        .failures
        .iter()
        .filter_map(|failure| Some(failure.owner.as_ref()?.to_string()))
        .collect();
    assert_eq!(
        named,
        ["default/web-7", "default/web-8"].map(str::to_owned).into()
    );
    let served = world.chain(Table::Nat, "KUBE-SERVICES");
    assert_eq!(served.len(), 18 + 1);
    assert!(served.last().unwrap().ends_with("-j KUBE-NODEPORTS"));
    assert!(world.restores().len() < 32);
    // A change to a Service that was not refused is written without a failure.
    world.apply(slice_of(1, [1, 2, 3]));
    let report = world.sync();
    assert!(report.failures.is_empty(), "{report:?}");
    world.kernel.state().refused.clear();
    world.now += Duration::from_mins(1);
    assert_eq!(world.sync().pending, 0);
    assert_eq!(world.chain(Table::Nat, "KUBE-SERVICES").len(), 20 + 1);
}

#[test]
fn a_held_iptables_lock_is_reported_once_and_retried() {
    let mut world = serving(3);
    world.kernel.state().held = Some("somebody holds the lock".to_owned());
    for number in 1..=3 {
        world.apply(slice_of(number, [1, 2, 3]));
    }
    let synced = world.sync();
    assert_eq!((synced.failures.len(), synced.failed_restores), (1, 1));
    assert!(synced.pending > 0 && synced.stuck.is_some() && synced.settled.is_empty());
    assert!(world.proxier.next_due(world.now).unwrap() > world.now);
    world.kernel.state().held = None;
    world.now += Duration::from_secs(1);
    assert_eq!(world.sync().pending, 0);
}

#[test]
fn rules_are_read_again_after_a_partly_written_restore() {
    let mut world = serving(2);
    let of_service = |world: &World| {
        let rules = world.chain(Table::Filter, "KUBE-SERVICES");
        rules.iter().filter(|rule| rule.contains("web-1")).count()
    };
    // The removal of all endpoints adds one rule to table filter, and removes one rule from table
    // nat.
    world.apply(slice_of(1, []));
    world.kernel.state().held_after = Some(1);
    world.kernel.state().unreadable = Some("the machine is busy".to_owned());
    let synced = world.sync();
    assert_eq!(synced.failures.len(), 1, "{synced:?}");
    assert_eq!(of_service(&world), 1, "the first table was written");
    world.kernel.state().held_after = None;
    for is_readable in [false, true] {
        for _ in 0..8 {
            if let Some(due) = world.proxier.next_due(world.now) {
                world.now = due;
            }
            world.settle();
            assert_eq!(of_service(&world), 1, "readable: {is_readable}");
        }
        world.kernel.state().unreadable = None;
    }
    let mut fresh = World::new();
    for number in [1, 2] {
        fresh.apply(Event::ServiceApplied(service(number)));
    }
    fresh.apply(slice_of(2, [1, 2]));
    fresh.sync();
    assert_eq!(world.holds(), fresh.holds());
}

#[test]
fn an_endpoint_chain_is_written_together_with_its_jump() {
    let mut world = serving(2);
    world.kernel.state().refused = vec!["--to-destination 10.244.0.3:8080".to_owned()];
    world.apply(slice_of(1, [1, 2, 3]));
    for _ in 0..4 {
        world.sync();
        world.now = world.proxier.next_due(world.now).unwrap();
    }
    assert!(world.settle().pending > 0);
    // The kernel would accept the refused change now, but its retry is not due yet. Before the
    // retry, another endpoint is removed.
    world.kernel.state().refused.clear();
    world.apply(slice_of(1, [1, 3]));
    let synced = world.sync();
    assert_eq!((synced.pending, synced.failures), (0, Vec::new()));
    let mut fresh = World::new();
    for number in [1, 2] {
        fresh.apply(Event::ServiceApplied(service(number)));
    }
    fresh.apply(slice_of(1, [1, 3]));
    fresh.apply(slice_of(2, [1, 2]));
    fresh.sync();
    assert_eq!(world.holds(), fresh.holds());
}

#[test]
fn unreadable_rules_are_reported_with_back_off_and_block_no_change() {
    let mut world = serving(3);
    world.kernel.state().unreadable = Some("no process to be had".to_owned());
    let first = world.tick(Duration::from_secs(30)).unreadable;
    assert_eq!(first.len(), 1, "{first:?}");
    let mut tries = 0;
    for (at, endpoint) in (3..23).enumerate() {
        world.now += Duration::from_secs(5);
        world.apply(slice_of(1, [1, endpoint]));
        let synced = world.sync();
        assert_eq!(synced.settled, ["default/web-1"], "after {at} others");
        tries += synced.unreadable.len();
    }
    assert!((1..12).contains(&tries), "with back-off: {tries} in 100 s");
    assert_eq!(world.restores().len(), 20);
    // Another program deletes all rules. Once the rules can be read again, the mode repairs them.
    let held = world.holds();
    world.kernel.flush();
    world.kernel.state().unreadable = None;
    world.now = world.proxier.next_due(world.now).unwrap();
    let synced = world.settle();
    assert_eq!((synced.pending, world.holds()), (0, held));
}

#[test]
fn unreadable_rules_at_start_block_all_writes_until_a_read_succeeds() {
    let held = serving(2);
    held.kernel.state().unreadable = Some("it hangs".to_owned());
    let mut world = World::on(held.kernel.clone(), true);
    world.apply(Event::ServiceApplied(service(1)));
    world.apply(slice_of(1, [1, 2]));
    let synced = world.sync();
    assert!(synced.pending > 0 && synced.stuck.is_some(), "{synced:?}");
    assert_eq!(synced.unreadable.len(), 1);
    assert!(world.restores().is_empty(), "nothing of it is known");
    assert!(world.proxier.next_due(world.now).unwrap() > world.now);
    world.kernel.state().unreadable = None;
    world.now += Duration::from_secs(2);
    assert_eq!(world.settle().pending, 0);
    let served = world.chain(Table::Nat, "KUBE-SERVICES").concat();
    assert!(
        served.contains("web-1") && !served.contains("web-2"),
        "{served}"
    );
}

#[test]
fn a_node_whose_services_are_all_refused_counts_as_stuck() {
    let mut world = World::new();
    world.kernel.state().refused = vec!["default/".into()];
    for number in 1..=3 {
        world.apply(Event::ServiceApplied(service(number)));
        world.apply(slice_of(number, [1, 2]));
    }
    let asked = world.now;
    let changes = world.model.take_changes();
    world.proxier.update(&world.model, &changes, asked);
    world.now += Duration::from_secs(1);
    let synced = world.settle();
    let since = synced.stuck.unwrap();
    assert!(synced.settled.is_empty(), "{synced:?}");
    // The change is pending since the update, which precedes the failed write. With a later time,
    // health would count the update as served.
    assert_eq!(world.proxier.standing().pending_since, Some(asked));
    // The proxier still writes the base rules, but no Service makes progress, so the node stays
    // stuck.
    world.now += Duration::from_mins(1);
    world.kernel.flush();
    let synced = world.tick(Duration::from_mins(1));
    assert_eq!(synced.stuck, Some(since));
    assert!(world.proxier.standing().pending_since.is_some());
    // Now the kernel refuses only one Service. Other Services make progress, so the node is no
    // longer stuck.
    world.kernel.state().refused = vec!["default/web-2".into()];
    world.now += Duration::from_mins(2);
    let synced = world.settle();
    assert_eq!(synced.stuck, None, "{synced:?}");
    assert_eq!(world.proxier.standing().pending_since, None);
}

#[test]
fn nodeport_rules_stay_unchanged_until_the_node_address_is_known() {
    let exposed = || Service {
        ports: [ServicePort {
            node_port: Some(30080),
            ..service(1).ports[0].clone()
        }]
        .into_iter()
        .collect(),
        ..service(1)
    };
    let into_node_ports = |world: &World| {
        let rules = world.chain(Table::Nat, "KUBE-SERVICES");
        let into = rules.into_iter();
        into.filter(|rule| rule.ends_with("-j KUBE-NODEPORTS"))
            .collect::<Vec<_>>()
    };
    let mut world = World::new();
    world.apply(Event::ServiceApplied(exposed()));
    world.apply(slice_of(1, [1]));
    world.sync();
    let before = into_node_ports(&world);
    assert_eq!(before.len(), 1);
    let mut next = World::on(world.kernel.clone(), true);
    let mut node = NodeFacts::new(IpFamily::V4, "node1");
    node.node_port_addresses = NodePortAddresses::Primary;
    let lanes = Lanes::inline(|| world.kernel.clone());
    next.proxier = Proxier::new(config(), node, lanes, next.now);
    next.apply(Event::ServiceApplied(exposed()));
    next.apply(slice_of(1, [1]));
    next.sync();
    assert_eq!(into_node_ports(&next), before);
    next.apply(Event::NodeApplied(Node {
        name: "node1".into(),
        addresses: vec!["192.168.0.10".parse().unwrap()],
        zone: None,
        pod_cidrs: Vec::new(),
        is_leaving: false,
    }));
    assert_eq!(next.sync().pending, 0);
    let now = into_node_ports(&next).concat();
    assert!(now.contains("-d 192.168.0.10/32"), "{now}");
    // The next process starts with `--nodeport-addresses=primary,localhost`.
    next.kernel.state().addresses.insert([127, 0, 0, 1].into());
    let mut last = World::on(next.kernel.clone(), true);
    let mut node = NodeFacts::new(IpFamily::V4, "node1");
    let localhost = vec!["127.0.0.0/8".parse().unwrap()];
    node.node_port_addresses = NodePortAddresses::PrimaryOrWithin(localhost);
    node.ip = Some([192, 168, 0, 10].into());
    let config = Config {
        localhost_node_ports: true,
        ..config()
    };
    last.proxier = Proxier::new(
        config,
        node,
        Lanes::inline(|| next.kernel.clone()),
        last.now,
    );
    last.apply(Event::ServiceApplied(exposed()));
    last.apply(slice_of(1, [1]));
    assert_eq!(last.sync().pending, 0);
    let now = into_node_ports(&last).concat();
    for address in ["-d 192.168.0.10/32", "-d 127.0.0.1/32"] {
        assert!(now.contains(address), "{now}");
    }
}

#[test]
fn repaired_drift_is_reported_by_kind() {
    let mut world = serving(2);
    let told = |synced: &SyncOutcome| -> Vec<(&str, usize)> {
        let kinds = synced.drift.kinds();
        kinds.map(|(kind, of)| (kind, of.count)).collect()
    };
    {
        let mut state = world.kernel.state();
        let nat = state.tables.get_mut(&Table::Nat).unwrap();
        let is_endpoint = |name: &&String| name.starts_with("KUBE-SEP-");
        let two: Vec<String> = nat.keys().filter(is_endpoint).take(2).cloned().collect();
        for chain in two {
            nat.get_mut(&chain).unwrap().pop();
        }
        nat.get_mut("KUBE-SERVICES").unwrap().remove(0);
    }
    let synced = world.tick(Duration::from_mins(1));
    assert_eq!(told(&synced), [("chain", 2), ("rule", 1)]);
    // Changes by the mode itself do not count as drift.
    world.apply(slice_of(1, [1, 2, 3]));
    assert!(world.sync().drift.is_empty());
    assert!(world.tick(Duration::from_mins(1)).drift.is_empty());
}

#[test]
fn only_added_or_removed_node_addresses_cause_a_read() {
    let mut world = serving(1);
    let mut reads = |notice: Notice| {
        let before = world.kernel.state().address_reads;
        world.proxier.notice(&notice, world.now);
        world.settle();
        let state = world.kernel.state();
        state.address_reads - before
    };
    let ip = |text: &str| text.parse().unwrap();
    assert_eq!(reads(Notice::AddressAdded(ip("192.168.0.10"))), 0);
    assert_eq!(reads(Notice::AddressAdded(ip("2001:db8::1"))), 0);
    assert_eq!(reads(Notice::AddressRemoved(ip("192.168.0.77"))), 0);
    assert_eq!(reads(Notice::ServiceLink), 0);
    assert_eq!(reads(Notice::AddressAdded(ip("192.168.0.11"))), 1);
    assert_eq!(reads(Notice::AddressRemoved(ip("192.168.0.10"))), 1);
    assert_eq!(reads(Notice::Anything), 1);
}

#[test]
fn an_address_change_during_a_read_causes_a_second_read() {
    let old: IpAddr = [192, 168, 0, 10].into();
    let new: IpAddr = [192, 168, 0, 11].into();
    for (address, is_there) in [(old, true), (new, false)] {
        let mut world = serving(1);
        let put = |world: &mut World, is_there| {
            let addresses = &mut world.kernel.state().addresses;
            let (_, notice) = if is_there {
                (addresses.insert(address), Notice::AddressAdded(address))
            } else {
                (addresses.remove(&address), Notice::AddressRemoved(address))
            };
            world.proxier.notice(&notice, world.now);
        };
        put(&mut world, !is_there);
        world.now += Duration::from_millis(50);
        // The worker thread has read the addresses. The proxier records them only when the result
        // arrives.
        world.proxier.proceed(&world.model, world.now);
        put(&mut world, is_there);
        world.settle();
        let served = &world.proxier.node_ports().unwrap().addresses;
        assert_eq!(served.contains(&address), is_there, "{address}");
    }
}

#[test]
fn the_older_of_two_services_keeps_a_shared_address() {
    let shared = |number| Service {
        external_ips: vec!["198.51.100.7".parse().unwrap()],
        ..service(number)
    };
    let mut world = World::new();
    for number in [2, 1] {
        world.apply(Event::ServiceApplied(shared(number)));
        world.apply(slice_of(number, [number]));
    }
    world.sync();
    assert_eq!(world.conflicts.len(), 1);
    assert_eq!(world.conflicts[0].winner.to_string(), "default/web-1");
    let external = |world: &World| {
        let rules = world.chain(Table::Nat, "KUBE-SERVICES");
        let to: Vec<String> = rules
            .into_iter()
            .filter(|rule| rule.contains("198.51.100.7"))
            .collect();
        to.concat()
    };
    assert!(external(&world).contains("\"default/web-1 external IP\""));
    world.apply(Event::ServiceDeleted(name("web-1")));
    world.sync();
    assert!(world.conflicts.is_empty());
    assert!(external(&world).contains("\"default/web-2 external IP\""));
}

/// Checks that only the older Service has rules for the shared address and port, for Services with
/// and without source ranges and endpoints.
#[test]
fn only_the_older_load_balancer_at_a_shared_address_has_rules() {
    let balanced = |number: u16, ranges: &[&str]| Service {
        ingress_ips: vec!["198.51.100.7".parse().unwrap()],
        source_ranges: ranges.iter().map(|net| net.parse().unwrap()).collect(),
        ..service(number)
    };
    let about = |world: &World| {
        let state = world.kernel.state();
        let chains = state.tables.values().flatten();
        let rules = chains.flat_map(|(_, rules)| rules);
        let mut about: Vec<String> = rules
            .filter(|rule| rule.contains("198.51.100.7/32"))
            .cloned()
            .collect();
        about.sort();
        about
    };
    let ranges = ["203.0.113.0/24"];
    // Cases: source ranges and endpoints of the older and of the younger Service.
    for (older, younger) in [
        ((&[][..], &[][..]), (&ranges[..], &[2][..])),
        ((&[], &[1]), (&ranges, &[2])),
        ((&ranges, &[1]), (&[], &[])),
        ((&ranges, &[]), (&ranges, &[2])),
    ] {
        let mut alone = World::new();
        alone.apply(Event::ServiceApplied(balanced(1, older.0)));
        alone.apply(slice_of(1, older.1.iter().copied()));
        alone.sync();
        for order in [[1, 2], [2, 1]] {
            let mut world = World::new();
            for number in order {
                let (ranges, endpoints) = if number == 1 { older } else { younger };
                world.apply(Event::ServiceApplied(balanced(number, ranges)));
                world.apply(slice_of(number, endpoints.iter().copied()));
                world.sync();
            }
            assert_eq!(about(&world), about(&alone), "{older:?} {younger:?}");
            assert_eq!(world.conflicts.len(), 1);
            assert_eq!(world.conflicts[0].object, "198.51.100.7:80/TCP");
            // After the older Service is deleted, the younger Service gets the address, with all
            // its rules.
            world.apply(Event::ServiceDeleted(name("web-1")));
            assert_eq!(world.sync().pending, 0);
            assert!(world.conflicts.is_empty());
            let left = about(&world);
            assert!(
                !left.is_empty() && left.iter().all(|rule| rule.contains("web-2")),
                "{left:?}"
            );
        }
    }
}

#[test]
fn rules_are_removed_only_after_the_initial_lists_are_complete() {
    let held = serving(2);
    let mut world = World::on(held.kernel.clone(), false);
    world.apply(Event::ServiceApplied(service(2)));
    world.apply(slice_of(2, [1, 3]));
    world.sync();
    let served = world.chain(Table::Nat, "KUBE-SERVICES").concat();
    assert!(
        served.contains("web-1") && served.contains("web-2"),
        "{served}"
    );
    for kind in [Kind::Service, Kind::EndpointSlice] {
        world.apply(Event::ListComplete {
            kind,
            is_whole: true,
        });
    }
    world.sync();
    let served = world.chain(Table::Nat, "KUBE-SERVICES").concat();
    assert!(
        !served.contains("web-1") && served.contains("web-2"),
        "{served}"
    );
}

#[test]
fn local_endpoints_stay_served_until_the_initial_lists_are_complete() {
    let mut local = service(1);
    local.external_local = true;
    local.ports[0].node_port = Some(30_001);
    let elsewhere = || match slice_of(1, [3]) {
        Event::SliceApplied(slice) => Event::SliceApplied(EndpointSlice {
            name: name("web-1-b"),
            ..slice
        }),
        other => other,
    };
    let mut held = World::new();
    held.apply(Event::ServiceApplied(local.clone()));
    held.apply(slice_of(1, [2]));
    held.apply(elsewhere());
    held.sync();
    let leads_here = |world: &World| {
        let all = world.holds();
        let mut external = all
            .iter()
            .filter(|((_, chain), _)| chain.contains("KUBE-EXT-"));
        external.any(|(_, rules)| rules.concat().contains("-j KUBE-SVL-"))
    };
    assert!(leads_here(&held), "{:?}", held.holds());

    // After a restart, the process does not receive the EndpointSlice with this node's endpoint.
    let mut world = World::on(held.kernel.clone(), false);
    world.apply(Event::ServiceApplied(local));
    world.apply(elsewhere());
    world.sync();
    let late = world.proxier.standing().pending_since;
    assert_eq!(late, None, "what is there on purpose is not late");
    assert!(leads_here(&world));
    for kind in [Kind::Service, Kind::EndpointSlice] {
        world.apply(Event::ListComplete {
            kind,
            is_whole: true,
        });
    }
    world.sync();
    assert!(!leads_here(&world), "nobody is here");
}

#[test]
fn rule_comments_name_no_endpoints_above_1000_endpoints() {
    let mut world = serving(1);
    world.apply(slice_of(1, 1..=1001));
    world.sync();
    let terse = world.kernel.saved();
    assert!(!terse.contains(" -> "), "no endpoint is named");
    assert!(terse.contains("\"default/web-1 cluster IP\""));
    world.apply(slice_of(1, 1..=950));
    world.sync();
    assert!(
        !world.kernel.saved().contains(" -> "),
        "one that comes and goes changes nothing"
    );
    world.apply(slice_of(1, 1..=10));
    world.sync();
    assert!(
        world
            .kernel
            .saved()
            .contains("\"default/web-1 -> 10.244.0.10:8080\"")
    );
}

#[test]
fn leftovers_of_ipvs_mode_are_removed_after_iptables_mode_serves() {
    let kernel = FakeKernel::new(&[]);
    kernel.load(
        "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-LOAD-BALANCER - [0:0]\n:KUBE-NODE-PORT - [0:0]\n\
         -A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
         -A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT\n\
         -A KUBE-SERVICES -m comment --comment \"Kubernetes service lb portal\" -m set --match-set KUBE-LOAD-BALANCER dst,dst -j KUBE-LOAD-BALANCER\nCOMMIT\n\
         *filter\n:KUBE-IPVS-FILTER - [0:0]\n-A INPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-FILTER\nCOMMIT\n",
    );
    let mut world = World::on(kernel, true);
    world.apply(Event::ServiceApplied(service(1)));
    world.apply(slice_of(1, [1]));
    assert_eq!(world.sync().pending, 0);
    let restores = world.restores();
    assert_eq!(restores.len(), 2);
    assert!(!restores[0].contains("KUBE-IPVS-FILTER"), "it serves first");
    let saved = world.kernel.saved();
    for gone in ["IPVS", "KUBE-NODE-PORT ", "KUBE-LOAD-BALANCER", "match-set"] {
        assert!(!saved.contains(gone), "{gone}");
    }
}

/// Returns a test node that has written one Service. Afterwards, leftovers of IPVS mode appear.
fn serving_beside_ipvs_mode() -> World {
    let world = serving(1);
    world.kernel.load(
        "*filter\n:KUBE-IPVS-FILTER - [0:0]\n\
         -A INPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-FILTER\nCOMMIT\n",
    );
    world
}

fn has_leftovers(world: &World) -> bool {
    world.kernel.saved().contains("IPVS")
}

#[test]
fn removal_of_ipvs_mode_leftovers_backs_off_while_writes_fail() {
    let mut world = serving_beside_ipvs_mode();
    world.kernel.state().held = Some("no process to be had".to_owned());
    let synced = world.tick(Duration::from_mins(1));
    assert_eq!((synced.failures.len(), synced.failed_restores), (1, 1));
    assert_eq!(synced.pending, 1);
    // Leftovers that cannot be removed do not make the node count as stuck.
    assert_eq!(synced.stuck, None);
    let tries = 1 + world.restores_within(Duration::from_mins(2));
    assert!((5..12).contains(&tries), "{tries} in two minutes");
    world.kernel.state().held = None;
    world.restores_within(Duration::from_secs(30));
    assert!(!has_leftovers(&world));
    assert_eq!(world.proxier.standing().pending, 0);
}

#[test]
fn leftovers_of_ipvs_mode_are_removed_when_no_rule_refers_to_them() {
    let mut world = serving_beside_ipvs_mode();
    world.damage(Table::Filter, "INPUT", |rules| {
        rules.push("-A INPUT -s 9.9.9.9/32 -j KUBE-IPVS-FILTER".to_owned());
    });
    let synced = world.tick(Duration::from_mins(1));
    // The mode does not report the first refusal. It reads the rules again, and retries the removal
    // with the strategy `Apart`.
    assert_eq!((synced.failures.len(), synced.failed_restores), (1, 2));
    assert!(has_leftovers(&world));
    let tries = 2 + world.restores_within(Duration::from_mins(2));
    assert!((5..12).contains(&tries), "{tries} in two minutes");
    world.damage(Table::Filter, "INPUT", |rules| drop(rules.pop()));
    world.restores_within(Duration::from_secs(30));
    assert!(!has_leftovers(&world));
    assert_eq!(world.proxier.standing().pending, 0);
    // After the successful removal, a change needs only one restore again.
    world.apply(slice_of(1, [1, 2, 3]));
    world.sync();
    assert_eq!(world.restores().len(), 1);
}

#[test]
fn a_shared_chain_with_drift_is_pending_until_its_repair() {
    let mut world = serving(2);
    let held = world.holds();
    world.damage(Table::Nat, "KUBE-SERVICES", |rules| {
        rules.insert(0, "-A KUBE-SERVICES -s 9.9.9.9/32 -j DROP".to_owned());
    });
    world.kernel.state().held = Some("no process to be had".to_owned());
    let synced = world.tick(Duration::from_mins(1));
    assert_eq!((synced.failures.len(), synced.failed_restores), (1, 1));
    let standing = world.proxier.standing();
    assert_eq!((standing.pending, standing.failing), (1, 1));
    assert!(standing.pending_since.is_some() && standing.stuck_since.is_some());
    world.kernel.state().unreadable = Some("no process to be had".to_owned());
    let tries = 1 + world.restores_within(Duration::from_mins(2));
    assert!((5..12).contains(&tries), "{tries} in two minutes");
    // While the rules cannot be read, no Service counts as completely written.
    world.apply(slice_of(1, [1, 2, 3]));
    assert!(world.sync().settled.is_empty());
    world.apply(slice_of(1, [1, 2]));
    world.kernel.state().held = None;
    world.kernel.state().unreadable = None;
    world.sync();
    world.restores_within(Duration::from_secs(30));
    assert_eq!(world.holds(), held);
    assert_eq!(world.proxier.standing().pending_since, None);
}

#[test]
fn rules_without_drift_are_not_written_again() {
    let mut world = serving(2);
    world.sync();
    world.tick(Duration::from_mins(1));
    assert!(world.restores().is_empty());
}

/// A step of a random sequence of changes.
#[derive(Debug, Clone)]
enum Step {
    Apply(u16, u8),
    Delete(u16),
    Endpoints(u16, Vec<u16>),
    Flush,
    Sync,
}

fn step() -> impl Strategy<Value = Step> {
    let number = || 1u16..5;
    prop_oneof![
        3 => (number(), 0u8..64).prop_map(|(number, kind)| Step::Apply(number, kind)),
        1 => number().prop_map(Step::Delete),
        4 => (number(), proptest::collection::vec(0u16..6, 0..4)).prop_map(|(n, e)| Step::Endpoints(n, e)),
        1 => Just(Step::Flush),
        4 => Just(Step::Sync),
    ]
}

/// Returns a Service with some optional fields: each bit of `bits` sets one.
fn varied(number: u16, bits: u8) -> Service {
    let [_, low] = number.to_be_bytes();
    let is = |bit: u8| bits & (1 << bit) != 0;
    let mut varied = service(number);
    if is(0) {
        varied.ports[0].node_port = Some(30_000 + number);
    }
    if is(1) {
        // Services 2 and 3 share an external IP.
        varied.external_ips = vec![[198, 51, 100, low / 2].into()];
    }
    if is(2) {
        varied.ingress_ips = vec![[203, 0, 113, low].into()];
        varied.source_ranges = vec!["192.0.2.0/24".parse().unwrap()];
    }
    varied.external_local = is(3);
    varied.internal_local = is(4);
    varied.affinity_seconds = is(5).then_some(30);
    varied
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Checks that after any sequence of changes, the kernel has the same rules as after a fresh
    /// start with the same objects.
    #[test]
    fn any_sequence_of_changes_ends_in_the_state_of_a_fresh_start(steps in proptest::collection::vec(step(), 1..25)) {
        let mut world = World::new();
        let mut services = BTreeMap::new();
        let mut slices = BTreeMap::new();
        for step in steps {
            match step {
                Step::Apply(number, bits) => {
                    services.insert(number, bits);
                    world.apply(Event::ServiceApplied(varied(number, bits)));
                }
                Step::Delete(number) => {
                    services.remove(&number);
                    world.apply(Event::ServiceDeleted(name(&format!("web-{number}"))));
                }
                Step::Endpoints(number, endpoints) => {
                    let endpoints: BTreeSet<u16> = endpoints.into_iter().collect();
                    world.apply(slice_of(number, endpoints.clone()));
                    slices.insert(number, endpoints);
                }
                Step::Flush => {
                    world.kernel.flush();
                    world.tick(Duration::from_secs(1));
                }
                Step::Sync => drop(world.sync()),
            }
        }
        let report = world.sync();
        prop_assert_eq!((report.pending, report.failed_restores), (0, 0));
        let mut fresh = World::new();
        for (number, bits) in services {
            fresh.apply(Event::ServiceApplied(varied(number, bits)));
        }
        for (number, endpoints) in slices {
            fresh.apply(slice_of(number, endpoints));
        }
        fresh.sync();
        prop_assert_eq!(world.holds(), fresh.holds());
        let last = world.chain(Table::Nat, "KUBE-SERVICES");
        prop_assert!(last.last().unwrap().ends_with("-j KUBE-NODEPORTS"));
    }
}
