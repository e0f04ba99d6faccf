//! The bare loader of nftables mode: a program that only sends the transactions that the mode would
//! send. Its time is a lower bound for a kube-proxy.
//!
//! Before the clock starts, the real mode runs on a recorder instead of the kernel. The recorder
//! accepts and stores all transactions, for the initial objects and for each change. The bare
//! loader only sends them. It has no API server and no object model, and reads nothing back.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::mem;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use nftables_netlink::{Nftables, PreparedTransaction, Rule, Transaction};
use proxy::{
    Changes, EndpointPort, EndpointSlice, Event, IpFamily, Kind, LocalDetector, Mode as _, Model,
    NamespacedName, NodeFacts, NodePortAddresses, Placement, Protocol, Service, ServicePort,
    Unreadable,
};
use proxy_nftables::{Config, Kernel, Lanes, Layout, LocalhostPort, Object, Proxier, Refusal};

use crate::floor::pause;
use crate::objects::{CLUSTER_CIDR, NAMESPACE, Objects, PORT, TARGET_PORT, changed};
use crate::schema::{Axis, Cell, SubjectKind};

/// Maximum number of turns in which the mode must finish its writes. A correct mode needs far
/// fewer.
const MOST_TURNS: usize = 10_000;

/// Runs the bare loader for a cell (one benchmark run). After its work it sleeps forever, so that
/// the benchmark can still read its CPU time and memory.
pub(crate) fn run(cell: &Cell) -> Result<()> {
    let mut objects = Objects::new(cell.size);
    let mut modes = [IpFamily::V4, IpFamily::V6].map(|family| RecordedMode::new(family, cell));
    let mut model = Model::of_node("node1");
    for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
        model.apply(Event::ListStarted(kind));
        for service in 0..objects.services() {
            match kind {
                Kind::Service => model.apply(Event::ServiceApplied(service_of(service))),
                Kind::EndpointSlice => apply_slices(&mut model, &objects, service),
                Kind::Node | Kind::ServiceCidr => break,
            }
        }
        let is_whole = true;
        model.apply(Event::ListComplete { kind, is_whole });
    }
    let mut state = record(&mut modes, &mut model)?;
    let mut kernel = Nftables::open()?;
    let mut load = |state: &mut [PreparedTransaction]| -> Result<()> {
        for transaction in state {
            kernel.commit_prepared(transaction)?;
        }
        Ok(())
    };
    if cell.axis == Axis::Change {
        load(&mut state)?;
        let mut changes = Vec::new();
        for turn in 0..cell.changes {
            let (service, index) = changed(cell.size, turn);
            objects.replace(service, index, turn);
            apply_slices(&mut model, &objects, service);
            changes.push(record(&mut modes, &mut model)?);
        }
        pause()?;
        let mut took = Vec::with_capacity(changes.len());
        for change in &mut changes {
            let started = Instant::now();
            load(change)?;
            took.push(started.elapsed().as_secs_f64() * 1e3);
        }
        println!("changes_ms {}", serde_json::to_string(&took)?);
    } else {
        pause()?;
        let started = Instant::now();
        load(&mut state)?;
        println!("write_tables_s {:.6}", started.elapsed().as_secs_f64());
    }
    std::io::stdout().flush()?;
    loop {
        std::thread::park();
    }
}

/// Returns the transactions by which both IP families' modes write the model's pending changes.
fn record(modes: &mut [RecordedMode; 2], model: &mut Model) -> Result<Vec<PreparedTransaction>> {
    let changes = model.take_changes();
    let mut all = Vec::new();
    for mode in modes {
        all.append(&mut mode.write(model, &changes)?);
    }
    let prepared = all.iter().map(|one| PreparedTransaction::new(one, None));
    Ok(prepared.collect())
}

/// nftables mode for one IP family, which writes to a [`Recorder`].
struct RecordedMode {
    mode: Proxier<Recorder>,
    written: Arc<Mutex<Vec<Transaction>>>,
}

impl RecordedMode {
    fn new(family: IpFamily, cell: &Cell) -> Self {
        let written = Arc::default();
        let lanes = Lanes::inline(|| Recorder {
            family,
            written: Arc::clone(&written),
        });
        let pods = CLUSTER_CIDR.parse().ok().filter(|_| family == IpFamily::V4);
        let config = Config {
            layout: match cell.subject.kind {
                SubjectKind::NftFlatFloor => Layout::Flat,
                _ => Layout::Upstream,
            },
            detector: pods.map_or(LocalDetector::None, LocalDetector::SourceNet),
            ..Config::default()
        };
        let mut node = NodeFacts::new(family, "node1");
        node.node_port_addresses = NodePortAddresses::Primary;
        let mode = Proxier::new(config, node, lanes, Instant::now());
        Self { mode, written }
    }

    fn write(&mut self, model: &Model, changes: &Changes) -> Result<Vec<Transaction>> {
        let now = Instant::now();
        let mut has_updated = false;
        for _ in 0..MOST_TURNS {
            if !has_updated && self.mode.is_ready() {
                self.mode.update(model, changes, now);
                has_updated = true;
            }
            self.mode.proceed(model, now);
            if self.mode.book(model, now).is_none() && self.mode.is_idle() && has_updated {
                let standing = self.mode.standing();
                ensure!(standing.pending == 0, "{} are pending", standing.pending);
                let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
                return Ok(mem::take(&mut *written));
            }
        }
        None.context("the mode goes on writing without end")
    }
}

/// A replacement for the kernel that accepts and records every transaction, and has no tables.
#[derive(Clone)]
struct Recorder {
    family: IpFamily,
    written: Arc<Mutex<Vec<Transaction>>>,
}

impl Kernel for Recorder {
    fn family(&self) -> IpFamily {
        self.family
    }

    fn addresses(&mut self) -> Result<BTreeSet<IpAddr>, Unreadable> {
        Ok(BTreeSet::new())
    }

    fn table(&mut self, _: &mut dyn FnMut(Object)) -> Result<(), Unreadable> {
        Ok(())
    }

    fn timeout(&mut self, _: &str) -> Result<Option<u32>, Unreadable> {
        Ok(None)
    }

    fn rules(&mut self, _: &str) -> Result<Vec<(u64, Rule)>, Unreadable> {
        Ok(Vec::new())
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<(), Refusal> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.push(transaction.clone());
        Ok(())
    }

    fn listen(&mut self, _: &LocalhostPort) -> Result<(), String> {
        Ok(())
    }
}

fn service_of(service: u32) -> Service {
    let port = ServicePort {
        name: "http".into(),
        protocol: Protocol::Tcp,
        port: PORT,
        node_port: None,
    };
    let name = NamespacedName::new(NAMESPACE, &Objects::name(service));
    Service {
        ports: [port].into_iter().collect(),
        ..Service::at(name, [Objects::address(service).into()])
    }
}

fn apply_slices(model: &mut Model, objects: &Objects, service: u32) {
    let [here, elsewhere] = ["node1", "node2"].map(|node| {
        Arc::new(Placement {
            node: Some(node.into()),
            ..Placement::default()
        })
    });
    let port = EndpointPort {
        name: "http".into(),
        protocol: Protocol::Tcp,
        port: TARGET_PORT,
    };
    let endpoints = objects
        .endpoints(service)
        .into_iter()
        .map(|one| proxy::Endpoint {
            address: IpAddr::V4(*one.at.ip()),
            ready: true,
            serving: true,
            terminating: false,
            placement: Arc::clone(if one.is_local { &here } else { &elsewhere }),
        });
    let name = NamespacedName::new(NAMESPACE, &Objects::name(service));
    model.apply(Event::SliceApplied(EndpointSlice {
        service: name.clone(),
        name,
        family: IpFamily::V4,
        ports: [port].into_iter().collect(),
        endpoints: endpoints.collect(),
        change_trigger: None,
    }));
}
