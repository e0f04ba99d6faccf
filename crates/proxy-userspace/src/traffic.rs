//! Counters and endpoints of all open listening ports, for readers on other threads.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use proxy::{IpFamily, Protocol, ServicePortName};

use crate::port::Listener;
use relay::{ListeningPort, PortBackends, PortCounters, TrafficCounts};

/// Open listening ports and their counters. Clones share the ports.
#[derive(Debug, Clone, Default)]
pub struct Traffic(Arc<Mutex<Ports>>);

/// Open ports, by IP family and listener.
type Ports = HashMap<(IpFamily, Listener), OpenPort>;

/// Number of listening ports that this process has opened so far.
static OPENINGS: AtomicU64 = AtomicU64::new(0);

/// An open listening port, with its number, counters and endpoints.
#[derive(Debug, Clone)]
struct OpenPort {
    opening: u64,
    number: u16,
    counters: Arc<PortCounters>,
    serving: Arc<PortBackends>,
}

/// Traffic of one listening port. A Service port may have several listening ports.
#[derive(Debug, Clone)]
pub struct ListenerTraffic {
    /// Service port that owns the listener.
    pub name: ServicePortName,
    /// Number of this opening of the port, unique within this process. Each opening begins with
    /// zero counters.
    pub opening: u64,
    /// Total traffic of the port.
    pub sum: TrafficCounts,
    /// Traffic of each endpoint.
    pub endpoints: Vec<(SocketAddr, TrafficCounts)>,
}

impl Traffic {
    /// Returns the traffic of each listening port that is open.
    pub fn read(&self) -> Vec<ListenerTraffic> {
        // Copies the list of ports first, so that the lock is free while the counters are read.
        let ports: Vec<_> = {
            let held = self.lock();
            let ports = held.iter();
            ports
                .map(|((_, listener), port)| {
                    let counters = Arc::clone(&port.counters);
                    (listener.name.clone(), port.opening, counters)
                })
                .collect()
        };
        let read = |(name, opening, counters): (ServicePortName, u64, Arc<PortCounters>)| {
            let (sum, endpoints) = counters.read();
            ListenerTraffic {
                name,
                opening,
                sum,
                endpoints,
            }
        };
        ports.into_iter().map(read).collect()
    }

    /// Returns the Service port and the endpoints of an open listening port, or `None` if the port
    /// is not open.
    pub fn listening(
        &self,
        family: IpFamily,
        protocol: Protocol,
        number: u16,
    ) -> Option<(ServicePortName, Arc<PortBackends>)> {
        let held = self.lock();
        let (listener, port) = held
            .iter()
            .map(|((of, listener), port)| (*of, listener, port))
            .find(|(of, listener, port)| {
                *of == family && listener.name.protocol == protocol && port.number == number
            })
            .map(|(_, listener, port)| (listener, port))?;
        Some((listener.name.clone(), Arc::clone(&port.serving)))
    }

    pub(crate) fn insert(
        &self,
        family: IpFamily,
        listener: &Listener,
        opened: &ListeningPort,
        serving: &Arc<PortBackends>,
    ) {
        let port = OpenPort {
            opening: OPENINGS.fetch_add(1, Ordering::Relaxed),
            number: opened.at.port(),
            counters: Arc::clone(&opened.counters),
            serving: Arc::clone(serving),
        };
        self.lock().insert((family, listener.clone()), port);
    }

    /// Replaces the endpoints of a listening port with those of `serving`.
    pub(crate) fn update(
        &self,
        family: IpFamily,
        listener: &Listener,
        serving: &Arc<PortBackends>,
    ) {
        if let Some(port) = self.lock().get_mut(&(family, listener.clone())) {
            port.serving = Arc::clone(serving);
        }
    }

    pub(crate) fn remove(&self, family: IpFamily, listener: &Listener) {
        self.lock().remove(&(family, listener.clone()));
    }

    fn lock(&self) -> MutexGuard<'_, Ports> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use proxy::NamespacedName;

    use super::*;
    use crate::port::{ListenerKind, Scope, Sources};

    #[test]
    fn a_listening_port_that_is_opened_again_is_counted_separately() {
        let traffic = Traffic::default();
        let serving = Arc::<PortBackends>::default();
        let listener = |scope| Listener {
            name: ServicePortName {
                service: NamespacedName::new("default", "web"),
                port: "http".into(),
                protocol: Protocol::Tcp,
            },
            kind: ListenerKind {
                scope,
                sources: Sources::All,
            },
        };
        let open = |scope, number: u16| {
            let opened = ListeningPort {
                number: number.into(),
                at: ([0, 0, 0, 0], number).into(),
                counters: Arc::default(),
            };
            traffic.insert(IpFamily::V4, &listener(scope), &opened, &serving);
        };
        let openings = || {
            let mut all: Vec<u64> = traffic.read().iter().map(|of| of.opening).collect();
            all.sort_unstable();
            all
        };
        open(Scope::Cluster, 1_000);
        open(Scope::Local, 1_001);
        let [cluster, local] = openings()[..] else {
            panic!("{:?}", openings());
        };
        traffic.remove(IpFamily::V4, &listener(Scope::Local));
        assert_eq!(openings(), [cluster]);
        // A port that is opened again begins with zero counters.
        open(Scope::Local, 1_001);
        let again = openings()[1];
        assert!(again != local && again != cluster);
    }
}
