//! What the listening ports of all families count, by Service port, for whoever looks.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use proxy::{IpFamily, ServicePortName};

use crate::port::Listener;
use crate::relay::{Carried, PortCounters};

/// The counters of the listening ports that are open. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Traffic(Arc<Mutex<HashMap<(IpFamily, Listener), Arc<PortCounters>>>>);

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
                .map(|((_, listener), counters)| (listener.name.clone(), Arc::clone(counters)))
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

    pub(crate) fn insert(
        &self,
        family: IpFamily,
        listener: &Listener,
        counters: &Arc<PortCounters>,
    ) {
        let counters = Arc::clone(counters);
        self.lock().insert((family, listener.clone()), counters);
    }

    pub(crate) fn remove(&self, family: IpFamily, listener: &Listener) {
        self.lock().remove(&(family, listener.clone()));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(IpFamily, Listener), Arc<PortCounters>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
