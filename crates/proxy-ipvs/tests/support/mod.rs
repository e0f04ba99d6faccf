//! A simulated node on the strict fake kernel, for tests of the proxier.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{io, thread};

use fixtures::KINDS;
use netlink_batch::Worker;

use proxy::{
    Changes, Conflict, Drift, EndpointSlice, Event, Failure, IpFamily, Mode as _, Model,
    NamespacedName, Node, NodeFacts, Protocol, Report, Service, ServiceAddress, Target, Unreadable,
};
use proxy_ipvs::fake::{FakeKernel, Work};
use proxy_ipvs::{
    Config, FoundAddresses, FoundRules, FoundSets, Glance, Kernel, Lanes, Op, Outcome, Part, Plan,
    Proxier, Snapshot, VirtualServer, VirtualServerKey,
};

pub(crate) const NODE: &str = "node1";

/// Shortest time between a notification and the read that it causes, and between two such reads.
const PAUSE: Duration = Duration::from_millis(100);

/// Sum of all reports from the start of a sync until no work is due immediately.
#[derive(Debug, Default)]
pub(crate) struct SyncSummary {
    pub(crate) written: usize,
    pub(crate) failures: Vec<Failure>,
    pub(crate) failed_restores: usize,
    pub(crate) unreadable: Vec<Unreadable>,
    /// Names of the Services whose entries are all in the kernel, sorted.
    pub(crate) settled: Vec<String>,
    pub(crate) repaired: Vec<String>,
    pub(crate) drift: Drift,
    /// Addresses of other programs' virtual servers, each with the Service port that wants the
    /// address.
    pub(crate) foreign: Vec<String>,
    /// Names of the Services that need a firewall mark but have none.
    pub(crate) unmarked: Vec<String>,
    pub(crate) pending: usize,
    pub(crate) failing: usize,
    /// Start of the period in which writes have failed and no write has succeeded. `None` if there
    /// is no such period.
    pub(crate) stuck: Option<Instant>,
    /// Reason why a worker thread has ended, or `None` while all run.
    pub(crate) gone: Option<String>,
    conflicts: Option<Vec<Conflict>>,
}

impl SyncSummary {
    fn add(&mut self, report: Report) {
        self.written += report.written;
        self.failures.extend(report.failures);
        self.failed_restores += report.failed_restores;
        self.unreadable.extend(report.unreadable);
        let names = |services: Vec<NamespacedName>| services.into_iter().map(|at| at.to_string());
        self.settled.extend(names(report.settled));
        self.repaired.extend(names(report.repaired));
        if !report.drift.is_empty() {
            assert!(self.drift.is_empty(), "told in one");
            self.drift = report.drift;
        }
        let unmarked = report.unmarked.into_iter();
        self.unmarked
            .extend(unmarked.map(|owner| owner.service.to_string()));
        let foreign = report.foreign.into_iter();
        self.foreign
            .extend(foreign.map(|(at, owner)| format!("{at} {owner}")));
        self.gone = self.gone.take().or(report.gone);
        self.conflicts = report.conflicts.or(self.conflicts.take());
    }
}

/// Runs the daemon's loop until no work is due immediately.
pub(crate) fn settle<K: Kernel>(
    proxier: &mut Proxier<K>,
    model: &Model,
    now: &mut Instant,
) -> SyncSummary {
    settle_after(SyncSummary::default(), proxier, model, now)
}

fn settle_after<K: Kernel>(
    mut synced: SyncSummary,
    proxier: &mut Proxier<K>,
    model: &Model,
    now: &mut Instant,
) -> SyncSummary {
    for turn in 0.. {
        assert!(turn < 1_000, "it goes on without end: {synced:?}");
        proxier.proceed(model, *now);
        let mut has_booked = false;
        while let Some(report) = proxier.book(model, *now) {
            synced.add(report);
            has_booked = true;
        }
        let due = proxier.next_due(*now).filter(|due| *due <= *now + PAUSE);
        match due {
            _ if has_booked || !proxier.is_idle() => {}
            Some(due) => *now = due,
            None => break,
        }
    }
    let standing = proxier.standing();
    (synced.pending, synced.failing) = (standing.pending, standing.failing);
    synced.stuck = standing.stuck_since;
    synced.settled.sort();
    synced.repaired.sort();
    synced
}

/// Lets the proxier read the kernel until it is ready to plan. The proxier writes nothing.
pub(crate) fn read_ahead<K: Kernel>(
    proxier: &mut Proxier<K>,
    model: &Model,
    now: Instant,
) -> SyncSummary {
    let mut synced = SyncSummary::default();
    while !proxier.is_ready() {
        proxier.proceed(model, now);
        while let Some(report) = proxier.book(model, now) {
            synced.add(report);
        }
    }
    synced
}

/// A simulated node: a model, a proxier and its kernel.
pub(crate) struct World<K: Kernel = FakeKernel> {
    pub(crate) model: Model,
    pub(crate) kernel: FakeKernel,
    pub(crate) proxier: Proxier<K>,
    pub(crate) now: Instant,
    /// Conflicts between Services, each with winner and loser.
    pub(crate) conflicts: Vec<Conflict>,
    has_updated: bool,
}

/// A kernel whose entries a test can dump.
pub(crate) trait DumpableKernel: Kernel {
    /// Dumps all entries of the IP family, with the shim and other modes' leftovers if `with_rules`
    /// is true.
    fn dump(&mut self, with_rules: bool) -> Result<Snapshot, Unreadable> {
        let FoundAddresses {
            has_link,
            bound,
            bound_otherwise,
            ranges,
            interface_addresses,
            networks,
        } = self.read_addresses()?;
        let FoundSets { members, sizes, .. } = self.read_sets()?;
        let servers = self.read_servers()?;
        let rules = with_rules.then(|| self.read_rules()).transpose()?;
        let (rules, leftovers) = rules.map(|found| (found.rules, found.leftovers)).unzip();
        Ok(Snapshot {
            has_link,
            bound,
            bound_otherwise,
            ranges,
            networks,
            interface_addresses,
            sets: members,
            set_sizes: sizes,
            servers,
            rules,
            leftovers,
        })
    }
}

impl<K: Kernel> DumpableKernel for K {}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn name(text: &str) -> NamespacedName {
    let (namespace, name) = text.split_once('/').unwrap();
    NamespacedName::new(namespace, name)
}

/// Parses the key of a TCP virtual server, such as `10.0.0.1:80`.
pub(crate) fn server(text: &str) -> VirtualServerKey {
    let address: std::net::SocketAddr = text.parse().unwrap();
    ServiceAddress::new(address.ip(), address.port(), Protocol::Tcp).into()
}

/// Returns port 8080 of a pod, as the target of a destination.
pub(crate) fn target(pod: &str) -> Target {
    Target {
        ip: ip(pod),
        port: 8080,
    }
}

pub(crate) fn service(at: &str, cluster_ip: &str, port: u16) -> Service {
    Service {
        ports: [fixtures::port(Protocol::Tcp, port)].into_iter().collect(),
        ..Service::at(name(at), [ip(cluster_ip)])
    }
}

/// Returns an EndpointSlice for port 8080 with these ready endpoints, each written as
/// `ADDRESS@NODE`.
pub(crate) fn slice(of: &str, endpoints: &[&str]) -> EndpointSlice {
    let endpoints = endpoints.iter().map(|text| {
        let (address, node) = text.split_once('@').unwrap();
        fixtures::endpoint(ip(address), node)
    });
    EndpointSlice {
        name: name(&format!("{of}-a")),
        service: name(of),
        ..fixtures::slice(of, of, &[Protocol::Tcp], endpoints)
    }
}

impl World {
    /// Creates an IPv4 node with one address, an empty kernel and an empty model.
    pub(crate) fn new() -> Self {
        Self::with(
            Config::default(),
            FakeKernel::new(IpFamily::V4, &[ip("192.168.99.10")]),
        )
    }

    pub(crate) fn with(config: Config, kernel: FakeKernel) -> Self {
        let handle = kernel.clone();
        Self::on(config, kernel, Lanes::inline(|| handle.clone()))
    }

    /// Replaces the proxier by a new one with these facts about the node.
    pub(crate) fn restart_on(&mut self, node: NodeFacts) {
        let kernel = self.kernel.clone();
        let lanes = Lanes::inline(|| kernel.clone());
        self.proxier = Proxier::new(Config::default(), node, lanes, self.now);
    }
}

impl World<Slow> {
    /// Creates a node whose proxier has worker threads. A thread waits before it reads or writes a
    /// part, while `held` contains this part.
    pub(crate) fn threaded(config: Config, kernel: FakeKernel, held: &HeldParts) -> Self {
        let lane = || {
            let slow = Slow(kernel.clone(), held.clone());
            Worker::spawn("fake", move || Ok::<_, io::Error>(slow)).unwrap()
        };
        let lanes = Lanes::new([lane(), lane(), lane(), lane()]);
        Self::on(config, kernel, lanes)
    }

    /// Runs the daemon's loop in real time until `is_so` is true. Returns the elapsed time.
    pub(crate) fn until(&mut self, what: &str, is_so: impl Fn(&FakeKernel) -> bool) -> Duration {
        let began = Instant::now();
        while !is_so(&self.kernel) {
            let waited = began.elapsed();
            assert!(
                waited < Duration::from_secs(20),
                "{what}: {:#?}",
                self.written()
            );
            self.go_on();
            thread::sleep(Duration::from_millis(1));
        }
        began.elapsed()
    }
}

/// Parts of the kernel that worker threads must not read or write yet, by name. `READ` and
/// `WRITTEN` hold back the results of reads or writes from the proxier.
pub(crate) type HeldParts = Arc<Mutex<BTreeSet<&'static str>>>;

/// Entry of [`HeldParts`] that holds back the addresses that a worker thread has read.
pub(crate) const READ: &str = "addresses have been read";
/// Entry of [`HeldParts`] that holds back the outcomes of all writes except those of rules.
pub(crate) const WRITTEN: &str = "all but rules has been written";

/// Fake kernel of a worker thread that the test can hold.
pub(crate) struct Slow(FakeKernel, HeldParts);

impl Slow {
    fn wait(&self, part: Part) {
        self.wait_at(part.name());
    }

    fn wait_at(&self, held: &str) {
        while self.1.lock().unwrap().contains(held) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Kernel for Slow {
    fn read_servers(&mut self) -> Result<BTreeMap<VirtualServerKey, VirtualServer>, Unreadable> {
        self.wait(Part::Servers);
        self.0.read_servers()
    }

    fn read_sets(&mut self) -> Result<FoundSets, Unreadable> {
        self.wait(Part::Sets);
        self.0.read_sets()
    }

    fn read_addresses(&mut self) -> Result<FoundAddresses, Unreadable> {
        self.wait(Part::Addresses);
        let found = self.0.read_addresses();
        self.wait_at(READ);
        found
    }

    fn read_rules(&mut self) -> Result<FoundRules, Unreadable> {
        self.wait(Part::Rules);
        self.0.read_rules()
    }

    fn glance(&mut self, one: &VirtualServerKey) -> Result<Glance, Unreadable> {
        self.0.glance(one)
    }

    fn load_scheduler(&mut self, name: &str) -> Result<(), String> {
        self.0.load_scheduler(name)
    }

    fn apply(&mut self, plan: &Plan) -> Vec<Outcome> {
        match plan.ops.first() {
            Some(Op::WriteRules { .. } | Op::RemoveLeftovers(..)) => self.wait(Part::Rules),
            Some(Op::CreateLink | Op::BindAddress(_) | Op::UnbindAddress(_)) => {
                self.wait(Part::Addresses);
            }
            _ => {}
        }
        let outcomes = self.0.apply(plan);
        self.wait_at(WRITTEN);
        outcomes
    }

    fn connections(
        &mut self,
        keys: &[VirtualServerKey],
    ) -> Result<BTreeMap<VirtualServerKey, BTreeMap<Target, u32>>, Unreadable> {
        self.0.connections(keys)
    }
}

impl<K: Kernel> World<K> {
    pub(crate) fn on(config: Config, kernel: FakeKernel, lanes: Lanes<K>) -> Self {
        let family = kernel.state().family;
        let now = Instant::now();
        let proxier = Proxier::new(config, NodeFacts::new(family, NODE), lanes, now);
        let mut model = Model::new();
        fixtures::start_lists(&mut model, &KINDS);
        Self {
            model,
            kernel,
            proxier,
            now,
            conflicts: Vec::new(),
            has_updated: false,
        }
    }

    /// Runs one turn of the daemon's loop.
    pub(crate) fn go_on(&mut self) -> SyncSummary {
        self.go_on_at(Instant::now())
    }

    /// Runs one turn of the daemon's loop at `now`.
    pub(crate) fn go_on_at(&mut self, now: Instant) -> SyncSummary {
        let mut synced = SyncSummary::default();
        self.now = now;
        while let Some(report) = self.proxier.book(&self.model, self.now) {
            synced.add(report);
        }
        if self.proxier.is_ready() && (self.model.has_changes() || !self.has_updated) {
            self.has_updated = true;
            let changes = self.model.take_changes();
            self.proxier.update(&self.model, &changes, self.now);
        }
        self.proxier.proceed(&self.model, self.now);
        synced
    }

    /// Applies these changes to the model, and runs the loop until no work is due immediately.
    pub(crate) fn take_over(&mut self, changes: &Changes) -> SyncSummary {
        let synced = read_ahead(&mut self.proxier, &self.model, self.now);
        self.proxier.update(&self.model, changes, self.now);
        self.settle_after(synced)
    }

    /// Completes all lists of objects.
    pub(crate) fn listed(mut self) -> Self {
        fixtures::complete_lists(&mut self.model, &KINDS, true);
        self
    }

    /// Starts a new daemon, with an empty model, on the same kernel.
    pub(crate) fn restarted(self, config: Config) -> World {
        World::with(config, self.kernel)
    }

    pub(crate) fn node(&mut self, node: Node) {
        self.model.apply(Event::NodeApplied(node));
    }

    pub(crate) fn service(&mut self, service: Service) {
        self.model.apply(Event::ServiceApplied(service));
    }

    pub(crate) fn slice(&mut self, slice: EndpointSlice) {
        self.model.apply(Event::SliceApplied(slice));
    }

    pub(crate) fn delete_service(&mut self, at: &str) {
        self.model.apply(Event::ServiceDeleted(name(at)));
    }

    /// Handles all pending events, as the daemon's loop does.
    pub(crate) fn sync(&mut self) -> SyncSummary {
        let changes = self.model.take_changes();
        self.take_over(&changes)
    }

    /// Runs the daemon's loop without new events until no work is due immediately.
    pub(crate) fn settle(&mut self) -> SyncSummary {
        self.settle_after(SyncSummary::default())
    }

    fn settle_after(&mut self, synced: SyncSummary) -> SyncSummary {
        let mut synced = settle_after(synced, &mut self.proxier, &self.model, &mut self.now);
        if let Some(conflicts) = synced.conflicts.take() {
            self.conflicts = conflicts;
        }
        synced
    }

    /// Starts a drift check, as the daemon does once per sync period.
    pub(crate) fn check(&mut self) {
        self.proxier.check(self.now);
    }

    pub(crate) fn wait(&mut self, duration: Duration) {
        self.now += duration;
    }

    /// Returns the writes since the last call, as texts.
    pub(crate) fn written(&self) -> Vec<String> {
        self.kernel
            .take_work()
            .1
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    pub(crate) fn work(&self) -> (Work, Vec<Op>) {
        self.kernel.take_work()
    }

    /// Sets the number of a pod's open connections through a virtual server.
    pub(crate) fn open(&self, of: &str, pod: &str, count: u32) {
        let mut state = self.kernel.state();
        state.connections.insert((server(of), target(pod)), count);
    }

    /// Returns all virtual servers as texts.
    pub(crate) fn servers(&self) -> Vec<String> {
        let state = self.kernel.state();
        let keys = state.snapshot.servers.keys();
        keys.map(ToString::to_string).collect()
    }

    /// Returns a virtual server's destinations with their weights (`10.244.1.5:8080=1`), or `None`
    /// if the virtual server does not exist.
    pub(crate) fn destinations(&self, at: &str) -> Option<Vec<String>> {
        let state = self.kernel.state();
        let server = state.snapshot.servers.get(&server(at))?;
        let text = |real: proxy_ipvs::RealServer| {
            format!("{}:{}={}", real.target.ip, real.target.port, real.weight)
        };
        Some(server.destinations.iter().map(text).collect())
    }
}

impl<K: Kernel> World<K> {
    /// Returns true if the proxier has a timer that fires within `duration`.
    pub(crate) fn proxier_due_within(&self, duration: Duration) -> bool {
        self.proxier
            .next_due(self.now)
            .is_some_and(|due| due <= self.now + duration)
    }
}
