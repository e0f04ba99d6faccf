//! A minimal mode for tests of the engine. The daemon's tests also include this file, to show that
//! the daemon needs no code of its own to show, explain, diff and clean up a mode's entries.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine::{Concern, Extent, KernelAccess, Served, State, Step};
use proxy::{Failure, Model, NamespacedName, Notice, Owner, Service, Unreadable};
use reconcile::{Rows, Table};

/// Part of the kernel's state that this mode reads: the node's addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Addresses;

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
pub(crate) struct Sockets;

impl engine::Lane for Sockets {
    const ALL: &'static [Self] = &[Self];
}

/// A plan: sockets to open (`true`) or to close (`false`).
pub(crate) type Plan = BTreeMap<SocketAddr, bool>;

pub(crate) struct NoFlags;

impl engine::Config for NoFlags {
    fn longest_pause(&self) -> Duration {
        Duration::from_secs(30)
    }
}

pub(crate) enum Kinds {}

impl engine::Kinds for Kinds {
    type Config = NoFlags;
    type Lane = Sockets;
    type Part = Addresses;
    type Plan = Plan;
}

/// The minimal mode: a table of wanted and open sockets, and the owners of each Service's entries.
#[derive(Default)]
pub(crate) struct Userspace {
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
    type PartContent = BTreeSet<IpAddr>;
    type Query = ();
    type QueryResponse = ();

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

/// A fake kernel: its open sockets, the sockets that it refuses to open, and a switch that makes
/// its addresses unreadable.
#[derive(Default)]
pub(crate) struct Node {
    pub(crate) open: BTreeSet<SocketAddr>,
    pub(crate) refuses: BTreeSet<SocketAddr>,
    pub(crate) is_unreadable: bool,
    pub(crate) reads: usize,
}

pub(crate) type Kernel = Arc<Mutex<Node>>;

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
