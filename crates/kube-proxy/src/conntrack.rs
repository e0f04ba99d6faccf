//! Deletes tracked UDP flows that lead to endpoints that are gone, so that a client that never
//! stops sending is moved.
//!
//! ```text
//!   a Service is in the kernel ── its UDP ports ──▶ Worker: UdpServices ──▶ find, delete
//!                                                   if they changed, or it had to be repaired
//! ```
//!
//! IPVS forgets its own entry of a flow when a destination is removed, and with it the tracked one
//! (`expire_nodest_conn`, Linux 5.9). What is left are flows that IPVS never knew: opened before
//! there was the Service, or while this program was not running, or while somebody had taken its
//! virtual server away, or answered by somebody else's NAT. Flows are compared and never flushed
//! (k/k#122740), in conntrack's default zone only: other zones are their makers'.
//!
//! Nothing waits for this. What arrives while a table is read is looked at together, after it. A
//! node may track a million flows: they are compared one by one as the kernel tells them, and only
//! stale ones are kept.

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
    Changes, IpFamily, Model, NamespacedName, NodePorts, Protocol, Report, UdpPort, UdpServices,
    udp_ports,
};
use tracing::{debug, error, info};

use crate::metrics::Metrics;
use crate::modes::counters::Counters;

/// How many flows are deleted by one call: each is a message and an answer in memory.
const FLOWS_PER_CALL: usize = 4_096;

/// Stale flows of one family.
#[derive(Debug)]
pub(crate) struct StaleFlows {
    family: IpFamily,
    worker: Worker<Cleaner>,
    /// Services that the worker knows UDP ports of.
    known: HashSet<NamespacedName>,
    /// What the worker is to be told once it is in the kernel.
    waiting: HashMap<NamespacedName, Vec<UdpPort>>,
    /// Calls that the worker has not begun.
    queued: Arc<AtomicUsize>,
    /// Whether something changed, as far as the worker has been told, since the flows were last
    /// compared.
    is_due: Arc<AtomicBool>,
}

/// A Service and its UDP ports.
type Update = (NamespacedName, Vec<UdpPort>);

impl StaleFlows {
    /// Starts the worker. It opens its socket when there is something to compare.
    ///
    /// # Errors
    ///
    /// There is no thread for it.
    pub(crate) fn new(family: IpFamily, metrics: Metrics, counters: Counters) -> io::Result<Self> {
        let is_due = Arc::new(AtomicBool::new(false));
        let due = Arc::clone(&is_due);
        let cleaner = move || {
            Ok::<_, io::Error>(Cleaner {
                family,
                metrics,
                counters,
                services: UdpServices::default(),
                is_due: due,
                failure: None,
            })
        };
        Ok(Self {
            family,
            worker: Worker::spawn(&format!("conntrack-{family}"), cleaner)?,
            known: HashSet::new(),
            waiting: HashMap::new(),
            queued: Arc::default(),
            is_due,
        })
    }

    /// Takes in what changed, to be compared once it is in the kernel.
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
                let ports = view.map(|view| udp_ports(&view, self.family));
                self.waiting.insert(name.clone(), ports.unwrap_or_default());
            }
        }
    }

    /// Has the flows compared if UDP Services of which all is in the kernel now have changed or had
    /// to be repaired, or if that failed before.
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
        if repaired.any(|service| self.known.contains(service)) {
            // What was opened meanwhile leads nowhere, though no endpoint has changed.
            self.is_due.store(true, Ordering::Release);
        }
        let is_idle =
            self.queued.load(Ordering::Acquire) == 0 && !self.is_due.load(Ordering::Acquire);
        if is_idle && updates.is_empty() {
            // Not even a thread is woken for a change that is none of its.
            return;
        }
        let node_ports = node_ports.cloned().unwrap_or_default();
        // While an object could not be read, who answers may be an endpoint that is not known.
        let may_delete = model.is_whole();
        self.queued.fetch_add(1, Ordering::Relaxed);
        let queued = Arc::clone(&self.queued);
        // The call is made though nobody waits for it.
        drop(self.worker.call(move |cleaner| {
            cleaner.take(updates);
            let is_last = queued.fetch_sub(1, Ordering::AcqRel) == 1;
            if is_last && may_delete {
                cleaner.clean(&node_ports);
            }
        }));
    }
}

/// What the worker owns.
#[derive(Debug)]
struct Cleaner {
    family: IpFamily,
    metrics: Metrics,
    /// Of the mode that serves, which knows what this process relays itself.
    counters: Counters,
    services: UdpServices,
    /// Something changed since the flows were last compared.
    is_due: Arc<AtomicBool>,
    /// What was last said of a failure.
    failure: Option<String>,
}

impl Cleaner {
    fn take(&mut self, updates: Vec<Update>) {
        for (service, ports) in updates {
            if self.services.set(&service, ports) {
                self.is_due.store(true, Ordering::Release);
            }
        }
    }

    fn clean(&mut self, node_ports: &NodePorts) {
        // What comes to be due while flows are compared has them compared again.
        if !self.is_due.swap(false, Ordering::AcqRel) {
            return;
        }
        let family = self.family;
        let began = Instant::now();
        match self.try_clean(node_ports) {
            Ok((compared, deleted)) => {
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
            }
            Err(failure) => {
                self.is_due.store(true, Ordering::Release);
                let text = format!("{failure:#}");
                if self.failure.as_ref() != Some(&text) {
                    error!(
                        %family,
                        "stale UDP flows stay, and their clients may get no answer: {text}. It is tried again"
                    );
                    self.failure = Some(text);
                }
            }
        }
    }

    /// How many flows were compared, and how many of them deleted.
    fn try_clean(&self, node_ports: &NodePorts) -> Result<(usize, usize)> {
        let family = match self.family {
            IpFamily::V4 => conntrack_netlink::Family::Inet,
            IpFamily::V6 => conntrack_netlink::Family::Inet6,
        };
        let mut conntrack = Conntrack::open()?;
        let udp = conntrack_netlink::Protocol::Udp;
        let found = conntrack
            .find(family, udp, |flow| self.is_stale(flow, node_ports))
            .context("cannot list tracked flows")?;
        let mut deleted = 0;
        for part in found.flows.chunks(FLOWS_PER_CALL) {
            deleted += delete(&mut conntrack, part)?;
        }
        Ok((found.seen, deleted))
    }

    fn is_stale(&self, flow: &Flow, node_ports: &NodePorts) -> bool {
        let is_default_zone = [flow.zone, flow.original.zone, flow.reply.zone] == [0; 3];
        let (destination, answerer) = (flow.original.destination, flow.reply.source);
        is_default_zone
            && self.services.is_stale(destination, answerer, node_ports)
            && !self.is_relayed(destination, answerer, node_ports)
    }

    /// Whether a listening port of this process answers, in userspace mode, and is one of a Service
    /// that claims what the flow is sent to: the relay itself moves what comes there, and without its
    /// entry an answer that is under way would not be translated back. Where that went over to
    /// another Service, nothing but a new flow is redirected there.
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
            self.services
                .is_claimed_by(service, destination, node_ports)
        })
    }
}

/// How many of these flows were there to be deleted.
fn delete(conntrack: &mut Conntrack, stale: &[Flow]) -> Result<usize> {
    let outcomes = conntrack
        .delete(stale)
        .context("cannot delete tracked flows")?;
    let mut deleted = 0;
    for (flow, outcome) in stale.iter().zip(outcomes) {
        let (from, to) = (flow.original.source, flow.original.destination);
        match outcome {
            Outcome::Deleted => deleted += 1,
            Outcome::Absent => {}
            Outcome::Refused(refusal) => bail!("the flow from {from} to {to}: {refusal}"),
            Outcome::Unknown => bail!("the flow from {from} to {to}: the answer was lost"),
        }
    }
    Ok(deleted)
}

#[cfg(test)]
mod tests {
    use proxy::{Event, Service, ServicePort, ServicePortName};

    use crate::modes::counters::{ReadCounters, Relayed, Told, Which};

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
    fn the_worker_is_told_of_udp_services_and_of_their_end() {
        let flows = StaleFlows::new(IpFamily::V4, Metrics::new(), Counters::default());
        let (mut model, mut flows) = (Model::new(), flows.unwrap());
        let mut told = |event| {
            model.apply(event);
            let changes = model.take_changes();
            flows.note(&model, &changes);
            let updates = flows.waiting.drain();
            let about = |(name, ports): Update| format!("{}: {}", name.name(), ports.len());
            updates.map(about).collect::<Vec<_>>().join(", ")
        };
        let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
        let gone = |name| Event::ServiceDeleted(NamespacedName::new("default", name));
        assert_eq!(told(service("web", &[tcp])), "");
        assert_eq!(told(gone("web")), "");
        assert_eq!(told(service("dns", &[tcp, udp])), "dns: 1");
        assert_eq!(told(service("dns", &[tcp])), "dns: 0");
        assert_eq!(told(service("dns", &[udp])), "dns: 1");
        assert_eq!(told(gone("dns")), "dns: 0");
    }

    /// A mode that relays what comes to one port.
    struct Relay(u16);

    impl ReadCounters for Relay {
        fn tell(&mut self, _: Which<'_>, _: &mut dyn FnMut(Told<'_>)) -> Result<()> {
            Ok(())
        }

        fn relayed(&self, family: IpFamily, protocol: Protocol, port: u16) -> Option<Relayed> {
            let is_it = (family, protocol, port) == (IpFamily::V4, Protocol::Udp, self.0);
            is_it.then(|| Relayed {
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

    /// Services of one UDP port at one address.
    fn claimed_by(names: &[&str]) -> UdpServices {
        let mut services = UdpServices::default();
        for name in names {
            let mut model = Model::new();
            model.apply(service(name, &[Protocol::Udp]));
            let name = NamespacedName::new("default", name);
            let ports = udp_ports(&model.view(&name).unwrap(), IpFamily::V4);
            assert!(services.set(&name, ports));
        }
        services
    }

    #[test]
    fn what_the_relay_answers_for_the_service_that_has_the_address_is_not_stale() {
        let counters = Counters::default();
        let mut cleaner = Cleaner {
            family: IpFamily::V4,
            metrics: Metrics::new(),
            counters: counters.clone(),
            services: claimed_by(&["dns"]),
            is_due: Arc::default(),
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
