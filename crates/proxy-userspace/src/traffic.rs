//! What the listening ports of all families count, by Service port, and who serves there, for whoever
//! looks.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use proxy::{IpFamily, Protocol, ServicePortName};

use crate::port::Listener;
use crate::relay::{Carried, Opened, PortCounters, Serving};

/// The listening ports that are open, and their counters. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Traffic(Arc<Mutex<Ports>>);

/// Those of each listening port.
type Ports = HashMap<(IpFamily, Listener), OpenPort>;

/// A listening port that is open.
#[derive(Debug, Clone)]
struct OpenPort {
    number: u16,
    counters: Arc<PortCounters>,
    serving: Arc<Serving>,
}

/// What was counted of one listening port: a Service port may have several.
#[derive(Debug, Clone)]
pub struct OfListener {
    /// Whose it is.
    pub name: ServicePortName,
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
                .map(|((_, listener), port)| (listener.name.clone(), Arc::clone(&port.counters)))
                .collect()
        };
        let read = |(name, counters): (ServicePortName, Arc<PortCounters>)| {
            let (sum, endpoints) = counters.read();
            OfListener {
                name,
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
