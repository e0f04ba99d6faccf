//! What the listening ports of all families count, by Service port, and who serves there, for whoever
//! looks.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use proxy::{IpFamily, Protocol, ServicePortName};

use crate::port::Listener;
use relay::{Carried, Opened, PortCounters, Serving};

/// The listening ports that are open, and their counters. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Traffic(Arc<Mutex<Ports>>);

/// Those of each listening port.
type Ports = HashMap<(IpFamily, Listener), OpenPort>;

/// How many listening ports this process has opened.
static OPENINGS: AtomicU64 = AtomicU64::new(0);

/// A listening port that is open.
#[derive(Debug, Clone)]
struct OpenPort {
    opening: u64,
    number: u16,
    counters: Arc<PortCounters>,
    serving: Arc<Serving>,
}

/// What was counted of one listening port: a Service port may have several.
#[derive(Debug, Clone)]
pub struct OfListener {
    /// Whose it is.
    pub name: ServicePortName,
    /// Which one it is, of all that this process ever opens: what another one counts begins at 0.
    pub opening: u64,
    /// All of it.
    pub sum: Carried,
    /// By endpoint.
    pub endpoints: Vec<(SocketAddr, Carried)>,
}

impl Traffic {
    /// What was counted, by listening port.
    pub fn read(&self) -> Vec<OfListener> {
        // So that no port waits to be opened while they are read.
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
            OfListener {
                name,
                opening,
                sum,
                endpoints,
            }
        };
        ports.into_iter().map(read).collect()
    }

    /// Whose a listening port is, and who serves there.
    pub fn listening(
        &self,
        family: IpFamily,
        protocol: Protocol,
        number: u16,
    ) -> Option<(ServicePortName, Arc<Serving>)> {
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
        opened: &Opened,
        serving: &Arc<Serving>,
    ) {
        let port = OpenPort {
            opening: OPENINGS.fetch_add(1, Ordering::Relaxed),
            number: opened.at.port(),
            counters: Arc::clone(&opened.counters),
            serving: Arc::clone(serving),
        };
        self.lock().insert((family, listener.clone()), port);
    }

    /// Takes in that others serve now.
    pub(crate) fn update(&self, family: IpFamily, listener: &Listener, serving: &Arc<Serving>) {
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
    use crate::port::{Scope, Sources, Way};

    #[test]
    fn each_opening_of_a_listening_port_is_told_apart() {
        let traffic = Traffic::default();
        let serving = Arc::<Serving>::default();
        let listener = |scope| Listener {
            name: ServicePortName {
                service: NamespacedName::new("default", "web"),
                port: "http".into(),
                protocol: Protocol::Tcp,
            },
            way: Way {
                scope,
                sources: Sources::All,
            },
        };
        let open = |scope, number: u16| {
            let opened = Opened {
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
        // It counts from 0 again.
        open(Scope::Local, 1_001);
        let again = openings()[1];
        assert!(again != local && again != cluster);
    }
}
