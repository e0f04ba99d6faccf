//! The smallest mode: it opens a socket for each cluster IP and port. It has no tables in the
//! kernel; it only reads the node's addresses.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use engine::{Concern, Engine, Extent, KernelAccess, Lanes, Served, State, Step};
use futures::executor::block_on;
use proxy::{
    Event, Failure, IpFamily, Kind, Mode as _, Model, NamespacedName, NodeFacts, Notice, Owner,
    Protocol, Report, Service, ServicePort, Unreadable,
};
use reconcile::{Rows, Table};

// ---- the mode ----

#[derive(Clone, Copy, PartialEq, Eq)]
struct Addresses;

impl engine::Part for Addresses {
    type Lane = Sockets;
    const ALL: &'static [Self] = &[Self];

    fn name(self) -> &'static str {
        "the addresses of this node"
    }

    fn lane(self) -> Sockets {
        Sockets
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Sockets;

impl engine::Lane for Sockets {
    const ALL: &'static [Self] = &[Self];
}

/// A socket to open or close.
type Plan = BTreeMap<SocketAddr, bool>;

struct NoFlags;

impl engine::Config for NoFlags {
    fn longest_pause(&self) -> Duration {
        Duration::from_secs(30)
    }

    fn node_ip(&self) -> Option<IpAddr> {
        None
    }
}

enum Kinds {}

impl engine::Kinds for Kinds {
    type Config = NoFlags;
    type Lane = Sockets;
    type Part = Addresses;
    type Plan = Plan;
}

/// The sockets that each Service wants.
#[derive(Default)]
struct Userspace {
    open: Table<SocketAddr, (), Arc<Owner>>,
    owners: BTreeMap<NamespacedName, Vec<Arc<Owner>>>,
}

impl Userspace {
    fn put(&mut self, service: &NamespacedName, wanted: Option<&Service>) {
        for owner in self.owners.remove(service).into_iter().flatten() {
            self.open.release(&owner);
        }
        if let Some(service) = wanted {
            for port in &service.ports {
                let owner = Owner::new(service, port);
                let at = |ip: &IpAddr| (SocketAddr::new(*ip, port.port), ());
                self.open.claim(&owner, service.cluster_ips.iter().map(at));
                let owners = self.owners.entry(service.name.clone());
                owners.or_default().push(owner);
            }
        }
    }
}

impl engine::Scheme for Userspace {
    type Kinds = Kinds;
    type Outcomes = BTreeMap<SocketAddr, Result<(), String>>;
    type Found = BTreeSet<IpAddr>;
    type Query = ();
    type Answer = ();

    const ADDRESSES: Addresses = Addresses;
    const EVIDENCE: &'static [Addresses] = &[];
    const WRITING: &'static [Sockets] = &[Sockets];
    const SERVING: &'static [Sockets] = &[];

    fn new(_: &State<Kinds>) -> Self {
        Self::default()
    }

    fn begin(&mut self, now: Instant) {
        self.open.begin(now);
    }

    fn tables(&self, _: Addresses) -> impl Iterator<Item = &dyn Rows> {
        [&self.open as &dyn Rows].into_iter()
    }

    fn served(&self) -> &dyn Served {
        &self.open
    }

    fn is_settled(&self, service: &NamespacedName) -> bool {
        let mut owners = self.owners.get(service).into_iter().flatten();
        owners.all(|owner| {
            let mut keys = self.open.keys_of(owner).iter();
            keys.all(|key| !self.open.is_pending(key))
        })
    }

    fn concern(&self, _: &State<Kinds>, _: Addresses) -> Concern {
        Concern::Clients
    }

    fn removals_change(&mut self, state: &State<Kinds>) {
        self.open.count_removals(state.removals());
    }

    fn node_changed(&mut self, _: &mut State<Kinds>) -> bool {
        false
    }

    fn update(&mut self, state: &mut State<Kinds>, model: &Model, extent: Extent<'_>) {
        let names: BTreeSet<NamespacedName> = match extent {
            Extent::These(names) => names.iter().cloned().collect(),
            Extent::First | Extent::All => {
                let known = self.owners.keys();
                known.chain(model.service_names()).cloned().collect()
            }
        };
        for name in names {
            self.put(&name, model.view(&name).map(|view| view.service));
            state.news.changed(&name);
        }
    }

    fn notice(&mut self, _: &mut State<Kinds>, _: &Notice) -> bool {
        false
    }

    fn check(&mut self, state: &mut State<Kinds>) {
        state.ask(Addresses);
    }

    fn next(&mut self, _: Sockets, state: &mut State<Kinds>) -> Step<Self> {
        let due = self.open.due(state.now);
        let due = due.map(|at| (*at, self.open.wanted(at).is_some()));
        let plan: Plan = due
            .filter(|(_, opens)| *opens || state.may_delete())
            .collect();
        let plan = Some(plan).filter(|plan| !plan.is_empty());
        Step { plan, query: None }
    }

    fn observe(&mut self, state: &mut State<Kinds>, _: &Model, found: BTreeSet<IpAddr>) {
        state.node.interface_addresses = found;
        state.node.has_addresses = true;
    }

    fn settle(&mut self, state: &mut State<Kinds>, plan: &Plan, outcomes: Self::Outcomes) {
        for (at, outcome) in outcomes {
            let owners = self.open.owners(&at);
            let services = owners.map(|owner| owner.name.service.clone());
            state.news.wrote(services);
            match outcome {
                Ok(()) => {
                    let opens = plan.get(&at).is_some_and(|opens| *opens);
                    self.open.set_actual(&at, opens.then_some(()));
                    state.report.written += 1;
                    state.wrote(Addresses);
                }
                Err(reason) => {
                    self.open.fail(&at, state.now);
                    state.report.failures.push(Failure {
                        object: format!("open {at}"),
                        owner: None,
                        reason,
                    });
                }
            }
        }
    }

    fn as_done(plan: &Plan) -> Self::Outcomes {
        plan.keys().map(|at| (*at, Ok(()))).collect()
    }

    fn take(&mut self, _: &mut State<Kinds>, (): ()) {}
}

/// The kernel: open and refused sockets, and whether addresses can be read.
#[derive(Default)]
struct Node {
    open: BTreeSet<SocketAddr>,
    refuses: BTreeSet<SocketAddr>,
    is_unreadable: bool,
    reads: usize,
}

type Kernel = Arc<Mutex<Node>>;

impl KernelAccess<Kernel> for Userspace {
    fn read(
        kernel: &mut Kernel,
        _: &NoFlags,
        _: Addresses,
    ) -> Result<BTreeSet<IpAddr>, Unreadable> {
        let mut node = kernel.lock().unwrap();
        node.reads += 1;
        if node.is_unreadable {
            return Err(Unreadable {
                part: "the addresses of this node",
                reason: "interrupted".to_owned(),
            });
        }
        Ok([[192, 0, 2, 1].into()].into())
    }

    fn write(kernel: &mut Kernel, plan: &Plan) -> Self::Outcomes {
        let mut node = kernel.lock().unwrap();
        let write = |(at, opens): (&SocketAddr, &bool)| {
            if node.refuses.contains(at) {
                return (*at, Err("in use".to_owned()));
            }
            if *opens {
                node.open.insert(*at);
            } else {
                node.open.remove(at);
            }
            (*at, Ok(()))
        };
        plan.iter().map(write).collect()
    }

    fn query(_: &mut Kernel, _: &NoFlags, (): ()) {}
}

// ---- stories ----

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
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
            model.apply(Event::ListStarted(kind));
        }
        Self {
            mode: Engine::new(NoFlags, node, lanes, now),
            kernel,
            model,
            now,
        }
    }

    fn listed(mut self) -> Self {
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
            let is_whole = true;
            self.model.apply(Event::ListComplete { kind, is_whole });
        }
        self
    }

    fn service(&mut self, name: &str, created: i64, address: &str) {
        let port = ServicePort {
            name: "".into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: None,
        };
        self.model.apply(Event::ServiceApplied(Service {
            created: Some(created),
            ports: [port].into_iter().collect(),
            ..Service::at(
                NamespacedName::new("default", name),
                [address.parse().unwrap()],
            )
        }));
    }

    /// Works until nothing is left to do at once; returns all reports.
    fn settle(&mut self) -> Report {
        let mut all = Report::default();
        loop {
            self.mode.proceed(&self.model, self.now);
            let Some(report) = self.mode.book(&self.model, self.now) else {
                return all;
            };
            all.written += report.written;
            all.failures.extend(report.failures);
            all.unreadable.extend(report.unreadable);
            all.settled.extend(report.settled);
            all.written_for.extend(report.written_for);
            if report.conflicts.is_some() {
                all.conflicts = report.conflicts;
                all.more_conflicts = report.more_conflicts;
            }
        }
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
fn what_is_wanted_is_opened_and_told_once_it_is() {
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
fn that_a_service_needs_no_write_is_told_without_an_event() {
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
fn nothing_is_closed_before_all_is_listed() {
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
fn what_is_refused_is_tried_again_later_and_its_service_is_not_settled() {
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
fn what_cannot_be_read_is_told_and_read_again() {
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
    // A new address is read soon; a known one is not read again.
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
fn of_two_that_want_the_same_the_older_has_it() {
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
fn very_many_conflicts_of_one_namespace_are_counted_and_hide_no_others() {
    const MANY: i64 = 1_000;
    let mut world = World::new().listed();
    for created in 1..=MANY {
        world.service(&format!("large-{created:04}"), created, "10.96.0.1");
    }
    let told = world.sync();
    let conflicts = told.conflicts.unwrap();
    assert_eq!(conflicts.len(), engine::CONFLICTS_MAX);
    // The oldest Service has the address.
    assert_eq!(
        conflicts.len() + told.more_conflicts,
        usize::try_from(MANY).unwrap() - 1
    );
    let losers: Vec<String> = conflicts.iter().map(|of| of.loser.to_string()).collect();
    assert_eq!(losers.first().unwrap(), "default/large-0002");
    // A change of a Service that claims the address already is no new conflict.
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
