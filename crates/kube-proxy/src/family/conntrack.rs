//! Deletes conntrack entries of UDP flows to endpoints that no longer serve. Without this deletion,
//! the packets of a client that sends constantly would still reach such an endpoint. After the
//! deletion, rules choose another endpoint for the client's next packet, or reject the packet.
//!
//! ```text
//!   a Service is in the kernel ── its UDP ports ─────▶ Worker: UdpServices ──▶ find, delete
//!   rules were removed from the kernel ── frontends ─▶      if Services changed or were repaired
//! ```
//!
//! - **Order**: the worker compares flows only after the rules are written. So the next packet of a
//!   deleted flow matches the new rules.
//! - **Limits**: the worker never flushes the conntrack table (kubernetes/kubernetes#122740). It
//!   deletes only flows in conntrack's default zone, because other zones belong to other programs.
//! - **Parallel work**: no other work waits for the comparison. If changes arrive while the worker
//!   compares the flows of the table, the worker handles these changes together afterwards.
//! - **Memory**: a node may track a million flows. So the worker compares each flow while the
//!   kernel lists the table, and deletes stale flows in batches.
//! - **Fairness**: one comparison of the table deletes a limited number of each Service's flows. So
//!   a Service with many stale flows does not delay other Services.
//!
//! In IPVS mode, this module deletes only flows that IPVS does not know. When a destination is
//! removed, IPVS itself deletes the known flows: its own entry and the conntrack entry
//! (`expire_nodest_conn`, Linux 5.9). IPVS does not know a flow in these cases:
//!
//! - A client opened the flow before the Service existed, or while this program did not run.
//! - A client opened the flow while another program had deleted the virtual server.
//! - Another program has NAT rules for the flow.
//!
//! In all other modes, this module deletes every stale flow.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use conntrack_netlink::{Conntrack, Flow, Outcome};
use netlink_batch::Worker;
use proxy::{
    Changes, Frontend, IpFamily, Model, NamespacedName, NodePorts, Protocol, Report, StaleOf,
    UdpService, UdpServices,
};
use service_counters::Counters;
use tracing::{debug, error, info};

use crate::metrics::Metrics;

/// Maximum number of flows that one netlink call deletes. Each deletion needs memory for a message
/// and a reply.
const FLOWS_PER_CALL: usize = 4_096;
/// Maximum number of flows of one Service that one comparison of the conntrack table deletes.
/// Deleting so many flows takes the kernel about as long as listing the table.
const FLOWS_PER_PASS: usize = 65_536;

/// Handle to the worker that deletes the stale UDP flows of one IP family.
#[derive(Debug)]
pub(crate) struct StaleFlows {
    family: IpFamily,
    worker: Worker<Cleaner>,
    /// Services whose UDP ports the conntrack worker already knows.
    known: HashSet<NamespacedName>,
    /// Changed Services. The conntrack worker receives a Service once the kernel has its entries.
    waiting: HashMap<NamespacedName, UdpService>,
    /// Number of calls that the conntrack worker has not started yet.
    queued: Arc<AtomicUsize>,
    /// True if the conntrack worker must compare all flows again, after a change or a failure.
    is_due: Arc<AtomicBool>,
}

/// A Service's name and its UDP ports, as the worker receives them.
type Update = (NamespacedName, UdpService);

impl StaleFlows {
    /// Starts the conntrack worker, which opens its netlink socket before the first comparison.
    ///
    /// # Errors
    ///
    /// Fails if a thread cannot be started.
    pub(crate) fn new(family: IpFamily, metrics: Metrics, counters: Counters) -> io::Result<Self> {
        let (is_due, queued) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let cleaner = Cleaner {
            family,
            metrics,
            counters,
            services: UdpServices::default(),
            is_due: Arc::clone(&is_due),
            queued: Arc::clone(&queued),
            failure: None,
        };
        let name = format!("conntrack-{family}");
        Ok(Self {
            family,
            worker: Worker::spawn(&name, move || Ok::<_, io::Error>(cleaner))?,
            known: HashSet::new(),
            waiting: HashMap::new(),
            queued,
            is_due,
        })
    }

    /// Collects changed Services. [`compare`](Self::compare) sends them to the worker once the
    /// kernel has their entries.
    pub(crate) fn note(&mut self, model: &Model, changes: &Changes) {
        for name in &changes.services {
            let view = model.view(name).filter(|view| {
                let mut ports = view.service.ports.iter();
                ports.any(|port| port.protocol == Protocol::Udp)
            });
            let was_known = match view {
                Some(_) => !self.known.insert(name.clone()),
                None => self.known.remove(name),
            };
            if was_known || view.is_some() {
                let service = view.map(|view| UdpService::of(&view, self.family));
                self.waiting
                    .insert(name.clone(), service.unwrap_or_default());
            }
        }
    }

    /// Starts a comparison of the flows for any of three reasons:
    ///
    /// - changed or repaired UDP Services have reached the kernel;
    /// - UDP entries were removed from the kernel;
    /// - an earlier comparison failed, or had to wait for an object that had never been readable.
    pub(crate) fn compare(
        &mut self,
        model: &Model,
        report: &Report,
        node_ports: Option<&NodePorts>,
    ) {
        let settled = report.settled.iter();
        let updates: Vec<Update> = settled
            .filter_map(|service| self.waiting.remove_entry(service))
            .collect();
        let mut repaired = report.repaired.iter();
        // A flow that began while another program had deleted the Service's entry has no endpoint.
        // So a repaired Service needs a comparison even if its endpoints are unchanged.
        let is_repaired = repaired.any(|service| self.known.contains(service));
        let is_idle =
            self.queued.load(Ordering::Acquire) == 0 && !self.is_due.load(Ordering::Acquire);
        if is_idle && updates.is_empty() && !is_repaired && report.withdrawn.is_empty() {
            // A change of Services without UDP ports does not wake the worker.
            return;
        }
        let withdrawn = report.withdrawn.clone();
        let node_ports = node_ports.cloned();
        // Deletes only once every object has been readable: the endpoint of a flow may belong to
        // an object that the model does not know yet, and still serve.
        let may_delete = model.is_whole();
        self.queued.fetch_add(1, Ordering::Relaxed);
        let queued = Arc::clone(&self.queued);
        // Does not wait for the result, because the worker runs the call in any case.
        drop(self.worker.call(move |cleaner| {
            cleaner.take(updates, withdrawn, is_repaired);
            let is_last = queued.fetch_sub(1, Ordering::AcqRel) == 1;
            if is_last && may_delete {
                cleaner.clean(node_ports.as_ref());
            }
        }));
    }
}

/// State of the worker thread that compares flows with Services, and deletes stale flows.
#[derive(Debug)]
struct Cleaner {
    family: IpFamily,
    metrics: Metrics,
    /// Reader of the current mode's counters. In userspace mode, it also finds the Service of a
    /// listening port.
    counters: Counters,
    services: UdpServices,
    /// True if the worker must compare all flows again, after a change or a failure.
    is_due: Arc<AtomicBool>,
    /// Number of calls queued after the current call.
    queued: Arc<AtomicUsize>,
    /// Failure that the log last reported. `None`: the last comparison succeeded.
    failure: Option<String>,
}

impl Cleaner {
    /// Applies changes to the known Services. If a change concerns flows, requests a comparison
    /// (`is_due`). The caller must not set `is_due` itself: a running comparison would clear the
    /// flag without having seen the change.
    fn take(&mut self, updates: Vec<Update>, withdrawn: Vec<Frontend>, is_repaired: bool) {
        let mut concerns_flows = is_repaired || !withdrawn.is_empty();
        self.services.withdraw(withdrawn);
        for (name, service) in updates {
            concerns_flows |= self.services.set(&name, service);
        }
        if concerns_flows {
            self.is_due.store(true, Ordering::Release);
        }
    }

    fn clean(&mut self, node_ports: Option<&NodePorts>) {
        while self.is_due.swap(false, Ordering::AcqRel) {
            let is_over = self.pass(node_ports.unwrap_or(&NodePorts::default()));
            if is_over && self.services.forget_withdrawn(node_ports.is_some()) {
                continue;
            }
            self.is_due.store(true, Ordering::Release);
            let waits_for_others = is_over || self.failure.is_some();
            // Handles the queued changes of Services before it compares flows.
            if waits_for_others || self.queued.load(Ordering::Acquire) > 0 {
                return;
            }
        }
    }

    /// Compares all flows of the conntrack table once, and logs the outcome. Returns true if no
    /// stale flow remains.
    fn pass(&mut self, node_ports: &NodePorts) -> bool {
        let family = self.family;
        let began = Instant::now();
        match self.try_pass(node_ports) {
            Ok(PassOutcome {
                compared,
                deleted,
                is_over,
            }) => {
                self.metrics
                    .flows_compared(family, began.elapsed(), deleted);
                if self.failure.take().is_some() {
                    info!(%family, "stale UDP flows can be deleted again");
                }
                if deleted > 0 {
                    info!(%family, compared, deleted, "stale UDP flows deleted");
                } else {
                    debug!(%family, compared, "no UDP flow is stale");
                }
                is_over
            }
            Err(failure) => {
                let text = format!("{failure:#}");
                if self.failure.as_ref() != Some(&text) {
                    error!(
                        %family,
                        "stale UDP flows stay, and their clients may get no answer: {text}. It is tried again"
                    );
                    self.failure = Some(text);
                }
                false
            }
        }
    }

    fn try_pass(&self, node_ports: &NodePorts) -> Result<PassOutcome> {
        // Deletes flows over a second socket, because the first socket still receives the list. If
        // a deletion affects the flow that the kernel listed last, the kernel lists that flow's
        // hash bucket again, and some flows count twice.
        let mut conntrack = Conntrack::open()?;
        let mut deleting = Conntrack::open()?;
        let mut pass =
            Pass::new(|flows: &[Flow], deleted: &mut usize| delete(&mut deleting, flows, deleted));
        let found = conntrack
            .find(self.family, Protocol::Udp, |flow| {
                if let Some(of) = self.find_stale(flow, node_ports) {
                    pass.add(of, flow);
                }
                false
            })
            .context("cannot list tracked flows")?;
        let (deleted, is_over) = pass.end()?;
        Ok(PassOutcome {
            compared: found.seen,
            deleted,
            is_over,
        })
    }

    /// Returns the owner of a stale flow: a Service, or a frontend without one. `None`: not stale.
    fn find_stale(&self, flow: &Flow, node_ports: &NodePorts) -> Option<StaleOf<'_>> {
        let is_default_zone = [flow.zone, flow.original.zone, flow.reply.zone] == [0; 3];
        let (destination, answerer) = (flow.original.destination, flow.reply.source);
        self.services
            .find_stale(destination, answerer, node_ports)
            .filter(|_| is_default_zone && !self.is_relayed(destination, answerer, node_ports))
    }

    /// Reports whether userspace mode relays this flow, because the flow arrived at a listening
    /// port of a Service that claims the flow's destination.
    ///
    /// - The relay itself moves such a flow to another endpoint. So the conntrack entry must stay:
    ///   without it, the kernel would no longer translate replies.
    /// - If another Service owns the destination now, rules redirect only new flows to that
    ///   Service.
    fn is_relayed(
        &self,
        destination: SocketAddr,
        answerer: SocketAddr,
        node_ports: &NodePorts,
    ) -> bool {
        let relayed = self
            .counters
            .with(|reader| reader.relayed(self.family, Protocol::Udp, answerer.port()));
        relayed.flatten().is_some_and(|relayed| {
            let service = &relayed.name.service;
            self.services.is_served_by(service, destination, node_ports)
        })
    }
}

/// Outcome of one comparison of all flows in the conntrack table.
struct PassOutcome {
    compared: usize,
    deleted: usize,
    /// True if no stale flow remains for the next comparison.
    is_over: bool,
}

/// Comparison of all flows in the conntrack table. Deletes stale flows in batches, and at most a
/// limited number of flows for each Service.
struct Pass<'a, D> {
    delete: D,
    piece: Vec<Flow>,
    counts: HashMap<StaleOf<'a>, usize>,
    deleted: usize,
    is_over: bool,
    failure: Option<anyhow::Error>,
}

impl<'a, D: FnMut(&[Flow], &mut usize) -> Result<()>> Pass<'a, D> {
    fn new(delete: D) -> Self {
        Self {
            delete,
            piece: Vec::new(),
            counts: HashMap::new(),
            deleted: 0,
            is_over: true,
            failure: None,
        }
    }

    fn add(&mut self, of: StaleOf<'a>, flow: &Flow) {
        let count = self.counts.entry(of).or_default();
        if *count == FLOWS_PER_PASS {
            self.is_over = false;
            return;
        }
        *count += 1;
        self.piece.push(*flow);
        if self.piece.len() == FLOWS_PER_CALL {
            self.delete_piece();
        }
    }

    fn delete_piece(&mut self) {
        if let Err(failure) = (self.delete)(&self.piece, &mut self.deleted) {
            self.failure.get_or_insert(failure);
        }
        self.piece.clear();
    }

    /// Deletes the last batch. Returns the number of deleted flows, and true if no stale flow
    /// remains.
    fn end(mut self) -> Result<(usize, bool)> {
        if !self.piece.is_empty() {
            self.delete_piece();
        }
        match self.failure {
            None => Ok((self.deleted, self.is_over)),
            Some(failure) => Err(failure),
        }
    }
}

/// Deletes these flows, and adds the number of flows that still existed to `deleted`. Continues if
/// the kernel refuses a deletion.
fn delete(conntrack: &mut Conntrack, stale: &[Flow], deleted: &mut usize) -> Result<()> {
    let outcomes = conntrack
        .delete(stale)
        .context("cannot delete tracked flows")?;
    let mut failed = Ok(());
    for (flow, outcome) in stale.iter().zip(outcomes) {
        let reason = match outcome {
            Outcome::Deleted => {
                *deleted += 1;
                continue;
            }
            Outcome::Absent => continue,
            Outcome::Refused(refusal) => refusal.to_string(),
            Outcome::Unknown => "the answer was lost".to_owned(),
        };
        let (from, to) = (flow.original.source, flow.original.destination);
        failed = failed.and_then(|()| bail!("the flow from {from} to {to}: {reason}"));
    }
    failed
}

#[cfg(test)]
mod tests {
    use proxy::{Event, Service, ServicePort, ServicePortName};

    use service_counters::{CounterSample, CounterSelection, ReadCounters, RelayedPort};

    use super::*;

    use std::net::IpAddr;

    fn service(name: &str, protocols: &[Protocol]) -> Event {
        let port = |protocol: &Protocol| ServicePort {
            name: protocol.lower().into(),
            protocol: *protocol,
            port: 53,
            node_port: None,
        };
        Event::ServiceApplied(Service {
            ports: protocols.iter().map(port).collect(),
            ..Service::at(
                NamespacedName::new("default", name),
                [IpAddr::from([10, 96, 0, 10])],
            )
        })
    }

    #[test]
    fn the_conntrack_worker_receives_each_udp_service_that_is_added_or_removed() {
        let flows = StaleFlows::new(IpFamily::V4, Metrics::new(), Counters::default());
        let (mut model, mut flows) = (Model::new(), flows.unwrap());
        let mut told = |event| {
            model.apply(event);
            let changes = model.take_changes();
            flows.note(&model, &changes);
            let updates = flows.waiting.drain();
            let about = |(name, service): Update| {
                let what = if service.is_empty() { "gone" } else { "served" };
                format!("{}: {what}", name.name())
            };
            updates.map(about).collect::<Vec<_>>().join(", ")
        };
        let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
        let gone = |name| Event::ServiceDeleted(NamespacedName::new("default", name));
        assert_eq!(told(service("web", &[tcp])), "");
        assert_eq!(told(gone("web")), "");
        assert_eq!(told(service("dns", &[tcp, udp])), "dns: served");
        assert_eq!(told(service("dns", &[tcp])), "dns: gone");
        assert_eq!(told(service("dns", &[udp])), "dns: served");
        assert_eq!(told(gone("dns")), "dns: gone");
    }

    /// Returns a flow from a client's port to a Service whose endpoint was removed.
    fn flow(to: [u8; 4], client: usize) -> Flow {
        let port = u16::try_from(client % 60_000).unwrap() + 1;
        let host = u8::try_from(client / 60_000).unwrap();
        let client = SocketAddr::from(([10, 244, 1, host], port));
        let tuple = |source, destination| conntrack_netlink::Tuple {
            source,
            destination,
            zone: 0,
        };
        let endpoint = SocketAddr::from(([10, 244, 2, 10], 8080));
        Flow {
            protocol: Protocol::Udp,
            original: tuple(client, SocketAddr::from((to, 53))),
            reply: tuple(endpoint, client),
            zone: 0,
            id: 0,
            status: 0,
            mark: 0,
        }
    }

    #[test]
    fn a_service_with_many_stale_flows_does_not_delay_other_services() {
        let (many, few) = (
            NamespacedName::new("default", "many"),
            NamespacedName::new("default", "few"),
        );
        let (mut pieces, mut of_few) = (Vec::new(), 0);
        let mut pass = Pass::new(|flows: &[Flow], deleted: &mut usize| {
            *deleted += flows.len();
            pieces.push(flows.len());
            let to = flows.iter().map(|flow| flow.original.destination);
            of_few += to
                .filter(|to| to.ip() == IpAddr::from([10, 96, 0, 2]))
                .count();
            Ok(())
        });
        for client in 0..2 * FLOWS_PER_PASS {
            pass.add(StaleOf::Service(&many), &flow([10, 96, 0, 1], client));
        }
        for client in 0..10 {
            pass.add(StaleOf::Service(&few), &flow([10, 96, 0, 2], client));
        }
        let (deleted, is_over) = pass.end().unwrap();
        assert_eq!((deleted, of_few), (FLOWS_PER_PASS + 10, 10));
        assert!(!is_over, "the rest is for the next pass");
        assert!(pieces.iter().all(|piece| *piece <= FLOWS_PER_CALL));
    }

    #[test]
    fn a_flow_that_cannot_be_deleted_does_not_stop_other_deletions() {
        let service = NamespacedName::new("default", "dns");
        let mut pass = Pass::new(|flows: &[Flow], deleted: &mut usize| {
            let refused = flows.iter().filter(|flow| flow.original.source.port() == 1);
            let refused = refused.count();
            *deleted += flows.len() - refused;
            anyhow::ensure!(refused == 0, "it is offloaded");
            Ok(())
        });
        for client in 0..2 * FLOWS_PER_CALL {
            pass.add(StaleOf::Service(&service), &flow([10, 96, 0, 1], client));
        }
        assert_eq!(pass.deleted, 2 * FLOWS_PER_CALL - 1);
        assert_eq!(pass.end().unwrap_err().to_string(), "it is offloaded");
    }

    /// A fake mode whose relay serves one port.
    struct Relay(u16);

    impl ReadCounters for Relay {
        fn tell(
            &mut self,
            _: CounterSelection<'_>,
            _: &mut dyn FnMut(CounterSample<'_>),
        ) -> Result<()> {
            Ok(())
        }

        fn relayed(&self, family: IpFamily, protocol: Protocol, port: u16) -> Option<RelayedPort> {
            let is_it = (family, protocol, port) == (IpFamily::V4, Protocol::Udp, self.0);
            is_it.then(|| RelayedPort {
                name: ServicePortName {
                    service: NamespacedName::new("default", "dns"),
                    port: "udp".into(),
                    protocol,
                },
                endpoints: Vec::new(),
                sources: None,
            })
        }
    }

    /// Creates Services that all claim the same UDP address and port.
    fn claimed_by(names: &[&str]) -> UdpServices {
        let mut services = UdpServices::default();
        for name in names {
            let mut model = Model::new();
            model.apply(service(name, &[Protocol::Udp]));
            let name = NamespacedName::new("default", name);
            let service = UdpService::of(&model.view(&name).unwrap(), IpFamily::V4);
            assert!(services.set(&name, service));
        }
        services
    }

    #[test]
    fn entries_removed_during_a_conntrack_pass_need_a_second_pass() {
        let flows = StaleFlows::new(IpFamily::V4, Metrics::new(), Counters::default());
        let mut flows = flows.unwrap();
        let (end, running) = std::sync::mpsc::channel::<()>();
        let pass = flows.worker.call(move |_| running.recv().is_ok());
        let mut report = Report::default();
        report.withdraw(None, Protocol::Udp, 30_053);
        flows.compare(&Model::new(), &report, None);
        assert_eq!(flows.queued.load(Ordering::Acquire), 1);
        assert!(!flows.is_due.load(Ordering::Acquire));
        drop((end, pass));
    }

    #[test]
    fn flows_served_by_the_relay_are_not_stale() {
        let counters = Counters::default();
        let mut cleaner = Cleaner {
            family: IpFamily::V4,
            metrics: Metrics::new(),
            counters: counters.clone(),
            services: claimed_by(&["dns"]),
            is_due: Arc::default(),
            queued: Arc::default(),
            failure: None,
        };
        let is_relayed = |cleaner: &Cleaner, port: u16| {
            let to = SocketAddr::from(([10, 96, 0, 10], 53));
            let by = SocketAddr::from(([10, 244, 1, 1], port));
            cleaner.is_relayed(to, by, &NodePorts::default())
        };
        assert!(!is_relayed(&cleaner, 42_209), "no mode serves yet");
        counters.set(Box::new(Relay(42_209)));
        assert!(is_relayed(&cleaner, 42_209));
        assert!(!is_relayed(&cleaner, 8_080));
        cleaner.services = claimed_by(&["dns", "other"]);
        assert!(is_relayed(&cleaner, 42_209), "either may have it");
        cleaner.services = claimed_by(&["other"]);
        assert!(!is_relayed(&cleaner, 42_209), "it went over");
    }
}
